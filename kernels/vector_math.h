/* vector_math.h - exp and its kin over arrays, and the largest of an array.
 *
 * y[i] = f(x[i]); y may be x.  All tiers give the same bits (cpu/scalar_math.h says how each
 * is computed): relative error of exp <= 1e-7, the others a few units in the last place; NaN
 * stays NaN.
 */
#ifndef SILICEO_KERNELS_VECTOR_MATH_H
#define SILICEO_KERNELS_VECTOR_MATH_H

#include "kernels/cpu/tier.h"
#include <stddef.h>

void vector_exp(cpu_tier tier, const float *x, float *y, size_t n);
void vector_sigmoid(cpu_tier tier, const float *x, float *y, size_t n);
void vector_silu(cpu_tier tier, const float *x, float *y, size_t n);
void vector_softplus(cpu_tier tier, const float *x, float *y, size_t n);

/* Index of the largest value, the lowest one of equals; NaN is never chosen, and n is
 * returned when nothing else is there. */
size_t vector_argmax(cpu_tier tier, const float *x, size_t n);

#endif
