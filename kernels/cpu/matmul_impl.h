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

/* The two accumulators of each row, for one token. */
typedef struct matmul_sums {
    _Alignas(64) float acc[MATMUL_PANEL_ROWS];
    float min[MATMUL_PANEL_ROWS];
} matmul_sums;

/* The partial sums of the formats with scales of 16 columns. */
typedef struct matmul_parts {
    _Alignas(64) float part[4][MATMUL_PANEL_ROWS];
} matmul_parts;

static inline bool matmul_is_scaled(act_format format) {
    return format == ACT_Q8_16 || format == ACT_Q8_16_PAIRS;
}

/* Group g goes to partial sum g & this. */
static inline size_t matmul_last_part(act_format format) {
    return format == ACT_Q8_16_PAIRS ? 0 : 3;
}

/* Columns that are summed in integers in these formats. */
static inline size_t matmul_group_of(quant_type type, act_format format) {
    const bool of_16 = type == QUANT_Q2_K || type == QUANT_Q3_K || type == QUANT_Q6_K;
    return of_16 || format != ACT_Q8_16_PAIRS ? 16 : 32;
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
    matmul_sums *sums;   /* n_tokens of them, added to */
    matmul_parts *parts; /* the same in the formats with scales of 16 columns */
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

matmul_rows_kernel matmul_scaled_avx2(act_format format, quant_type type, size_t n_tokens);
matmul_rows_kernel matmul_scaled_avx512(act_format format, quant_type type, size_t n_tokens);
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

#endif
