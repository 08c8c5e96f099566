/* options.h - every setting of siliceo-coordinator, filled by common/config.
 *
 * Durations are seconds and may be fractions, so that tests run the same rules
 * scaled down.  Filled once at start, then only read.
 */
#ifndef SILICEO_COORDINATOR_OPTIONS_H
#define SILICEO_COORDINATOR_OPTIONS_H

#include "common/config.h"

typedef struct options {
    const char *config; /* the file that was read; "" without one */
    const char *http;   /* HOST:PORT */
    const char *mesh;   /* tcp://HOST:PORT */
    const char *name;
    const char *log_level;

    const char *http_tls_cert_file;
    const char *http_tls_key_file;
    int64_t http_max_body_mib;
    int64_t http_max_bodies_mib;
    int64_t http_max_connections;
    double http_header_s;
    double http_body_s;
    double http_idle_s;
    double http_linger_s;
    double http_hold_headers_s;
    double http_keepalive_s;
    int64_t http_stream_queue_kib;

    const char *api_keys_file;
    bool api_shared;
    double api_share_s;
    const char *upstream_servers; /* one a line */
    double upstream_check_s;
    double upstream_check_limit_s;
    double upstream_connect_s;
    const char *tailscale_socket;
    double tailscale_interval_s;
    double tailscale_limit_s;
    const char *ledger_url;
    int64_t ledger_max_waiting;
    double ledger_retry_s;
    const char *queue_background_patterns; /* one a line */

    bool mesh_allow_plain;
    const char *mesh_curve_secret_file;
    const char *mesh_curve_allow_file;
    double mesh_beat_s;
    double mesh_heartbeat_s;
    double mesh_heartbeat_timeout_s;
    double mesh_linger_s;

    double node_suspect_s;
    double node_down_s;
    double node_forget_s;
    double node_engine_stall_s;
    double node_slow_path_s;
    double node_reconnect_s;
    int64_t node_breaker_failures;
    double node_breaker_s;

    int64_t queue_max_waiting;
    double queue_max_wait_s;

    double queue_loading_wait_s;
    const char *failover_different_numerics;
    double route_relay_s;
    const char *aliases;
    int64_t status_decisions;

    double limit_first_token_s;
    double limit_between_tokens_s;
    double limit_total_s;
    double limit_cancel_s;
    double drain_s;
    double goodbye_s;
} options;

/* Start the settings with their defaults; c and *o live together. */
status options_init(config *c, options *o, error *err);

/* What a single key cannot check: addresses, plain text off loopback, pairs of keys. */
status options_check(const options *o, error *err);

/* Is HOST:PORT or tcp://HOST:PORT on this machine's loopback only? */
bool options_is_loopback(const char *address);

#endif
