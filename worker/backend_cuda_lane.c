/* backend_cuda_lane.c - experts without a slot computed on the CPU while others travel.
 *
 * The lane reads raw matrices where the file is mapped, with the CPU backend's kernels and
 * its own quantization of the rows, so a bit may depend on who computed an expert; off, none
 * does.  Of a layer's missing experts the CPU takes those that the fewest rows use, as
 * many as it finishes in the time that the bus needs for the others; both times are
 * measured as they happen.
 */
#include "worker/backend_cuda.h"

#include "common/clock.h"
#include "worker/backend_cpu.h"
#include <stdlib.h>
#include <string.h>

/* A row more of an expert costs this part of what its first row does: weights are read once. */
static const double ROW_SHARE = 0.25;
/* Each measurement's weight in the running mean. */
static const double NEWEST = 0.1;

struct cuda_lane {
    backend_cpu cpu;  /* its matrices' part alone */
    cpu_input hidden; /* the float form is experts.hidden */
    cpu_input mid;    /* [pairs][n_ff] */
    float *up;        /* [pairs][n_ff] */
    float *down;      /* pinned, [pairs][n_embd] */
    size_t max_pairs;
    int32_t *pair_row; /* [pairs] of the lane's experts, one expert after another */
    int32_t *pair_out;
    uint32_t *first;  /* [n_experts]: of active[i]'s pairs */
    bool *row_needed; /* [max_rows] */
    double expert_ns; /* an expert with one row */
};

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
    return STATUS_OK;
}

void cuda_lane_close(cuda_lane *lane) {
    if (lane == NULL) return;
    if (lane->down != NULL)
        cpu_unreserve(lane->down, lane->max_pairs * lane->cpu.config->n_embd * sizeof(float));
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
    if (x->lane == NULL) return;
    size_t n_left = 0;
    for (size_t i = 0; i < x->n_active; i++)
        n_left += x->slots[i] == EXPERT_MISS;
    double busy_ns = 0;
    for (size_t i = rarest(x); i < x->n_active; i = rarest(x)) {
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

static void run_first_half(cuda_lane *lane, const backend_cuda *b, const layer_weights *l) {
    const cuda_experts *x = &b->experts;
    uint32_t n_ff = b->config->n_ff_expert;
    size_t n = 0;
    cpu_input_begin(&lane->mid, n_ff);
    for (size_t i = 0; i < x->n_active; i++) {
        if (!x->on_cpu[i]) continue;
        uint32_t first = lane->first[i];
        matmul_job *gate = &lane->cpu.jobs[n++], *up = &lane->cpu.jobs[n++];
        *gate = cpu_job(&lane->cpu, &l->exp_gate.first, in_file(&l->exp_gate, x->active[i]),
                        &lane->hidden, rows_of(x, i), cpu_input_row(&lane->mid, first),
                        cpu_input_floats(&lane->mid));
        *up = cpu_job(&lane->cpu, &l->exp_up.first, in_file(&l->exp_up, x->active[i]),
                      &lane->hidden, rows_of(x, i), lane->up + (size_t)first * n_ff, n_ff);
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
        *down = cpu_job(&lane->cpu, &l->exp_down.first, in_file(&l->exp_down, x->active[i]),
                        &lane->mid, rows_of(x, i), lane->down, b->config->n_embd);
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
    if (n_pairs == 0) return;
    uint64_t begun = clock_monotonic_ns();
    activation_type a = b->params.activations;
    const quantize_task t = {lane, backend_form_of(l->exp_gate.first.type, a) |
                                       backend_form_of(l->exp_up.first.type, a)};
    cpu_input_begin(&lane->hidden, b->config->n_embd);
    cpu_run_range(&lane->cpu, n_rows, 1, b->config->n_embd * 0.2, quantize_range, &t);
    run_first_half(lane, b, l);
    cpu_run_swiglu(&lane->cpu, &lane->mid, lane->up, n_pairs,
                   backend_form_of(l->exp_down.first.type, a));
    run_second_half(lane, b, l);
    learn_rate(lane, x, (double)(clock_monotonic_ns() - begun));
    send_outputs(b, lane, n_pairs, to);
}
