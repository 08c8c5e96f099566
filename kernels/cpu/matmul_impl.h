/* matmul_impl.h - what a tier of the matrix kernels provides; internal to kernels/cpu.
 *
 * matmul_run.c cuts a job into groups of four weight rows, or panels of 32, and calls
 * the tier through this table.  The order of every sum is that of kernels/matmul.h.
 */
#ifndef SILICEO_KERNELS_CPU_MATMUL_IMPL_H
#define SILICEO_KERNELS_CPU_MATMUL_IMPL_H

#include "kernels/matmul.h"

#include <stdbool.h>

#define MATMUL_ROWS         4    /* weight rows that a rows kernel takes at once */
#define MATMUL_TOKENS       4    /* activation rows it takes at most */
#define MATMUL_PANEL_ROWS   32   /* weight rows of a panel */
#define MATMUL_PANEL_COLS   4096 /* columns that are unpacked at once */
#define MATMUL_PANEL_TOKENS 6    /* activation rows a panel kernel of any tier takes at most */

/* Four rows against n_tokens rows of activations: out[t][r]. */
typedef struct matmul_rows {
    quant_type type;
    act_format format;
    size_t n_cols;
    size_t n_tokens;
    const uint8_t *rows[MATMUL_ROWS]; /* any four rows; the same one may stand twice */
    const uint8_t *acts[MATMUL_TOKENS];
    float out[MATMUL_TOKENS][MATMUL_ROWS];
} matmul_rows;

typedef void (*matmul_rows_kernel)(matmul_rows *a);

/* The two accumulators of each row, for one token; Q8_16_PAIRS has the first alone. */
typedef struct matmul_sums {
    _Alignas(64) float acc[MATMUL_PANEL_ROWS];
    float min[MATMUL_PANEL_ROWS];
} matmul_sums;

/* The formats of decoding steps on the GPU. */
static inline bool matmul_is_step(act_format format) {
    return format == ACT_STEP_32 || format == ACT_STEP_16;
}

/* Columns that are summed in integers in Q8_16_PAIRS. */
static inline size_t matmul_group_of(quant_type type) {
    const bool of_16 = type == QUANT_Q2_K || type == QUANT_Q3_K || type == QUANT_Q6_K;
    return of_16 ? 16 : 32;
}

/* In the formats of steps: do the partial sums take 64 columns at a time, or 32? */
static inline bool matmul_is_wide(quant_type type) {
    return type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q6_K;
}

/* Partial sums in the formats of steps, and columns of a wide unit, of a piece of it and of a unit. */
enum { STEP_SUMS = 32, STEP_WIDE = 64, STEP_PIECE = 16, STEP_UNIT = 32 };

/* The first column of a piece (0..3) of wide unit w: kernels/cuda/wide.cuh. */
static inline size_t matmul_piece_col(quant_type type, size_t w, size_t piece) {
    const size_t of_q6 = w / 2 * 8 + w % 2 * 2 + piece / 2 * 4 + piece % 2;
    return STEP_PIECE * (type == QUANT_Q6_K ? of_q6 : 4 * w + piece);
}

/* 32 rows, unpacked, against n_tokens rows of activations. */
typedef struct matmul_panel {
    quant_type type;
    act_format format;
    size_t first_col; /* of the unpacked columns */
    size_t n_cols;    /* unpacked columns */
    size_t row_cols;  /* columns of a whole row */
    const uint8_t *rows[MATMUL_PANEL_ROWS];
    void *tiles;
    size_t n_tokens;
    const uint8_t *acts[MATMUL_PANEL_TOKENS];
    matmul_sums *sums; /* n_tokens of them, added to */
} matmul_panel;

typedef struct matmul_tier {
    matmul_rows_kernel (*rows_kernel)(act_format format, quant_type type, size_t n_tokens);
    /* From this many tokens on a job of quantized weights goes by panels; SIZE_MAX: never. */
    size_t panel_tokens;
    size_t call_tokens; /* activation rows of a call of panel_multiply at most */
    void (*panel_unpack)(matmul_panel *p);
    void (*panel_multiply)(matmul_panel *p);
} matmul_tier;

extern const matmul_tier matmul_tier_scalar;
extern const matmul_tier matmul_tier_avx2;
extern const matmul_tier matmul_tier_avx512;

matmul_rows_kernel matmul_scaled_avx2(quant_type type, size_t n_tokens);
matmul_rows_kernel matmul_scaled_avx512(quant_type type, size_t n_tokens);
matmul_rows_kernel matmul_step_avx2(quant_type type, size_t n_tokens);
matmul_rows_kernel matmul_step_avx512(quant_type type, size_t n_tokens);
void matmul_scaled_unpack_avx2(matmul_panel *p);
void matmul_scaled_multiply_avx2(matmul_panel *p);
void matmul_scaled_unpack_avx512(matmul_panel *p);
void matmul_scaled_multiply_avx512(matmul_panel *p);
void matmul_panel_unpack_avx2(matmul_panel *p);
void matmul_panel_multiply_avx2(matmul_panel *p);
void matmul_panel_unpack_avx512(matmul_panel *p);
void matmul_panel_multiply_avx512(matmul_panel *p);

/* Unpacked bytes of 16 rows: see the tiles of matmul_panel_avx512.c. */
#define MATMUL_TILE_BYTES_PER_COL 25

/* Every type with the columns of its block, or float, for functions and tables by type. */
#define FLOAT_TYPES(X)                                                                         \
    X(float, f32, QUANT_F32) X(float, f16, QUANT_F16) X(float, bf16, QUANT_BF16)
#define QUANTIZED_TYPES(X)                                                                     \
    X(32, q4_0, QUANT_Q4_0)                                                                    \
    X(32, q4_1, QUANT_Q4_1)                                                                    \
    X(32, q5_0, QUANT_Q5_0)                                                                    \
    X(32, q5_1, QUANT_Q5_1)                                                                    \
    X(32, q8_0, QUANT_Q8_0)                                                                    \
    X(32, iq4_nl, QUANT_IQ4_NL)                                                                \
    X(32, mxfp4, QUANT_MXFP4)                                                                  \
    X(256, q2_k, QUANT_Q2_K)                                                                   \
    X(256, q3_k, QUANT_Q3_K)                                                                   \
    X(256, q4_k, QUANT_Q4_K)                                                                   \
    X(256, q5_k, QUANT_Q5_K)                                                                   \
    X(256, q6_k, QUANT_Q6_K)                                                                   \
    X(256, iq4_xs, QUANT_IQ4_XS)

#endif
