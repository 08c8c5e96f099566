#include "coordinator/options.h"

#include "coordinator/aliases.h"
#include <string.h>

#define FIELD(member) offsetof(options, member)

static const config_key keys[] = {
    {"config", CONFIG_STRING, FIELD(config), "", 0, 0, NULL, "settings file"},
    {"http", CONFIG_STRING, FIELD(http), "127.0.0.1:8080", 0, 0, NULL,
     "HOST:PORT of the API; port 0 takes a free one"},
    {"mesh", CONFIG_STRING, FIELD(mesh), "tcp://127.0.0.1:5690", 0, 0, NULL,
     "tcp://HOST:PORT where workers connect; port 0 takes a free one"},
    {"name", CONFIG_STRING, FIELD(name), "coordinator", 0, 0, NULL, "name told to workers"},
    {"log_level", CONFIG_CHOICE, FIELD(log_level), "info", 0, 0, "debug|info|warn|error",
     "least level that is logged"},
    {"http.tls_cert_file", CONFIG_STRING, FIELD(http_tls_cert_file), "", 0, 0, NULL,
     "PEM file with the certificate and its chain: the API speaks HTTPS; SIGHUP reads it "
     "again"},
    {"http.tls_key_file", CONFIG_STRING, FIELD(http_tls_key_file), "", 0, 0, NULL,
     "PEM file with the certificate's private key"},
    {"http.max_body_mib", CONFIG_INT, FIELD(http_max_body_mib), "8", 1, 32, NULL,
     "largest request body, MiB; others wait for the parsing of one, about 7 ms a MiB"},
    {"http.max_bodies_mib", CONFIG_INT, FIELD(http_max_bodies_mib), "512", 1, 1048576, NULL,
     "all request bodies that are being received, MiB"},
    {"http.max_connections", CONFIG_INT, FIELD(http_max_connections), "4096", 8, 100000, NULL,
     "HTTP connections at once"},
    {"http.header_s", CONFIG_REAL, FIELD(http_header_s), "10", 0.05, 3600, NULL,
     "time a client has for its request headers, s"},
    {"http.body_s", CONFIG_REAL, FIELD(http_body_s), "120", 0.05, 3600, NULL,
     "time a client has for its request body, s"},
    {"http.idle_s", CONFIG_REAL, FIELD(http_idle_s), "75", 1, 3600, NULL,
     "an idle connection is closed after this, s"},
    {"http.linger_s", CONFIG_REAL, FIELD(http_linger_s), "2", 0, 600, NULL,
     "a refused body is read for so long, so that its client sees the reply, s"},
    {"http.hold_headers_s", CONFIG_REAL, FIELD(http_hold_headers_s), "5", 0, 600, NULL,
     "a stream's headers wait so long for the first token, s"},
    {"http.keepalive_s", CONFIG_REAL, FIELD(http_keepalive_s), "10", 0.05, 600, NULL,
     "interval of comments in a stream before its first token, s"},
    {"http.stream_queue_kib", CONFIG_INT, FIELD(http_stream_queue_kib), "256", 4, 65536, NULL,
     "bytes kept for a slow reader before it is cut, KiB"},
    {"api.keys_file", CONFIG_STRING, FIELD(api_keys_file), "", 0, 0, NULL,
     "file with the API keys' hashes (see keygen --api); without one the API is open"},
    {"api.shared", CONFIG_BOOL, FIELD(api_shared), "false", 0, 0, NULL,
     "keys (keygen --store) and their rates stand in the ledger's database, for all its "
     "coordinators"},
    {"api.share_s", CONFIG_REAL, FIELD(api_share_s), "1", 0.05, 600, NULL,
     "interval at which coordinators tell each other what keys have used, s"},
    {"upstream.server", CONFIG_LIST, FIELD(upstream_servers), "", 0, 0, NULL,
     "an OpenAI-compatible server as a node: NAME URL [key_env=V] [key_file=F] [models=A,B] "
     "[concurrent=N] [context=N]"},
    {"upstream.check_s", CONFIG_REAL, FIELD(upstream_check_s), "5", 0.05, 3600, NULL,
     "interval of asking an upstream for its models, s"},
    {"upstream.check_limit_s", CONFIG_REAL, FIELD(upstream_check_limit_s), "5", 0.05, 600, NULL,
     "time an upstream has for that answer, s"},
    {"upstream.connect_s", CONFIG_REAL, FIELD(upstream_connect_s), "5", 0.05, 600, NULL,
     "time for a connection to an upstream, s"},
    {"tailscale.socket", CONFIG_STRING, FIELD(tailscale_socket),
     "/var/run/tailscale/tailscaled.sock", 0, 0, NULL,
     "LocalAPI of Tailscale, asked for the paths to the nodes; not there is normal, empty: "
     "never"},
    {"tailscale.interval_s", CONFIG_REAL, FIELD(tailscale_interval_s), "10", 0.05, 3600, NULL,
     "interval of asking Tailscale, s"},
    {"tailscale.limit_s", CONFIG_REAL, FIELD(tailscale_limit_s), "3", 0.05, 600, NULL,
     "time Tailscale has for its answer, s"},
    {"ledger.url", CONFIG_STRING, FIELD(ledger_url), "", 0, 0, NULL,
     "where every request is written down: a file (SQLite) or postgresql://...; none without"},
    {"ledger.max_waiting", CONFIG_INT, FIELD(ledger_max_waiting), "100000", 1, 10000000, NULL,
     "rows kept while the database is not there; then requests are refused"},
    {"ledger.retry_s", CONFIG_REAL, FIELD(ledger_retry_s), "0.5", 0.02, 600, NULL,
     "pause before a database that took nothing is tried again, s"},
    {"mesh.allow_plain", CONFIG_BOOL, FIELD(mesh_allow_plain), "false", 0, 0, NULL,
     "allow a mesh without CURVE off loopback"},
    {"mesh.curve_secret_file", CONFIG_STRING, FIELD(mesh_curve_secret_file), "", 0, 0, NULL,
     "file with the coordinator's CURVE secret key (see keygen)"},
    {"mesh.curve_allow_file", CONFIG_STRING, FIELD(mesh_curve_allow_file), "", 0, 0, NULL,
     "file with a line PUBLIC-KEY NODE-NAME for each node that may connect"},
    {"mesh.beat_s", CONFIG_REAL, FIELD(mesh_beat_s), "1", 0.02, 60, NULL,
     "beat interval asked of workers, s"},
    {"mesh.heartbeat_s", CONFIG_REAL, FIELD(mesh_heartbeat_s), "1", 0.02, 60, NULL,
     "interval of the transport's own heartbeats, s"},
    {"mesh.heartbeat_timeout_s", CONFIG_REAL, FIELD(mesh_heartbeat_timeout_s), "4", 0.05, 600,
     NULL, "a connection whose peer answers no heartbeat for this is ended, s"},
    {"mesh.linger_s", CONFIG_REAL, FIELD(mesh_linger_s), "0.2", 0, 60, NULL,
     "time at the end to send nodes what was said last, s"},
    {"node.suspect_s", CONFIG_REAL, FIELD(node_suspect_s), "3", 0.05, 3600, NULL,
     "no beat for this long: suspect, s"},
    {"node.down_s", CONFIG_REAL, FIELD(node_down_s), "15", 0.05, 3600, NULL,
     "no beat for this long: down, s"},
    {"node.forget_s", CONFIG_REAL, FIELD(node_forget_s), "86400", 1, 31536000, NULL,
     "a node that is down leaves the list after this, s"},
    {"node.engine_stall_s", CONFIG_REAL, FIELD(node_engine_stall_s), "60", 0.1, 3600, NULL,
     "an engine loop older than this makes its node suspect, s"},
    {"node.slow_path_s", CONFIG_REAL, FIELD(node_slow_path_s), "0.5", 0, 3600, NULL,
     "a round trip of this makes a node's path slow in /status; 0: never, s"},
    {"node.reconnect_s", CONFIG_REAL, FIELD(node_reconnect_s), "3", 0.05, 3600, NULL,
     "a broken connection may come back within this before its streams fail, s"},
    {"node.breaker_failures", CONFIG_INT, FIELD(node_breaker_failures), "3", 1, 1000, NULL,
     "server errors in a row that quarantine a node"},
    {"node.breaker_s", CONFIG_REAL, FIELD(node_breaker_s), "10", 0.05, 3600, NULL,
     "quarantine before one probe is let through, s"},
    {"queue.max_waiting", CONFIG_INT, FIELD(queue_max_waiting), "256", 0, 100000, NULL,
     "requests that may wait for a node"},
    {"queue.max_wait_s", CONFIG_REAL, FIELD(queue_max_wait_s), "300", 0.05, 86400, NULL,
     "longest wait for a node, s"},
    {"queue.background_pattern", CONFIG_LIST, FIELD(queue_background_patterns),
     "Generate a concise, 3-5 word title\nGenerate 1-3 broad tags categorizing\n"
     "Suggest 3-5 relevant follow-up questions",
     0, 0, NULL,
     "a request whose last message begins with a text that has one of these waits in the "
     "background"},
    {"queue.loading_wait_s", CONFIG_REAL, FIELD(queue_loading_wait_s), "20", 0, 86400, NULL,
     "a request waits for a node that says it is loaded within this, s"},
    {"failover.different_numerics", CONFIG_CHOICE, FIELD(failover_different_numerics),
     "approximate", 0, 0, "approximate|error",
     "a broken stream whose file is left only on nodes with other arithmetic"},
    {"route.relay_s", CONFIG_REAL, FIELD(route_relay_s), "0.1", 0, 3600, NULL,
     "added to the expected completion on a node behind a relay of the mesh VPN, s"},
    {"alias", CONFIG_LIST, FIELD(aliases), "", 0, 0, NULL,
     "ALIAS=MODEL: another name under which a model is served; may be given again"},
    {"status.decisions", CONFIG_INT, FIELD(status_decisions), "256", 0, 65536, NULL,
     "routing decisions kept for /status?explain=REQUEST"},
    {"limit.first_token_s", CONFIG_REAL, FIELD(limit_first_token_s), "60", 0.05, 86400, NULL,
     "time to the first token beyond thrice the expected prefill, s"},
    {"limit.between_tokens_s", CONFIG_REAL, FIELD(limit_between_tokens_s), "120", 0.05, 86400,
     NULL, "longest pause inside an answer, s"},
    {"limit.total_s", CONFIG_REAL, FIELD(limit_total_s), "3600", 0.05, 604800, NULL,
     "longest life of a request, s"},
    {"limit.cancel_s", CONFIG_REAL, FIELD(limit_cancel_s), "5", 0.05, 3600, NULL,
     "a cancelled request holds its place on a silent node so long, s"},
    {"drain_s", CONFIG_REAL, FIELD(drain_s), "300", 0, 86400, NULL,
     "running requests may go on for this after SIGTERM, s"},
    {"goodbye_s", CONFIG_REAL, FIELD(goodbye_s), "1", 0, 60, NULL,
     "then clients have this long to take the error that ends their replies, s"},
};

status options_init(config *c, options *o, error *err) {
    memset(o, 0, sizeof *o);
    return config_init(c, "siliceo-coordinator", keys, sizeof keys / sizeof keys[0], o, err);
}

bool options_is_loopback(const char *address) {
    const char *host = strncmp(address, "tcp://", 6) == 0 ? address + 6 : address;
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]:", 6) == 0 ||
           strncmp(host, "localhost:", 10) == 0;
}

/* The port must be there; whether the host exists shows when it is bound. */
static status check_address(const char *key, const char *address, error *err) {
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address || colon[1] == '\0') {
        return error_set(err, STATUS_BAD_INPUT, "%s: '%s' is not HOST:PORT", key, address);
    }
    unsigned long port = 0;
    for (const char *p = colon + 1; *p != '\0'; p++) {
        if (*p < '0' || *p > '9' || (port = port * 10 + (unsigned long)(*p - '0')) > 65535) {
            return error_set(err, STATUS_BAD_INPUT, "%s: '%s' has no port from 0 to 65535", key,
                             address);
        }
    }
    return STATUS_OK;
}

status options_check(const options *o, error *err) {
    status rc = check_address("http", o->http, err);
    if (rc != STATUS_OK) return rc;
    if (strncmp(o->mesh, "tcp://", 6) != 0) {
        return error_set(err, STATUS_BAD_INPUT, "mesh: '%s' is not tcp://HOST:PORT", o->mesh);
    }
    rc = check_address("mesh", o->mesh + 6, err);
    if (rc != STATUS_OK) return rc;
    if ((o->http_tls_cert_file[0] == '\0') != (o->http_tls_key_file[0] == '\0')) {
        return error_set(err, STATUS_BAD_INPUT,
                         "http.tls_cert_file and http.tls_key_file go together");
    }
    if (o->api_shared && o->ledger_url[0] == '\0')
        return error_set(err, STATUS_BAD_INPUT, "api.shared: needs a ledger.url");
    bool curve = o->mesh_curve_secret_file[0] != '\0';
    if (curve != (o->mesh_curve_allow_file[0] != '\0')) {
        return error_set(err, STATUS_BAD_INPUT,
                         "mesh.curve_secret_file and mesh.curve_allow_file go together: CURVE "
                         "without an allow-list would admit anyone");
    }
    if (!curve && !o->mesh_allow_plain && !options_is_loopback(o->mesh)) {
        return error_set(
            err, STATUS_BAD_INPUT,
            "mesh: '%s' is not loopback and would be plain text; set "
            "mesh.curve_secret_file and mesh.curve_allow_file, or mesh.allow_plain",
            o->mesh);
    }
    rc = aliases_check(o->aliases, err);
    if (rc != STATUS_OK) return rc;
    if (o->node_down_s < o->node_suspect_s) {
        return error_set(err, STATUS_BAD_INPUT,
                         "node.down_s: %g is less than node.suspect_s %g", o->node_down_s,
                         o->node_suspect_s);
    }
    return STATUS_OK;
}
