/* cuda_cases.h - each CUDA kernel against its C oracle, on any device of cuda_device.h.
 *
 * A case makes random inputs of odd sizes, launches and compares; its value is the largest
 * relative L2 error that it saw (1 and more for a wrong integer or a value that is not a
 * number), which must not exceed the case's tolerance.
 */
#ifndef SILICEO_TESTS_KERNELS_CUDA_CASES_H
#define SILICEO_TESTS_KERNELS_CUDA_CASES_H

#include "tests/kernels/cuda_device.h"
#include <stddef.h>

typedef struct cuda_case {
    const char *name;
    double (*run)(const kernel_device *device);
    double tolerance;
} cuda_case;

extern const cuda_case cuda_cases[];
extern const size_t n_cuda_cases;

/* Random valid blocks of a quantized (or float) type. */
void cuda_case_fill(uint32_t type, void *blocks, size_t bytes);

#endif
