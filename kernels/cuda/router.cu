/* router.cu - router logits, the largest of a row and their softmax; kernels/cuda/router.h.
 *
 * Launch  router_logits: grid (rows of the matrices), block 256, whose threads share the columns
 *         of the row and sum x^2 and W (x norm) at once.  router: grid (rows), block of one warp
 *         (router.cuh).
 * Cost    a single row is bound by latency: one load, n_used rounds of two warp reductions.
 *         The table of places is in shared memory before the logits are there.
 * Oracle  kernels/cpu/router.c; compared in tests/kernels/cuda_cases.c.
 */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/router.cuh"
#include "kernels/cuda/unit.cuh"

/* ---- logits ---- */

/* Four columns at a time; the first LOGITS_HELD of a thread's are loaded before the wait. */
enum { LOGITS_HELD = 2 };

typedef struct logits_row {
    const matvec_segment *segment; /* 0: the block has no row */
    const unsigned char *at;
    uint32_t row;
} logits_row;

DEVICE logits_row logits_row_of(const router_logits_args &a, uint32_t i) {
    for (uint32_t s = 0; s < a.n_segments; s++) {
        const matvec_segment &g = a.segments[s];
        if (i < g.n_rows) {
            logits_row r = {&g, (const unsigned char *)g.weights + i * g.row_bytes, i};
            return r;
        }
        i -= g.n_rows;
    }
    logits_row none = {0, 0, 0};
    return none;
}

DEVICE void logits_load(const router_logits_args &a, const logits_row &r, uint32_t c, float4 &w,
                        float4 &norm) {
    w = norm = make_float4(0, 0, 0, 0);
    if (r.segment == 0 || c >= a.n_cols / 4) return;
    w = load_float4(r.segment->type, r.at, c);
    norm = load_float4(QUANT_F32, (const unsigned char *)a.norm, c);
}

DEVICE void logits_add(const float4 &v, const float4 &w, const float4 &norm, float &squares,
                       float &dot) {
    squares = fmaf(v.x, v.x, squares);
    squares = fmaf(v.y, v.y, squares);
    squares = fmaf(v.z, v.z, squares);
    squares = fmaf(v.w, v.w, squares);
    dot = fmaf(v.x * norm.x, w.x, dot);
    dot = fmaf(v.y * norm.y, w.y, dot);
    dot = fmaf(v.z * norm.z, w.z, dot);
    dot = fmaf(v.w * norm.w, w.w, dot);
}

KERNEL(router_logits, router_logits_args, ROUTER_LOGITS_BLOCK) {
    enum { WARPS = ROUTER_LOGITS_BLOCK / WARP };
    __shared__ float parts[2][WARPS];
    const logits_row r = logits_row_of(a, blockIdx.x);
    const uint32_t mine = blockIdx.x * ROUTER_LOGITS_BLOCK + threadIdx.x; /* of y */
    const float own_norm = mine < a.n_cols ? __uint_as_float(load4(a.norm + mine)) : 0.0f;
    float4 w[LOGITS_HELD], norm[LOGITS_HELD];
#pragma unroll
    for (uint32_t k = 0; k < LOGITS_HELD; k++)
        logits_load(a, r, threadIdx.x + k * ROUTER_LOGITS_BLOCK, w[k], norm[k]);
    launch_begin();
    for (uint32_t t = 0; t < a.n_tokens; t++) {
        const float *x = a.x + t * a.x_stride;
        const float own = mine < a.n_cols ? __ldcg(x + mine) : 0.0f;
        float squares = 0, dot = 0;
#pragma unroll
        for (uint32_t k = 0; k < LOGITS_HELD; k++) {
            const uint32_t c = threadIdx.x + k * ROUTER_LOGITS_BLOCK;
            if (c < a.n_cols / 4)
                logits_add(__ldcg((const float4 *)x + c), w[k], norm[k], squares, dot);
        }
        for (uint32_t c = threadIdx.x + LOGITS_HELD * ROUTER_LOGITS_BLOCK; c < a.n_cols / 4;
             c += ROUTER_LOGITS_BLOCK) {
            float4 more, more_norm;
            logits_load(a, r, c, more, more_norm);
            logits_add(__ldcg((const float4 *)x + c), more, more_norm, squares, dot);
        }
        squares = lanes_sum(squares);
        dot = lanes_sum(dot);
        if (lane_index() == 0) {
            parts[0][threadIdx.x / WARP] = squares;
            parts[1][threadIdx.x / WARP] = dot;
        }
        __syncthreads();
        squares = lanes_sum(parts[0][lane_index() % WARPS], WARPS);
        dot = lanes_sum(parts[1][lane_index() % WARPS], WARPS);
        const float scale = 1.0f / sqrtf(squares / (float)a.n_cols + a.eps);
        if (threadIdx.x == 0 && r.segment != 0)
            r.segment->out[t * r.segment->out_stride + r.row] = dot * scale;
        if (mine < a.n_cols) {
            const float v = own * scale * own_norm;
            a.y[t * a.y_stride + mine] = v;
            if (a.act != 0)
                act_store_group((unsigned char *)a.act + t * a.act_stride, a.n_cols,
                                mine - lane_index(), v);
        }
        __syncthreads();
    }
}

/* ---- choice ---- */

KERNEL(router, router_cuda_args, WARP) {
    __shared__ uint64_t records[ROUTER_MAX_EXPERTS];
    const uint32_t row = blockIdx.x, lane = lane_index();
    const int32_t told = router_told(a, row);
    for (uint32_t e = lane; a.records != 0 && e < a.base.n_experts; e += WARP)
        records[e] = __ldcg(a.records + e);
    launch_begin();
    const int32_t e = router_choose(a, row, told);
    __syncwarp();
    if (a.records != 0 && lane < a.base.n_used)
        a.places[row * a.base.n_used + lane] = records[e];
}
