/* attention_step.cu - decoding rows: query and key normed and rotated, key and value stored, and
 * attention over the pages, split over blocks; kernels/attention_prepare.h, kernels/attention.h.
 *
 * Shapes  runs of one row, or verified row by row (args.h); head_dim a multiple of 32 up to 256.
 * Launch  attention_step_*: grid (splits, KV heads times groups of 8 query heads, rows), block
 *         128, one kernel a type of pages: a block has some positions of a row for 8 query heads,
 *         32 positions at a time.  Warp w makes the scores of positions 8 w .. 8 w + 7 and the
 *         sums of dimensions 64 w .. 64 w + 63, both by products of half floats.  The first tile of
 *         keys and values is on its way before the wait; the block that has the row's own position
 *         takes its key and value from shared memory, and stores them.
 *         attention_keep: grid (KV heads, rows), block 64: the same key and value to the pages,
 *         before attention_step_* where a run has more rows than one, which read those before
 *         them there.  attention_step_* must not begin before it has ended.
 *         attention_combine: grid (heads times groups of 32 dimensions, rows): weights of the splits,
 *         then the weighted sum, the gate and the quantized row.
 * Half    A float32 operand is two halves, the value rounded and what that leaves: 22 bits.  The
 *         16 rows of a product are the 8 heads' rounded values and their rests.  float32 pages
 *         are two halves, too; int8 and 4-bit pages are rounded to one.
 * Order   A row's split depends on its own length and n_splits alone.
 * Cost    the pages are read once a KV head.
 * Oracle  kernels/cpu/attention_prepare.c, attention.c; tests/kernels/cuda_mixer_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/kv.cuh"
#include "kernels/cuda/mixers.h"

enum {
    STEP_POSITIONS = ATTENTION_SPLIT, /* of a tile */
    STEP_WARPS = ATTENTION_STEP_BLOCK / WARP,
    STEP_HEAD = 256,
    STEP_CHUNKS = STEP_HEAD / 32,
    STEP_QUERIES = ATTENTION_GROUP,
    SCORE_PITCH = STEP_POSITIONS + 8
};

typedef struct attention_shared {
    uint4 query[2 * STEP_CHUNKS][WARP]; /* a lane's part of the left operand of each product */
    float row[STEP_WARPS][STEP_HEAD];   /* what a warp rotates */
    float fresh[2][STEP_HEAD];          /* the row's own key and value, as they will be read */
    float score[2][STEP_QUERIES][SCORE_PITCH];
} attention_shared;

/* Two floats as halves, the first in the low bits. */
DEVICE uint32_t halves(float x, float y) {
    return half_bits(x) | half_bits(y) << 16;
}

/* What rounding to a half leaves. */
DEVICE float half_rest(float x) {
    return x - half_value(half_bits(x));
}

/* Eight values of a row: rounded, and (of float32 pages) the rests. */
template <uint32_t TYPE> struct kv_words { uint4 high, low; };

DEVICE uint4 eight_halves(const float4 &a, const float4 &b) {
    return make_uint4(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
}

DEVICE uint4 eight_rests(const float4 &a, const float4 &b) {
    return make_uint4(
        halves(half_rest(a.x), half_rest(a.y)), halves(half_rest(a.z), half_rest(a.w)),
        halves(half_rest(b.x), half_rest(b.y)), halves(half_rest(b.z), half_rest(b.w)));
}

/* Values 8 i .. 8 i + 7 of position slot of a block. */
template <uint32_t TYPE>
DEVICE void kv_load8(const unsigned char *block, uint32_t dim, uint32_t slot, uint32_t i,
                     kv_words<TYPE> &w) {
    if (TYPE == KV_F16) {
        w.high = __ldcg((const uint4 *)block + slot * (dim / 8) + i);
        return;
    }
    float4 a, b;
    kv_value8<TYPE>(block, dim, slot, i, a, b);
    w.high = eight_halves(a, b);
    if (TYPE == KV_F32) w.low = eight_rests(a, b);
}

template <uint32_t TYPE>
DEVICE void kv_fresh8(const float *row, uint32_t i, kv_words<TYPE> &w) {
    const float4 a = *(const float4 *)(row + 8 * i), b = *(const float4 *)(row + 8 * i + 4);
    w.high = eight_halves(a, b);
    if (TYPE == KV_F32) w.low = eight_rests(a, b);
}

/* ---- the row's own query, key and value ---- */

typedef struct step_row {
    uint64_t row;
    batch_run run;
    uint32_t position, kv_head, first_head, n_queries;
} step_row;

DEVICE step_row row_of_step(const attention_step_args &a) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t heads_a_kv = b.n_heads / b.kv.n_kv_heads;
    const uint32_t groups = (heads_a_kv + STEP_QUERIES - 1) / STEP_QUERIES;
    step_row r;
    r.row = blockIdx.z;
    r.run = b.batch.runs[b.batch.row_run[r.row]];
    r.position = r.run.position + (uint32_t)r.row - r.run.first_row;
    r.kv_head = blockIdx.y / groups;
    r.first_head = r.kv_head * heads_a_kv + blockIdx.y % groups * STEP_QUERIES;
    const uint32_t left = (r.kv_head + 1) * heads_a_kv - r.first_head;
    r.n_queries = left < STEP_QUERIES ? left : (uint32_t)STEP_QUERIES;
    return r;
}

/* Cosine and sine of pair i; most rows need one a lane, which is found before the wait. */
typedef struct step_angle {
    float cosine, sine;
} step_angle;

DEVICE step_angle angle_of(const attention_step_args &a, const step_row &r, uint32_t i) {
    const attention_prepare_args &b = a.prepare.base;
    step_angle s = {1, 0};
    if (i >= b.n_rot / 2) return s;
    if (b.rope != 0) {
        s.cosine = __ldcg(b.rope + r.row * b.n_rot + i);
        s.sine = __ldcg(b.rope + r.row * b.n_rot + b.n_rot / 2 + i);
        return s;
    }
    const float angle = (float)r.position * a.prepare.inv_freq[i];
    s.cosine = cosf(angle);
    s.sine = sinf(angle);
    return s;
}

/* A row of head_dim values in a warp's registers, lane by lane. */
typedef struct step_vector {
    float v[STEP_CHUNKS];
} step_vector;

DEVICE step_vector vector_load(const float *x, uint32_t dim) {
    step_vector s;
#pragma unroll
    for (uint32_t k = 0; k < STEP_CHUNKS; k++)
        s.v[k] = k * WARP < dim ? __ldcg(x + k * WARP + lane_index()) : 0.0f;
    return s;
}

/* The row's own key (part 0) or value as it was projected. */
DEVICE step_vector own_load(const attention_prepare_args &b, const step_row &r, uint32_t part) {
    const float *from = part == 0 ? b.k + r.row * b.k_stride : b.v + r.row * b.v_stride;
    return vector_load(from + (uint64_t)r.kv_head * b.kv.head_dim, b.kv.head_dim);
}

/* y = rotate(rmsnorm(x) * weight), in shared memory of the warp's own. */
DEVICE void vector_rotate(const attention_step_args &a, const step_row &r, const step_vector &x,
                          const step_vector &weight, const step_angle &first, float *y) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t dim = b.kv.head_dim, lane = lane_index(), pairs = b.n_rot / 2;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < STEP_CHUNKS; k++)
        sum = fmaf(x.v[k], x.v[k], sum);
    const float scale = 1.0f / sqrtf(lanes_sum(sum) / (float)dim + b.eps);
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < STEP_CHUNKS; k++)
        if (k * WARP < dim) y[k * WARP + lane] = x.v[k] * scale * weight.v[k];
    __syncwarp();
    for (uint32_t i = lane; i < pairs; i += WARP) {
        const step_angle s = i == lane ? first : angle_of(a, r, i);
        const float u = y[i], v = y[pairs + i];
        y[i] = fmaf(u, s.cosine, -(v * s.sine));
        y[pairs + i] = fmaf(v, s.cosine, u * s.sine);
    }
    __syncwarp();
}

/* Query q's rows of the left operands: lane l has dimensions 8 l .. 8 l + 7. */
DEVICE void query_store(attention_shared *s, uint32_t q, uint32_t dim, const float *y) {
    const uint32_t c = lane_index() / 4, to = q * 4 + lane_index() % 4;
    uint4 high = make_uint4(0, 0, 0, 0), low = high;
    if (y != 0 && 8 * lane_index() < dim) {
        const float4 a = *(const float4 *)(y + 8 * lane_index());
        const float4 b = *(const float4 *)(y + 8 * lane_index() + 4);
        high = eight_halves(a, b);
        low = eight_rests(a, b);
    }
    s->query[2 * c][to] = make_uint4(high.x, low.x, high.y, low.y);
    s->query[2 * c + 1][to] = make_uint4(high.z, low.z, high.w, low.w);
}

/* The own key (part 0) or value by one warp: what later steps will read to y, and to the page. */
DEVICE void fresh_store(const attention_step_args &a, uint32_t type, const step_row &r,
                        uint32_t part, const step_vector &x, const step_vector &weight,
                        const step_angle &first, float *y) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t dim = b.kv.head_dim, lane = lane_index();
    const uint32_t page = b.batch.pages[r.run.first_page + r.position / KV_PAGE_TOKENS];
    unsigned char *block = kv_block_of(b.kv, page, part * b.kv.n_kv_heads + r.kv_head);
    if (part == 0) vector_rotate(a, r, x, weight, first, y);
#pragma unroll
    for (uint32_t k = 0; k < STEP_CHUNKS; k++) {
        if (k * WARP >= dim) break;
        const float v = part == 0 ? y[k * WARP + lane] : x.v[k];
        y[k * WARP + lane] =
            kv_store_group(type, block, dim, r.position % KV_PAGE_TOKENS, k * WARP, v);
    }
}

/* Warp w has queries w and w + 4; of the block with the own position the last two warps have key
 * and value besides. */
template <uint32_t TYPE>
DEVICE void step_prepare(const attention_step_args &a, const step_row &r, bool owns,
                         const step_vector &weight, const step_angle &first,
                         attention_shared *s) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t dim = b.kv.head_dim, warp = threadIdx.x / WARP;
    const uint32_t part = warp % 2;
    const bool fresh = owns && warp >= STEP_WARPS - 2;
    step_vector x[2], own = {}, own_weight = {};
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t q = warp + k * STEP_WARPS,
                       head = r.first_head + (q < r.n_queries ? q : 0);
        x[k] = vector_load(b.qg + r.row * b.qg_stride + (uint64_t)head * 2 * dim, dim);
    }
    if (fresh) {
        own = own_load(b, r, part);
        if (part == 0) own_weight = vector_load(b.k_norm, dim);
    }
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t q = warp + k * STEP_WARPS;
        float *y = s->row[warp];
        vector_rotate(a, r, x[k], weight, first, y);
        query_store(s, q, dim, q < r.n_queries ? y : 0);
        __syncwarp();
    }
    if (fresh) fresh_store(a, TYPE, r, part, own, own_weight, first, s->fresh[part]);
}

/* ---- a tile of 32 positions ---- */

/* Where a tile's keys and values are; positions beyond the end repeat the last one. */
typedef struct step_tile {
    const unsigned char *keys, *values;
    uint32_t first, end;
} step_tile;

DEVICE step_tile tile_of(const attention_step_args &a, const step_row &r, uint32_t first,
                         uint32_t end) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t page = b.batch.pages[r.run.first_page + first / KV_PAGE_TOKENS];
    step_tile t = {kv_block_of(b.kv, page, r.kv_head),
                   kv_block_of(b.kv, page, b.kv.n_kv_heads + r.kv_head), first, end};
    return t;
}

DEVICE uint32_t tile_position(const step_tile &t, uint32_t i) {
    return t.first + i < t.end ? t.first + i : t.end - 1;
}

/* The key that the lane multiplies: position lane / 4 of the warp's eight, and of each 32 dimensions
 * the eight from 8 (lane % 4) on. */
DEVICE uint32_t key_position(const step_tile &t) {
    return tile_position(t, threadIdx.x / WARP * 8 + lane_index() / 4);
}

template <uint32_t TYPE>
DEVICE void keys_load(const step_tile &t, uint32_t dim, kv_words<TYPE> (&k)[STEP_CHUNKS]) {
    const uint32_t slot = key_position(t) % KV_PAGE_TOKENS;
#pragma unroll
    for (uint32_t c = 0; c < STEP_CHUNKS; c++)
        if (c * 32 < dim) kv_load8<TYPE>(t.keys, dim, slot, c * 4 + lane_index() % 4, k[c]);
}

/* Values: of each 16 positions the lane has 2 t, 2 t + 1, 2 t + 8, 2 t + 9 with t = lane % 4, and of
 * the warp's 64 dimensions the eight from 8 (lane / 4) on. */
DEVICE uint32_t value_position(const step_tile &t, uint32_t i) {
    return tile_position(t, i / 4 * 16 + i % 4 / 2 * 8 + lane_index() % 4 * 2 + i % 2);
}

enum { STEP_VALUES = STEP_POSITIONS / 4 };

DEVICE uint32_t value_group() {
    return threadIdx.x / WARP * 8 + lane_index() / 4;
}

/* The four of 16 positions from p * 4 of the list above on. */
enum { STEP_FOURS = STEP_VALUES / 4 };

template <uint32_t TYPE>
DEVICE void values_load(const step_tile &t, uint32_t dim, uint32_t p, kv_words<TYPE> (&v)[4]) {
    if (8 * value_group() >= dim) return;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        kv_load8<TYPE>(t.values, dim, value_position(t, 4 * p + i) % KV_PAGE_TOKENS,
                       value_group(), v[i]);
}

/* The own position's key and value were not in the pages when they were loaded. */
template <uint32_t TYPE>
DEVICE void keys_freshen(const step_tile &t, const step_row &r, uint32_t dim,
                         const attention_shared *s, kv_words<TYPE> (&k)[STEP_CHUNKS]) {
    if (key_position(t) != r.position) return;
#pragma unroll
    for (uint32_t c = 0; c < STEP_CHUNKS; c++)
        if (c * 32 < dim) kv_fresh8<TYPE>(s->fresh[0], c * 4 + lane_index() % 4, k[c]);
}

template <uint32_t TYPE>
DEVICE void values_freshen(const step_tile &t, const step_row &r, uint32_t dim, uint32_t p,
                           const attention_shared *s, kv_words<TYPE> (&v)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (value_position(t, 4 * p + i) == r.position && 8 * value_group() < dim)
            kv_fresh8<TYPE>(s->fresh[1], value_group(), v[i]);
}

/* The scores of the warp's eight positions go to shared memory. */
template <uint32_t TYPE>
DEVICE void tile_scores(const attention_shared *s, const kv_words<TYPE> (&k)[STEP_CHUNKS],
                        uint32_t dim, float scale, float (*score)[SCORE_PITCH]) {
    float c[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < STEP_CHUNKS; i++) {
        if (i * 32 >= dim) break;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 q = s->query[2 * i + (uint32_t)h][lane_index()];
            const uint32_t left[4] = {q.x, q.y, q.z, q.w};
            const uint4 w = k[i].high, rest = k[i].low;
            mma_half(c[h], left, h == 0 ? w.x : w.z, h == 0 ? w.y : w.w);
            if (TYPE == KV_F32)
                mma_half(c[h], left, h == 0 ? rest.x : rest.z, h == 0 ? rest.y : rest.w);
        }
    }
    float2 both;
    both.x = (c[0][0] + c[0][2] + (c[1][0] + c[1][2])) * scale;
    both.y = (c[0][1] + c[0][3] + (c[1][1] + c[1][3])) * scale;
    const uint32_t at = threadIdx.x / WARP * 8 + lane_index() % 4 * 2;
    *(float2 *)&score[lane_index() / 4][at] = both;
}

/* The running softmax of query lane / 4, alike in all warps; sum is the lane's part. */
typedef struct step_softmax {
    float largest, sum;
} step_softmax;

/* weight[i] belongs to value_position(t, i); the factor is for what was summed before. */
DEVICE float tile_weights(const step_tile &t, const float (*score)[SCORE_PITCH],
                          step_softmax &m, float (&weight)[STEP_VALUES]) {
    const uint32_t left = t.end - t.first;
    float most = m.largest;
#pragma unroll
    for (uint32_t i = 0; i < STEP_VALUES; i += 2) {
        const uint32_t at = i / 4 * 16 + i % 4 / 2 * 8 + lane_index() % 4 * 2;
        const float2 two = *(const float2 *)&score[lane_index() / 4][at];
        weight[i] = at < left ? two.x : -INFINITY;
        weight[i + 1] = at + 1 < left ? two.y : -INFINITY;
        most = fmaxf(most, fmaxf(weight[i], weight[i + 1]));
    }
    most = lanes_max(most, 4);
    const float factor = most > -INFINITY ? expf(m.largest - most) : 1.0f;
    m.largest = most;
    m.sum *= factor;
#pragma unroll
    for (int i = 0; i < STEP_VALUES; i++) {
        weight[i] =
            weight[i] > -INFINITY || weight[i] != weight[i] ? expf(weight[i] - most) : 0.0f;
        m.sum += weight[i];
    }
    return factor;
}

/* Halves j of two words, j of the first in the low bits. */
DEVICE uint32_t halves_of(uint32_t first, uint32_t second, int j) {
    return j == 0 ? (first & 0xffff) | second << 16 : first >> 16 | (second & 0xffff0000u);
}

DEVICE uint32_t word_of(const uint4 &w, int i) {
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

/* acc[j]: row lane / 4 and its rest (c[2], c[3]) of dimensions 8 (2 (lane % 4)) + j, and 8 further. */
template <uint32_t TYPE>
DEVICE void values_add(const kv_words<TYPE> (&v)[4], const float *w, float (&acc)[8][4]) {
    const uint32_t left[4] = {halves(w[0], w[1]), halves(half_rest(w[0]), half_rest(w[1])),
                              halves(w[2], w[3]), halves(half_rest(w[2]), half_rest(w[3]))};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int i = j / 2, h = j % 2;
        mma_half(acc[j], left, halves_of(word_of(v[0].high, i), word_of(v[1].high, i), h),
                 halves_of(word_of(v[2].high, i), word_of(v[3].high, i), h));
        if (TYPE == KV_F32)
            mma_half(acc[j], left, halves_of(word_of(v[0].low, i), word_of(v[1].low, i), h),
                     halves_of(word_of(v[2].low, i), word_of(v[3].low, i), h));
    }
}

DEVICE void values_scale(float factor, float (&acc)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[j][k] *= factor;
}

/* ---- a split ---- */

/* What a split leaves for each row and head: head_dim sums, then the largest score and the sum of
 * weights. */
enum { SPLIT_MORE = 4 };

DEVICE float *split_place(float *workspace, uint32_t n_heads, uint32_t n_splits, uint32_t dim,
                          uint64_t row, uint32_t head, uint32_t split) {
    return workspace + ((row * n_heads + head) * n_splits + split) * (dim + SPLIT_MORE);
}

/* Positions of a split: a multiple of a tile's. */
DEVICE uint32_t split_length(uint32_t n_positions, uint32_t n_splits) {
    const uint32_t each = (n_positions + n_splits - 1) / n_splits;
    return (each + STEP_POSITIONS - 1) / STEP_POSITIONS * STEP_POSITIONS;
}

DEVICE void split_store(const attention_step_args &a, const step_row &r, const step_softmax &m,
                        const float (&acc)[8][4]) {
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t q = lane_index() / 4, t = lane_index() % 4, dim = b.kv.head_dim;
    const float sum = lanes_sum(m.sum, 4);
    if (q >= r.n_queries) return;
    float *to = split_place(a.workspace, b.n_heads, a.n_splits, dim, r.row, r.first_head + q,
                            blockIdx.x);
    const uint32_t first = threadIdx.x / WARP * 64 + 16 * t;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t half = k / 2, j = k % 2 * 4;
        if (first + 4 * k >= dim) break;
        *(float4 *)(to + first + 4 * k) = make_float4(
            acc[j][half] + acc[j][half + 2], acc[j + 1][half] + acc[j + 1][half + 2],
            acc[j + 2][half] + acc[j + 2][half + 2], acc[j + 3][half] + acc[j + 3][half + 2]);
    }
    if (threadIdx.x >= WARP || t != 0) return;
    to[dim] = m.largest;
    to[dim + 1] = sum;
}

/* Keys and values are loaded a tile ahead, but for float32 pages, which would not fit the
 * registers. */
template <uint32_t TYPE>
DEVICE void split_body(const attention_step_args &a, attention_shared *s) {
    const bool ahead = TYPE != KV_F32;
    const attention_prepare_args &b = a.prepare.base;
    const step_row r = row_of_step(a);
    const uint32_t n_positions = r.position + 1, dim = b.kv.head_dim;
    const uint32_t length = split_length(n_positions, a.n_splits), begin = blockIdx.x * length;
    if (begin >= n_positions) return launch_begin();
    const uint32_t end = begin + length < n_positions ? begin + length : n_positions;
    step_tile tile = tile_of(a, r, begin, end);
    kv_words<TYPE> k[STEP_CHUNKS] = {}, v[STEP_FOURS][4] = {};
    if (ahead) keys_load<TYPE>(tile, dim, k);
#pragma unroll
    for (uint32_t p = 0; p < STEP_FOURS; p++)
        if (ahead) values_load<TYPE>(tile, dim, p, v[p]);
    const step_angle first = angle_of(a, r, lane_index());
    const step_vector weight = vector_load(b.q_norm, dim);
    launch_begin();
    step_prepare<TYPE>(a, r, end == n_positions, weight, first, s);
    __syncthreads();
    step_softmax m = {-INFINITY, 0};
    float acc[8][4] = {};
    for (uint32_t n = 0;; n++) {
        float w[STEP_VALUES];
        float(*score)[SCORE_PITCH] = s->score[n % 2];
        const bool more = tile.first + STEP_POSITIONS < end;
        const step_tile next = more ? tile_of(a, r, tile.first + STEP_POSITIONS, end) : tile;
        if (!ahead) keys_load<TYPE>(tile, dim, k);
        keys_freshen<TYPE>(tile, r, dim, s, k);
        tile_scores<TYPE>(s, k, dim, a.scale, score);
        if (ahead && more) keys_load<TYPE>(next, dim, k);
        __syncthreads();
        values_scale(tile_weights(tile, score, m, w), acc);
#pragma unroll
        for (uint32_t p = 0; p < STEP_FOURS; p++) {
            if (!ahead) values_load<TYPE>(tile, dim, p, v[p]);
            values_freshen<TYPE>(tile, r, dim, p, s, v[p]);
            values_add<TYPE>(v[p], w + 4 * p, acc);
            if (!ahead) __syncwarp(); /* nothing of the next four before here */
            if (ahead && more) values_load<TYPE>(next, dim, p, v[p]);
        }
        if (!more) break;
        tile = next;
    }
    split_store(a, r, m, acc);
}

KERNEL_FIT(attention_step_f16, attention_step_args, ATTENTION_STEP_BLOCK, 3) {
    __shared__ __align__(16) attention_shared s[1];
    split_body<KV_F16>(a, s);
}
KERNEL(attention_step_q8, attention_step_args, ATTENTION_STEP_BLOCK) {
    __shared__ __align__(16) attention_shared s[1];
    split_body<KV_Q8>(a, s);
}
KERNEL(attention_step_q4, attention_step_args, ATTENTION_STEP_BLOCK) {
    __shared__ __align__(16) attention_shared s[1];
    split_body<KV_Q4>(a, s);
}
KERNEL(attention_step_f32, attention_step_args, ATTENTION_STEP_BLOCK) {
    __shared__ __align__(16) attention_shared s[1];
    split_body<KV_F32>(a, s);
}

/* ---- keys and values before the rows that read them ---- */

KERNEL(attention_keep, attention_step_args, ATTENTION_KEEP_BLOCK) {
    __shared__ __align__(16) float fresh[2][STEP_HEAD];
    const attention_prepare_args &b = a.prepare.base;
    const uint32_t part = threadIdx.x / WARP;
    step_row r = {};
    r.row = blockIdx.y;
    r.run = b.batch.runs[b.batch.row_run[r.row]];
    r.position = r.run.position + (uint32_t)r.row - r.run.first_row;
    r.kv_head = blockIdx.x;
    const step_angle first = angle_of(a, r, lane_index());
    const step_vector weight = vector_load(b.k_norm, b.kv.head_dim);
    launch_begin();
    fresh_store(a, b.kv.type, r, part, own_load(b, r, part), weight, first, fresh[part]);
}

/* ---- combine ---- */

enum { COMBINE_HELD = 8 };

/* Every warp finds the largest score and the sum of weights by itself, so that nothing waits. */
DEVICE float combine_weights(const float *from, uint32_t stride, uint32_t n, float *weight) {
    enum { EACH = ATTENTION_MAX_SPLITS / WARP };
    float largest[EACH], sum = 0, most = -INFINITY, part[EACH];
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = k * WARP + lane_index();
        float2 two;
        two.x = -INFINITY;
        two.y = 0;
        if (i < n) two = __ldcg((const float2 *)(from + (uint64_t)i * stride));
        largest[k] = two.x;
        part[k] = two.y;
        most = fmaxf(most, two.x);
    }
    most = lanes_max(most);
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = k * WARP + lane_index();
        const float w = i < n ? expf(largest[k] - most) : 0.0f;
        sum = fmaf(w, part[k], sum);
        if (threadIdx.x < WARP && i < n) weight[i] = w;
    }
    return lanes_sum(sum);
}

/* A block has 32 dimensions of a head, lane by lane; warp w has the splits w, w + 16, ..., the first of
 * which are loaded before their weights are known. */
KERNEL(attention_combine, attention_cuda_args, ATTENTION_COMBINE_BLOCK) {
    enum { WARPS = ATTENTION_COMBINE_BLOCK / WARP };
    __shared__ float weight[ATTENTION_MAX_SPLITS];
    __shared__ float sums[WARPS][WARP];
    const attention_args &b = a.base;
    const uint32_t dim = b.kv.head_dim, slices = dim / WARP, head = blockIdx.x / slices;
    const uint32_t warp = threadIdx.x / WARP, x = blockIdx.x % slices * WARP + lane_index();
    const uint64_t row = blockIdx.y;
    const batch_run run = b.batch.runs[b.batch.row_run[row]];
    const uint32_t n_positions = run.position + (uint32_t)row - run.first_row + 1;
    const uint32_t length = split_length(n_positions, a.n_splits);
    const uint32_t n = (n_positions + length - 1) / length, stride = dim + SPLIT_MORE;
    const float *from = split_place(a.workspace, b.n_heads, a.n_splits, dim, row, head, 0);
    launch_begin();
    float held[COMBINE_HELD];
#pragma unroll
    for (uint32_t k = 0; k < COMBINE_HELD; k++) {
        const uint32_t i = warp + k * WARPS;
        held[k] = i < n ? __ldcg(from + (uint64_t)i * stride + x) : 0.0f;
    }
    float gate = 0;
    if (warp == 0) gate = __ldcg(b.qg + row * b.qg_stride + (uint64_t)head * 2 * dim + dim + x);
    const float sum = combine_weights(from + dim, stride, n, weight);
    __syncthreads();
    float o = 0;
#pragma unroll
    for (uint32_t k = 0; k < COMBINE_HELD; k++) {
        const uint32_t i = warp + k * WARPS;
        if (i < n) o = fmaf(weight[i], held[k], o);
    }
    for (uint32_t i = warp + COMBINE_HELD * WARPS; i < n; i += WARPS)
        o = fmaf(weight[i], __ldcg(from + (uint64_t)i * stride + x), o);
    sums[warp][lane_index()] = o;
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (uint32_t k = 1; k < WARPS; k++)
        o += sums[k][lane_index()];
    const float y = o / sum * sigmoid(gate);
    if (b.out != 0) b.out[row * b.out_stride + (uint64_t)head * dim + x] = y;
    if (a.act != 0)
        act_store_group((unsigned char *)a.act + row * a.act_stride, b.n_heads * dim,
                        head * dim + x - lane_index(), y);
}
