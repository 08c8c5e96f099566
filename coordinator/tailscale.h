/* tailscale.h - how packets reach a peer of the mesh VPN: straight, or over a relay.
 *
 * Asks Tailscale's LocalAPI over its unix socket, now and then, through web_client, and keeps
 * what it said about each peer's addresses.  That there is no Tailscale is normal and
 * silent.  A peer that nothing was sent to lately has no path yet: its answer is unknown.
 * `io` thread.
 */
#ifndef SILICEO_COORDINATOR_TAILSCALE_H
#define SILICEO_COORDINATOR_TAILSCALE_H

#include "common/error.h"
#include "coordinator/web_client.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tailscale tailscale;

typedef enum tailscale_path {
    TAILSCALE_NONE,    /* no address of the VPN that is known here */
    TAILSCALE_UNKNOWN, /* a peer, and no path to it is in use now */
    TAILSCALE_DIRECT,
    TAILSCALE_RELAYED
} tailscale_path;

enum { TAILSCALE_ADDRESS_SIZE = 46, TAILSCALE_RELAY_SIZE = 32, TAILSCALE_MAX_PEERS = 4096 };

typedef struct tailscale_peer {
    char address[TAILSCALE_ADDRESS_SIZE]; /* a peer with two addresses is there twice */
    char relay[TAILSCALE_RELAY_SIZE];     /* its home relay; "" where none was told */
    tailscale_path path;
} tailscale_peer;

/* socket: path of tailscaled's; must outlive the web client. */
status tailscale_open(tailscale **out, web_client *web, const char *socket,
                      uint64_t interval_ms, uint64_t limit_ms, error *err);
void tailscale_close(tailscale *t); /* after the web client; accepts NULL */
void tailscale_tick(tailscale *t, uint64_t now_ms);
/* address: an IP, or IP:PORT, or [IP]:PORT.  NULL t: TAILSCALE_NONE. */
tailscale_path tailscale_path_of(const tailscale *t, const char *address);

/* The peers of a LocalAPI status; the caller frees *out.  For the client and the fuzz target. */
status tailscale_read(tailscale_peer **out, size_t *n_peers, const char *json, size_t n,
                      error *err);

#endif
