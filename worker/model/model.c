/* model.c - opening a model and turning segments into the batch of a step. */
#include "worker/model/model.h"

#include "worker/backend.h"
#include "worker/memory/host_tier.h"
#include "worker/model/forward.h"
#include "worker/model/weights.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Neighbouring layers on a device. */
typedef struct model_part {
    model_config config;
    model_weights weights; /* a view of the model's */
    backend *device;       /* NULL: there is no such part */
    forward pass;
} model_part;

struct model {
    model_config config;
    model_weights weights;
    model_params params;
    model_part first;       /* params.n_cpu_layers, on the CPU */
    float *handed;          /* [max_rows][n_embd] from the first part to the other */
    model_config config_of; /* of the layers on `device`: all, or those behind the first part */
    model_weights weights_of;
    backend *device;
    forward pass;
    /* The batch of the running step: max_rows of each, and cap_pages pages. */
    int32_t *tokens;
    uint32_t *row_run;
    batch_run *runs;
    batch_hidden *hidden; /* a run may want one */
    const float **before; /* of each run */
    uint32_t *output_rows;
    uint32_t *pages;
    size_t n_pages;
    uint32_t *remembered; /* [runs] first remembered row of each, or BATCH_FORGOTTEN */
    uint32_t n_remembered;
    const routing_trace *traces; /* NULL: the router chooses */
    uint32_t n_traces;
    int32_t *routed;      /* [n_layers][max_rows][n_experts_used], made with traces */
    uint64_t *state_step; /* the last step that a state had a part in, 0: none */
    uint64_t n_tokens_run;
    uint64_t n_steps_run;
    uint64_t n_slices_run; /* of those steps, all but each piece's last */
    bool is_trial;
    model_stats at_trial; /* what was told when the running trial began */
    model_stats untold;   /* of trials that are over */
};

static status check_params(const model_params *p, const model_config *c, error *err) {
    if (p->n_pages == 0 || p->n_states == 0 || p->max_rows == 0 || p->max_outputs == 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "model: n_pages %u, n_states %u, max_rows %u and max_outputs %u must "
                         "not be 0",
                         p->n_pages, p->n_states, p->max_rows, p->max_outputs);
    }
    if (p->n_slots > 0 && !c->moe) {
        return error_set(err, STATUS_BAD_INPUT,
                         "model: %u expert slots asked for, but %s has no experts", p->n_slots,
                         c->arch);
    }
    return STATUS_OK;
}

static status open_backend(model *m, error *err) {
    switch (m->params.backend) {
    case BACKEND_CPU:
        return backend_cpu_open(&m->device, &m->config_of, &m->weights_of, &m->params, err);
    case BACKEND_CUDA:
        return backend_cuda_open(&m->device, &m->config_of, &m->weights_of, &m->params, err);
    }
    return error_set(err, STATUS_BAD_INPUT, "model: backend %d", (int)m->params.backend);
}

/* Which layers are on the device. */
static status cut_layers(model *m, error *err) {
    uint32_t n = m->config.n_layers, n_cpu = m->params.n_cpu_layers;
    m->config_of = m->config;
    m->weights_of = m->weights;
    if (n_cpu == 0) return STATUS_OK;
    if (m->config.moe || n_cpu >= n || m->params.n_remembered > 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "model: %u of %u layers cannot compute apart from the others", n_cpu,
                         n);
    }
    model_config_of_layers(&m->config_of, n_cpu, n - n_cpu);
    model_weights_of_layers(&m->weights_of, &m->weights, n_cpu, n - n_cpu);
    return STATUS_OK;
}

/* After the device, which gives the file's pages back when it has read them. */
static status open_first(model *m, error *err) {
    model_part *p = &m->first;
    uint32_t n = m->params.n_cpu_layers;
    if (n == 0) return STATUS_OK;
    p->config = m->config;
    model_config_of_layers(&p->config, 0, n);
    model_weights_of_layers(&p->weights, &m->weights, 0, n);
    m->handed = calloc((size_t)m->params.max_rows * m->config.n_embd, sizeof *m->handed);
    if (m->handed == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory");
    model_params params = m->params;
    params.backend = BACKEND_CPU;
    status rc = backend_cpu_open(&p->device, &p->config, &p->weights, &params, err);
    if (rc != STATUS_OK) return rc;
    return forward_init(&p->pass, &p->config, &p->weights, p->device, params.activations, err);
}

/* Runs have distinct states, and a run has at most every page and keeps at most a state a
 * row: the lists of a step fit in that. */
static status make_batch(model *m, error *err) {
    const model_params *p = &m->params;
    size_t n = p->max_rows, n_runs = n < p->n_states ? n : p->n_states;
    m->tokens = calloc(n, sizeof *m->tokens);
    m->row_run = calloc(n, sizeof *m->row_run);
    m->runs = calloc(n_runs, sizeof *m->runs);
    m->hidden = calloc(n_runs, sizeof *m->hidden);
    m->before = calloc(n_runs, sizeof(float *));
    m->remembered = calloc(n_runs, sizeof *m->remembered);
    m->output_rows = calloc(n, sizeof *m->output_rows);
    m->pages = calloc(n_runs * p->n_pages + n, sizeof *m->pages);
    m->state_step = calloc(p->n_states, sizeof *m->state_step);
    if (m->tokens == NULL || m->row_run == NULL || m->runs == NULL || m->hidden == NULL ||
        m->before == NULL || m->remembered == NULL || m->output_rows == NULL ||
        m->pages == NULL || m->state_step == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "model: no memory for a batch of %zu rows", n);
    }
    return STATUS_OK;
}

static status read_weights(model *m, const gguf_file *file, bool block, error *err) {
    status rc = model_config_read(&m->config, file, err);
    if (rc != STATUS_OK) return rc;
    if (!block) {
        rc = check_params(&m->params, &m->config, err);
        return rc == STATUS_OK ? model_weights_map(&m->weights, &m->config, file, err) : rc;
    }
    if (m->config.n_mtp_layers == 0)
        return error_set(err, STATUS_BAD_INPUT, "model: the file has no MTP block");
    model_config_of_block(&m->config);
    rc = check_params(&m->params, &m->config, err);
    return rc == STATUS_OK ? model_weights_map_block(&m->weights, &m->config, file, err) : rc;
}

/* The head is where the whole model has it, and is not loaded again. */
static void share_head(model *m, const model *whole) {
    weight_matrix *head = &m->weights_of.head;
    if (whole == NULL || head->data != whole->weights.head.data) return;
    if (m->params.backend == BACKEND_CPU) return; /* both read the file */
    head->place = whole->weights_of.head.place;
    head->data = NULL;
}

static status open_whole(model **out, const gguf_file *file, const model_params *params,
                         bool block, const model *whole, error *err) {
    *out = NULL;
    model *m = calloc(1, sizeof *m);
    if (m == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory");
    m->params = *params;
    status rc = read_weights(m, file, block, err);
    if (rc != STATUS_OK) goto fail;
    rc = make_batch(m, err);
    if (rc != STATUS_OK) goto fail;
    rc = cut_layers(m, err);
    if (rc != STATUS_OK) goto fail;
    share_head(m, whole);
    rc = open_backend(m, err);
    if (rc != STATUS_OK) goto fail;
    rc = forward_init(&m->pass, &m->config_of, &m->weights_of, m->device, params->activations,
                      err);
    if (rc != STATUS_OK) goto fail;
    rc = open_first(m, err);
    if (rc != STATUS_OK) goto fail;
    *out = m;
    return STATUS_OK;
fail:
    model_close(m);
    return rc;
}

status model_open(model **out, const gguf_file *file, const model_params *params, error *err) {
    return open_whole(out, file, params, false, NULL, err);
}

status model_open_block(model **out, const gguf_file *file, const model *whole,
                        const model_params *params, error *err) {
    return open_whole(out, file, params, true, whole, err);
}

void model_close(model *m) {
    if (m == NULL) return;
    forward_release(&m->first.pass);
    if (m->first.device != NULL) m->first.device->ops->close(m->first.device);
    free(m->handed);
    forward_release(&m->pass);
    if (m->device != NULL) m->device->ops->close(m->device);
    free(m->routed);
    free(m->state_step);
    free(m->pages);
    free(m->output_rows);
    free(m->remembered);
    free(m->before);
    free(m->hidden);
    free(m->runs);
    free(m->row_run);
    free(m->tokens);
    model_weights_release(&m->weights);
    free(m);
}

const model_config *model_configuration(const model *m) {
    return &m->config;
}

static size_t pages_of(const model_segment *s) {
    return ((size_t)s->position + s->n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
}

static status check_tokens(const model *m, const model_segment *s, size_t i, error *err) {
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        if (s->tokens[t] < 0 || (uint32_t)s->tokens[t] >= m->config.n_vocab) {
            return error_set(err, STATUS_BAD_INPUT,
                             "step: segment %zu, token %u is %d, the vocabulary has %u", i, t,
                             s->tokens[t], m->config.n_vocab);
        }
    }
    return STATUS_OK;
}

static status check_state(const model *m, uint32_t state, size_t i, error *err) {
    bool exists = state < m->params.n_states;
    if (exists && m->state_step[state] != m->n_steps_run) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "step: segment %zu has state %u, which %s", i,
                     state, exists ? "it or another segment has already" : "does not exist");
}

/* The states of a segment become its own for this step. */
static status claim_states(model *m, const model_segment *s, size_t i, error *err) {
    status rc = check_state(m, s->state, i, err);
    if (rc != STATUS_OK) return rc;
    if (s->states_after != NULL && !model_verifies_rows(m)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "step: segment %zu keeps states, which backend %s does not", i,
                         m->device->ops->name);
    }
    if (s->remembered) m->state_step[s->state] = m->n_steps_run;
    uint32_t n_after = s->states_after == NULL ? 0 : s->remembered ? 1 : s->n_tokens;
    for (uint32_t t = 0; t < n_after; t++) {
        rc = check_state(m, s->states_after[t], i, err);
        if (rc != STATUS_OK) return rc;
        m->state_step[s->states_after[t]] = m->n_steps_run;
    }
    m->state_step[s->state] = m->n_steps_run;
    return STATUS_OK;
}

static status check_segment(const model *m, const model_segment *s, size_t i, error *err) {
    if (s->n_tokens == 0 || s->n_outputs > s->n_tokens) {
        return error_set(err, STATUS_BAD_INPUT,
                         "step: segment %zu has %u tokens and %u outputs", i, s->n_tokens,
                         s->n_outputs);
    }
    if (s->n_hidden > s->n_tokens || (s->n_hidden > 0 && s->hidden == NULL)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "step: segment %zu has %u tokens and %u hidden rows%s", i, s->n_tokens,
                         s->n_hidden, s->hidden == NULL ? " without a place" : "");
    }
    if ((s->before != NULL) != (m->weights.block.in.data != NULL)) {
        return error_set(err, STATUS_BAD_INPUT, "step: segment %zu has %s rows before it", i,
                         s->before != NULL ? "needless" : "no");
    }
    if (pages_of(s) > m->params.n_pages) {
        return error_set(err, STATUS_BAD_INPUT,
                         "step: segment %zu needs %zu pages, there are %u", i, pages_of(s),
                         m->params.n_pages);
    }
    for (size_t page = 0; page < pages_of(s); page++) {
        if (s->pages[page] >= m->params.n_pages) {
            return error_set(err, STATUS_BAD_INPUT, "step: segment %zu has page %u of %u", i,
                             s->pages[page], m->params.n_pages);
        }
    }
    return check_tokens(m, s, i, err);
}

static status check_remembered(const model *m, const model_segment *s, size_t i, error *err) {
    if (!s->remembered) return STATUS_OK;
    uint32_t left = model_remembers_rows(m) ? m->params.n_remembered - m->n_remembered : 0;
    if (s->states_after != NULL && s->n_tokens <= left) return STATUS_OK;
    return error_set(
        err, STATUS_BAD_INPUT, "step: segment %zu is to be remembered, %u tokens %s of %u", i,
        s->n_tokens, s->states_after != NULL ? "where there is room" : "unverified", left);
}

/* Where the states after a segment's rows go, behind the pages. */
static void list_states(model *m, batch_run *run, const model_segment *s) {
    if (s->states_after == NULL) return;
    run->first_kept = (uint32_t)m->n_pages;
    for (uint32_t t = 0; t < s->n_tokens; t++)
        m->pages[m->n_pages++] = s->states_after[s->remembered ? 0 : t];
}

/* Append one segment's rows to the batch. */
static void add_segment(model *m, batch *b, const model_segment *s) {
    batch_view *v = &b->view;
    m->runs[v->n_runs] = (batch_run){.first_row = v->n_rows,
                                     .n_rows = s->n_tokens,
                                     .position = s->position,
                                     .state = s->state,
                                     .first_page = (uint32_t)m->n_pages};
    memcpy(m->pages + m->n_pages, s->pages, pages_of(s) * sizeof *m->pages);
    memcpy(m->tokens + v->n_rows, s->tokens, s->n_tokens * sizeof *m->tokens);
    for (uint32_t t = 0; t < s->n_tokens; t++)
        m->row_run[v->n_rows + t] = v->n_runs;
    for (uint32_t t = s->n_tokens - s->n_outputs; t < s->n_tokens; t++) {
        m->output_rows[b->n_outputs++] = v->n_rows + t;
    }
    if (s->n_hidden > 0) {
        m->hidden[b->n_hidden++] =
            (batch_hidden){v->n_rows + s->n_tokens - s->n_hidden, s->n_hidden, s->hidden};
    }
    m->before[v->n_runs] = s->before;
    m->n_pages += pages_of(s);
    list_states(m, &m->runs[v->n_runs], s);
    m->remembered[v->n_runs] = s->remembered ? m->n_remembered : BATCH_FORGOTTEN;
    if (s->remembered) m->n_remembered += s->n_tokens;
    v->n_rows += s->n_tokens;
    v->n_runs++;
}

static status build_batch(model *m, const model_segment *segments, size_t n, batch *b,
                          error *err) {
    *b = (batch){.view = {.runs = m->runs, .row_run = m->row_run, .pages = m->pages},
                 .end_layer = m->config_of.n_layers,
                 .tokens = m->tokens,
                 .output_rows = m->output_rows,
                 .hidden = m->hidden,
                 .before = m->before,
                 .remembered = m->remembered};
    m->n_pages = 0;
    m->n_remembered = 0;
    m->n_steps_run++;
    for (size_t i = 0; i < n; i++) {
        status rc = check_segment(m, &segments[i], i, err);
        if (rc != STATUS_OK) return rc;
        if (segments[i].n_tokens > m->params.max_rows - b->view.n_rows ||
            segments[i].n_outputs > m->params.max_outputs - b->n_outputs) {
            return error_set(err, STATUS_BAD_INPUT,
                             "step: more than %u rows or %u outputs at segment %zu",
                             m->params.max_rows, m->params.max_outputs, i);
        }
        rc = claim_states(m, &segments[i], i, err);
        if (rc == STATUS_OK) rc = check_remembered(m, &segments[i], i, err);
        if (rc != STATUS_OK) return rc;
        add_segment(m, b, &segments[i]);
    }
    return STATUS_OK;
}

static void route_batch(model *m, const model_segment *segments, batch *b) {
    uint32_t n_used = m->config.n_experts_used;
    int32_t *to = m->routed;
    for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
        for (uint32_t row = 0; row < b->view.n_rows; row++) {
            uint32_t i_run = b->view.row_run[row];
            const batch_run *run = &b->view.runs[i_run];
            const routing_trace *trace = &m->traces[segments[i_run].trace % m->n_traces];
            uint32_t position = run->position + row - run->first_row;
            const uint16_t *ids = routing_trace_at(trace, position, layer);
            for (uint32_t i = 0; i < n_used; i++)
                *to++ = ids[i];
        }
    }
    b->routed = m->routed;
}

static status check_trace(const model_config *c, const routing_trace *trace, error *err) {
    if (trace->n_layers == c->n_layers && trace->n_experts == c->n_experts &&
        trace->n_used == c->n_experts_used) {
        return STATUS_OK;
    }
    return error_set(err, STATUS_BAD_INPUT,
                     "routing: the trace is of %u layers x %u experts, %u used, the model "
                     "of %u x %u, %u used",
                     trace->n_layers, trace->n_experts, trace->n_used, c->n_layers,
                     c->n_experts, c->n_experts_used);
}

status model_set_routing(model *m, const routing_trace *traces, uint32_t n_traces, error *err) {
    const model_config *c = &m->config;
    m->traces = NULL;
    for (uint32_t i = 0; i < n_traces; i++) {
        status rc = check_trace(c, &traces[i], err);
        if (rc != STATUS_OK) return rc;
    }
    if (n_traces == 0) return STATUS_OK;
    if (m->routed == NULL) {
        m->routed = calloc((size_t)c->n_layers * m->params.max_rows * c->n_experts_used,
                           sizeof *m->routed);
    }
    if (m->routed == NULL) return error_set(err, STATUS_NO_MEMORY, "routing: no memory");
    m->traces = traces;
    m->n_traces = n_traces;
    return STATUS_OK;
}

void model_forget_experts(model *m) {
    m->device->ops->forget_experts(m->device);
}

/* What the first part makes of the batch, for the device to go on with. */
static status run_first(const model *m, batch *b, error *err) {
    if (m->first.device == NULL) return STATUS_OK;
    batch alone = *b;
    alone.n_outputs = alone.n_hidden = 0;
    alone.end_layer = m->first.config.n_layers;
    b->residual = m->handed;
    return forward_run_layers(&m->first.pass, &alone, m->handed, err);
}

/* logits or best gets the results. */
static status run_step(model *m, const model_segment *segments, size_t n_segments,
                       float *logits, uint32_t n_vocab, model_best *best, error *err) {
    batch b;
    status rc = build_batch(m, segments, n_segments, &b, err);
    if (rc != STATUS_OK || b.view.n_rows == 0) return rc;
    if (b.n_outputs > 0 && logits == NULL && best == NULL) {
        return error_set(err, STATUS_BAD_INPUT, "step: %u outputs and no place for logits",
                         b.n_outputs);
    }
    b.best = best;
    b.best_of = n_vocab;
    b.watched = m->pass.tap != NULL;
    if (m->traces != NULL) route_batch(m, segments, &b);
    m->n_tokens_run += b.view.n_rows;
    rc = run_first(m, &b, err);
    return rc == STATUS_OK ? forward_run(&m->pass, &b, logits, err) : rc;
}

status model_step(model *m, const model_segment *segments, size_t n_segments, float *logits,
                  error *err) {
    return run_step(m, segments, n_segments, logits, 0, NULL, err);
}

static status check_slice(const model *m, const model_segment *s, const model_slice *slice,
                          error *err) {
    if (slice->first_layer >= slice->end_layer || slice->end_layer > m->config.n_layers) {
        return error_set(err, STATUS_BAD_INPUT, "slice: layers [%u, %u) of %u",
                         slice->first_layer, slice->end_layer, m->config.n_layers);
    }
    /* A single row, or one that is verified, is a decoding row to a GPU. */
    if (s->n_tokens < 2 || s->states_after != NULL || m->first.device != NULL) {
        return error_set(err, STATUS_BAD_INPUT, "slice: %u tokens%s%s are not cut by layers",
                         s->n_tokens, s->states_after != NULL ? ", verified row by row," : "",
                         m->first.device != NULL ? " of a model of two parts" : "");
    }
    return STATUS_OK;
}

status model_step_slice(model *m, const model_segment *segment, const model_slice *slice,
                        float *logits, error *err) {
    batch b;
    status rc = check_slice(m, segment, slice, err);
    if (rc == STATUS_OK) rc = build_batch(m, segment, 1, &b, err);
    if (rc != STATUS_OK) return rc;
    b.first_layer = slice->first_layer;
    b.end_layer = slice->end_layer;
    b.watched = m->pass.tap != NULL;
    if (slice->first_layer > 0) b.residual = slice->rows;
    if (m->traces != NULL) route_batch(m, segment, &b);
    if (slice->end_layer < m->config.n_layers) {
        m->n_slices_run++;
        b.n_outputs = b.n_hidden = 0;
        return forward_run_layers(&m->pass, &b, slice->rows, err);
    }
    if (b.n_outputs > 0 && logits == NULL)
        return error_set(err, STATUS_BAD_INPUT, "slice: %u outputs and no place for logits",
                         b.n_outputs);
    m->n_tokens_run += b.view.n_rows;
    return forward_run(&m->pass, &b, logits, err);
}

bool model_verifies_rows(const model *m) {
    return m->device->ops->verifies_rows;
}

bool model_remembers_rows(const model *m) {
    return m->device->ops->state_replay != NULL && m->first.device == NULL;
}

void model_replay(model *m, size_t segment, uint32_t n_rows) {
    CHECK(m->remembered[segment] != BATCH_FORGOTTEN && n_rows > 0 &&
          n_rows <= m->runs[segment].n_rows);
    m->device->ops->state_replay(m->device, &m->runs[segment], m->remembered[segment], n_rows);
}

bool model_finds_best(const model *m) {
    return m->device->ops->read_logits != NULL;
}

status model_step_best(model *m, const model_segment *segments, size_t n_segments,
                       uint32_t n_vocab, model_best *best, error *err) {
    CHECK(model_finds_best(m) && n_vocab <= m->config.n_vocab);
    return run_step(m, segments, n_segments, NULL, n_vocab, best, err);
}

status model_read_logits(model *m, float *logits, error *err) {
    CHECK(model_finds_best(m));
    return m->device->ops->read_logits(m->device, logits, err);
}

/* States and pages of both parts: the first part's bytes come first.  Layers of one kind alone
 * have no states, or no pages. */

void model_state_clear(model *m, uint32_t state) {
    CHECK(state < m->params.n_states);
    if (m->first.device != NULL) m->first.device->ops->state_clear(m->first.device, state);
    if (m->config_of.n_linear_layers > 0) m->device->ops->state_clear(m->device, state);
}

void model_state_save(model *m, uint32_t state, void *bytes) {
    CHECK(state < m->params.n_states);
    size_t n = 0;
    if (m->first.device != NULL) {
        m->first.device->ops->state_save(m->first.device, state, bytes);
        n = model_config_state_bytes(&m->first.config);
    }
    if (m->config_of.n_linear_layers > 0)
        m->device->ops->state_save(m->device, state, (unsigned char *)bytes + n);
}

void model_state_load(model *m, uint32_t state, const void *bytes) {
    CHECK(state < m->params.n_states);
    size_t n = 0;
    if (m->first.device != NULL) {
        m->first.device->ops->state_load(m->first.device, state, bytes);
        n = model_config_state_bytes(&m->first.config);
    }
    if (m->config_of.n_linear_layers > 0)
        m->device->ops->state_load(m->device, state, (const unsigned char *)bytes + n);
}

void model_state_copy(model *m, uint32_t to, uint32_t from) {
    CHECK(to < m->params.n_states && from < m->params.n_states);
    if (to == from) return;
    if (m->first.device != NULL) m->first.device->ops->state_copy(m->first.device, to, from);
    if (m->config_of.n_linear_layers > 0) m->device->ops->state_copy(m->device, to, from);
}

static size_t first_page_bytes(const model *m) {
    return m->first.device != NULL ? m->first.device->ops->page_bytes(m->first.device) : 0;
}

size_t model_page_bytes(const model *m) {
    return first_page_bytes(m) + m->device->ops->page_bytes(m->device);
}

void model_page_save(model *m, uint32_t page, void *bytes) {
    CHECK(page < m->params.n_pages);
    size_t n = first_page_bytes(m);
    if (n > 0) m->first.device->ops->page_save(m->first.device, page, bytes);
    if (m->config_of.n_full_layers > 0)
        m->device->ops->page_save(m->device, page, (unsigned char *)bytes + n);
}

void model_page_load(model *m, uint32_t page, const void *bytes) {
    CHECK(page < m->params.n_pages);
    size_t n = first_page_bytes(m);
    if (n > 0) m->first.device->ops->page_load(m->first.device, page, bytes);
    if (m->config_of.n_full_layers > 0)
        m->device->ops->page_load(m->device, page, (const unsigned char *)bytes + n);
}

void model_page_copy(model *m, uint32_t to, uint32_t from) {
    CHECK(to < m->params.n_pages && from < m->params.n_pages);
    if (to == from) return;
    if (first_page_bytes(m) > 0) m->first.device->ops->page_copy(m->first.device, to, from);
    if (m->config_of.n_full_layers > 0) m->device->ops->page_copy(m->device, to, from);
}

float *model_logits_memory(model *m) {
    return m->device->ops->logits_memory(m->device);
}

void model_set_tap(model *m, model_tap tap, void *context) {
    const model_config *c = &m->config;
    size_t row = c->n_embd > c->n_experts_used ? c->n_embd : c->n_experts_used;
    CHECK(m->first.device == NULL); /* nobody looks into a model of two parts */
    if (tap != NULL && m->pass.tap_rows == NULL) {
        m->pass.tap_rows = calloc((size_t)m->params.max_rows * row, sizeof *m->pass.tap_rows);
        CHECK(m->pass.tap_rows != NULL); /* a look inside is for tests and dumps */
    }
    m->pass.tap = tap;
    m->pass.tap_context = context;
}

void model_stats_add_host(model_stats *out, const host_tier *host) {
    if (host == NULL) return;
    host_tier_counts counts;
    host_tier_count(host, &counts);
    out->host_fetches = counts.fetches;
    out->disk_misses = counts.misses;
    out->disk_bytes = counts.disk_bytes;
    out->disk_wait_ns = counts.wait_ns;
    out->disk_direct = counts.direct;
    out->host_received = counts.received;
}

static void read_all_stats(const model *m, model_stats *out) {
    memset(out, 0, sizeof *out);
    m->device->ops->read_stats(m->device, out);
    out->tokens = m->n_tokens_run;
    out->steps = m->n_steps_run - m->n_slices_run;
    out->slices = m->n_slices_run;
}

/* to += a - b, of what a step adds to. */
static void add_difference(model_stats *to, const model_stats *a, const model_stats *b) {
    to->expert_lookups += a->expert_lookups - b->expert_lookups;
    to->expert_hits += a->expert_hits - b->expert_hits;
    to->expert_inserts += a->expert_inserts - b->expert_inserts;
    to->expert_bytes_moved += a->expert_bytes_moved - b->expert_bytes_moved;
    to->tokens += a->tokens - b->tokens;
    to->steps += a->steps - b->steps;
    to->launches += a->launches - b->launches;
    to->lane_experts += a->lane_experts - b->lane_experts;
    to->host_fetches += a->host_fetches - b->host_fetches;
    to->disk_misses += a->disk_misses - b->disk_misses;
    to->disk_wait_ns += a->disk_wait_ns - b->disk_wait_ns;
    to->host_received += a->host_received - b->host_received;
}

void model_read_stats(const model *m, model_stats *out) {
    static const model_stats none;
    model_stats untold = m->untold;
    read_all_stats(m, out);
    if (m->is_trial) add_difference(&untold, out, &m->at_trial);
    add_difference(out, &none, &untold);
}

void model_set_trial(model *m, bool trial) {
    model_stats now;
    if (trial == m->is_trial) return;
    read_all_stats(m, &now);
    if (trial)
        m->at_trial = now;
    else
        add_difference(&m->untold, &now, &m->at_trial);
    m->is_trial = trial;
    m->device->ops->set_trial(m->device, trial);
}

uint32_t *model_expert_uses(const model *m) {
    return m->device->ops->expert_uses(m->device);
}

void model_numerics_id(const model *m, char *out, size_t cap) {
    static const char *const kv_names[] = {"f32", "f16", "q8", "q4"};
    bool shared = m->params.backend == BACKEND_CUDA && m->params.lane >= CPU_LANE_ON;
    (void)snprintf(out, cap, "%s/%s/%s%s", m->device->ops->name,
                   m->params.activations == ACTIVATIONS_F32 ? "f32" : "int8",
                   kv_names[m->params.kv], shared ? "/lane" : "");
}
