/* conv1d.c - the oracle of kernels/conv1d.h, and the choice of the tier. */
#include "kernels/conv1d.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

static void keep(const conv1d_args *args, uint32_t state, size_t channel, const float *window) {
    float *to = args->state + state * args->state_stride + channel;
    for (size_t i = 0; i + 1 < args->n_taps; i++)
        to[i * args->n_channels] = window[i];
}

/* One channel of one run.  The inputs that the taps see pass through a short window. */
static void convolve(const conv1d_args *args, const batch_run *run, size_t channel) {
    const size_t n_taps = args->n_taps, newest = n_taps - 1;
    const float *x = args->x + run->first_row * args->x_stride + channel;
    float *y = args->y + run->first_row * args->y_stride + channel;
    const float *state = args->state + run->state * args->state_stride + channel;
    float window[CONV1D_MAX_TAPS];
    for (size_t i = 0; i < newest; i++)
        window[i] = state[i * args->n_channels];
    for (size_t t = 0; t < run->n_rows; t++) {
        window[newest] = x[t * args->x_stride];
        float sum = window[0] * args->weight[channel];
        for (size_t i = 1; i < n_taps; i++)
            sum = fmaf(window[i], args->weight[i * args->n_channels + channel], sum);
        y[t * args->y_stride] = math_silu(sum);
        memmove(window, window + 1, newest * sizeof(float));
        if (run->first_kept != 0)
            keep(args, BATCH_STATE_AFTER(&args->batch, run, t), channel, window);
    }
    if (run->first_kept == 0) keep(args, run->state, channel, window);
}

void conv1d_scalar(const conv1d_args *args, size_t first, size_t end) {
    for (uint32_t r = 0; r < args->batch.n_runs; r++)
        for (size_t channel = first; channel < end; channel++)
            convolve(args, &args->batch.runs[r], channel);
}

void conv1d_channels(cpu_tier tier, const conv1d_args *args, size_t first, size_t end) {
    TIER_CALL(tier, conv1d, args, first, end);
}

void conv1d_transpose(const float *weight, uint32_t n_channels, uint32_t n_taps, float *out) {
    for (size_t channel = 0; channel < n_channels; channel++)
        for (size_t tap = 0; tap < n_taps; tap++)
            out[tap * n_channels + channel] = weight[channel * n_taps + tap];
}
