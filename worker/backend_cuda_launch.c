/* backend_cuda_launch.c - a card's context, the kernels of the embedded fatbin, and how one is
 * launched. */
#include "worker/backend_cuda.h"

#include <stdlib.h>
#include <string.h>

/* kernels/cuda/fatbin.S; a build without nvcc has 0 bytes of it. */
extern const unsigned char kernels_fatbin[];
extern const uint64_t kernels_fatbin_size;

#define KERNEL_NAME(name) #name,
static const char *const names[CUDA_KERNEL_COUNT] = {CUDA_KERNELS(KERNEL_NAME)};
#undef KERNEL_NAME

/* A block's shared memory, what the kernel declares and what the launch adds: Turing's limits. */
enum { SHARED_WITHOUT_ASKING = 48 * 1024, SHARED_MOST = 64 * 1024 };
enum { MOST_THREADS = 1024, MOST_BLOCKS_YZ = 65535 };

status cuda_open_context(backend_cuda *b, error *err) {
    const cuda_driver *d = b->driver;
    status rc = cuda_card_read(d, 0, &b->card, err);
    if (rc == STATUS_OK) rc = cuda_check_card(&b->card, err);
    if (rc != STATUS_OK) return rc;
    (void)d->cuDevicePrimaryCtxSetFlags(b->card.device, CUDA_CONTEXT_SPIN); /* only advice */
    rc = CUDA_CALL(d, err, cuDevicePrimaryCtxRetain, &b->context, b->card.device);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuCtxSetCurrent, b->context);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuStreamCreate, &b->compute, CUDA_STREAM_NON_BLOCKING);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuStreamCreate, &b->h2d, CUDA_STREAM_NON_BLOCKING);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuStreamCreate, &b->d2h, CUDA_STREAM_NON_BLOCKING);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuStreamCreate, &b->recorder, CUDA_STREAM_NON_BLOCKING);
    return rc;
}

void cuda_close_context(backend_cuda *b) {
    const cuda_driver *d = b->driver;
    if (b->context == NULL) return;
    if (b->recorder != NULL) (void)d->cuStreamDestroy(b->recorder);
    if (b->d2h != NULL) (void)d->cuStreamDestroy(b->d2h);
    if (b->h2d != NULL) (void)d->cuStreamDestroy(b->h2d);
    if (b->compute != NULL) (void)d->cuStreamDestroy(b->compute);
    if (b->module != NULL) (void)d->cuModuleUnload(b->module);
    (void)d->cuCtxSetCurrent(NULL);
    (void)d->cuDevicePrimaryCtxRelease(b->card.device);
    b->context = NULL;
}

status cuda_find_kernels(const void **out, error *err) {
    if (out != NULL) *out = kernels_fatbin;
    /* A library that stands in for the driver has kernels of its own. */
    if (kernels_fatbin_size > 0 || getenv("SILICEO_LIBCUDA") != NULL) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE,
                     "this build has no CUDA kernels: it was made without nvcc");
}

status cuda_load_kernels(backend_cuda *b, error *err) {
    const void *fatbin = NULL;
    status rc = cuda_find_kernels(&fatbin, err);
    if (rc == STATUS_OK) rc = CUDA_CALL(b->driver, err, cuModuleLoadData, &b->module, fatbin);
    for (int i = 0; i < CUDA_KERNEL_COUNT && rc == STATUS_OK; i++) {
        rc = cuda_check(b->driver,
                        b->driver->cuModuleGetFunction(&b->functions[i], b->module, names[i]),
                        names[i], err);
        int bytes = 0;
        if (rc == STATUS_OK) {
            rc = CUDA_CALL(b->driver, err, cuFuncGetAttribute, &bytes, CUDA_FUNCTION_OWN_SHARED,
                           b->functions[i]);
        }
        b->own_shared[i] = (uint32_t)bytes;
    }
    return rc;
}

status cuda_check_shape(const backend_cuda *b, cuda_kernel kernel, cuda_shape s, error *err) {
    uint64_t shared = (uint64_t)b->own_shared[kernel] + s.shared_bytes;
    if (shared <= SHARED_MOST && s.block_x <= MOST_THREADS && s.grid_y <= MOST_BLOCKS_YZ &&
        s.grid_z <= MOST_BLOCKS_YZ && s.grid_x <= INT32_MAX) {
        return STATUS_OK;
    }
    return error_set(err, STATUS_DEVICE,
                     "cuda: %s: %u x %u x %u blocks of %u threads with %llu bytes of shared "
                     "memory; at most %d x %d x %d of %d with %d",
                     names[kernel], s.grid_x, s.grid_y, s.grid_z, s.block_x,
                     (unsigned long long)shared, INT32_MAX, MOST_BLOCKS_YZ, MOST_BLOCKS_YZ,
                     MOST_THREADS, SHARED_MOST);
}

bool cuda_went(backend_cuda *b, cuda_result result, const char *call) {
    if (result != CUDA_OK && b->failed == STATUS_OK) {
        b->failed = cuda_check(b->driver, result, call, &b->failure);
    }
    return b->failed == STATUS_OK;
}

/* On sm_90 an overlapped kernel may start while the one before it ends, for which it waits by
 * itself. */
static void launch(backend_cuda *b, cuda_kernel kernel, cuda_shape s, const void *args,
                   bool overlaps) {
    if (s.grid_x == 0 || s.grid_y == 0 || b->failed != STATUS_OK || b->mode == MODE_REPLAY) {
        return;
    }
    b->failed = cuda_check_shape(b, kernel, s, &b->failure);
    if (b->failed != STATUS_OK) return;
    cuda_launch_attribute overlapped = {.id = CUDA_LAUNCH_OVERLAPPED, .value = {.flag = 1}};
    const cuda_launch_config config = {.grid = {s.grid_x, s.grid_y, s.grid_z},
                                       .block = {s.block_x, 1, 1},
                                       .shared_bytes = s.shared_bytes,
                                       .stream = b->compute,
                                       .attributes = &overlapped,
                                       .n_attributes = overlaps && b->card.major >= 9 ? 1 : 0};
    const uint32_t own = b->own_shared[kernel];
    if (own + s.shared_bytes > SHARED_WITHOUT_ASKING &&
        !CUDA_DO(b, cuFuncSetAttribute, b->functions[kernel], CUDA_FUNCTION_SHARED_BYTES,
                 (int)(SHARED_MOST - own))) {
        return;
    }
    void *parameters[1];
    memcpy(parameters, &args, sizeof args); /* the driver only reads them */
    b->launches++;
    (void)cuda_went(
        b, b->driver->cuLaunchKernelEx(&config, b->functions[kernel], parameters, NULL),
        names[kernel]);
    cuda_record_launch(b, config, b->functions[kernel], parameters);
}

void cuda_launch(backend_cuda *b, cuda_kernel kernel, cuda_shape shape, const void *args) {
    launch(b, kernel, shape, args, true);
}

void cuda_launch_after(backend_cuda *b, cuda_kernel kernel, cuda_shape shape,
                       const void *args) {
    launch(b, kernel, shape, args, false);
}
