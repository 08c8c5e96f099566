/* command_logits.c - `logits`: float32 logits [n_tokens][n_vocab] of token ids to a file.
 *
 * One sequence, run in chunks of --chunk tokens.  Writes as it goes, so memory is
 * that of one chunk.  Thread: main.
 */
#include "worker/commands.h"

#include "common/gguf.h"
#include "worker/model/model.h"
#include "worker/options.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct logits_options {
    model_options model;
    const char *ids;
    const char *out;
} logits_options;

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(logits_options, model),
    {"ids", CONFIG_STRING, offsetof(logits_options, ids), NULL, 0, 0, NULL,
     "token ids separated by commas, or @FILE with one such list"},
    {"out", CONFIG_STRING, offsetof(logits_options, out), NULL, 0, 0, NULL,
     "file for float32 [n_tokens][n_vocab], little-endian"},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* The text of --ids: itself, or what the file holds that it names.  The caller frees. */
static status read_ids_text(const char *ids, char **out, error *err) {
    if (ids[0] != '@') {
        *out = strdup(ids);
        return *out != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "--ids: no memory");
    }
    FILE *f = fopen(ids + 1, "rb");
    if (f == NULL) return error_set_errno(err, STATUS_IO, errno, "--ids: %s", ids + 1);
    size_t cap = 0;
    ssize_t n = getdelim(out, &cap, '\0', f);
    (void)fclose(f);
    return n > 0 ? STATUS_OK : error_set(err, STATUS_IO, "--ids: %s is empty", ids + 1);
}

/* "1,2, 3" (brackets are allowed) to integers; the caller frees *out. */
static status parse_ids(const char *text, int32_t **out, size_t *n, error *err) {
    int32_t *ids = calloc(strlen(text) / 2 + 1, sizeof *ids);
    if (ids == NULL) return error_set(err, STATUS_NO_MEMORY, "--ids: no memory");
    *n = 0;
    const char *at = text + strspn(text, " \t\r\n[");
    while (*at != '\0' && *at != ']') {
        char *end = NULL;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno != 0 || value < 0 || value > INT32_MAX) {
            free(ids);
            return error_set(err, STATUS_BAD_INPUT, "--ids: '%.20s' is no token id", at);
        }
        ids[(*n)++] = (int32_t)value;
        at = end + strspn(end, " \t\r\n");
        if (*at == ',') at += 1 + strspn(at + 1, " \t\r\n");
    }
    if (*n == 0) {
        free(ids);
        return error_set(err, STATUS_BAD_INPUT, "--ids: no token ids");
    }
    *out = ids;
    return STATUS_OK;
}

static size_t chunk_of(const logits_options *o) {
    return o->model.chunk > 0 ? (size_t)o->model.chunk : 512;
}

static status open_model(const logits_options *o, const gguf_file *file, size_t n_tokens,
                         model **out, error *err) {
    model_config shape;
    status rc = model_config_read(&shape, file, err);
    if (rc != STATUS_OK) return rc;
    engine_params e;
    rc = options_engine_params(&o->model, (uint64_t)shape.n_layers * shape.n_experts, &e, err);
    if (rc != STATUS_OK) return rc;
    uint32_t chunk = (uint32_t)(chunk_of(o) < n_tokens ? chunk_of(o) : n_tokens);
    const model_params p = {
        .backend = e.backend,
        .n_threads = e.n_threads,
        .kv = e.kv,
        .activations = e.activations,
        .n_pages = (uint32_t)((n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS),
        .n_states = 1,
        .max_rows = chunk,
        .max_outputs = chunk,
        .n_slots = e.n_slots > 0 ? (uint32_t)e.n_slots : 0,
        .inserts_per_layer = e.inserts_per_layer,
        .lane = e.lane};
    return model_open(out, file, &p, err);
}

/* Run all tokens and write each chunk's logits. */
static status run(model *m, const int32_t *ids, size_t n, size_t chunk, FILE *out, error *err) {
    size_t n_vocab = model_configuration(m)->n_vocab;
    size_t n_pages = (n + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    uint32_t *pages = calloc(n_pages, sizeof *pages);
    float *logits = calloc(chunk * n_vocab, sizeof *logits);
    status rc = STATUS_OK;
    if (pages == NULL || logits == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "logits: no memory for %zu rows", chunk);
        goto done;
    }
    for (size_t i = 0; i < n_pages; i++)
        pages[i] = (uint32_t)i;
    model_state_clear(m, 0);
    for (size_t at = 0; at < n && rc == STATUS_OK; at += chunk) {
        uint32_t now = (uint32_t)(n - at < chunk ? n - at : chunk);
        const model_segment s = {.position = (uint32_t)at,
                                 .tokens = ids + at,
                                 .n_tokens = now,
                                 .pages = pages,
                                 .n_outputs = now};
        rc = model_step(m, &s, 1, logits, err);
        if (rc == STATUS_OK &&
            fwrite(logits, sizeof *logits, now * n_vocab, out) != now * n_vocab) {
            rc = error_set_errno(err, STATUS_IO, errno, "--out");
        }
    }
done:
    free(logits);
    free(pages);
    return rc;
}

static status compute(const logits_options *o, const int32_t *ids, size_t n, error *err) {
    gguf_file *file = NULL;
    model *m = NULL;
    FILE *out = NULL;
    status rc = gguf_open(&file, o->model.model, err);
    if (rc != STATUS_OK) goto done;
    rc = open_model(o, file, n, &m, err);
    if (rc != STATUS_OK) goto done;
    out = fopen(o->out, "wb");
    if (out == NULL) {
        rc = error_set_errno(err, STATUS_IO, errno, "--out: %s", o->out);
        goto done;
    }
    rc = run(m, ids, n, chunk_of(o), out, err);
done:
    if (out != NULL && fclose(out) != 0 && rc == STATUS_OK) {
        rc = error_set_errno(err, STATUS_IO, errno, "--out: %s", o->out);
    }
    model_close(m);
    gguf_close(file);
    return rc;
}

/* What was asked for; a failure here is a usage error. */
static status read_request(const logits_options *o, int32_t **ids, size_t *n, error *err) {
    if (o->ids == NULL || o->out == NULL) {
        return error_set(err, STATUS_BAD_INPUT, "--%s is missing",
                         o->ids == NULL ? "ids" : "out");
    }
    char *text = NULL;
    status rc = read_ids_text(o->ids, &text, err);
    if (rc == STATUS_OK) rc = parse_ids(text, ids, n, err);
    free(text);
    return rc;
}

int command_logits(int argc, char *argv[]) {
    logits_options o = {0};
    config c = {0};
    int code =
        options_read(&c, "siliceo-worker logits", keys, N_KEYS, &o, &o.model, true, argc, argv);
    if (code >= 0) return code;
    error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    code = read_request(&o, &ids, &n, &err) == STATUS_OK ? 0 : 2;
    if (code == 0 && compute(&o, ids, n, &err) != STATUS_OK) code = 1;
    if (code != 0) (void)fprintf(stderr, "siliceo-worker logits: %s\n", err.text);
    free(ids);
    config_release(&c);
    return code;
}
