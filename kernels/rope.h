/* rope.h - the angles of rotary positions: cosines and sines of one position.
 *
 * inv_freq[i] = base^(-2 i / n_rot) and the angle position * inv_freq[i] are formed in
 * float32, as the reference implementation does (at position 1e5 that rounding is visible);
 * cosine and sine of that angle are rounded from double.  Any thread.
 */
#ifndef SILICEO_KERNELS_ROPE_H
#define SILICEO_KERNELS_ROPE_H

#include <stdint.h>

/* inv_freq gets n_rot / 2 values. */
void rope_inverse_frequencies(float *inv_freq, uint32_t n_rot, float base);

/* row gets n_rot floats: n_rot / 2 cosines, then as many sines. */
void rope_row(float *row, uint32_t position, const float *inv_freq, uint32_t n_rot);

#endif
