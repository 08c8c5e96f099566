/* cuda_device.h - where the cases of cuda_cases.c run: a GPU, or the fibers of cuda_emu.h.
 *
 * Memory comes filled with 0xff, which is NaN to a float.  A failure ends the program.
 */
#ifndef SILICEO_TESTS_KERNELS_CUDA_DEVICE_H
#define SILICEO_TESTS_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/launch.h"

typedef struct kernel_device {
    void *(*alloc)(size_t bytes);
    void (*free)(void *p);
    void (*write)(void *to, const void *from, size_t bytes); /* host to device */
    void (*read)(void *to, const void *from, size_t bytes);
    void (*launch)(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes);
    uint32_t n_sms;
} kernel_device;

extern const kernel_device kernel_device_emu;
/* Bytes of a kernel's argument struct. */
size_t cuda_emu_args_bytes(cuda_kernel kernel);

#endif
