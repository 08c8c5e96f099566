/* coordinator.h - the program's context: everything that the one `io` thread owns.
 *
 * The loop (coordinator.c) waits in one epoll for HTTP, the mesh and signals, and
 * runs whatever they brought to its end.  No locks, because no other thread
 * sees any of this.
 */
#ifndef SILICEO_COORDINATOR_COORDINATOR_H
#define SILICEO_COORDINATOR_COORDINATOR_H

#include "common/metrics.h"
#include "coordinator/admission.h"
#include "coordinator/auth.h"
#include "coordinator/decisions.h"
#include "coordinator/history.h"
#include "coordinator/http_server.h"
#include "coordinator/ledger.h"
#include "coordinator/node_table.h"
#include "coordinator/options.h"
#include "coordinator/request.h"
#include "coordinator/tailscale.h"
#include "coordinator/upstream.h"
#include "coordinator/web_client.h"
#include "coordinator/worker_link.h"
#include <stdbool.h>
#include <stdint.h>

enum { REQUEST_BUCKETS = 4096 };

typedef struct counters {
    metric *status[6]; /* replies of /v1 by class: 1xx .. 5xx, cut */
    metric *finished, *failed, *cancelled, *refused, *failed_over, *resumed, *joined;
    metric *prompt_tokens, *cached_tokens, *completion_tokens;
    metric *first_token, *between_tokens, *duration;
    metric *garbage;
} counters;

typedef struct coordinator {
    const options *options;
    int argc; /* the words of the start, by which SIGHUP reads the settings again */
    char **argv;
    uint64_t instance;
    uint64_t started_wall_ms;

    int epoll;
    int signal_fd;
    http_server *http;
    worker_link *link;
    web_client *web; /* NULL where nothing needs it */
    upstreams *upstreams;
    tailscale *tailscale; /* NULL: not asked */
    node_table nodes;
    auth auth;
    ledger *ledger;    /* NULL: none is kept */
    char *aliases;     /* as configured now */
    char *shared_keys; /* lines of the keys that stand in the ledger; NULL: none do */
    uint64_t next_share_ms;
    admission queue;
    request *buckets[REQUEST_BUCKETS]; /* by id */
    uint64_t last_request;
    uint32_t n_running;     /* requests that hold a place on a node */
    uint32_t n_cancelling;  /* of them, those that nobody waits for any more */
    uint64_t complained_ms; /* about nonsense on the mesh, when last */
    bool dispatch_due;
    bool mesh_due; /* the link may have something to read */
    decisions decisions;
    struct chat *chats; /* replies under way, for their clocks */

    bool draining;
    uint64_t drain_until_ms;

    history history;
    uint64_t watchdog_ms, watchdog_next_ms; /* systemd's, 0: none; when to tell it next */
    metrics metrics;
    counters counters;
    metrics_family *node_families[33]; /* set anew at each scrape, see api_ops.c */
} coordinator;

/* Open everything.  c must be zeroed, its options set; on failure, too, coordinator_close() is due. */
status coordinator_open(coordinator *c, error *err);
/* Run until a signal and the end of the drain.  Returns the exit code. */
int coordinator_run(coordinator *c);
void coordinator_close(coordinator *c);
/* libcurl's thread and its upstreams, none yet; nothing to do when they are there. */
status coordinator_open_web(coordinator *c, error *err);
/* To a worker over the mesh, or to an upstream; as worker_link_send(). */
status coordinator_send(coordinator *c, const void *identity, size_t n_identity,
                        const wire_message *m, error *err);

#endif
