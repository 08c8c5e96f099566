/* conv1d.h - causal depthwise convolution along a sequence, then SiLU, with its state.
 *
 * Shapes  x, y [n_rows][n_channels]; y may be x with the same stride.
 *         weight [n_taps][n_channels], tap 0 meets the oldest input: the transpose of the
 *         file's [n_channels][n_taps] (conv1d_transpose()), so that channels are contiguous.
 *         state of a sequence [n_taps - 1][n_channels]: its last raw inputs, oldest first;
 *         state s starts at state + s * state_stride.  Of a run verified row by row
 *         (args.h) the state after each row is kept.
 * Order   fmaf from tap 0, the oldest, to the newest, starting from the product of tap 0.
 *         All tiers give the same bits, and so does any split of a run.
 * Work    item = channel, each for all runs; take multiples of 16 channels.
 * Limits  2 <= n_taps <= CONV1D_MAX_TAPS.
 * Oracle  kernels/cpu/conv1d.c.
 */
#ifndef SILICEO_KERNELS_CONV1D_H
#define SILICEO_KERNELS_CONV1D_H

#include "kernels/args.h"

enum { CONV1D_MAX_TAPS = 8 };

typedef struct conv1d_args {
    batch_view batch;
    const float *x;
    const float *weight;
    float *state;
    float *y;
    uint64_t x_stride; /* floats from row to row */
    uint64_t y_stride;
    uint64_t state_stride; /* floats from state to state */
    uint32_t n_channels;
    uint32_t n_taps;
} conv1d_args;
KERNEL_ARGS_SIZE(conv1d_args, 96);

#ifndef __CUDACC__
#include "kernels/cpu/tier.h"

/* Channels first .. end - 1 of all runs. */
void conv1d_channels(cpu_tier tier, const conv1d_args *args, size_t first, size_t end);

/* weight [n_channels][n_taps] to out [n_taps][n_channels]. */
void conv1d_transpose(const float *weight, uint32_t n_channels, uint32_t n_taps, float *out);
#endif

#endif
