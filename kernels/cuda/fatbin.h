/* fatbin.h - the compiled CUDA kernels inside the program; see fatbin.S. */
#ifndef SILICEO_KERNELS_CUDA_FATBIN_H
#define SILICEO_KERNELS_CUDA_FATBIN_H

#include <stdint.h>

extern const unsigned char kernels_fatbin[];
extern const uint64_t kernels_fatbin_size; /* 0: built without nvcc */

#endif
