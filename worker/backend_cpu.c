/* backend_cpu.c - opening, memory, states and pages of the CPU backend. */
#include "worker/backend_cpu.h"

#include "kernels/attention.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include "kernels/embed.h"
#include "kernels/rope.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older headers lack it */
#endif

/* Memory. */

void *cpu_alloc(size_t bytes) {
    size_t rounded = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    if (rounded == 0) rounded = CPU_ALIGN;
    return aligned_alloc(CPU_ALIGN, rounded);
}

void *cpu_reserve(size_t bytes) {
    if (bytes == 0) bytes = 1;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at != MAP_FAILED ? at : NULL;
}

void cpu_unreserve(void *at, size_t bytes) {
    if (at != NULL) (void)munmap(at, bytes > 0 ? bytes : 1);
}

void *cpu_scratch(const backend_cpu *b, uint32_t worker) {
    return b->scratch + worker * b->scratch_bytes;
}

unsigned cpu_all_forms(const backend_cpu *b) {
    if (b->params.activations == ACTIVATIONS_F32) return 1u << ACT_F32;
    return 1u << ACT_F32 | 1u << ACT_Q8_256 | 1u << ACT_Q8_32;
}

/* Work. */

typedef struct range_task {
    const backend_cpu *b;
    const void *args;
    cpu_range body;
    size_t n_items;
    size_t n_units; /* of `multiple` items */
    size_t multiple;
    size_t n_chunks;
} range_task;

static void range_chunk(void *context, size_t chunk, uint32_t worker) {
    const range_task *t = context;
    size_t first = chunk * t->n_units / t->n_chunks * t->multiple;
    size_t end = (chunk + 1) * t->n_units / t->n_chunks * t->multiple;
    t->body(t->b, t->args, first, end < t->n_items ? end : t->n_items, worker);
}

void cpu_run_range(backend_cpu *b, size_t n_items, size_t multiple, double ns_per_item,
                   cpu_range body, const void *args) {
    enum { WORTH_SHARING_NS = 10000, CHUNK_NS = 5000, CHUNKS_A_THREAD = 4 };
    double ns = (double)n_items * ns_per_item;
    size_t n_units = (n_items + multiple - 1) / multiple;
    if (b->n_threads == 1 || ns < WORTH_SHARING_NS || n_units < 2) {
        body(b, args, 0, n_items, 0);
        return;
    }
    size_t n_chunks = (size_t)CHUNKS_A_THREAD * b->n_threads;
    if (ns < (double)n_chunks * CHUNK_NS) n_chunks = (size_t)(ns / CHUNK_NS);
    if (n_chunks > n_units) n_chunks = n_units;
    range_task t = {b, args, body, n_items, n_units, multiple, n_chunks};
    pool_run(b->threads, n_chunks, range_chunk, &t);
}

/* A step's frame. */

static void fill_rope(backend_cpu *b) {
    const batch_view *v = &b->batch.view;
    uint32_t n_rot = b->config->n_rot;
    for (uint32_t row = 0; row < v->n_rows; row++) {
        const batch_run *run = &v->runs[v->row_run[row]];
        rope_row(b->rope + (size_t)row * n_rot, run->position + row - run->first_row,
                 b->inv_freq, n_rot);
    }
}

static status cpu_begin(backend *base, const batch *step, error *err) {
    (void)err;
    backend_cpu *b = (backend_cpu *)base;
    b->batch = *step;
    b->has_delta = false;
    b->experts.failed = false;
    if (b->config->n_full_layers > 0) fill_rope(b);
    if (step->residual != NULL) {
        memcpy(b->buffer[BUFFER_RESIDUAL], step->residual,
               (size_t)step->view.n_rows * b->config->n_embd * sizeof(float));
    }
    return STATUS_OK;
}

static status cpu_end(backend *base, error *err) {
    const cpu_experts *x = &((const backend_cpu *)base)->experts;
    return x->failed ? host_tier_failure(x->host, err) : STATUS_OK;
}

static void embed_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                        uint32_t worker) {
    (void)worker;
    embed_rows(b->tier, args, first, end);
}

static void cpu_embed(backend *base, const weight_matrix *table) {
    backend_cpu *b = (backend_cpu *)base;
    const embed_args args = {.table = table->place,
                             .tokens = b->batch.tokens,
                             .out = b->buffer[BUFFER_RESIDUAL],
                             .row_bytes = table->row_bytes,
                             .out_stride = b->config->n_embd,
                             .type = (uint32_t)table->type,
                             .dim = b->config->n_embd};
    cpu_run_range(b, b->batch.view.n_rows, 1, b->config->n_embd * 0.3, embed_range, &args);
}

static float *cpu_logits_memory(backend *base) {
    (void)base;
    return NULL;
}

/* Looks. */

static void cpu_read_residual(backend *base, float *out) {
    backend_cpu *b = (backend_cpu *)base;
    cpu_flush_delta(b);
    memcpy(out, b->buffer[BUFFER_RESIDUAL],
           (size_t)b->batch.view.n_rows * b->config->n_embd * sizeof(float));
}

static void cpu_read_final(backend *base, float *out) {
    backend_cpu *b = (backend_cpu *)base;
    const cpu_input *in = &b->input[INPUT_FINAL];
    for (uint32_t i = 0; i < b->batch.n_outputs; i++) {
        memcpy(out + (size_t)i * in->n_cols, cpu_input_row(in, i), in->n_cols * sizeof(float));
    }
}

static void cpu_read_hidden(backend *base, uint32_t first_row, uint32_t n_rows, float *out) {
    const backend_cpu *b = (const backend_cpu *)base;
    const cpu_input *in = &b->input[INPUT_HIDDEN];
    for (uint32_t i = 0; i < n_rows; i++) {
        memcpy(out + (size_t)i * in->n_cols, cpu_input_row(in, first_row + i),
               in->n_cols * sizeof(float));
    }
}

static void cpu_read_experts(backend *base, float *out) {
    const backend_cpu *b = (const backend_cpu *)base;
    size_t n = (size_t)b->batch.view.n_rows * b->config->n_experts_used;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)b->experts.chosen[i];
}

/* States and pages. */

static unsigned char *state_at(const backend_cpu *b, uint32_t state) {
    return b->states + state * b->state_bytes;
}

/* By assignment: a freed state may hold NaN, which scaling with 0 would keep. */
static void cpu_state_clear(backend *base, uint32_t state) {
    const backend_cpu *b = (const backend_cpu *)base;
    memset(state_at(b, state), 0, b->state_bytes);
}

static void cpu_state_save(backend *base, uint32_t state, void *bytes) {
    const backend_cpu *b = (const backend_cpu *)base;
    memcpy(bytes, state_at(b, state), b->state_bytes);
}

static void cpu_state_load(backend *base, uint32_t state, const void *bytes) {
    const backend_cpu *b = (const backend_cpu *)base;
    memcpy(state_at(b, state), bytes, b->state_bytes);
}

static void cpu_state_copy(backend *base, uint32_t to, uint32_t from) {
    const backend_cpu *b = (const backend_cpu *)base;
    memcpy(state_at(b, to), state_at(b, from), b->state_bytes);
}

static size_t cpu_page_bytes(const backend *base) {
    return ((const backend_cpu *)base)->page_bytes;
}

static void cpu_page_save(backend *base, uint32_t page, void *bytes) {
    const backend_cpu *b = (const backend_cpu *)base;
    memcpy(bytes, b->pages + page * b->page_bytes, b->page_bytes);
}

static void cpu_page_copy(backend *base, uint32_t to, uint32_t from) {
    const backend_cpu *b = (backend_cpu *)base;
    memcpy(b->pages + to * b->page_bytes, b->pages + from * b->page_bytes, b->page_bytes);
}

static void cpu_page_load(backend *base, uint32_t page, const void *bytes) {
    const backend_cpu *b = (const backend_cpu *)base;
    memcpy(b->pages + page * b->page_bytes, bytes, b->page_bytes);
}

static void cpu_set_trial(backend *base, bool trial) {
    const backend_cpu *b = (const backend_cpu *)base;
    if (b->experts.cache != NULL) expert_cache_keep(b->experts.cache, trial);
}

static uint32_t *cpu_expert_uses(const backend *base) {
    const backend_cpu *b = (const backend_cpu *)base;
    return b->experts.cache != NULL ? expert_cache_uses(b->experts.cache) : NULL;
}

static void cpu_read_stats(const backend *base, model_stats *out) {
    const cpu_experts *x = &((const backend_cpu *)base)->experts;
    out->expert_lookups = x->lookups;
    out->expert_bytes_moved = x->bytes_moved;
    out->slots_filled = out->slots_by_use = x->n_by_use;
    model_stats_add_host(out, x->host);
    if (x->cache != NULL) {
        expert_cache_counts(x->cache, &out->expert_lookups, &out->expert_hits,
                            &out->expert_inserts);
    }
}

/* Opening and closing. */

void cpu_work_release(backend_cpu *b) {
    pool_free(b->threads);
    free(b->job_end);
    free(b->jobs);
    free(b->scratch);
}

static void cpu_close(backend *base) {
    backend_cpu *b = (backend_cpu *)base;
    if (b == NULL) return;
    cpu_work_release(b);
    cpu_experts_release(b);
    free(b->conv);
    cpu_journal_release(b);
    cpu_unreserve(b->pages, b->params.n_pages * b->page_bytes);
    cpu_unreserve(b->states, b->params.n_states * b->state_bytes);
    free(b->rope);
    free(b->inv_freq);
    free(b->up);
    free(b->delta);
    for (int i = 0; i < INPUT_COUNT; i++)
        cpu_input_release(&b->input[i]);
    cpu_input_release(&b->pair);
    for (int i = 0; i < BUFFER_COUNT; i++)
        free(b->buffer[i]);
    free(b);
}

static const backend_ops cpu_ops = {
    .name = "cpu",
    .verifies_rows = true,
    .close = cpu_close,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .embed_after = cpu_embed_after,
    .norm = cpu_norm,
    .project = cpu_project,
    .delta_net = cpu_delta_net,
    .attention = cpu_attention,
    .gated = cpu_gated,
    .route = cpu_route,
    .experts = cpu_expert_layer,
    .hidden = cpu_hidden,
    .final_norm = cpu_final_norm,
    .logits = cpu_logits,
    .read_hidden = cpu_read_hidden,
    .end = cpu_end,
    .logits_memory = cpu_logits_memory,
    .read_residual = cpu_read_residual,
    .read_final = cpu_read_final,
    .read_experts = cpu_read_experts,
    .state_clear = cpu_state_clear,
    .state_save = cpu_state_save,
    .state_load = cpu_state_load,
    .state_copy = cpu_state_copy,
    .state_replay = cpu_state_replay,
    .page_bytes = cpu_page_bytes,
    .page_save = cpu_page_save,
    .page_load = cpu_page_load,
    .page_copy = cpu_page_copy,
    .forget_experts = cpu_forget_experts,
    .set_trial = cpu_set_trial,
    .expert_uses = cpu_expert_uses,
    .read_stats = cpu_read_stats,
};

static status init_buffers(backend_cpu *b, error *err) {
    const model_config *c = b->config;
    size_t rows = b->params.max_rows;
    const size_t lengths[BUFFER_COUNT] = {
        [BUFFER_RESIDUAL] = c->n_embd,
        [BUFFER_Q] = 2 * (size_t)c->n_heads * c->head_dim,
        [BUFFER_K] = (size_t)c->n_kv_heads * c->head_dim,
        [BUFFER_V] = (size_t)c->n_kv_heads * c->head_dim,
        [BUFFER_U] = c->conv_dim,
        [BUFFER_Z] = c->inner_dim,
        [BUFFER_ALPHA] = c->n_value_heads,
        [BUFFER_BETA] = c->n_value_heads,
    };
    bool whole = true;
    for (int i = 0; i < BUFFER_COUNT; i++) {
        b->row[i] = lengths[i];
        b->buffer[i] = cpu_alloc(rows * lengths[i] * sizeof(float));
        whole = whole && b->buffer[i] != NULL;
    }
    size_t up = c->moe ? (size_t)c->n_experts_used * c->n_ff_expert : c->n_ff;
    b->delta = cpu_alloc(rows * c->n_embd * sizeof(float));
    b->up = cpu_alloc(rows * up * sizeof(float));
    b->rope = cpu_alloc(rows * c->n_rot * sizeof(float));
    b->inv_freq = cpu_alloc(c->n_rot / 2 * sizeof(float));
    if (!whole || b->delta == NULL || b->up == NULL || b->rope == NULL || b->inv_freq == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory for steps of %zu rows",
                         rows);
    }
    rope_inverse_frequencies(b->inv_freq, c->n_rot, c->rope_base);
    return STATUS_OK;
}

static status init_inputs(backend_cpu *b, error *err) {
    const model_config *c = b->config;
    size_t q_dim = (size_t)c->n_heads * c->head_dim;
    size_t mixed = q_dim > c->inner_dim ? q_dim : c->inner_dim;
    size_t rows = b->params.max_rows;
    size_t mid_rows = c->moe ? rows * c->n_experts_used : rows;
    size_t mid_cols = c->moe ? c->n_ff_expert : c->n_ff;
    unsigned forms = cpu_all_forms(b);
    status rc = cpu_input_init(&b->input[INPUT_HIDDEN], rows, c->n_embd, forms, err);
    if (rc != STATUS_OK) return rc;
    rc = cpu_input_init(&b->input[INPUT_MIXED], rows, mixed, forms, err);
    if (rc != STATUS_OK) return rc;
    rc = cpu_input_init(&b->input[INPUT_GATED], mid_rows, mid_cols, forms, err);
    if (rc != STATUS_OK) return rc;
    return cpu_input_init(&b->input[INPUT_FINAL], b->params.max_outputs, c->n_embd, forms, err);
}

static status init_sequences(backend_cpu *b, error *err) {
    const model_config *c = b->config;
    const model_params *p = &b->params;
    b->state_bytes = model_config_state_bytes(c);
    b->layer_page_bytes = kv_layer_bytes((uint32_t)p->kv, c->n_kv_heads, c->head_dim);
    b->page_bytes = b->layer_page_bytes * c->n_full_layers;
    if (b->layer_page_bytes == 0) {
        return error_set(err, STATUS_BAD_INPUT, "cpu backend: this KV type is not supported");
    }
    b->states = cpu_reserve(p->n_states * b->state_bytes);
    b->pages = cpu_reserve(p->n_pages * b->page_bytes);
    if (b->states == NULL || b->pages == NULL) {
        return error_set(
            err, STATUS_NO_MEMORY,
            "cpu backend: no memory for %u states of %zu and %u pages of %zu bytes",
            p->n_states, b->state_bytes, p->n_pages, b->page_bytes);
    }
    return STATUS_OK;
}

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

status cpu_work_init(backend_cpu *b, error *err) {
    const model_config *c = b->config;
    status rc = cpu_tier_choose(&b->tier, err);
    if (rc != STATUS_OK) return rc;
    rc = pool_new(&b->threads, b->n_threads, err);
    if (rc != STATUS_OK) return rc;
    size_t cols = most(most(c->n_embd, (size_t)c->n_heads * c->head_dim), c->inner_dim);
    cols = most(cols, most(most(c->n_ff, c->n_ff_expert), c->n_ff_shared));
    size_t bytes = matmul_scratch_bytes(cols);
    bytes = most(bytes, attention_scratch_bytes(c->head_dim));
    bytes = most(bytes, delta_net_scratch_bytes(c->state_dim));
    b->scratch_bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    b->cap_jobs = 2 * (size_t)c->n_experts + 8;
    b->scratch = cpu_alloc(b->scratch_bytes * b->n_threads);
    b->jobs = calloc(b->cap_jobs, sizeof *b->jobs);
    b->job_end = calloc(b->cap_jobs, sizeof *b->job_end);
    if (b->scratch == NULL || b->jobs == NULL || b->job_end == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory for %u threads",
                         b->n_threads);
    }
    return STATUS_OK;
}

/* The pages of a matrix that every token reads; only advice, so a failure does not
 * matter.  Returns their bytes. */
static size_t advise_matrix(const weight_matrix *m, int advice) {
    if (m->data == NULL) return 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)m->data / page * page;
    uintptr_t end = (uintptr_t)m->data + m->row_bytes * m->n_rows;
    (void)madvise((void *)first, end - first, advice);
    return end - first;
}

/* Not the embedding, of which a token reads one row, nor the routed experts.  total: of all,
 * where progress is told. */
static size_t advise_backbone(const model_weights *w, int advice, size_t total,
                              const model_progress *progress) {
    size_t bytes = advise_matrix(&w->head, advice);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const layer_weights *l = &w->layers[i];
        const weight_matrix *matrices[] = {&l->q,  &l->k,     &l->v,     &l->attn_out, &l->qkv,
                                           &l->z,  &l->alpha, &l->beta,  &l->ssm_out,  &l->gate,
                                           &l->up, &l->down,  &l->router};
        for (size_t j = 0; j < sizeof matrices / sizeof matrices[0]; j++)
            bytes += advise_matrix(matrices[j], advice);
        if (progress != NULL && progress->report != NULL)
            progress->report(progress->context, bytes, total);
    }
    return bytes;
}

/* The first token would fault these pages in one by one, in the order of its reads.
 * They are read ahead all at once instead and mapped here, unless that would push out
 * of memory what it has just brought in.  Kernels before 5.14 only read ahead. */
static void map_backbone(const model_weights *w, const model_progress *progress) {
    size_t bytes = advise_backbone(w, MADV_WILLNEED, 0, NULL);
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (bytes <= memory / 2) (void)advise_backbone(w, MADV_POPULATE_READ, bytes, progress);
}

/* Weights are read where the file is mapped, apart from the convolution's taps,
 * which the kernel wants with channels side by side. */
static status place_weights(backend_cpu *b, model_weights *w, error *err) {
    const model_config *c = b->config;
    size_t taps = (size_t)c->conv_taps * c->conv_dim;
    b->conv = cpu_alloc(c->n_linear_layers * taps * sizeof(float));
    if (b->conv == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory for convolutions");
    }
    model_weights_place_mapped(w);
    if (b->experts.host != NULL) gguf_give_back(w->file);
    map_backbone(w, &b->params.progress);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer_weights *l = &w->layers[i];
        if (!c->is_linear[i]) continue;
        float *out = b->conv + c->kind_index[i] * taps;
        conv1d_transpose(l->conv.data, c->conv_dim, c->conv_taps, out);
        l->conv.place = out;
    }
    return STATUS_OK;
}

status backend_cpu_open(backend **out, const model_config *config, model_weights *weights,
                        const model_params *params, error *err) {
    *out = NULL;
    backend_cpu *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory");
    b->base.ops = &cpu_ops;
    b->config = config;
    b->weights = weights;
    b->params = *params;
    b->n_threads = params->n_threads > 0 ? params->n_threads : pool_usable_cores();
    status rc = cpu_work_init(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = init_buffers(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = init_inputs(b, err);
    if (rc != STATUS_OK) goto fail;
    if (weights->block.in.data != NULL)
        rc = cpu_input_init(&b->pair, params->max_rows, 2 * (size_t)config->n_embd,
                            cpu_all_forms(b), err);
    if (rc != STATUS_OK) goto fail;
    rc = init_sequences(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = cpu_journal_init(b, err);
    if (rc != STATUS_OK) goto fail;
    rc = config->moe ? cpu_experts_init(b, weights, err) : STATUS_OK;
    if (rc != STATUS_OK) goto fail;
    rc = place_weights(b, weights, err);
    if (rc == STATUS_OK) rc = cpu_experts_fill(b, weights, err);
    if (rc != STATUS_OK) goto fail;
    *out = &b->base;
    return STATUS_OK;
fail:
    cpu_close(&b->base);
    return rc;
}
