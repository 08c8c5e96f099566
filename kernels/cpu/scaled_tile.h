/* scaled_tile.h - a tile of the panel kernels with a scale for each 16 or 32 columns, in both fast
 * tiers. */
#ifndef SILICEO_KERNELS_CPU_SCALED_TILE_H
#define SILICEO_KERNELS_CPU_SCALED_TILE_H

#include "kernels/cpu/matmul_impl.h"

/* 16 rows of 32 columns; groups of 32 have the same factors twice. */
typedef struct scaled_tile {
    uint8_t q[8][64]; /* [column / 4][4 * row + column % 4] */
    float scale[2][16];
    float min[2][16]; /* to be added: negated for the K types */
} scaled_tile;

_Static_assert(sizeof(scaled_tile) <= 32 * MATMUL_TILE_BYTES_PER_COL, "scratch");

#endif
