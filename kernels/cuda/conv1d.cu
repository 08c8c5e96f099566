/* conv1d.cu - causal depthwise convolution with its state, then SiLU; kernels/conv1d.h.
 *
 * Launch  conv1d_shape: grid (channels / 128, runs, pieces of 32 rows); in place (y is x) there is
 *         one piece.  The block that reads the old state (piece 0) also writes the new one.
 * Cost    one read and one write of the rows.
 * Oracle  kernels/cpu/conv1d.c; compared in tests/kernels/cuda_mixer_cases.c.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mixers.h"

enum { CONV_AHEAD = 8 }; /* rows loaded before the first of them is stored */

/* Input t of a run's channel; before the run comes the state, oldest first. */
DEVICE float conv_input(const conv1d_args &a, const float *x, const float *state, int t) {
    const int kept = (int)a.n_taps - 1;
    if (t >= 0) return __ldcg(x + (uint64_t)t * a.x_stride);
    return __ldcg(state + (uint64_t)(kept + t) * a.n_channels);
}

KERNEL(conv1d, conv1d_args, 128) {
    launch_begin();
    const uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= a.n_channels) return;
    const batch_run run = a.batch.runs[blockIdx.y];
    const bool in_place = a.y == a.x;
    const uint32_t piece = in_place ? run.n_rows : (uint32_t)CONV1D_PIECE;
    const uint32_t first = blockIdx.z * piece;
    if (first >= run.n_rows) return;
    const uint32_t end = first + piece < run.n_rows ? first + piece : run.n_rows;
    const float *x = a.x + run.first_row * a.x_stride + channel;
    float *y = a.y + run.first_row * a.y_stride + channel;
    float *state = a.state + run.state * a.state_stride + channel;
    float window[CONV1D_MAX_TAPS], tap[CONV1D_MAX_TAPS], kept[CONV1D_MAX_TAPS];
    const int newest = (int)a.n_taps - 1;
#pragma unroll
    for (int i = 0; i < CONV1D_MAX_TAPS; i++) {
        if (i > newest) break;
        tap[i] = a.weight[(uint64_t)i * a.n_channels + channel];
        if (i == newest) break;
        window[i] = conv_input(a, x, state, (int)first + i - newest);
        kept[i] = conv_input(a, x, state, (int)run.n_rows + i - newest);
    }
    for (uint32_t t = first; t < end; t += CONV_AHEAD) {
        float ahead[CONV_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < CONV_AHEAD; k++)
            ahead[k] = t + k < end ? __ldcg(x + (t + k) * a.x_stride) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < CONV_AHEAD; k++) {
            if (t + k >= end) break;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < CONV1D_MAX_TAPS; i++) {
                if (i > newest) break;
                if (i == newest) window[i] = ahead[k];
                sum = i == 0 ? window[0] * tap[0] : fmaf(window[i], tap[i], sum);
            }
            y[(t + k) * a.y_stride] = silu(sum);
#pragma unroll
            for (int i = 0; i + 1 < CONV1D_MAX_TAPS; i++)
                if (i < newest) window[i] = window[i + 1];
        }
    }
    if (blockIdx.z != 0) return;
#pragma unroll
    for (int i = 0; i + 1 < CONV1D_MAX_TAPS; i++)
        if (i < newest) state[(uint64_t)i * a.n_channels] = kept[i];
}
