/* upstream_config.h - one configured upstream: `NAME URL [option=value]...`.
 *
 * It never changes; SIGHUP may put another in its place while calls still run by the old one, so it
 * is counted who uses it.  Counting is safe from any thread, the rest is only read.
 */
#ifndef SILICEO_COORDINATOR_UPSTREAM_CONFIG_H
#define SILICEO_COORDINATOR_UPSTREAM_CONFIG_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/upstream_reply.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct upstream_config {
    atomic_uint n_users;
    char name[WIRE_MAX_NAME + 1];
    char url[512];       /* up to and with /v1, no slash at its end */
    char *authorization; /* the header line, or NULL; secret */
    char models[UPSTREAM_MAX_MODELS][WIRE_MAX_NAME + 1]; /* offered; none: all */
    size_t n_models;
    uint64_t concurrent;
    uint64_t context_tokens; /* 0: as the server says */
} upstream_config;

/* line is changed.  The caller is its first user. */
status upstream_config_parse(upstream_config **out, char *line, error *err);
upstream_config *upstream_config_use(upstream_config *c);
void upstream_config_leave(upstream_config *c); /* the last one frees it, the key is wiped */
bool upstream_config_same(const upstream_config *a, const upstream_config *b);

#endif
