/* rope.c - kernels/rope.h.  Double precision inside, so that the libm in use does not show. */
#include "kernels/rope.h"
#include <math.h>

void rope_inverse_frequencies(float *inv_freq, uint32_t n_rot, float base) {
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const float exponent = (float)(2 * i) / (float)n_rot;
        inv_freq[i] = 1.0f / (float)pow((double)base, (double)exponent);
    }
}

void rope_row(float *row, uint32_t position, const float *inv_freq, uint32_t n_rot) {
    const uint32_t n_pairs = n_rot / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        const float angle = (float)position * inv_freq[i];
        row[i] = (float)cos((double)angle);
        row[n_pairs + i] = (float)sin((double)angle);
    }
}
