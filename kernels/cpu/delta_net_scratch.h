/* delta_net_scratch.h - the working arrays of one cut of a sequence, for all tiers. */
#ifndef SILICEO_KERNELS_CPU_DELTA_NET_SCRATCH_H
#define SILICEO_KERNELS_CPU_DELTA_NET_SCRATCH_H

#include "kernels/delta_net.h"

/* Of up to DELTA_NET_CHUNK tokens; C is that number, D the head size. */
typedef struct delta_net_cut {
    float *q;     /* [C][D] normed and scaled */
    float *k;     /* [C][D] normed */
    float *delta; /* [C][D] the new values d */
    float *kk;    /* [C][C] */
    float *qk;    /* [C][C] */
    float *decay; /* [C] g, then its running sum in the chunked form */
    float *beta;  /* [C] after the sigmoid */
} delta_net_cut;

static inline size_t delta_net_scratch_floats(uint32_t dim) {
    const size_t c = DELTA_NET_CHUNK;
    return 3 * c * dim + 2 * c * c + 2 * c;
}

static inline delta_net_cut delta_net_cut_at(void *scratch, uint32_t dim) {
    const size_t c = DELTA_NET_CHUNK;
    delta_net_cut cut;
    cut.q = scratch;
    cut.k = cut.q + c * dim;
    cut.delta = cut.k + c * dim;
    cut.kk = cut.delta + c * dim;
    cut.qk = cut.kk + c * c;
    cut.decay = cut.qk + c * c;
    cut.beta = cut.decay + c;
    return cut;
}

/* One value head of one run: where its rows and its state lie. */
typedef struct delta_net_head {
    const float *q, *k, *v, *z, *alpha, *beta; /* first row */
    const float *before;                       /* the state of the next row, read */
    float *after; /* and where it goes: the same but in a run verified row by row */
    float *out;
    float a, dt;
} delta_net_head;

static inline delta_net_head delta_net_head_of(const delta_net_args *args, size_t item) {
    const batch_run *run = &args->batch.runs[item / args->n_value_heads];
    const size_t head = item % args->n_value_heads, dim = args->dim, row = run->first_row;
    const size_t n_keys = args->n_key_heads;
    const size_t key = args->grouped ? head / (args->n_value_heads / n_keys) : head % n_keys;
    const float *qkv = args->qkv + row * args->qkv_stride;
    delta_net_head h;
    h.q = qkv + key * dim;
    h.k = qkv + (n_keys + key) * dim;
    h.v = qkv + (2 * n_keys + head) * dim;
    h.z = args->z + row * args->z_stride + head * dim;
    h.alpha = args->alpha + row * args->alpha_stride + head;
    h.beta = args->beta + row * args->beta_stride + head;
    h.after = args->state + run->state * args->state_stride + head * dim * dim;
    h.before = h.after;
    h.out = args->out + row * args->out_stride + head * dim;
    h.a = args->a[head];
    h.dt = args->dt[head];
    return h;
}

/* Let the next row be row t of the item's run: it goes on from where the last one went. */
static inline void delta_net_next_row(const delta_net_args *args, delta_net_head *h,
                                      size_t item, size_t t) {
    const batch_run *run = &args->batch.runs[item / args->n_value_heads];
    const size_t head = item % args->n_value_heads, dim = args->dim;
    const size_t to = BATCH_STATE_AFTER(&args->batch, run, t);
    h->before = h->after;
    h->after = args->state + to * args->state_stride + head * dim * dim;
}

/* Tokens of the next cut, when `rest` tokens from `position` on are left. */
static inline uint32_t delta_net_cut_tokens(uint32_t position, uint32_t rest) {
    const uint32_t room = DELTA_NET_CHUNK - position % DELTA_NET_CHUNK;
    return rest < room ? rest : room;
}

#endif
