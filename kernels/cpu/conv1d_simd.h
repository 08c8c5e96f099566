/* conv1d_simd.h - kernels/conv1d.h over vectors of channels; see tier_ops.h. */
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tier_ops.h"

static inline v16 load_channels(const float *p, size_t n) {
    return n == 16 ? v_load(p) : v_load_n(p, n);
}

static inline void store_channels(float *p, v16 a, size_t n) {
    if (n == 16) {
        v_store(p, a);
    } else {
        v_store_n(p, a, n);
    }
}

static inline void keep_window(const conv1d_args *args, uint32_t state, size_t channel,
                               size_t n, const v16 *window, size_t newest) {
    float *to = args->state + state * args->state_stride + channel;
    for (size_t i = 0; i < newest; i++)
        store_channels(to + i * args->n_channels, window[i], n);
}

/* n <= 16 channels of one run.  With n_taps a constant the window stays in registers. */
static inline __attribute__((always_inline)) void convolve(const conv1d_args *args,
                                                           const batch_run *run, size_t channel,
                                                           size_t n, size_t n_taps) {
    const size_t newest = n_taps - 1, n_channels = args->n_channels;
    const float *x = args->x + run->first_row * args->x_stride + channel;
    float *y = args->y + run->first_row * args->y_stride + channel;
    const float *state = args->state + run->state * args->state_stride + channel;
    v16 window[CONV1D_MAX_TAPS], weight[CONV1D_MAX_TAPS];
    for (size_t i = 0; i < n_taps; i++)
        weight[i] = load_channels(args->weight + i * n_channels + channel, n);
    for (size_t i = 0; i < newest; i++)
        window[i] = load_channels(state + i * n_channels, n);
    for (size_t t = 0; t < run->n_rows; t++) {
        window[newest] = load_channels(x + t * args->x_stride, n);
        v16 sum = v_mul(window[0], weight[0]);
        for (size_t i = 1; i < n_taps; i++)
            sum = v_fma(window[i], weight[i], sum);
        store_channels(y + t * args->y_stride, v_silu(sum), n);
        for (size_t i = 0; i < newest; i++)
            window[i] = window[i + 1];
        if (run->first_kept != 0)
            keep_window(args, BATCH_STATE_AFTER(&args->batch, run, t), channel, n, window,
                        newest);
    }
    if (run->first_kept == 0) keep_window(args, run->state, channel, n, window, newest);
}

void TIER(conv1d)(const conv1d_args *args, size_t first, size_t end) {
    for (uint32_t r = 0; r < args->batch.n_runs; r++) {
        const batch_run *run = &args->batch.runs[r];
        size_t channel = first;
        for (; channel + 16 <= end && args->n_taps == 4; channel += 16)
            convolve(args, run, channel, 16, 4);
        for (; channel < end; channel += 16)
            convolve(args, run, channel, end - channel < 16 ? end - channel : 16, args->n_taps);
    }
}
