/* cuda_driver.h - the CUDA driver and NVML, found at run time with dlopen.
 *
 * The build needs no CUDA headers and the program starts on machines without a
 * GPU: cuda_driver_open() says what is missing.  One table holds every driver
 * function that this project calls, under the driver's own names, so that an
 * error can name the call that failed.  Values of constants are those of the
 * driver's ABI, which does not change.
 *
 * Errors  STATUS_UNAVAILABLE: no library, no GPU or a driver that is too old;
 *         STATUS_NO_MEMORY: the device has too little; STATUS_DEVICE: the rest.
 * Memory  open allocates, close frees and accepts NULL and half-built objects.
 * Thread  cuda_driver: any after open.  A context is current on one thread at a
 *         time.  gpu_sensors: one thread at a time.
 */
#ifndef SILICEO_WORKER_CUDA_DRIVER_H
#define SILICEO_WORKER_CUDA_DRIVER_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int cuda_result;
typedef int cuda_ordinal;
typedef uint64_t cuda_pointer;
typedef struct cuda_context_object *cuda_context;
typedef struct cuda_module_object *cuda_module;
typedef struct cuda_function_object *cuda_function;
typedef struct cuda_stream_object *cuda_stream;
typedef struct cuda_event_object *cuda_event;
typedef struct cuda_graph_object *cuda_graph;
typedef struct cuda_graph_run_object *cuda_graph_run;

/* One attribute of a launch: 64 bytes of value behind an id. */
typedef struct cuda_launch_attribute {
    int id;
    int pad;
    union {
        int flag;
        unsigned char bytes[64];
    } value;
} cuda_launch_attribute;

typedef struct cuda_launch_config {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    cuda_stream stream;
    cuda_launch_attribute *attributes;
    unsigned n_attributes;
} cuda_launch_config;

enum {
    CUDA_OK = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
    CUDA_DEVICE_SMS = 16, /* attributes of a device */
    CUDA_DEVICE_MAJOR = 75,
    CUDA_DEVICE_MINOR = 76,
    CUDA_DEVICE_SAME_ADDRESS = 91, /* registered host memory is read where the host has it */
    CUDA_DEVICE_REGISTERS = 99,    /* host memory can be registered */
    CUDA_REGISTER_MAPPED = 2,
    CUDA_FUNCTION_OWN_SHARED = 1,   /* of a function: the shared memory that it declares */
    CUDA_FUNCTION_SHARED_BYTES = 8, /* dynamic shared memory, at most */
    CUDA_CONTEXT_SPIN = 1,          /* waiting threads spin */
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_CAPTURE_RELAXED = 2,
    CUDA_LAUNCH_OVERLAPPED = 6 /* programmatic stream serialization */
};

/* X(name of the member, name in the library, parameters) */
#define CUDA_DRIVER_FUNCTIONS(X)                                                               \
    X(cuInit, "cuInit", (unsigned))                                                            \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                       \
    X(cuGetErrorName, "cuGetErrorName", (cuda_result, const char **))                          \
    X(cuGetErrorString, "cuGetErrorString", (cuda_result, const char **))                      \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                           \
    X(cuDeviceGet, "cuDeviceGet", (cuda_ordinal *, int))                                       \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, cuda_ordinal))                         \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, cuda_ordinal))                \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, cuda_ordinal))                       \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, cuda_ordinal))                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cuda_context *, cuda_ordinal))    \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (cuda_ordinal))               \
    X(cuDevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags_v2", (cuda_ordinal, unsigned))   \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (cuda_context))                                      \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                   \
    X(cuMemAlloc, "cuMemAlloc_v2", (cuda_pointer *, size_t))                                   \
    X(cuMemFree, "cuMemFree_v2", (cuda_pointer))                                               \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                           \
    X(cuMemFreeHost, "cuMemFreeHost", (void *))                                                \
    X(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned))                   \
    X(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                    \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (cuda_pointer, const void *, size_t))                   \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, cuda_pointer, size_t))                         \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                               \
      (cuda_pointer, const void *, size_t, cuda_stream))                                       \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, cuda_pointer, size_t, cuda_stream))  \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                               \
      (cuda_pointer, cuda_pointer, size_t, cuda_stream))                                       \
    X(cuMemsetD8Async, "cuMemsetD8Async", (cuda_pointer, unsigned char, size_t, cuda_stream))  \
    X(cuModuleLoadData, "cuModuleLoadData", (cuda_module *, const void *))                     \
    X(cuModuleUnload, "cuModuleUnload", (cuda_module))                                         \
    X(cuModuleGetFunction, "cuModuleGetFunction",                                              \
      (cuda_function *, cuda_module, const char *))                                            \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, int, cuda_function))                   \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (cuda_function, int, int))                     \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                             \
      "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *, cuda_function, int, size_t))      \
    X(cuStreamCreate, "cuStreamCreate", (cuda_stream *, unsigned))                             \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (cuda_stream))                                    \
    X(cuStreamSynchronize, "cuStreamSynchronize", (cuda_stream))                               \
    X(cuStreamQuery, "cuStreamQuery", (cuda_stream))                                           \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (cuda_stream, cuda_event, unsigned))             \
    X(cuEventCreate, "cuEventCreate", (cuda_event *, unsigned))                                \
    X(cuEventDestroy, "cuEventDestroy_v2", (cuda_event))                                       \
    X(cuEventRecord, "cuEventRecord", (cuda_event, cuda_stream))                               \
    X(cuEventQuery, "cuEventQuery", (cuda_event))                                              \
    X(cuEventSynchronize, "cuEventSynchronize", (cuda_event))                                  \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, cuda_event, cuda_event))             \
    X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                    \
      (const cuda_launch_config *, cuda_function, void **, void **))                           \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (cuda_stream, int))                     \
    X(cuStreamEndCapture, "cuStreamEndCapture", (cuda_stream, cuda_graph *))                   \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                       \
      (cuda_graph_run *, cuda_graph, unsigned long long))                                      \
    X(cuGraphLaunch, "cuGraphLaunch", (cuda_graph_run, cuda_stream))                           \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (cuda_graph_run))                              \
    X(cuGraphDestroy, "cuGraphDestroy", (cuda_graph))

typedef struct cuda_driver {
    void *library;
    int version; /* of CUDA, 13000 for 13.0 */
#define CUDA_DRIVER_MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
} cuda_driver;

/* Load libcuda.so.1 (or the file that the variable SILICEO_LIBCUDA names) and start it. */
status cuda_driver_open(cuda_driver **out, error *err);
void cuda_driver_close(cuda_driver *d);

/* The status of a driver result; a failure's text names the call. */
status cuda_check(const cuda_driver *d, cuda_result result, const char *call, error *err);
#define CUDA_CALL(d, err, name, ...) cuda_check((d), (d)->name(__VA_ARGS__), #name, (err))

/* One GPU and what it is. */
typedef struct cuda_card {
    cuda_ordinal device;
    char name[96];
    char bus_id[32];
    int major, minor; /* compute capability */
    int n_sms;
    bool reads_registered; /* kernels read registered host memory by the host's address */
    size_t total_bytes;
} cuda_card;

status cuda_card_read(const cuda_driver *d, int index, cuda_card *out, error *err);

/* NVML: what the card says of itself, without a context. */
typedef struct gpu_sensors gpu_sensors;

typedef struct gpu_reading {
    int temperature_c; /* -1: not told */
    int use_percent;   /* of the time lately; -1: not told */
    double power_w;    /* negative: not told */
    uint64_t used_bytes;
    uint64_t total_bytes;
} gpu_reading;

/* The card with this PCI bus id, or the first when bus_id is NULL; by libnvidia-ml.so.1, or the
 * file that the variable SILICEO_LIBNVML names. */
status gpu_sensors_open(gpu_sensors **out, const char *bus_id, error *err);
void gpu_sensors_close(gpu_sensors *s);
status gpu_sensors_read(const gpu_sensors *s, gpu_reading *out, error *err);

#endif
