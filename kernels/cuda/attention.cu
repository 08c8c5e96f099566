/* attention.cu - queries and keys of prompts normed, rotated and stored; causal attention of many
 * rows over KV pages.
 *
 * Shapes  as kernels/attention_prepare.h and kernels/attention.h; head_dim a multiple of 32 up to
 *         256, at most 32 query heads a KV head.
 * Launch  attention_prepare: a warp a head of a row.
 *         attention_tile: grid (tiles, KV heads), block 256: 32 queries (rows times the heads of a
 *         KV head) against all their positions, for pages of float32.
 *         attention_half: grid (tiles, KV heads), block 256: 64 queries, 16 of them by two warps of
 *         which each has half of the dimensions; scores and values by tensor cores, for pages of
 *         the other types.
 * Cost    attention_tile is bound by float32 arithmetic,
 *         attention_half by loads from shared memory, two a product.
 * Oracle  kernels/cpu/attention_prepare.c, attention.c; compared in
 *         tests/kernels/cuda_mixer_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/kv.cuh"
#include "kernels/cuda/mixers.h"

/* Keys are staged KEY_DIMS dimensions at a time. */
enum { MAX_HEAD = 256, POSITIONS = 32, KEY_DIMS = 128, KEY_PITCH = KEY_DIMS + 4 };

/* ---- prepare ---- */

/* y = rotate(rmsnorm(x)) in shared memory, by one warp. */
DEVICE void norm_rotate(const prepare_args &a, const float *x, const float *weight,
                        uint64_t row, uint32_t position, float *y) {
    const attention_prepare_args &b = a.base;
    const uint32_t dim = b.kv.head_dim, lane = lane_index(), pairs = b.n_rot / 2;
    float sum = 0;
    for (uint32_t i = lane; i < dim; i += WARP) {
        const float v = __ldcg(x + i);
        y[i] = v;
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(lanes_sum(sum) / (float)dim + b.eps);
    for (uint32_t i = lane; i < dim; i += WARP)
        y[i] = y[i] * scale * weight[i];
    __syncwarp();
    for (uint32_t i = lane; i < pairs; i += WARP) {
        float cosine, sine;
        if (b.rope != 0) {
            cosine = __ldcg(b.rope + row * b.n_rot + i);
            sine = __ldcg(b.rope + row * b.n_rot + pairs + i);
        } else {
            const float angle = (float)position * a.inv_freq[i];
            cosine = cosf(angle);
            sine = sinf(angle);
        }
        const float u = y[i], v = y[pairs + i];
        y[i] = fmaf(u, cosine, -(v * sine));
        y[pairs + i] = fmaf(v, cosine, u * sine);
    }
    __syncwarp();
}

KERNEL(attention_prepare, prepare_args, WARP) {
    __shared__ float y[ATTENTION_MAX_HEAD_DIM];
    launch_begin();
    const attention_prepare_args &b = a.base;
    const uint64_t row = blockIdx.y;
    const uint32_t dim = b.kv.head_dim, head = blockIdx.x, kv_heads = b.kv.n_kv_heads;
    const batch_run run = b.batch.runs[b.batch.row_run[row]];
    const uint32_t position = run.position + (uint32_t)row - run.first_row;
    if (head < b.n_heads) {
        float *q = b.qg + row * b.qg_stride + (uint64_t)head * 2 * dim;
        norm_rotate(a, q, b.q_norm, row, position, y);
        for (uint32_t i = lane_index(); i < dim; i += WARP)
            q[i] = y[i];
        return;
    }
    const uint32_t part = head - b.n_heads; /* keys, then values */
    const uint32_t page = b.batch.pages[run.first_page + position / KV_PAGE_TOKENS];
    unsigned char *block = kv_block_of(b.kv, page, part);
    const float *from = b.v + row * b.v_stride + (uint64_t)(part % kv_heads) * dim;
    if (part < kv_heads)
        norm_rotate(a, b.k + row * b.k_stride + (uint64_t)part * dim, b.k_norm, row, position,
                    y);
    for (uint32_t g = 0; g < dim; g += WARP)
        kv_store_group(b.kv.type, block, dim, position % KV_PAGE_TOKENS, g,
                       part < kv_heads ? y[g + lane_index()] : __ldcg(from + g + lane_index()));
}

/* ---- attention ---- */

/* The queries that a block works on together, in shared memory. */
template <int QUERIES> struct query_block {
    float q[QUERIES][MAX_HEAD];
    float weight[POSITIONS][QUERIES];
    float largest[QUERIES], sum[QUERIES], factor[QUERIES];
};

/* Dimensions from .. from + dims - 1 of the keys of n positions that lie in one page; all of a
 * thread's loads come before its first store.  What lies beyond n repeats the last position. */
template <int DIMS, int PITCH>
DEVICE void stage_keys(const kv_view &kv, const unsigned char *block, uint32_t slot, uint32_t n,
                       uint32_t from, uint32_t dims, float *keys) {
    enum { EACH = POSITIONS * DIMS / 4 / ATTENTION_BLOCK };
    const uint32_t quads = dims / 4;
    float4 held[EACH];
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = threadIdx.x + k * ATTENTION_BLOCK, p = i / quads;
        held[k] = kv_value4<KV_F32>(block, kv.head_dim, slot + (p < n ? p : n - 1),
                                    from / 4 + i % quads);
    }
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = threadIdx.x + k * ATTENTION_BLOCK, p = i / quads;
        if (p < POSITIONS) *(float4 *)(keys + p * PITCH + 4 * (i % quads)) = held[k];
    }
}

/* Adds to the scores of N queries first .. against the lane's position. */
template <int N, int PITCH, int QUERIES>
DEVICE void scores_add(const query_block<QUERIES> *s, const float *keys, uint32_t from,
                       uint32_t dims, uint32_t first, float (&score)[N]) {
    const float *key = keys + lane_index() * PITCH;
#pragma unroll 4
    for (uint32_t i = 0; i < dims; i += 4) {
        const float4 k = *(const float4 *)(key + i);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float4 q = *(const float4 *)&s->q[first + (uint32_t)n][from + i];
            score[n] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, score[n]))));
        }
    }
}

/* Scores of a warp's N queries first .. against all dimensions; all threads take part. */
template <int N, int QUERIES>
DEVICE void scores_of(const query_block<QUERIES> *s, const kv_view &kv,
                      const unsigned char *block, uint32_t slot, uint32_t n, float *keys,
                      uint32_t first, float (&score)[N]) {
    for (uint32_t from = 0; from < kv.head_dim; from += KEY_DIMS) {
        const uint32_t left = kv.head_dim - from,
                       dims = left < KEY_DIMS ? left : (uint32_t)KEY_DIMS;
        __syncthreads();
        stage_keys<KEY_DIMS, KEY_PITCH>(kv, block, slot, n, from, dims, keys);
        __syncthreads();
        scores_add<N, KEY_PITCH>(s, keys, from, dims, first, score);
    }
}

/* The running softmax of one query; the warp's lanes are the positions, NaN stays NaN. */
template <int QUERIES>
DEVICE void softmax_update(query_block<QUERIES> *s, uint32_t q, float score, bool live) {
    const float before = s->largest[q];
    const float largest = fmaxf(before, lanes_max(live ? score : -INFINITY));
    const float weight = live ? expf(score - largest) : 0.0f;
    const float sum = lanes_sum(weight);
    __syncwarp();
    s->weight[lane_index()][q] = weight;
    if (lane_index() == 0) {
        const float factor = largest > -INFINITY ? expf(before - largest) : 1.0f;
        s->factor[q] = factor;
        s->sum[q] = fmaf(s->sum[q], factor, sum);
        s->largest[q] = largest;
    }
}

/* The values of the thread's dimension at n positions, n >= 1; beyond, where all weights are
 * zero, the last one again. */
DEVICE void load_values(const kv_view &kv, const unsigned char *block, uint32_t slot,
                        uint32_t n, uint32_t x, float (&v)[POSITIONS]) {
#pragma unroll
    for (uint32_t p = 0; p < POSITIONS; p++)
        v[p] = kv_value<KV_F32>(block, kv.head_dim, slot + (p < n ? p : n - 1), x);
}

/* A block's queries are reset and those that are not there zeroed. */
template <int QUERIES>
DEVICE void queries_load(query_block<QUERIES> *s, const attention_args &a, uint32_t first_head,
                         uint64_t first_row, uint32_t n_queries) {
    const uint32_t group = a.n_heads / a.kv.n_kv_heads, dim = a.kv.head_dim;
    for (uint32_t i = threadIdx.x; i < QUERIES * dim; i += blockDim.x) {
        const uint32_t q = i / dim, x = i % dim;
        float v = 0;
        if (q < n_queries)
            v = __ldcg(a.qg + (first_row + q / group) * a.qg_stride +
                       (uint64_t)(first_head + q % group) * 2 * dim + x);
        s->q[q][x] = v * a.scale;
    }
    for (uint32_t q = threadIdx.x; q < QUERIES; q += blockDim.x) {
        s->largest[q] = -INFINITY;
        s->sum[q] = 0;
        s->factor[q] = 1;
    }
    for (uint32_t i = threadIdx.x; i < POSITIONS * QUERIES; i += blockDim.x)
        s->weight[i / QUERIES][i % QUERIES] = 0;
}

/* The gate and the forms of the result, for value x of a head. */
DEVICE void attention_store(const attention_cuda_args &a, uint64_t row, uint32_t head,
                            uint32_t x, float v) {
    const attention_args &b = a.base;
    const uint32_t dim = b.kv.head_dim;
    const float gate = __ldcg(b.qg + row * b.qg_stride + (uint64_t)head * 2 * dim + dim + x);
    const float y = v * sigmoid(gate);
    if (b.out != 0) b.out[row * b.out_stride + (uint64_t)head * dim + x] = y;
    if (a.act != 0)
        act_store_group((unsigned char *)a.act + row * a.act_stride, b.n_heads * dim,
                        head * dim + x - lane_index(), y);
}

/* ---- many rows ---- */

enum { TILE_QUERIES = ATTENTION_TILE_QUERIES };

typedef struct tile_shared {
    query_block<TILE_QUERIES> queries;
    float keys[POSITIONS * KEY_PITCH];
} tile_shared;
KERNEL_ARGS_SIZE(tile_shared, ATTENTION_TILE_SHARED);

/* Tile number t counted over all runs: its rows. */
DEVICE uint32_t rows_of_tile(const batch_view &batch, uint32_t t, uint32_t each, batch_run &run,
                             uint32_t &first) {
    for (uint32_t r = 0; r < batch.n_runs; r++) {
        run = batch.runs[r];
        const uint32_t n = (run.n_rows + each - 1) / each;
        if (t < n) {
            first = t * each;
            return run.n_rows - first < each ? run.n_rows - first : each;
        }
        t -= n;
    }
    return 0;
}

/* acc[k] is query part + k * parts; PARTS is 1, or 0 for a number known when the kernel runs. */
template <int PARTS>
DEVICE void tile_values(const query_block<TILE_QUERIES> *s, const float (&v)[POSITIONS],
                        uint32_t part, float (&acc)[TILE_QUERIES], uint32_t parts = 1) {
#pragma unroll
    for (uint32_t k = 0; k < TILE_QUERIES; k++) {
        const uint32_t q = PARTS == 1 ? k : part + k * parts;
        if (q < TILE_QUERIES) acc[k] *= s->factor[q];
    }
#pragma unroll
    for (uint32_t p = 0; p < POSITIONS; p++) {
#pragma unroll
        for (uint32_t k = 0; k < TILE_QUERIES; k++) {
            const uint32_t q = PARTS == 1 ? k : part + k * parts;
            if (q < TILE_QUERIES) acc[k] = fmaf(s->weight[p][q], v[p], acc[k]);
        }
    }
}

KERNEL(attention_tile, attention_cuda_args, ATTENTION_BLOCK) {
    DYNAMIC_SHARED(shared);
    launch_begin();
    query_block<TILE_QUERIES> *s = &((tile_shared *)shared)->queries;
    float *keys = ((tile_shared *)shared)->keys;
    const attention_args &b = a.base;
    const uint32_t kv_head = blockIdx.y, dim = b.kv.head_dim;
    const uint32_t group = b.n_heads / b.kv.n_kv_heads, warp = threadIdx.x / WARP;
    batch_run run;
    uint32_t first = 0;
    const uint32_t n_rows = rows_of_tile(b.batch, blockIdx.x, TILE_QUERIES / group, run, first);
    if (n_rows == 0) return;
    const uint32_t n_queries = n_rows * group, first_position = run.position + first;
    const uint64_t first_row = run.first_row + first;
    queries_load(s, b, kv_head * group, first_row, n_queries);
    const uint32_t parts = blockDim.x / dim, part = threadIdx.x / dim, x = threadIdx.x % dim;
    const uint32_t end = first_position + n_rows;
    float acc[TILE_QUERIES] = {};
    for (uint32_t p = 0; p < end; p += POSITIONS) {
        const uint32_t n = end - p < POSITIONS ? end - p : (uint32_t)POSITIONS;
        const uint32_t page = b.batch.pages[run.first_page + p / KV_PAGE_TOKENS];
        const uint32_t slot = p % KV_PAGE_TOKENS;
        float v[POSITIONS], score[4] = {};
        load_values(b.kv, kv_block_of(b.kv, page, b.kv.n_kv_heads + kv_head), slot, n, x, v);
        scores_of<4>(s, b.kv, kv_block_of(b.kv, page, kv_head), slot, n, keys, 4 * warp, score);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t q = 4 * warp + i;
            if (q < n_queries)
                softmax_update(s, q, score[i], p + lane_index() <= first_position + q / group);
        }
        __syncthreads();
        if (parts == 1)
            tile_values<1>(s, v, 0, acc);
        else
            tile_values<0>(s, v, part, acc, parts);
    }
    if (part >= parts) return;
#pragma unroll
    for (int k = 0; k < TILE_QUERIES; k++) {
        const uint32_t q = part + (uint32_t)k * parts;
        if (q < n_queries)
            attention_store(a, first_row + q / group, kv_head * group + q % group, x,
                            acc[k] / s->sum[q]);
    }
}

/* ---- many rows, half floats ---- */

/* Words are two halves.  A row of keys begins 8 banks after the one before, two rows of values 8. */
enum {
    HALF_WARPS = ATTENTION_BLOCK / WARP,
    HALF_KEY_PITCH = MAX_HEAD / 2 + 8,
    HALF_VALUE_PITCH = MAX_HEAD / 2 + 4,
    HALF_STEPS = MAX_HEAD / 32, /* of 16 dimensions, of a warp's half */
    HALF_TILES = POSITIONS / 8, /* of 8 positions */
    HALF_OUT = 32,              /* queries whose results are stored at a time */
    HALF_OUT_PITCH = MAX_HEAD + 4
};

typedef struct half_shared {
    uint32_t keys[POSITIONS * HALF_KEY_PITCH];
    uint32_t values[POSITIONS * HALF_VALUE_PITCH];
    float scores[HALF_WARPS][4 * HALF_TILES][WARP];
} half_shared;
KERNEL_ARGS_SIZE(half_shared, ATTENTION_HALF_SHARED);

/* What a lane keeps of queries lane / 4 and lane / 4 + 8 of its warp's 16: the queries themselves,
 * running sums of values, and of the softmax. */
typedef struct half_query {
    uint32_t q[HALF_STEPS][4];
    float acc[2 * HALF_STEPS][4];
    float largest[2], sum[2];
} half_query;

DEVICE uint32_t half_pair(float low, float high) {
    return half_bits(low) | half_bits(high) << 16;
}

/* Query number q of the tile; its dimensions from .. + 3.  Beyond the last: zeros. */
DEVICE float4 query4(const attention_args &a, uint32_t first_head, uint64_t first_row,
                     uint32_t n_queries, uint32_t q, uint32_t from) {
    const uint32_t group = a.n_heads / a.kv.n_kv_heads;
    if (q >= n_queries) return make_float4(0, 0, 0, 0);
    return __ldcg((const float4 *)(a.qg + (first_row + q / group) * a.qg_stride +
                                   (uint64_t)(first_head + q % group) * 2 * a.kv.head_dim +
                                   from));
}

/* Lane l % 4 has dimensions 4 l .. + 3 of each 16, for queries and for keys: which of them are
 * called columns 2 l, 2 l + 1, 2 l + 8, 2 l + 9 changes no sum but its order. */
DEVICE void half_begin(half_query &h, const attention_args &a, uint32_t first_head,
                       uint64_t first_row, uint32_t n_queries, uint32_t from) {
    const uint32_t q = threadIdx.x / WARP / 2 * 16 + lane_index() / 4;
#pragma unroll
    for (uint32_t j = 0; j < HALF_STEPS; j++) {
        const uint32_t at = from + 16 * j + 4 * (lane_index() % 4);
        if (32 * j >= a.kv.head_dim) break;
        const float4 x = query4(a, first_head, first_row, n_queries, q, at);
        const float4 y = query4(a, first_head, first_row, n_queries, q + 8, at);
        h.q[j][0] = half_pair(x.x, x.y);
        h.q[j][1] = half_pair(y.x, y.y);
        h.q[j][2] = half_pair(x.z, x.w);
        h.q[j][3] = half_pair(y.z, y.w);
    }
#pragma unroll
    for (int i = 0; i < 2 * HALF_STEPS; i++)
        h.acc[i][0] = h.acc[i][1] = h.acc[i][2] = h.acc[i][3] = 0;
    h.largest[0] = h.largest[1] = -INFINITY;
    h.sum[0] = h.sum[1] = 0;
}

/* Eight values of a position as halves: values 8 i .. + 7. */
template <uint32_t TYPE>
DEVICE uint4 halves8_of(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i) {
    float4 x, y;
    kv_value8<TYPE>(block, dim, slot, i, x, y);
    return make_uint4(half_pair(x.x, x.y), half_pair(x.z, x.w), half_pair(y.x, y.y),
                      half_pair(y.z, y.w));
}

DEVICE uint4 halves8(uint32_t type, const unsigned char *block, uint32_t dim, uint32_t slot,
                     uint32_t i) {
    if (type == KV_F16) return __ldcg((const uint4 *)block + slot * (dim / 8) + i);
    if (type == KV_Q8) return halves8_of<KV_Q8>(block, dim, slot, i);
    return halves8_of<KV_Q4>(block, dim, slot, i);
}

/* Keys and values on their way to shared memory, eight of a position each. */
enum { HALF_HELD = POSITIONS * MAX_HEAD / 8 / ATTENTION_BLOCK };
typedef struct half_held {
    uint4 k[HALF_HELD], v[HALF_HELD];
} half_held;

/* 32 positions from p on, of end; they lie in one page, and what lies beyond repeats the last. */
DEVICE void half_load(half_held &h, const attention_args &a, const batch_run &run,
                      uint32_t kv_head, uint32_t p, uint32_t end) {
    const kv_view &kv = a.kv;
    const uint32_t pieces = kv.head_dim / 8, n = end - p;
    const uint32_t page = a.batch.pages[run.first_page + p / KV_PAGE_TOKENS];
    const unsigned char *key = kv_block_of(kv, page, kv_head);
    const unsigned char *value = kv_block_of(kv, page, kv.n_kv_heads + kv_head);
#pragma unroll
    for (uint32_t e = 0; e < HALF_HELD; e++) {
        const uint32_t i = threadIdx.x + e * ATTENTION_BLOCK;
        const uint32_t most = n < POSITIONS ? n - 1 : POSITIONS - 1, at = i / pieces;
        const uint32_t slot = p % KV_PAGE_TOKENS + (at < most ? at : most);
        h.k[e] = halves8(kv.type, key, kv.head_dim, slot, i % pieces);
        h.v[e] = halves8(kv.type, value, kv.head_dim, slot, i % pieces);
    }
}

DEVICE void half_put(half_shared *s, const half_held &h, uint32_t dim) {
    const uint32_t pieces = dim / 8;
    __syncthreads();
#pragma unroll
    for (uint32_t e = 0; e < HALF_HELD; e++) {
        const uint32_t i = threadIdx.x + e * ATTENTION_BLOCK, p = i / pieces;
        if (p >= POSITIONS) break;
        *(uint4 *)(s->keys + p * HALF_KEY_PITCH + 4 * (i % pieces)) = h.k[e];
        *(uint4 *)(s->values + p * HALF_VALUE_PITCH + 4 * (i % pieces)) = h.v[e];
    }
    __syncthreads();
}

/* Scores of the warp's 16 queries against 32 positions over its half of the dimensions, then over
 * all: both warps add the first half's to the second's. */
DEVICE void half_scores(half_shared *s, const half_query &h, uint32_t dim,
                        float (&score)[HALF_TILES][4]) {
    const uint32_t g = lane_index() / 4, l = lane_index() % 4;
    const uint32_t warp = threadIdx.x / WARP, from = warp % 2 * (dim / 4);
#pragma unroll
    for (uint32_t j = 0; j < HALF_STEPS; j++) {
        if (32 * j >= dim) break;
#pragma unroll
        for (uint32_t t = 0; t < HALF_TILES; t++) {
            const uint2 k =
                *(const uint2 *)(s->keys + (8 * t + g) * HALF_KEY_PITCH + from + 8 * j + 2 * l);
            mma_half(score[t], h.q[j], k.x, k.y);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4 * HALF_TILES; i++)
        s->scores[warp][i][lane_index()] = score[i / 4][i % 4];
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4 * HALF_TILES; i++) {
        const float other = s->scores[warp ^ 1][i][lane_index()];
        score[i / 4][i % 4] += other; /* the sum of two does not depend on their order */
    }
}

/* Scores become weights, in place; what was summed before is brought to the new largest score. */
DEVICE void half_softmax(half_query &h, float (&score)[HALF_TILES][4], float scale,
                         const uint32_t (&n_live)[2]) {
    const uint32_t l = lane_index() % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float largest = h.largest[r];
#pragma unroll
        for (uint32_t i = 0; i < 2 * HALF_TILES; i++) {
            float &v = score[i / 2][2 * r + i % 2];
            v *= scale;
            if (i / 2 * 8 + 2 * l + i % 2 < n_live[r]) largest = fmaxf(largest, v);
        }
        largest = lanes_max(largest, 4);
        const float factor = largest > -INFINITY ? expf(h.largest[r] - largest) : 1.0f;
        float sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2 * HALF_TILES; i++) {
            float &v = score[i / 2][2 * r + i % 2];
            v = i / 2 * 8 + 2 * l + i % 2 < n_live[r] ? expf(v - largest) : 0.0f;
            sum += v;
        }
        h.largest[r] = largest;
        h.sum[r] = fmaf(h.sum[r], factor, lanes_sum(sum, 4));
#pragma unroll
        for (uint32_t i = 0; i < 2 * HALF_STEPS; i++) {
            h.acc[i][2 * r] *= factor;
            h.acc[i][2 * r + 1] *= factor;
        }
    }
}

/* Of 16 dimensions the even ones are the columns of one product, the odd ones of another: two words
 * of neighbouring positions make the operands of both. */
DEVICE void half_values(const half_shared *s, half_query &h, uint32_t dim,
                        const float (&weight)[HALF_TILES][4]) {
    const uint32_t g = lane_index() / 4, l = lane_index() % 4;
    const uint32_t from = threadIdx.x / WARP % 2 * (dim / 4);
#pragma unroll
    for (uint32_t k = 0; k < HALF_TILES / 2; k++) {
        const float(&low)[4] = weight[2 * k], (&high)[4] = weight[2 * k + 1];
        const uint32_t w[4] = {half_pair(low[0], low[1]), half_pair(low[2], low[3]),
                               half_pair(high[0], high[1]), half_pair(high[2], high[3])};
        const uint32_t *v = s->values + (16 * k + 2 * l) * HALF_VALUE_PITCH + from + g;
#pragma unroll
        for (uint32_t j = 0; j < HALF_STEPS; j++) {
            if (32 * j >= dim) break;
            const uint32_t a = v[8 * j], b = v[8 * j + HALF_VALUE_PITCH];
            const uint32_t c = v[8 * j + 8 * HALF_VALUE_PITCH];
            const uint32_t d = v[8 * j + 9 * HALF_VALUE_PITCH];
            mma_half(h.acc[2 * j], w, (a & 0xffff) | b << 16, (c & 0xffff) | d << 16);
            mma_half(h.acc[2 * j + 1], w, a >> 16 | (b & 0xffff0000u),
                     c >> 16 | (d & 0xffff0000u));
        }
    }
}

/* Queries lane / 4 (r = 0) or lane / 4 + 8 of all warps go to shared memory, divided by their sums of
 * weights; then a warp stores 32 dimensions of a query at a time. */
DEVICE void half_store(const attention_cuda_args &a, float *out, const half_query &h,
                       uint32_t r, uint32_t first_head, uint64_t first_row,
                       uint32_t n_queries) {
    const uint32_t dim = a.base.kv.head_dim, group = a.base.n_heads / a.base.kv.n_kv_heads;
    const uint32_t warp = threadIdx.x / WARP, l = lane_index() % 4, groups = dim / WARP;
    const float scale = 1.0f / h.sum[r];
    float *to = out + (warp / 2 * 8 + lane_index() / 4) * HALF_OUT_PITCH + warp % 2 * (dim / 2);
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < HALF_STEPS; j++) {
        if (32 * j >= dim) break;
        *(float4 *)(to + 16 * j + 4 * l) =
            make_float4(h.acc[2 * j][2 * r] * scale, h.acc[2 * j + 1][2 * r] * scale,
                        h.acc[2 * j][2 * r + 1] * scale, h.acc[2 * j + 1][2 * r + 1] * scale);
    }
    __syncthreads();
    for (uint32_t i = warp; i < HALF_OUT * groups; i += HALF_WARPS) {
        const uint32_t k = i / groups, q = k / 8 * 16 + r * 8 + k % 8;
        const uint32_t x = i % groups * WARP + lane_index();
        if (q < n_queries)
            attention_store(a, first_row + q / group, first_head + q % group, x,
                            out[k * HALF_OUT_PITCH + x]);
    }
}

/* The last tiles, which have most positions, begin first. */
KERNEL(attention_half, attention_cuda_args, ATTENTION_BLOCK) {
    DYNAMIC_SHARED(shared);
    launch_begin();
    half_shared *s = (half_shared *)shared;
    const attention_args &b = a.base;
    const uint32_t kv_head = blockIdx.y, dim = b.kv.head_dim, warp = threadIdx.x / WARP;
    const uint32_t group = b.n_heads / b.kv.n_kv_heads;
    batch_run run;
    uint32_t first = 0;
    const uint32_t n_rows = rows_of_tile(b.batch, gridDim.x - 1 - blockIdx.x,
                                         ATTENTION_HALF_QUERIES / group, run, first);
    if (n_rows == 0) return;
    const uint32_t n_queries = n_rows * group, first_position = run.position + first;
    const uint64_t first_row = run.first_row + first;
    half_query h;
    half_begin(h, b, kv_head * group, first_row, n_queries, warp % 2 * (dim / 2));
    const uint32_t q = warp / 2 * 16 + lane_index() / 4;
    const uint32_t positions[2] = {first_position + q / group + 1,
                                   first_position + (q + 8) / group + 1};
    const uint32_t end = first_position + n_rows;
    half_held held;
    half_load(held, b, run, kv_head, 0, end);
#pragma unroll 1
    for (uint32_t p = 0; p < end; p += POSITIONS) {
        const uint32_t n_live[2] = {positions[0] > p ? positions[0] - p : 0,
                                    positions[1] > p ? positions[1] - p : 0};
        float score[HALF_TILES][4] = {};
        half_put(s, held, dim);
        if (p + POSITIONS < end) half_load(held, b, run, kv_head, p + POSITIONS, end);
        half_scores(s, h, dim, score);
        half_softmax(h, score, b.scale, n_live);
        half_values(s, h, dim, score);
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
        half_store(a, (float *)shared, h, r, kv_head * group, first_row, n_queries);
}
