/* mtp_golden.h - models with an MTP block and what was recorded of it, and a drafter over one. */
#ifndef SILICEO_TESTS_GOLDEN_MTP_GOLDEN_H
#define SILICEO_TESTS_GOLDEN_MTP_GOLDEN_H

#include "model_run.h"

#include "worker/drafter.h"

enum { N_IDS = 96, N_PAIRS = N_IDS - 1, MAX_ROWS = 128 };

typedef struct golden {
    char path[512];
    char logits[128];
    int32_t *ids, *argmax, *drafts, *positions;
    size_t n_positions, n_drafts;
} golden;

static char folder[256];
static golden models[2];

static inline void read_golden(golden *g, const cJSON *entry) {
    size_t n = 0;
    const cJSON *mtp = cJSON_GetObjectItem(entry, "mtp");
    (void)snprintf(g->path, sizeof g->path, "%s/%s.gguf", folder,
                   cJSON_GetObjectItem(entry, "name")->valuestring);
    (void)snprintf(g->logits, sizeof g->logits, "%s",
                   cJSON_GetObjectItem(mtp, "logits")->valuestring);
    char *params = cJSON_PrintUnformatted(cJSON_GetObjectItem(entry, "params"));
    assert_true(generate_model(params, g->path));
    cJSON_free(params);
    g->ids = read_ints(entry, "ids", &n);
    assert_int_equal(n, N_IDS);
    g->argmax = read_ints(mtp, "argmax", &n);
    assert_int_equal(n, N_PAIRS);
    g->drafts = read_ints(mtp, "drafts_from_last", &g->n_drafts);
    g->positions = read_ints(mtp, "positions", &g->n_positions);
}

static inline int set_up(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    cJSON *root = read_json(GOLDEN_FOLDER "models.json");
    size_t n = 0;
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(root, "models")) {
        if (cJSON_IsObject(cJSON_GetObjectItem(entry, "mtp")) && n < 2)
            read_golden(&models[n++], entry);
    }
    cJSON_Delete(root);
    return n == 2 ? 0 : -1;
}

static inline int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        golden *g = &models[i];
        (void)unlink(g->path);
        free(g->ids);
        free(g->argmax);
        free(g->drafts);
        free(g->positions);
    }
    (void)rmdir(folder);
    return 0;
}

/* The rows after the final norm of all ids; the caller frees. */
static inline float *rows_of(const golden *g, const model_params *p) {
    run r;
    run_open(&r, g->path, p);
    float *rows = calloc((size_t)N_IDS * r.config->n_embd, sizeof *rows);
    assert_non_null(rows);
    model_segment s = run_segment(&r, 0, 0, g->ids, N_IDS);
    s.n_outputs = 0;
    s.n_hidden = N_IDS;
    s.hidden = rows;
    run_step(&r, &s, 1, NULL);
    run_close(&r);
    return rows;
}

static inline drafter *open_drafter(const gguf_file *file, const model *whole,
                                    backend_kind backend, uint32_t cap_held) {
    const drafter_mtp_params p = {.file = file,
                                  .whole = whole,
                                  .backend = backend,
                                  .n_threads = 1,
                                  .kv = KV_F32,
                                  .activations = ACTIVATIONS_F32,
                                  .n_places = 2,
                                  .n_context = 256,
                                  .n_pages = 8,
                                  .cap_held = cap_held,
                                  .max_rows = MAX_ROWS,
                                  .n_vocab = 512};
    drafter *d = NULL;
    error err = {0};
    if (drafter_mtp_open(&d, &p, &err) != STATUS_OK) fail_msg("%s", err.text);
    return d;
}

static inline void see(drafter *d, const golden *g, const float *rows, size_t row,
                       uint32_t from, uint32_t n) {
    error err = {0};
    const drafter_rows seen = {.key = 7,
                               .tokens = g->ids,
                               .rows = rows + from * row,
                               .n_rows = n,
                               .position = from,
                               .place = 1};
    assert_int_equal(d->ops->see(d, &seen, &err), STATUS_OK);
}

static inline uint32_t guess(drafter *d, const golden *g, uint32_t n_tokens, uint32_t depth,
                             int32_t *guesses) {
    error err = {0};
    drafter_ask ask = {.key = 7,
                       .tokens = g->ids,
                       .n_tokens = n_tokens,
                       .place = 1,
                       .depth = depth,
                       .guesses = guesses};
    assert_int_equal(d->ops->guess(d, &ask, 1, &err), STATUS_OK);
    return ask.n_guesses;
}

#endif
