/* cuda_emu.cc - every kernel compiled for the CPU, behind one C function; see cuda_device.h. */
#include "tests/kernels/cuda_emu.h"

extern "C" {
#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/conv1d.h"
#include "kernels/delta_net.h"
#include "kernels/embed.h"
#include "kernels/moe_combine.h"
#include "kernels/router.h"
#include "tests/kernels/cuda_device.h"
}
#include "kernels/cuda/all.cu"

static const void *emu_args;

template <class A, void (*KERNEL_FUNCTION)(A)> static void call(void) {
    KERNEL_FUNCTION(*(const A *)emu_args);
}
template <class A> struct argument_of;
template <class A> struct argument_of<void (*)(A)> { typedef A type; };

#define BODY(name) call<argument_of<decltype(&name)>::type, name>,
static void (*const bodies[])(void) = {CUDA_KERNELS(BODY)};

#define SIZE(name) sizeof(argument_of<decltype(&name)>::type),
static const size_t sizes[] = {CUDA_KERNELS(SIZE)};

extern "C" size_t cuda_emu_args_bytes(cuda_kernel kernel) {
    return sizes[kernel];
}

static void emu_launch(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes) {
    (void)bytes;
    if (shape.shared_bytes > EMU_SHARED) emu_fail("more than 64 KB of shared memory");
    emu_body = bodies[kernel];
    emu_args = args;
    emu_threads = shape.block_x;
    blockDim = {shape.block_x, 1, 1};
    gridDim = {shape.grid_x, shape.grid_y, shape.grid_z};
    /* The last block first: none may count on what one before it does. */
    for (uint32_t z = shape.grid_z; z-- > 0;)
        for (uint32_t y = shape.grid_y; y-- > 0;)
            for (uint32_t x = shape.grid_x; x-- > 0;) {
                blockIdx = {x, y, z};
                memset(emu_shared, 0xff, sizeof emu_shared);
                emu_run_block();
                for (uint32_t i = shape.shared_bytes; i < EMU_SHARED; i++)
                    if (emu_shared[i] != 0xff) emu_fail("a write beyond the shared memory");
            }
}

static void *emu_alloc(size_t bytes) {
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);
    if (p == nullptr) abort();
    memset(p, 0xff, bytes);
    return p;
}
static void emu_copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

extern "C" const kernel_device kernel_device_emu = {emu_alloc, free,       emu_copy,
                                                    emu_copy,  emu_launch, 4};
