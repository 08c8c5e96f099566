/* halves.cuh - activation rows in shared memory by halves, for kernels that multiply one row with
 * many rows of weights.
 *
 * A half is 16 columns, for which a quantized activation has a scale (act.h).  Half e lies in
 * plane e % 4 of its row, and there at e / 4, or in the planes 2 and 3 at (e / 4) ^ 5: the eight
 * lanes of a load of 16 bytes meet no bank twice, be it that they take the halves p of
 * neighbouring wide units (wide.cuh) or those of neighbouring units (unit.cuh).
 */
#ifndef SILICEO_KERNELS_CUDA_HALVES_CUH
#define SILICEO_KERNELS_CUDA_HALVES_CUH

#include "kernels/cuda/wide.cuh"

typedef struct half_acts {
    const uint4 *q;       /* [tokens][4][plane] */
    const float2 *factor; /* [tokens][4][plane] */
    uint32_t plane;       /* 8 for each 512 columns, the last of which may be part */
} half_acts;

DEVICE uint32_t plane_of_halves(uint32_t n_cols) {
    return (n_cols + 511) / 512 * 8;
}

DEVICE uint32_t half_place(uint32_t plane, uint32_t e) {
    return e % 4 * plane + (e / 4 ^ (e & 2 ? 5u : 0u));
}

/* Of n_rows rows that lie in `shared` one after another. */
DEVICE half_acts half_acts_of(uint4 *shared, uint32_t n_cols, uint32_t n_rows) {
    const uint32_t plane = plane_of_halves(n_cols);
    half_acts x = {shared, (const float2 *)(shared + n_rows * 4 * plane), plane};
    return x;
}

/* All threads of the block copy n_rows rows; a barrier must follow. */
DEVICE half_acts half_acts_copy(uint4 *shared, const void *act, uint64_t stride,
                                uint32_t n_cols, uint32_t n_rows) {
    const half_acts x = half_acts_of(shared, n_cols, n_rows);
    const uint32_t n_halves = n_cols / 16;
    for (uint32_t i = threadIdx.x; i < n_rows * n_halves; i += blockDim.x) {
        const uint32_t row = i / n_halves, e = i % n_halves;
        const unsigned char *from = (const unsigned char *)act + row * stride;
        const uint32_t to = row * 4 * x.plane + half_place(x.plane, e);
        shared[to] = __ldcg((const uint4 *)from + e);
        ((float2 *)x.factor)[to] = __ldcg(act_factors(from, n_cols) + e);
    }
    return x;
}

/* acc[t] += scale * (q x) - min * sum(x) of half e of each of T tokens. */
template <int T>
DEVICE void half_dot(const uint32_t *q, float scale, float min, const half_acts &x, uint32_t e,
                     float (&acc)[T]) {
    const uint32_t at = half_place(x.plane, e);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const uint32_t i = (uint32_t)t * 4 * x.plane + at;
        const float2 f = x.factor[i];
        acc[t] = fmaf(scale * f.x, (float)dot16(q, x.q[i]), acc[t]);
        acc[t] = fmaf(-min, f.y, acc[t]);
    }
}

/* Wide unit w, loaded, against T tokens: wide_dot's products in their order. */
template <int TYPE, int T>
DEVICE void wide_dot_halves(wide_raw<TYPE> &raw, uint32_t w, const half_acts &x,
                            float (&acc)[T]) {
    wide_factors f;
    wide_settle<TYPE>(raw, w);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t q[4];
        if (p % 2 == 0) f = wide_factors_of<TYPE>(raw, w, (uint32_t)p / 2);
        wide_words<TYPE>(raw, w, p, q);
        half_dot<T>(q, f.scale[p % 2], f.min[p % 2], x, wide_half<TYPE>(w, (uint32_t)p), acc);
    }
}

/* Unit u against T tokens, for the types without wide units. */
template <int T>
DEVICE void unit_dot_halves(const weight_unit &w, uint32_t u, const half_acts &x,
                            float (&acc)[T]) {
    half_dot<T>(w.q, w.scale[0], w.min[0], x, 2 * u, acc);
    half_dot<T>(w.q + 4, w.scale[1], w.min[1], x, 2 * u + 1, acc);
}

#endif
