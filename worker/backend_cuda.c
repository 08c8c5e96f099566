/* backend_cuda.c - opening, memory, the batch, states and pages of the CUDA backend. */
#include "worker/backend_cuda.h"

#include "kernels/cuda/rows.h"
#include "kernels/rope.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_PINNED_LOGITS = 64 * 1024 * 1024 };

void *cuda_acts(const backend_cuda *b, uint64_t offset, size_t row, uint32_t n_cols) {
    return cuda_ptr(cuda_work_at(b, offset) + row * cuda_act_row_bytes(n_cols));
}

bool cuda_wants_act(input_forms forms) {
    return (forms & ~(1u << 0)) != 0; /* anything but float rows, ACT_F32 */
}

/* A context is current on one thread at a time, and another backend's end may have left none:
 * whatever does not come between begin and end makes it current again. */
static void enter(backend_cuda *b) {
    (void)CUDA_DO(b, cuCtxSetCurrent, b->context);
}

/* Between steps: one that failed has told so, and what begins now is not part of it. */
static void enter_anew(backend_cuda *b) {
    b->failed = STATUS_OK;
    enter(b);
}

/* A step's frame. */

/* Rows that are verified one by one are decoding rows that share a sequence. */
static bool decodes(const batch_run *run) {
    return run->n_rows <= CUDA_FEW_ROWS || run->first_kept != 0;
}

void *cuda_picture(const backend_cuda *b, uint64_t offset) {
    return b->pinned + (offset - b->layout.work.runs);
}

/* Runs r .. end - 1 as a span of their own, numbered from its start. */
static void add_span(backend_cuda *b, uint32_t first_run, uint32_t end_run) {
    const cuda_work *w = &b->layout.work;
    const batch_view *v = &b->batch.view;
    batch_run *runs = (batch_run *)cuda_picture(b, w->runs) + first_run;
    uint32_t first_row = v->runs[first_run].first_row, n_rows = 0;
    uint32_t *row_run = (uint32_t *)cuda_picture(b, w->row_run) + first_row;
    for (uint32_t r = first_run; r < end_run; r++) {
        runs[r - first_run] = v->runs[r];
        runs[r - first_run].first_row -= first_row;
        for (uint32_t i = 0; i < v->runs[r].n_rows; i++)
            row_run[n_rows++] = r - first_run;
    }
    b->spans[b->n_spans++] = (cuda_span){
        .first_row = first_row,
        .n_rows = n_rows,
        .decodes = decodes(&v->runs[first_run]),
        .view = {.runs = (batch_run *)cuda_ptr(cuda_work_at(b, w->runs)) + first_run,
                 .row_run = (uint32_t *)cuda_ptr(cuda_work_at(b, w->row_run)) + first_row,
                 .pages = cuda_ptr(cuda_work_at(b, w->pages)),
                 .n_rows = n_rows,
                 .n_runs = end_run - first_run}};
}

static void cut_spans(backend_cuda *b) {
    const batch_view *v = &b->batch.view;
    b->n_spans = 0;
    for (uint32_t r = 0; r < v->n_runs;) {
        uint32_t end = r + 1;
        while (end < v->n_runs && decodes(&v->runs[end]) == decodes(&v->runs[r]))
            end++;
        add_span(b, r, end);
        r = end;
    }
}

static size_t pages_listed(const batch_view *v) {
    const batch_run *last = &v->runs[v->n_runs - 1];
    if (last->first_kept != 0) return last->first_kept + last->n_rows;
    return last->first_page +
           (last->position + last->n_rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* The tokens' rows of the embedding, or what layers elsewhere made of them.  Returns the bytes of
 * the former, which go with the batch's arrays. */
static size_t send_rows(backend_cuda *b) {
    const cuda_work *w = &b->layout.work;
    const weight_matrix *table = &b->weights->embedding;
    const batch_view *v = &b->batch.view;
    if (b->batch.residual != NULL) {
        (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->residual), b->batch.residual,
                      (size_t)v->n_rows * b->config->n_embd * sizeof(float), b->compute);
        return 0;
    }
    int32_t *ids = cuda_picture(b, w->embed_ids);
    unsigned char *rows = cuda_picture(b, w->embed_rows);
    for (uint32_t i = 0; i < v->n_rows; i++) {
        ids[i] = (int32_t)i;
        memcpy(rows + i * table->row_bytes,
               (const unsigned char *)table->place +
                   (size_t)b->batch.tokens[i] * table->row_bytes,
               table->row_bytes);
    }
    return v->n_rows * table->row_bytes;
}

/* The batch's arrays and rows go to the device in two copies. */
static void send_batch(backend_cuda *b) {
    const cuda_work *w = &b->layout.work;
    const batch_view *v = &b->batch.view;
    memcpy(cuda_picture(b, w->pages), v->pages, pages_listed(v) * sizeof(uint32_t));
    if (b->batch.n_outputs > 0) {
        memcpy(cuda_picture(b, w->output_rows), b->batch.output_rows,
               b->batch.n_outputs * sizeof(uint32_t));
        memset(cuda_picture(b, w->best), 0, b->batch.n_outputs * sizeof(uint64_t));
    }
    size_t n = w->embed_rows - w->runs + send_rows(b);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->runs), b->pinned, n, b->compute);
    cuda_send_before(b);
    if (b->batch.routed == NULL) return;
    size_t routed =
        (size_t)b->config->n_layers * v->n_rows * b->config->n_experts_used * sizeof(int32_t);
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, cuda_work_at(b, w->routed), b->batch.routed, routed,
                  b->compute);
}

static status step_status(backend_cuda *b, error *err) {
    if (b->failed == STATUS_OK) return STATUS_OK;
    return error_set(err, b->failed, "%s", b->failure.text);
}

static status cuda_begin(backend *base, const batch *step, error *err) {
    backend_cuda *b = (backend_cuda *)base;
    b->batch = *step;
    b->failed = STATUS_OK;
    b->mode = MODE_PLAIN;
    enter(b);
    /* A step that failed may have left some, and others had the staging since. */
    b->experts.n_ahead = 0;
    cut_spans(b);
    cuda_lane_begin_step(b);
    cuda_fetch_begin(b, cuda_picture(b, b->layout.work.fetch));
    send_batch(b);
    cuda_choose_mode(b);
    cuda_box_wake(b);
    if (b->failed != STATUS_OK) cuda_box_end(b); /* nobody calls the step's end */
    return step_status(b, err);
}

static status cuda_end(backend *base, error *err) {
    backend_cuda *b = (backend_cuda *)base;
    cuda_end_step(b);
    (void)cuda_finish(b);
    cuda_box_end(b);
    cuda_fetch_settle(b);
    cuda_lane_end_step(b);
    return step_status(b, err);
}

static void cuda_embed(backend *base, const weight_matrix *table) {
    backend_cuda *b = (backend_cuda *)base;
    const cuda_work *w = &b->layout.work;
    const embed_args args = {.table = cuda_ptr(cuda_work_at(b, w->embed_rows)),
                             .tokens = cuda_ptr(cuda_work_at(b, w->embed_ids)),
                             .out = cuda_rows(b, w->residual, 0, 0),
                             .row_bytes = table->row_bytes,
                             .out_stride = b->config->n_embd,
                             .type = (uint32_t)table->type,
                             .dim = b->config->n_embd};
    cuda_launch(b, CUDA_KERNEL_embed, embed_shape(&args, b->batch.view.n_rows), &args);
}

static float *cuda_logits_memory(backend *base) {
    return ((backend_cuda *)base)->pinned_logits;
}

/* Looks. */

static void read_back(backend_cuda *b, void *out, cuda_pointer from, size_t n) {
    enter(b);
    if (cuda_finish(b)) (void)CUDA_DO(b, cuMemcpyDtoH, out, from, n);
}

/* A plain copy from pageable memory may still be under way when it returns, and the streams
 * here do not wait for it: so it goes through the stream that the next step uses. */
static void write_whole(backend_cuda *b, cuda_pointer to, const void *from, size_t n) {
    enter_anew(b);
    if (CUDA_DO(b, cuMemcpyHtoDAsync, to, from, n, b->compute)) (void)cuda_finish(b);
}

static void cuda_read_residual(backend *base, float *out) {
    backend_cuda *b = (backend_cuda *)base;
    read_back(b, out, cuda_work_at(b, b->layout.work.residual),
              (size_t)b->batch.view.n_rows * b->config->n_embd * sizeof(float));
}

static void cuda_read_final(backend *base, float *out) {
    backend_cuda *b = (backend_cuda *)base;
    read_back(b, out, cuda_work_at(b, b->layout.work.final),
              (size_t)b->batch.n_outputs * b->config->n_embd * sizeof(float));
}

static void cuda_read_hidden(backend *base, uint32_t first_row, uint32_t n_rows, float *out) {
    backend_cuda *b = (backend_cuda *)base;
    size_t row = b->config->n_embd * sizeof(float);
    read_back(b, out, cuda_work_at(b, b->layout.work.hidden) + first_row * row, n_rows * row);
}

static void cuda_read_experts(backend *base, float *out) {
    backend_cuda *b = (backend_cuda *)base;
    size_t n = (size_t)b->batch.view.n_rows * b->config->n_experts_used;
    read_back(b, b->experts.chosen, cuda_work_at(b, b->layout.work.chosen),
              n * sizeof(int32_t));
    for (size_t i = 0; i < n; i++)
        out[i] = (float)b->experts.chosen[i];
}

/* States and pages, between steps. */

static cuda_pointer state_at(const backend_cuda *b, uint32_t state) {
    return cuda_part_at(b, CUDA_PART_STATES) + state * b->state_bytes;
}

static cuda_pointer page_at(const backend_cuda *b, uint32_t page) {
    return cuda_part_at(b, CUDA_PART_PAGES) + page * b->page_bytes;
}

static void cuda_state_clear(backend *base, uint32_t state) {
    backend_cuda *b = (backend_cuda *)base;
    enter_anew(b);
    (void)CUDA_DO(b, cuMemsetD8Async, state_at(b, state), 0, b->state_bytes, b->compute);
}

static void cuda_state_save(backend *base, uint32_t state, void *bytes) {
    backend_cuda *b = (backend_cuda *)base;
    read_back(b, bytes, state_at(b, state), b->state_bytes);
}

static void cuda_state_load(backend *base, uint32_t state, const void *bytes) {
    backend_cuda *b = (backend_cuda *)base;
    write_whole(b, state_at(b, state), bytes, b->state_bytes);
}

static void cuda_state_copy(backend *base, uint32_t to, uint32_t from) {
    backend_cuda *b = (backend_cuda *)base;
    enter_anew(b);
    (void)CUDA_DO(b, cuMemcpyDtoDAsync, state_at(b, to), state_at(b, from), b->state_bytes,
                  b->compute);
}

static size_t cuda_page_bytes(const backend *base) {
    return ((const backend_cuda *)base)->page_bytes;
}

static void cuda_page_save(backend *base, uint32_t page, void *bytes) {
    backend_cuda *b = (backend_cuda *)base;
    read_back(b, bytes, page_at(b, page), b->page_bytes);
}

static void cuda_page_copy(backend *base, uint32_t to, uint32_t from) {
    backend_cuda *b = (backend_cuda *)base;
    enter_anew(b);
    (void)CUDA_DO(b, cuMemcpyDtoDAsync, page_at(b, to), page_at(b, from), b->page_bytes,
                  b->compute);
}

static void cuda_page_load(backend *base, uint32_t page, const void *bytes) {
    backend_cuda *b = (backend_cuda *)base;
    write_whole(b, page_at(b, page), bytes, b->page_bytes);
}

static void cuda_forget_experts(backend *base) {
    backend_cuda *b = (backend_cuda *)base;
    if (b->experts.cache == NULL) return;
    expert_cache_clear(b->experts.cache);
    b->experts.tables_stale = true;
    enter_anew(b);
    /* Whoever read a slot before it was filled again would compute with NaN. */
    (void)CUDA_DO(b, cuMemsetD8Async, cuda_part_at(b, CUDA_PART_SLOTS), 0xff,
                  b->layout.part_bytes[CUDA_PART_SLOTS], b->compute);
}

/* Before any prompt of its own, what will be wanted ahead of a router is what the uses say. */
static void cuda_set_trial(backend *base, bool trial) {
    backend_cuda *b = (backend_cuda *)base;
    if (b->experts.cache == NULL) return;
    expert_cache_keep(b->experts.cache, trial);
    if (!trial) cuda_ahead_init(b);
}

static uint32_t *cuda_expert_uses(const backend *base) {
    const backend_cuda *b = (const backend_cuda *)base;
    return b->experts.cache != NULL ? expert_cache_uses(b->experts.cache) : NULL;
}

static void cuda_read_stats(const backend *base, model_stats *out) {
    const backend_cuda *b = (const backend_cuda *)base;
    const cuda_experts *x = &b->experts;
    out->launches = b->launches;
    model_stats_add_host(out, x->host);
    out->disk_bytes += b->load_disk_bytes;
    out->pinned_bytes = b->pinned_bytes;
    out->expert_bytes_moved = x->bytes_moved;
    out->slots_filled = x->n_filled;
    out->slots_by_use = x->n_by_use;
    out->expert_lookups = x->lookups;
    out->expert_hits = b->params.n_slots > 0 ? x->lookups : 0; /* 0: nobody asked for slots */
    if (x->cache != NULL) {
        expert_cache_counts(x->cache, &out->expert_lookups, &out->expert_hits,
                            &out->expert_inserts);
        cuda_lane_read_stats(b, out);
    }
}

/* Opening and closing. */

static void cuda_close(backend *base) {
    backend_cuda *b = (backend_cuda *)base;
    if (b == NULL) return;
    const cuda_driver *d = b->driver;
    if (b->context != NULL) {
        (void)d->cuCtxSetCurrent(b->context);
        cuda_box_end(b);
        if (b->compute != NULL) (void)d->cuStreamSynchronize(b->compute);
        if (b->h2d != NULL) (void)d->cuStreamSynchronize(b->h2d);
        if (b->d2h != NULL) (void)d->cuStreamSynchronize(b->d2h);
        cuda_release_recordings(b);
        cuda_experts_release(b);
        if (b->pinned_logits != NULL) (void)d->cuMemFreeHost(b->pinned_logits);
        if (b->pinned != NULL) (void)d->cuMemFreeHost(b->pinned);
        if (b->arena != 0) (void)d->cuMemFree(b->arena);
        cuda_close_context(b);
    }
    pool_free(b->threads);
    cuda_driver_close(b->driver);
    free(b->spans);
    free(b);
}

static const backend_ops cuda_ops = {
    .name = "cuda",
    .verifies_rows = true,
    .close = cuda_close,
    .begin = cuda_begin,
    .embed = cuda_embed,
    .embed_after = cuda_embed_after,
    .norm = cuda_norm,
    .project = cuda_project,
    .delta_net = cuda_delta_net,
    .attention = cuda_attention,
    .gated = cuda_gated,
    .route = cuda_route,
    .experts = cuda_expert_layer,
    .hidden = cuda_hidden,
    .final_norm = cuda_final_norm,
    .logits = cuda_logits,
    .read_hidden = cuda_read_hidden,
    .end = cuda_end,
    .read_logits = cuda_read_logits,
    .logits_memory = cuda_logits_memory,
    .read_residual = cuda_read_residual,
    .read_final = cuda_read_final,
    .read_experts = cuda_read_experts,
    .state_clear = cuda_state_clear,
    .state_save = cuda_state_save,
    .state_load = cuda_state_load,
    .state_copy = cuda_state_copy,
    .page_bytes = cuda_page_bytes,
    .page_save = cuda_page_save,
    .page_load = cuda_page_load,
    .page_copy = cuda_page_copy,
    .forget_experts = cuda_forget_experts,
    .set_trial = cuda_set_trial,
    .expert_uses = cuda_expert_uses,
    .read_stats = cuda_read_stats,
};

static status open_device(backend_cuda *b, error *err) {
    status rc = cuda_driver_open(&b->driver, err);
    if (rc == STATUS_OK) rc = cuda_open_context(b, err);
    return rc == STATUS_OK ? cuda_load_kernels(b, err) : rc;
}

/* The one allocation.  A driver may spill to host memory instead of failing, so what is free
 * is asked first. */
static status allocate(backend_cuda *b, error *err) {
    const cuda_driver *d = b->driver;
    size_t free_bytes = 0, total_bytes = 0;
    status rc = CUDA_CALL(d, err, cuMemGetInfo, &free_bytes, &total_bytes);
    if (rc != STATUS_OK) return rc;
    if (b->layout.total_bytes > free_bytes) {
        return error_set(err, STATUS_NO_MEMORY,
                         "cuda: %.0f MiB of VRAM are needed, %.0f MiB of %s's %.0f are free",
                         (double)b->layout.total_bytes / 1048576, (double)free_bytes / 1048576,
                         b->card.name, (double)total_bytes / 1048576);
    }
    rc = CUDA_CALL(d, err, cuMemAlloc, &b->arena, b->layout.total_bytes);
    if (rc != STATUS_OK) return rc;
    const cuda_work *w = &b->layout.work;
    void *at = NULL;
    size_t picture_bytes = w->inv_freq - w->runs;
    rc = CUDA_CALL(d, err, cuMemHostAlloc, &at, picture_bytes, 0);
    if (rc != STATUS_OK) return rc;
    b->pinned = at;
    size_t logits = (size_t)b->params.max_outputs * b->config->n_vocab * sizeof(float);
    if (logits > MOST_PINNED_LOGITS) return STATUS_OK;
    rc = CUDA_CALL(d, err, cuMemHostAlloc, &at, logits, 0);
    if (rc == STATUS_OK) b->pinned_logits = at;
    return rc;
}

static status init_sequences(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    b->state_bytes = model_config_state_bytes(c);
    b->layer_page_bytes = kv_layer_bytes((uint32_t)b->params.kv, c->n_kv_heads, c->head_dim);
    b->page_bytes = b->layer_page_bytes * c->n_full_layers;
    if (b->layer_page_bytes == 0) {
        return error_set(err, STATUS_BAD_INPUT, "cuda backend: this KV type is not supported");
    }
    b->spans = calloc(b->layout.n_decode + 1, sizeof *b->spans);
    if (b->spans == NULL) return error_set(err, STATUS_NO_MEMORY, "cuda backend: no memory");
    return STATUS_OK;
}

static status send_frequencies(backend_cuda *b, error *err) {
    float inv_freq[512];
    uint32_t n_rot = b->config->n_rot;
    if (n_rot == 0) return STATUS_OK;
    if (n_rot / 2 > sizeof inv_freq / sizeof *inv_freq) {
        return error_set(err, STATUS_BAD_INPUT, "cuda backend: %u rotated dims", n_rot);
    }
    rope_inverse_frequencies(inv_freq, n_rot, b->config->rope_base);
    return CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_work_at(b, b->layout.work.inv_freq),
                     inv_freq, n_rot / 2 * sizeof(float));
}

/* What VRAM and pinned memory hold, the page cache need not; the embedding stays mapped, and a
 * token's row of it is all that is read there.  Where the CPU lane reads the file and there is
 * room for its pages, they are wanted instead. */
static void give_back_file(const backend_cuda *b) {
    const weight_matrix *table = &b->weights->embedding;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)table->data / page * page;
    uintptr_t end = (uintptr_t)table->data + table->row_bytes * table->n_rows;
    if (b->experts.lane != NULL && b->params.pin_experts) return;
    gguf_give_back(b->weights->file);
    (void)madvise((void *)first, end - first, MADV_RANDOM); /* only advice */
}

status backend_cuda_open(backend **out, const model_config *config, model_weights *weights,
                         const model_params *params, error *err) {
    *out = NULL;
    backend_cuda *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(err, STATUS_NO_MEMORY, "cuda backend: no memory");
    b->base.ops = &cuda_ops;
    b->config = config;
    b->weights = weights;
    b->params = *params;
    b->no_graphs = params->no_graphs;
    cuda_layout_make(&b->layout, config, weights, params);
    status rc = init_sequences(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = pool_new(&b->threads, params->n_threads > 0 ? params->n_threads : pool_usable_cores(),
                  err);
    if (rc != STATUS_OK) goto fail;
    rc = open_device(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = allocate(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = send_frequencies(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = CUDA_CALL(b->driver, err, cuMemsetD8Async, cuda_work_at(b, b->layout.work.turns), 0,
                   (size_t)b->layout.n_decode * config->n_key_heads * sizeof(uint32_t),
                   b->compute);
    if (rc != STATUS_OK) goto fail;
    rc = cuda_upload_weights(b, weights, err);
    if (rc != STATUS_OK) goto fail;
    rc = config->moe ? cuda_experts_init(b, err) : STATUS_OK;
    if (rc != STATUS_OK) goto fail;
    /* Opening copies plainly: all of that has arrived before the first launch. */
    rc = CUDA_CALL(b->driver, err, cuStreamSynchronize, NULL);
    if (rc != STATUS_OK) goto fail;
    give_back_file(b);
    *out = &b->base;
    return STATUS_OK;
fail:
    cuda_close(&b->base);
    return rc;
}
