/* backend_cuda_lane.c - experts without a slot computed on the CPU while others travel.
 *
 * The lane reads matrices from the records in RAM.  Of Q6_K, which those have split, it reads
 * the file, or, where there is no room for the file's pages beside the records, brings it back
 * into the file's form.  It has the CPU backend's kernels, quantizes rows as the GPU does and sums
 * them in its order, that of matmul_q8 or of experts_up and experts_down (kernels/matmul.h): no bit
 * tells who computed an expert.  Where a model's types would differ, the lane is left out, but for
 * CPU_LANE_ALL.  Of a layer's missing experts the CPU takes those that the fewest rows use, as many
 * as it finishes in the time that the bus needs for the others (lane_rates.h).
 *
 * Nothing waits for the lane but the last kernel of the experts.  A prompt's records are all on
 * their way, and its waves enqueued, when the lane begins; the rows come to it on a stream of
 * their own, and moe_combine reads its outputs where they are, in pinned memory.  A decoding
 * step's outputs go to the device in one copy.
 */
#include "worker/backend_cuda_experts.h"

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cuda/experts.h"
#include "worker/backend_cpu.h"
#include "worker/lane_rates.h"
#include "worker/lane_trial.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Experts of a layer that come from records at most, and the pieces that one is cut into. */
enum { MOST_RECORDS = 32, BACK_PIECES = 16 };

struct cuda_lane {
    backend_cpu cpu;  /* its matrices' part alone */
    cpu_input hidden; /* the float form is experts.hidden */
    cpu_input mid;    /* [pairs][n_ff] */
    float *up;        /* [pairs][n_ff] */
    float *down;      /* pinned, [pairs][n_embd] by number of pair */
    size_t max_pairs;
    int32_t *pair_row; /* [pairs] of the lane's experts, one expert after another */
    int32_t *pair_out;
    uint32_t *first; /* [n_experts]: of active[i]'s pairs */
    bool in_steps;   /* decoding steps take part */
    bool reads_records;
    expert_place *places; /* [n_experts]: of active[i]'s matrices */
    unsigned char *back;  /* [MOST_RECORDS][back_bytes]: what a record has split */
    size_t back_bytes;
    uint32_t n_records;  /* taken for the running layer */
    uint32_t *record_of; /* [MOST_RECORDS]: i of active[i] */
    bool *row_needed;    /* [max_rows] */
    uint64_t *order;     /* [n_experts] missing ones, the first to be taken first */
    uint32_t *rows;      /* [n_experts] of those */
    uint32_t turn;       /* of experts with as many rows another goes first every time */
    lane_rates rates;
    lane_kind kind;         /* of the running layer */
    size_t n_pairs;         /* that it computed for the running layer */
    uint64_t n_computed;    /* experts, since it was opened */
    uint64_t lookups, hits; /* of the cache before the running step */
    lane_trial trial;
    bool is_tried; /* the running step could use the lane, and does or not as the trial says */
    uint64_t begun_ns; /* the running step */
};

/* Of prompts: what matmul_q8 has. */
static bool sums_alike(const weight_experts *w) {
    quant_type t = w->first.type;
    return t == QUANT_Q4_K || t == QUANT_Q5_K || t == QUANT_Q6_K || t == QUANT_Q8_0;
}

bool cuda_lane_is_exact(const backend_cuda *b) {
    bool exact = b->params.activations == ACTIVATIONS_INT8;
    for (uint32_t i = 0; i < b->config->n_layers; i++) {
        const layer_weights *l = &b->weights->layers[i];
        exact = exact && sums_alike(&l->exp_gate) && sums_alike(&l->exp_up) &&
                sums_alike(&l->exp_down);
    }
    return exact;
}

static bool is_wide(const weight_matrix *w) {
    return experts_wide(cuda_matrix_of(w).type);
}

/* Of decoding steps: gate and up of unlike types, one of them wide, are summed by units on the GPU
 * (experts_up_any). */
static bool steps_are_exact(const backend_cuda *b) {
    bool exact = cuda_lane_is_exact(b);
    for (uint32_t i = 0; i < b->config->n_layers; i++) {
        const layer_weights *l = &b->weights->layers[i];
        const weight_matrix *gate = &l->exp_gate.first, *up = &l->exp_up.first;
        exact = exact && (gate->type == up->type || (!is_wide(gate) && !is_wide(up)));
    }
    return exact;
}

static bool takes_steps(const backend_cuda *b) {
    if (b->params.lane == CPU_LANE_ALL) return true;
    if (b->params.lane != CPU_LANE_ON) return false;
    if (steps_are_exact(b)) return true;
    log_info("cpu-lane", "steps=no reason=\"sums of this model's types differ\"");
    return false;
}

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

static status init_inputs(cuda_lane *lane, size_t rows, error *err) {
    const model_config *c = lane->cpu.config;
    const bool exact = lane->cpu.params.activations == ACTIVATIONS_F32;
    const unsigned pairs = exact ? 0 : 1u << ACT_Q8_16_PAIRS;
    const unsigned hidden = exact ? 0 : pairs | 1u << ACT_STEP_32;
    const unsigned mid = exact ? 0 : pairs | 1u << ACT_STEP_16;
    status rc = cpu_input_init(&lane->hidden, rows, c->n_embd, hidden, err);
    if (rc != STATUS_OK) return rc;
    return cpu_input_init(&lane->mid, lane->max_pairs, c->n_ff_expert, 1u << ACT_F32 | mid,
                          err);
}

status cuda_lane_open(cuda_lane **out, backend_cuda *b, error *err) {
    const model_config *c = b->config;
    size_t rows = b->params.max_rows;
    *out = NULL;
    cuda_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return error_set(err, STATUS_NO_MEMORY, "cpu lane: no memory");
    *out = lane; /* half-built: the caller closes it */
    lane->cpu.config = c;
    lane->cpu.params = b->params;
    lane->cpu.n_threads = pool_n_threads(b->threads);
    lane->in_steps = takes_steps(b);
    lane_rates_init(&lane->rates, lane->cpu.n_threads, b->experts.ship_ns,
                    (double)(c->n_embd * sizeof(float)) / (double)b->layout.slot_bytes);
    lane_trial_init(&lane->trial);
    lane->max_pairs = rows * c->n_experts_used;
    status rc = cpu_work_init(&lane->cpu, err);
    if (rc != STATUS_OK) return rc;
    rc = init_inputs(lane, rows, err);
    if (rc != STATUS_OK) return rc;
    lane->hidden.form[ACT_F32] = b->experts.hidden;
    lane->up = cpu_alloc(lane->max_pairs * c->n_ff_expert * sizeof(float));
    lane->pair_row = calloc(lane->max_pairs, sizeof *lane->pair_row);
    lane->pair_out = calloc(lane->max_pairs, sizeof *lane->pair_out);
    lane->first = calloc(c->n_experts, sizeof *lane->first);
    lane->row_needed = calloc(rows, sizeof *lane->row_needed);
    lane->order = calloc(c->n_experts, sizeof *lane->order);
    lane->rows = calloc(c->n_experts, sizeof *lane->rows);
    if (lane->up == NULL || lane->pair_row == NULL || lane->pair_out == NULL ||
        lane->first == NULL || lane->row_needed == NULL || lane->order == NULL ||
        lane->rows == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cpu lane: no memory for %zu rows", rows);
    }
    rc = cuda_pin(b, &lane->down, lane->max_pairs * c->n_embd * sizeof(float), err);
    return rc == STATUS_OK ? init_records(lane, b, err) : rc;
}

void cuda_lane_close(cuda_lane *lane, const cuda_driver *driver) {
    if (lane == NULL) return;
    if (lane->down != NULL) (void)driver->cuMemFreeHost(lane->down);
    free(lane->rows);
    free(lane->order);
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

/* Which way decoding steps go. */

bool cuda_lane_in_steps(const backend_cuda *b) {
    return b->experts.lane != NULL && b->experts.lane->in_steps;
}

static bool decodes_alone(const backend_cuda *b) {
    return b->n_spans == 1 && b->spans[0].decodes;
}

static void read_counts(const backend_cuda *b, uint64_t *lookups, uint64_t *hits) {
    uint64_t inserts = 0;
    expert_cache_counts(b->experts.cache, lookups, hits, &inserts);
}

void cuda_lane_begin_step(backend_cuda *b) {
    cuda_lane *lane = b->experts.lane;
    if (lane == NULL) return;
    cuda_box_learn(b);
    cuda_await_filled(b, b->experts.filling_layer); /* whoever reads it in this step */
    lane->is_tried = false;
    lane->begun_ns = clock_monotonic_ns();
    if (!decodes_alone(b)) return;
    read_counts(b, &lane->lookups, &lane->hits);
    (void)lane_rates_gathers(&lane->rates, b->spans[0].n_rows);
}

static void note_trial(backend_cuda *b) {
    cuda_lane *lane = b->experts.lane;
    const uint32_t n_rows = b->spans[0].n_rows;
    if (!lane_trial_add(&lane->trial, n_rows, clock_monotonic_ns() - lane->begun_ns)) return;
    const char *steps = lane_trial_uses(&lane->trial, n_rows) ? "yes" : "no";
    log_info("cpu-lane", "steps=%s rows=%u reason=\"they are quicker\"", steps, n_rows);
}

void cuda_lane_end_step(backend_cuda *b) {
    cuda_lane *lane = b->experts.lane;
    uint64_t lookups = 0, hits = 0;
    if (lane == NULL || !decodes_alone(b) || b->failed != STATUS_OK) return;
    read_counts(b, &lookups, &hits);
    if (lookups == lane->lookups) return; /* a trial, of which nothing is counted */
    double misses = (double)(lookups - lane->lookups) - (double)(hits - lane->hits);
    lane_rates_step(&lane->rates, b->spans[0].n_rows, misses / b->config->n_layers);
    if (lane->is_tried) note_trial(b);
}

/* A step that could use the lane does as the trial says. */
static bool ask_trial(const backend_cuda *b) {
    cuda_lane *lane = b->experts.lane;
    lane->is_tried = true;
    return lane_trial_uses(&lane->trial, b->spans[0].n_rows);
}

bool cuda_lane_pays(const backend_cuda *b) {
    const cuda_lane *lane = b->experts.lane;
    if (!cuda_lane_in_steps(b) || cuda_box_fits(b)) return false;
    if (b->params.lane == CPU_LANE_ALL || b->experts.all == NULL) return true;
    return lane->rates.gathers && ask_trial(b);
}

static void do_nothing(void *context, size_t chunk, uint32_t worker) {
    (void)context;
    (void)chunk;
    (void)worker;
}

/* Threads that wait longer than the pool lets them spin would have to be woken one by one. */
void cuda_lane_wake(backend_cuda *b) {
    const cuda_lane *lane = b->experts.lane;
    if (lane != NULL) pool_run(lane->cpu.threads, lane->cpu.n_threads, do_nothing, NULL);
}

void cuda_lane_hold(backend_cuda *b, bool held) {
    pool_hold(b->experts.lane->cpu.threads, held);
}

bool cuda_lane_shares(const backend_cuda *b, size_t n, uint8_t *out) {
    const cuda_lane *lane = b->experts.lane;
    if (b->params.lane == CPU_LANE_ALL) {
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)(i + 1);
        return true;
    }
    if (!lane_rates_is_worth(&lane->rates, b->spans[0].n_rows)) return false;
    lane_rates_shares(&lane->rates, n, out);
    return out[n - 1] > 0 && ask_trial(b);
}

bool cuda_lane_takes_any(const backend_cuda *b) {
    return cuda_lane_in_steps(b) && !b->experts.lane->reads_records;
}

void cuda_lane_shipped(backend_cuda *b, size_t n, double ns) {
    cuda_experts *x = &b->experts;
    if (x->lane != NULL) lane_rates_shipped(&x->lane->rates, n, ns, x->n_on_cpu == 0);
}

void cuda_lane_enqueued(backend_cuda *b, size_t n, double ns) {
    if (b->experts.lane != NULL) lane_rates_enqueued(&b->experts.lane->rates, n, ns);
}

void cuda_lane_read_stats(const backend_cuda *b, model_stats *out) {
    const cuda_lane *lane = b->experts.lane;
    if (lane == NULL) return;
    out->lane_experts = lane->n_computed;
    for (int i = 0; i < LANE_KINDS; i++) {
        out->lane_first_us[i] = lane->rates.lines[i].first_ns / 1e3;
        out->lane_more_us[i] = lane->rates.lines[i].more_ns / 1e3;
    }
    out->ship_us = lane->rates.ship_ns / 1e3;
}

/* Who computes what. */

static uint32_t rows_of(const cuda_experts *x, size_t i) {
    int32_t e = x->active[i];
    return x->first[e + 1] - x->first[e];
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum { INDEX_BITS = 10, TURN_BITS = 22 };

/* The missing experts, those with the fewest rows first; among equals by turns, so that none is
 * always left to the CPU and never comes into a slot. */
static size_t order_missing(cuda_lane *lane, const cuda_experts *x) {
    size_t n = 0;
    lane->turn++;
    for (size_t i = 0; i < x->n_active; i++) {
        if (x->slots[i] != EXPERT_MISS) continue;
        uint32_t turn = ((uint32_t)x->active[i] + lane->turn) * 2654435761u;
        lane->order[n++] =
            ((uint64_t)rows_of(x, i) << TURN_BITS | turn >> INDEX_BITS) << INDEX_BITS | i;
    }
    qsort(lane->order, n, sizeof *lane->order, ascending);
    for (size_t k = 0; k < n; k++)
        lane->rows[k] = (uint32_t)(lane->order[k] >> (TURN_BITS + INDEX_BITS));
    return n;
}

/* A prompt's records that came before the router are on their way since the layer's before arrived. */
static double bus_is_busy_ns(const backend_cuda *b, const cuda_span *s) {
    const cuda_experts *x = &b->experts;
    if (s->decodes) return 0;
    return fmax(0, x->n_coming * x->lane->rates.ship_ns - x->since_arrived_ns);
}

void cuda_lane_choose(backend_cuda *b, const cuda_span *s, bool all, size_t most_shipped) {
    cuda_experts *x = &b->experts;
    cuda_lane *lane = x->lane;
    memset(x->on_cpu, 0, b->config->n_experts * sizeof *x->on_cpu);
    x->n_on_cpu = 0;
    if (lane == NULL || (s->decodes && !cuda_lane_in_steps(b))) return;
    lane->kind = s->decodes ? LANE_STEPS : LANE_PROMPTS;
    size_t n = order_missing(lane, x), most = n;
    if (lane->reads_records && most > MOST_RECORDS) most = MOST_RECORDS;
    x->n_on_cpu = all ? most
                      : lane_rates_split(&lane->rates, lane->kind, lane->rows, n, most,
                                         most_shipped, bus_is_busy_ns(b, s));
    for (size_t k = 0; k < x->n_on_cpu; k++)
        x->on_cpu[lane->order[k] & ((1u << INDEX_BITS) - 1)] = true;
    if (n > 0 && x->n_on_cpu == 0) lane_rates_add(&lane->rates, lane->kind, 0, 0, 0);
}

void cuda_lane_mark(backend_cuda *b, const fetch_note *notes, size_t n) {
    cuda_experts *x = &b->experts;
    memset(x->on_cpu, 0, b->config->n_experts * sizeof *x->on_cpu);
    memset(x->first, 0, (b->config->n_experts + 1) * sizeof *x->first);
    x->n_active = x->n_on_cpu = 0;
    for (size_t i = 0; i < n; i++) {
        x->chosen[i] = notes[i].expert;
        x->first[notes[i].expert + 1]++;
        if (notes[i].slot > FETCH_ON_LANE) continue;
        x->on_cpu[x->n_active] = true;
        x->active[x->n_active++] = notes[i].expert;
    }
    for (uint32_t e = 0; e < b->config->n_experts; e++)
        x->first[e + 1] += x->first[e];
    x->n_on_cpu = x->n_active;
    x->lane->kind = LANE_STEPS;
}

/* One a layer finds room on the bus while the GPU computes; it has the most rows of the lane's. */
int32_t cuda_lane_fills(const backend_cuda *b) {
    const cuda_experts *x = &b->experts;
    if (x->n_on_cpu == 0 || x->all == NULL || b->params.lane == CPU_LANE_ALL) return -1;
    size_t last = x->lane->order[x->n_on_cpu - 1] & ((1u << INDEX_BITS) - 1);
    return x->active[last];
}

void cuda_lane_bring_rows(backend_cuda *b, const cuda_span *s) {
    cuda_experts *x = &b->experts;
    if (x->n_on_cpu == 0) return;
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, x->hidden,
                  (cuda_pointer)(uintptr_t)cuda_hidden_rows(b, s),
                  (size_t)s->n_rows * b->config->n_embd * sizeof(float), b->d2h);
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

static input_forms form_of(const cuda_lane *lane, const cpu_input *in,
                           const weight_experts *w) {
    return 1u << cpu_input_form(&lane->cpu, in, w->first.type);
}

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

/* A matrix in the record `at` (NULL: there is none) where that has the file's form. */
static const unsigned char *in_record(const weight_experts *w, int32_t expert,
                                      const unsigned char *at, uint64_t offset) {
    return at == NULL || is_split(w) ? in_file(w, expert) : at + offset;
}

/* Pinned records lie in large pages where the system has them, the file's in small ones. */
static expert_place place_of(const backend_cuda *b, const layer_weights *l, int32_t expert) {
    size_t layer = (size_t)(l - b->weights->layers);
    size_t index = layer * b->config->n_experts + (size_t)expert;
    const unsigned char *at =
        b->experts.all != NULL ? b->experts.all + index * b->layout.slot_bytes : NULL;
    uint64_t up = one_bytes(&l->exp_gate), down = up + one_bytes(&l->exp_up);
    return (expert_place){in_record(&l->exp_gate, expert, at, 0),
                          in_record(&l->exp_up, expert, at, up),
                          in_record(&l->exp_down, expert, at, down)};
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
            *p = place_of(b, l, x->active[i]);
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

/* Few experts come from memory rather than from a cache: a step's threads share them evenly. */
static void run_jobs(cuda_lane *lane, size_t n) {
    if (lane->kind == LANE_STEPS)
        cpu_run_jobs_evenly(&lane->cpu, lane->cpu.jobs, n);
    else
        cpu_run_jobs(&lane->cpu, lane->cpu.jobs, n);
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
    run_jobs(lane, n);
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
    run_jobs(lane, n);
}

/* The order of experts_up and experts_down, or that of matmul_q8. */
static void choose_forms(cuda_lane *lane) {
    const bool steps = lane->kind == LANE_STEPS;
    lane->hidden.quantized = steps ? ACT_STEP_32 : ACT_Q8_16_PAIRS;
    lane->mid.quantized = steps ? ACT_STEP_16 : ACT_Q8_16_PAIRS;
}

void cuda_lane_run(backend_cuda *b, const layer_weights *l, size_t n_rows) {
    const cuda_experts *x = &b->experts;
    cuda_lane *lane = x->lane;
    if (x->n_on_cpu == 0 || b->failed != STATUS_OK) return;
    if (lane->kind == LANE_PROMPTS && !CUDA_DO(b, cuStreamSynchronize, b->d2h)) return;
    size_t n_pairs = list_pairs(lane, b, n_rows);
    uint32_t layer = (uint32_t)(l - b->weights->layers);
    if (!take_places(lane, b, l)) {
        b->failed = host_tier_failure(x->host, &b->failure);
        release_records(lane, b, layer);
        return;
    }
    uint64_t begun = clock_monotonic_ns();
    choose_forms(lane);
    const quantize_task t = {lane, form_of(lane, &lane->hidden, &l->exp_gate) |
                                       form_of(lane, &lane->hidden, &l->exp_up)};
    bring_back(lane, l);
    cpu_input_begin(&lane->hidden, b->config->n_embd);
    cpu_run_range(&lane->cpu, n_rows, 1, b->config->n_embd * 0.2, quantize_range, &t);
    run_first_half(lane, b, l);
    cpu_run_swiglu(&lane->cpu, &lane->mid, lane->up, n_pairs,
                   form_of(lane, &lane->mid, &l->exp_down));
    run_second_half(lane, b, l);
    release_records(lane, b, layer);
    lane->n_pairs = n_pairs;
    lane->n_computed += x->n_on_cpu;
    lane_rates_add(&lane->rates, lane->kind, x->n_on_cpu, n_pairs,
                   (double)(clock_monotonic_ns() - begun));
}

const float *cuda_lane_outputs(const backend_cuda *b) {
    return b->experts.lane->down;
}

void cuda_lane_send(backend_cuda *b, cuda_pointer to) {
    const cuda_experts *x = &b->experts;
    if (x->n_on_cpu == 0 || b->failed != STATUS_OK) return;
    const cuda_lane *lane = x->lane;
    size_t row = b->config->n_embd * sizeof(float);
    size_t first = (size_t)lane->pair_out[0], last = first;
    for (size_t i = 1; i < lane->n_pairs; i++) {
        size_t pair = (size_t)lane->pair_out[i];
        first = pair < first ? pair : first;
        last = pair > last ? pair : last;
    }
    (void)CUDA_DO(b, cuMemcpyHtoDAsync, to + first * row,
                  lane->down + first * b->config->n_embd, (last - first + 1) * row, b->compute);
}
