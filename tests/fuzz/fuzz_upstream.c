/* fuzz_upstream.c - what other servers send, and the lines of the key file.  The first byte says
 * which reader gets the rest; events must come out the same however the stream is cut, and
 * pieces must keep the mesh's bounds. */
#include "coordinator/auth.h"
#include "coordinator/sse_reader.h"
#include "coordinator/tailscale.h"
#include "coordinator/upstream_reply.h"
#include "coordinator/upstream_vectors.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_events;

static void on_piece(void *context, const upstream_piece *p) {
    (void)context;
    if (p->length > WIRE_MAX_TOKENS_TEXT || p->choice >= 2) abort();
    size_t bad_at;
    if (p->length > 0 && !json_utf8_valid(p->text, p->length, &bad_at)) abort();
}

static status on_event(void *context, const char *bytes, size_t n, error *err) {
    n_events++;
    return context == NULL ? STATUS_OK : upstream_reply_event(context, bytes, n, err);
}

static size_t read_stream(const char *bytes, size_t n, size_t step, upstream_reply *reply) {
    sse_reader reader = {.has_data = false};
    n_events = 0;
    for (size_t at = 0; at < n; at += step) {
        size_t some = n - at < step ? n - at : step;
        if (sse_reader_add(&reader, bytes + at, some, reply, on_event, NULL) != STATUS_OK)
            break;
    }
    sse_reader_release(&reader);
    return n_events;
}

static void fuzz_stream(const char *bytes, size_t n) {
    if (read_stream(bytes, n, 1, NULL) != read_stream(bytes, n, n, NULL)) abort();
    upstream_reply reply;
    if (upstream_reply_init(&reply, 2, NULL, on_piece, NULL) != STATUS_OK) return;
    (void)read_stream(bytes, n, 7, &reply);
    upstream_reply_release(&reply);
}

static void fuzz_line(const char *bytes, size_t n) {
    char line[1000], name[AUTH_NAME_SIZE];
    unsigned char hash[AUTH_HASH_BYTES];
    tenant_limits limits;
    if (n >= sizeof line) return;
    memcpy(line, bytes, n);
    line[n] = '\0';
    if (auth_parse_line(line, name, hash, &limits, NULL) != STATUS_OK) return;
    if (!(limits.requests_per_min >= 0) || !(limits.tokens_per_min >= 0) || limits.priority > 1)
        abort();
}

/* What comes out is a list of as many as were asked for, or of fewer where the best were. */
static void fuzz_vectors(const char *bytes, size_t n) {
    for (int i = 0; i < 2; i++) {
        char *list = NULL;
        cJSON *tree = NULL;
        uint64_t n_tokens = 0;
        wire_kind kind = i == 0 ? WIRE_EMBED : WIRE_RERANK;
        if (upstream_vectors_read(&list, &n_tokens, kind, 2, bytes, n, NULL) != STATUS_OK)
            continue;
        if (json_parse(&tree, list, strlen(list), "list", NULL) != STATUS_OK) abort();
        int length = cJSON_GetArraySize(tree);
        if (length < 1 || length > 2 || (kind == WIRE_EMBED && length != 2)) abort();
        cJSON_Delete(tree);
        free(list);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const char *bytes = (const char *)data + 1;
    size_t n = size - 1, n_models = 0;
    upstream_model models[UPSTREAM_MAX_MODELS];
    tailscale_peer *peers = NULL;
    char *body = NULL;
    char text[400];
    switch (data[0] % 6) {
    case 0:
        fuzz_stream(bytes, n);
        break;
    case 1:
        (void)upstream_read_models(models, &n_models, bytes, n, NULL);
        break;
    case 2:
        (void)tailscale_read(&peers, &n_models, bytes, n, NULL);
        free(peers);
        break;
    case 3:
        fuzz_line(bytes, n);
        break;
    case 4:
        (void)upstream_request_body(&body, &n_models, bytes, n, "m", NULL);
        free(body);
        (void)upstream_vectors_body(&body, &n_models, WIRE_EMBED, bytes, n, "m", NULL);
        free(body);
        break;
    default:
        fuzz_vectors(bytes, n);
        upstream_error_text(text, sizeof text, bytes, n);
    }
    return 0;
}
