/* backend_cuda_lane.c - experts without a slot computed on the CPU while others travel.
 *
 * The lane reads matrices where the file is mapped, or, where there is no room for the file's
 * pages beside the records in RAM, from those, bringing Q6_K back into the file's form.  It has
 * the CPU backend's kernels and its own quantization of the rows, so a bit may depend on who
 * computed an expert; off, none does.  Of a layer's missing experts the CPU takes those that the
 * fewest rows use, as many as it finishes in the time that the bus needs for the others; both
 * times are measured as they happen.  Where all records are pinned and a record's journey is
 * shorter than the lane with its look, the lane takes none: the GPU fetches faster.
 */
#include "worker/backend_cuda.h"

#include "common/clock.h"
#include "worker/backend_cpu.h"
#include <stdlib.h>
#include <string.h>

/* A row more of an expert costs this part of what its first row does: weights are read once. */
static const double ROW_SHARE = 0.25;
/* A layer that the lane works on stops for a look of the host. */
static const double LOOK_NS = 25e3;
/* Each measurement's weight in the running mean. */
static const double NEWEST = 0.1;
/* Experts of a layer that come from records at most, and the pieces that one is cut into. */
enum { MOST_RECORDS = 32, BACK_PIECES = 16 };

struct cuda_lane {
    backend_cpu cpu;  /* its matrices' part alone */
    cpu_input hidden; /* the float form is experts.hidden */
    cpu_input mid;    /* [pairs][n_ff] */
    float *up;        /* [pairs][n_ff] */
    float *down;      /* pinned, [pairs][n_embd] */
    size_t max_pairs;
    int32_t *pair_row; /* [pairs] of the lane's experts, one expert after another */
    int32_t *pair_out;
    uint32_t *first; /* [n_experts]: of active[i]'s pairs */
    bool reads_records;
    expert_place *places; /* [n_experts]: of active[i]'s matrices */
    unsigned char *back;  /* [MOST_RECORDS][back_bytes]: what a record has split */
    size_t back_bytes;
    uint32_t n_records;  /* taken for the running layer */
    uint32_t *record_of; /* [MOST_RECORDS]: i of active[i] */
    bool *row_needed;    /* [max_rows] */
    double expert_ns;    /* an expert with one row */
    bool pays;           /* decided once, so that a text does not depend on the hour */
};

static bool is_split(const weight_experts *w) {
    return w->first.type == QUANT_Q6_K;
}

static size_t one_bytes(const weight_experts *w) {
    return w->first.row_bytes * w->first.n_rows;
}

/* Memory for the file's form of an expert's split matrices. */
static size_t split_bytes(const layer_weights *l) {
    const weight_experts *parts[] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    size_t sum = 0;
    for (size_t i = 0; i < 3; i++)
        sum += is_split(parts[i]) ? one_bytes(parts[i]) : 0;
    return (sum + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

static status init_records(cuda_lane *lane, const backend_cuda *b, error *err) {
    lane->reads_records = !b->params.pin_experts;
    lane->places = calloc(b->config->n_experts, sizeof *lane->places);
    lane->record_of = calloc(MOST_RECORDS, sizeof *lane->record_of);
    for (uint32_t i = 0; lane->reads_records && i < b->config->n_layers; i++) {
        size_t n = split_bytes(&b->weights->layers[i]);
        if (n > lane->back_bytes) lane->back_bytes = n;
    }
    if (lane->back_bytes > 0) lane->back = cpu_alloc(MOST_RECORDS * lane->back_bytes);
    bool whole = lane->places != NULL && lane->record_of != NULL &&
                 (lane->back != NULL || lane->back_bytes == 0);
    return whole ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "cpu lane: no memory");
}

status cuda_lane_open(cuda_lane **out, const backend_cuda *b, error *err) {
    const model_config *c = b->config;
    size_t rows = b->params.max_rows;
    *out = NULL;
    cuda_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return error_set(err, STATUS_NO_MEMORY, "cpu lane: no memory");
    *out = lane; /* half-built: the caller closes it */
    lane->cpu.config = c;
    lane->cpu.params = b->params;
    lane->cpu.n_threads = pool_n_threads(b->threads);
    lane->expert_ns = 400e3 / lane->cpu.n_threads;
    lane->pays = b->params.lane == CPU_LANE_ALL || b->experts.all == NULL ||
                 lane->expert_ns + LOOK_NS < b->experts.ship_ns;
    lane->max_pairs = rows * c->n_experts_used;
    status rc = cpu_work_init(&lane->cpu, err);
    if (rc != STATUS_OK) return rc;
    unsigned forms = cpu_all_forms(&lane->cpu);
    rc = cpu_input_init(&lane->hidden, rows, c->n_embd, forms & ~(1u << ACT_F32), err);
    if (rc != STATUS_OK) return rc;
    rc = cpu_input_init(&lane->mid, lane->max_pairs, c->n_ff_expert, forms, err);
    if (rc != STATUS_OK) return rc;
    lane->hidden.form[ACT_F32] = b->experts.hidden;
    lane->up = cpu_alloc(lane->max_pairs * c->n_ff_expert * sizeof(float));
    lane->pair_row = calloc(lane->max_pairs, sizeof *lane->pair_row);
    lane->pair_out = calloc(lane->max_pairs, sizeof *lane->pair_out);
    lane->first = calloc(c->n_experts, sizeof *lane->first);
    lane->row_needed = calloc(rows, sizeof *lane->row_needed);
    lane->down = cpu_reserve(lane->max_pairs * c->n_embd * sizeof(float));
    if (lane->up == NULL || lane->pair_row == NULL || lane->pair_out == NULL ||
        lane->first == NULL || lane->row_needed == NULL || lane->down == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cpu lane: no memory for %zu rows", rows);
    }
    return init_records(lane, b, err);
}

void cuda_lane_close(cuda_lane *lane) {
    if (lane == NULL) return;
    if (lane->down != NULL)
        cpu_unreserve(lane->down, lane->max_pairs * lane->cpu.config->n_embd * sizeof(float));
    free(lane->back);
    free(lane->record_of);
    free(lane->places);
    free(lane->row_needed);
    free(lane->first);
    free(lane->pair_out);
    free(lane->pair_row);
    free(lane->up);
    lane->hidden.form[ACT_F32] = NULL; /* the backend's own */
    cpu_input_release(&lane->mid);
    cpu_input_release(&lane->hidden);
    cpu_work_release(&lane->cpu);
    free(lane);
}

bool cuda_lane_pays(const backend_cuda *b) {
    return b->experts.lane != NULL && b->experts.lane->pays;
}

static uint32_t rows_of(const cuda_experts *x, size_t i) {
    int32_t e = x->active[i];
    return x->first[e + 1] - x->first[e];
}

static double cost_ns(const cuda_experts *x, size_t i) {
    return x->lane->expert_ns * (1 + ROW_SHARE * (rows_of(x, i) - 1));
}

/* The missing expert with the fewest rows that is not taken, or n_active. */
static size_t rarest(const cuda_experts *x) {
    size_t best = x->n_active;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] != EXPERT_MISS || x->on_cpu[i]) continue;
        if (best == x->n_active || rows_of(x, i) < rows_of(x, best)) best = i;
    }
    return best;
}

void cuda_lane_choose(const backend_cuda *b, bool all) {
    const cuda_experts *x = &b->experts;
    memset(x->on_cpu, 0, b->config->n_experts * sizeof *x->on_cpu);
    if (x->lane == NULL || (!all && !x->lane->pays)) return;
    size_t n_left = 0;
    for (size_t i = 0; i < x->n_active; i++)
        n_left += x->slots[i] == EXPERT_MISS;
    size_t n_most = x->lane->reads_records ? MOST_RECORDS : n_left;
    double busy_ns = 0;
    for (size_t i = rarest(x); i < x->n_active && n_most > 0; i = rarest(x)) {
        n_most--;
        busy_ns += cost_ns(x, i);
        n_left--;
        if (!all && busy_ns > (double)n_left * x->ship_ns) break;
        x->on_cpu[i] = true;
    }
}

/* Pairs of the marked experts, in the order of the experts; returns how many. */
static size_t list_pairs(cuda_lane *lane, const backend_cuda *b, size_t n_rows) {
    const cuda_experts *x = &b->experts;
    uint32_t n_used = b->config->n_experts_used;
    uint32_t index_of[1024];
    size_t n = 0;
    memset(lane->row_needed, 0, n_rows * sizeof *lane->row_needed);
    memset(index_of, 0xff, sizeof index_of);
    for (size_t i = 0; i < x->n_active; i++) {
        if (!x->on_cpu[i]) continue;
        lane->first[i] = (uint32_t)n;
        index_of[x->active[i]] = (uint32_t)n;
        n += rows_of(x, i);
    }
    for (size_t pair = 0; pair < n_rows * n_used; pair++) {
        uint32_t *at = &index_of[x->chosen[pair]];
        if (*at == UINT32_MAX) continue;
        lane->pair_row[*at] = (int32_t)(pair / n_used);
        lane->pair_out[(*at)++] = (int32_t)pair;
        lane->row_needed[pair / n_used] = true;
    }
    return n;
}

typedef struct quantize_task {
    const cuda_lane *lane;
    input_forms forms;
} quantize_task;

static void quantize_range(const backend_cpu *cpu, const void *args, size_t first, size_t end,
                           uint32_t worker) {
    (void)worker;
    const quantize_task *t = args;
    for (size_t row = first; row < end; row++) {
        if (t->lane->row_needed[row]) cpu_input_quantize(cpu, &t->lane->hidden, row, t->forms);
    }
}

static const unsigned char *in_file(const weight_experts *w, int32_t expert) {
    return (const unsigned char *)w->first.data + (size_t)expert * w->expert_bytes;
}

/* Where each marked expert's matrices lie; records are held until release_records(). */
static bool take_places(cuda_lane *lane, backend_cuda *b, const layer_weights *l) {
    const cuda_experts *x = &b->experts;
    uint32_t layer = (uint32_t)(l - b->weights->layers);
    lane->n_records = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        if (!x->on_cpu[i]) continue;
        expert_place *p = &lane->places[i];
        if (!lane->reads_records) {
            *p = (expert_place){in_file(&l->exp_gate, x->active[i]),
                                in_file(&l->exp_up, x->active[i]),
                                in_file(&l->exp_down, x->active[i])};
            continue;
        }
        const unsigned char *at = host_tier_fetch(x->host, layer, (uint32_t)x->active[i]);
        if (at == NULL) return false;
        cuda_await_record(b, layer, (uint32_t)x->active[i]);
        const unsigned char *up = at + one_bytes(&l->exp_gate);
        *p = (expert_place){at, up, up + one_bytes(&l->exp_up)};
        lane->record_of[lane->n_records++] = (uint32_t)i;
    }
    return true;
}

static void release_records(const cuda_lane *lane, const backend_cuda *b, uint32_t layer) {
    const cuda_experts *x = &b->experts;
    for (uint32_t i = 0; i < lane->n_records; i++)
        host_tier_release(x->host, layer, (uint32_t)x->active[lane->record_of[i]]);
}

typedef struct back_task {
    cuda_lane *lane;
    const layer_weights *layer;
} back_task;

/* A piece of each split matrix of a record. */
static void bring_back_range(const backend_cpu *cpu, const void *args, size_t first, size_t end,
                             uint32_t worker) {
    (void)cpu;
    (void)worker;
    const back_task *t = args;
    const layer_weights *l = t->layer;
    const weight_experts *parts[] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    for (size_t item = first; item < end; item++) {
        size_t record = item / BACK_PIECES, piece = item % BACK_PIECES;
        const expert_place *p = &t->lane->places[t->lane->record_of[record]];
        const unsigned char *from[] = {p->gate, p->up, p->down};
        unsigned char *out = t->lane->back + record * t->lane->back_bytes;
        for (size_t i = 0; i < 3; i++) {
            if (!is_split(parts[i])) continue;
            size_t n = one_bytes(parts[i]) / quant_traits_of(QUANT_Q6_K)->block_bytes;
            size_t begin = n * piece / BACK_PIECES, over = n * (piece + 1) / BACK_PIECES;
            cuda_copy_back(&parts[i]->first, begin, over - begin, from[i], out);
            out += one_bytes(parts[i]);
        }
    }
}

static void bring_back(cuda_lane *lane, const layer_weights *l) {
    const back_task t = {lane, l};
    if (lane->n_records == 0 || split_bytes(l) == 0) return;
    double piece_ns = (double)split_bytes(l) / BACK_PIECES / 8;
    cpu_run_range(&lane->cpu, (size_t)lane->n_records * BACK_PIECES, 1, piece_ns,
                  bring_back_range, &t);
    for (uint32_t i = 0; i < lane->n_records; i++) {
        expert_place *p = &lane->places[lane->record_of[i]];
        const unsigned char *at = lane->back + i * lane->back_bytes;
        if (is_split(&l->exp_gate)) {
            p->gate = at;
            at += one_bytes(&l->exp_gate);
        }
        if (is_split(&l->exp_up)) {
            p->up = at;
            at += one_bytes(&l->exp_up);
        }
        if (is_split(&l->exp_down)) p->down = at;
    }
}

static void run_first_half(cuda_lane *lane, const backend_cuda *b, const layer_weights *l) {
    const cuda_experts *x = &b->experts;
    uint32_t n_ff = b->config->n_ff_expert;
    size_t n = 0;
    cpu_input_begin(&lane->mid, n_ff);
    for (size_t i = 0; i < x->n_active; i++) {
        if (!x->on_cpu[i]) continue;
        uint32_t first = lane->first[i];
        matmul_job *gate = &lane->cpu.jobs[n++], *up = &lane->cpu.jobs[n++];
        *gate = cpu_job(&lane->cpu, &l->exp_gate.first, lane->places[i].gate, &lane->hidden,
                        rows_of(x, i), cpu_input_row(&lane->mid, first),
                        cpu_input_floats(&lane->mid));
        *up = cpu_job(&lane->cpu, &l->exp_up.first, lane->places[i].up, &lane->hidden,
                      rows_of(x, i), lane->up + (size_t)first * n_ff, n_ff);
        gate->act_rows = up->act_rows = lane->pair_row + first;
    }
    cpu_run_jobs(&lane->cpu, lane->cpu.jobs, n);
}

static void run_second_half(cuda_lane *lane, const backend_cuda *b, const layer_weights *l) {
    const cuda_experts *x = &b->experts;
    size_t n = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        if (!x->on_cpu[i]) continue;
        uint32_t first = lane->first[i];
        matmul_job *down = &lane->cpu.jobs[n++];
        *down = cpu_job(&lane->cpu, &l->exp_down.first, lane->places[i].down, &lane->mid,
                        rows_of(x, i), lane->down, b->config->n_embd);
        down->acts = (const unsigned char *)down->acts + first * down->act_stride;
        down->out_rows = lane->pair_out + first;
    }
    cpu_run_jobs(&lane->cpu, lane->cpu.jobs, n);
}

static void learn_rate(cuda_lane *lane, const cuda_experts *x, double ns) {
    double expected = 0;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->on_cpu[i]) expected += cost_ns(x, i);
    }
    lane->expert_ns += NEWEST * lane->expert_ns * (ns / expected - 1);
}

static void send_outputs(backend_cuda *b, const cuda_lane *lane, size_t n_pairs,
                         cuda_pointer to) {
    size_t row = b->config->n_embd * sizeof(float);
    for (size_t i = 0; i < n_pairs; i++) {
        size_t pair = (size_t)lane->pair_out[i];
        (void)CUDA_DO(b, cuMemcpyHtoDAsync, to + pair * row,
                      lane->down + pair * b->config->n_embd, row, b->compute);
    }
}

void cuda_lane_run(backend_cuda *b, const layer_weights *l, size_t n_rows, cuda_pointer to) {
    const cuda_experts *x = &b->experts;
    cuda_lane *lane = x->lane;
    if (lane == NULL) return;
    size_t n_pairs = list_pairs(lane, b, n_rows);
    uint32_t layer = (uint32_t)(l - b->weights->layers);
    if (n_pairs == 0 || b->failed != STATUS_OK) return;
    if (!take_places(lane, b, l)) {
        b->failed = host_tier_failure(x->host, &b->failure);
        release_records(lane, b, layer);
        return;
    }
    uint64_t begun = clock_monotonic_ns();
    activation_type a = b->params.activations;
    const quantize_task t = {lane, backend_form_of(l->exp_gate.first.type, a) |
                                       backend_form_of(l->exp_up.first.type, a)};
    bring_back(lane, l);
    cpu_input_begin(&lane->hidden, b->config->n_embd);
    cpu_run_range(&lane->cpu, n_rows, 1, b->config->n_embd * 0.2, quantize_range, &t);
    run_first_half(lane, b, l);
    cpu_run_swiglu(&lane->cpu, &lane->mid, lane->up, n_pairs,
                   backend_form_of(l->exp_down.first.type, a));
    run_second_half(lane, b, l);
    release_records(lane, b, layer);
    learn_rate(lane, x, (double)(clock_monotonic_ns() - begun));
    send_outputs(b, lane, n_pairs, to);
}
