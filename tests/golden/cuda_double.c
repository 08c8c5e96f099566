/* cuda_double.c - a CUDA driver without a GPU: libcuda's functions over tests/kernels/cuda_emu.h.
 *
 * SILICEO_LIBCUDA=build/tests/libcuda_double.so lets every program of the project believe in
 * a card: device memory is the host's, and a launch runs the kernel's source on fibers, on the
 * card's own thread, while the host goes on.  What is enqueued on a backend's first stream, that of
 * its kernels, is done in order; any other stream does everything at once, after the kernels
 * where it waits for an event.  What it shows is that the CUDA backend asks for the right
 * things in a legal order; it is a thousand times slower than a card.
 *
 * A launch that Turing would refuse is refused here: a kernel's own shared memory is read from
 * the compiler's report.  With SILICEO_DOUBLE_JUDGES launches are judged alone, and do nothing.
 * SILICEO_DOUBLE_REFUSES makes calls that have to do with graphs, and copies to the host, fail, see
 * refuses().
 * With SILICEO_DOUBLE_DEAF it hears no answer of the CPU lane.
 * SILICEO_DOUBLE_ELAPSED_MS is the time between any two events: a large one makes a slow bus.
 * Memory comes filled with 0xff, NaN to a float.  Freed too little or twice: the program ends.
 */
#include "kernels/cuda/experts.h"
#include "tests/kernels/cuda_device.h"
#include "worker/cuda_driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 1, NO_CONTEXT = 201, NOT_FOUND = 500, CARD_BYTES_MIB = 1024 };

/* What is done: a copy or a launch. */
typedef struct deed {
    struct deed *next;
    bool copies;
    void *to;
    const void *from;
    size_t n;
    cuda_kernel kernel;
    cuda_shape shape;
    unsigned char args[1024];
} deed;

/* The card's thread: tasks in order, each a graph's list of deeds, or one of its own. */
typedef struct task {
    struct task *next;
    const deed *graph;
    deed own;
} task;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    task *first, **last;
    bool runs, stops;
} card = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* As if the host never answered, with nothing to wait for. */
static void launch_deaf(const deed *d) {
    lane_box deaf = {0};
    experts_up_args args;
    memcpy(&args, d->args, sizeof args);
    lane_box *box = args.box;
    args.box = &deaf;
    args.limit_ns = 0;
    kernel_device_emu.launch(d->kernel, d->shape, &args, 0);
    if (deaf.late != 0) __atomic_store_n(&box->late, deaf.late, __ATOMIC_RELEASE);
}

static void do_task(const task *t) {
    const bool is_deaf = getenv("SILICEO_DOUBLE_DEAF") != NULL;
    for (const deed *d = t->graph != NULL ? t->graph : &t->own; d != NULL; d = d->next) {
        if (d->copies)
            memmove(d->to, d->from, d->n);
        else if (is_deaf && d->kernel == CUDA_KERNEL_experts_up_coming)
            launch_deaf(d);
        else
            kernel_device_emu.launch(d->kernel, d->shape, d->args, 0);
    }
}

/* A task leaves the list when it is done. */
static void *run_card(void *context) {
    (void)context;
    (void)pthread_mutex_lock(&card.lock);
    while (card.first != NULL || !card.stops) {
        task *t = card.first;
        if (t == NULL) {
            (void)pthread_cond_wait(&card.changed, &card.lock);
            continue;
        }
        (void)pthread_mutex_unlock(&card.lock);
        do_task(t);
        (void)pthread_mutex_lock(&card.lock);
        card.first = t->next;
        if (card.first == NULL) card.last = &card.first;
        free(t);
        (void)pthread_cond_broadcast(&card.changed);
    }
    (void)pthread_mutex_unlock(&card.lock);
    return NULL;
}

static void enqueue(const deed *graph, const deed *own) {
    task *t = calloc(1, sizeof *t);
    if (t == NULL) abort();
    t->graph = graph;
    if (own != NULL) t->own = *own;
    (void)pthread_mutex_lock(&card.lock);
    if (!card.runs) {
        card.last = &card.first;
        card.stops = false;
        if (pthread_create(&card.thread, NULL, run_card, NULL) != 0) abort();
        card.runs = true;
    }
    *card.last = t;
    card.last = &t->next;
    (void)pthread_cond_broadcast(&card.changed);
    (void)pthread_mutex_unlock(&card.lock);
}

static bool is_busy(void) {
    (void)pthread_mutex_lock(&card.lock);
    const bool busy = card.first != NULL;
    (void)pthread_mutex_unlock(&card.lock);
    return busy;
}

/* Everything that was enqueued has been done. */
static void settle(void) {
    (void)pthread_mutex_lock(&card.lock);
    while (card.first != NULL)
        (void)pthread_cond_wait(&card.changed, &card.lock);
    (void)pthread_mutex_unlock(&card.lock);
}

static void stop_card(void) {
    settle();
    if (!card.runs) return;
    (void)pthread_mutex_lock(&card.lock);
    card.stops = true;
    (void)pthread_cond_broadcast(&card.changed);
    (void)pthread_mutex_unlock(&card.lock);
    (void)pthread_join(card.thread, NULL);
    card.runs = false;
}

static size_t bytes_taken;        /* on the card and pinned on the host */
static size_t card_taken, pinned; /* of these, as a card counts them */
static struct range {             /* of host memory that was registered */
    void *at;
    size_t n;
} registered[16];
enum { MOST_REGISTERED = sizeof registered / sizeof registered[0] };
static int n_registered;
static const size_t card_bytes = (size_t)CARD_BYTES_MIB << 20;

/* What a driver takes besides: of VRAM that is given in steps. */
enum { STEP = 2 << 20, CONTEXT_BYTES = 37 << 20, MODULE_BYTES = 3 << 20 };
static int n_retained, n_modules;

static size_t in_steps(size_t n) {
    return (n + STEP - 1) / STEP * STEP;
}
static size_t driver_takes(void) {
    return (n_retained > 0 ? CONTEXT_BYTES : 0) + (size_t)n_modules * MODULE_BYTES +
           in_steps(pinned / 512);
}

#define NAME(name) #name,
static const char *const names[CUDA_KERNEL_COUNT] = {CUDA_KERNELS(NAME)};

/* The declarations that -Wmissing-prototypes wants are those of the driver's table. */
#define DECLARE(name, symbol, parameters) cuda_result double_##name parameters __asm__(symbol);
CUDA_DRIVER_FUNCTIONS(DECLARE)

cuda_result double_cuInit(unsigned flags) {
    (void)flags;
    return CUDA_OK;
}
cuda_result double_cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_OK;
}
cuda_result double_cuGetErrorName(cuda_result result, const char **out) {
    *out = result == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_DOUBLE";
    return CUDA_OK;
}
cuda_result double_cuGetErrorString(cuda_result result, const char **out) {
    (void)result;
    *out = "said by the double";
    return CUDA_OK;
}
cuda_result double_cuDeviceGetCount(int *n) {
    *n = 1;
    return CUDA_OK;
}
cuda_result double_cuDeviceGet(cuda_ordinal *out, int index) {
    *out = index;
    return CUDA_OK;
}
cuda_result double_cuDeviceGetName(char *out, int cap, cuda_ordinal device) {
    (void)device;
    (void)snprintf(out, (size_t)cap, "double");
    return CUDA_OK;
}
cuda_result double_cuDeviceGetAttribute(int *out, int id, cuda_ordinal device) {
    (void)device;
    *out = id == CUDA_DEVICE_MAJOR ? 7 : id == CUDA_DEVICE_MINOR ? 5 : 4;
    return CUDA_OK;
}
cuda_result double_cuDeviceTotalMem(size_t *out, cuda_ordinal device) {
    (void)device;
    *out = card_bytes;
    return CUDA_OK;
}
cuda_result double_cuDeviceGetPCIBusId(char *out, int cap, cuda_ordinal device) {
    (void)device;
    (void)snprintf(out, (size_t)cap, "0000:00:00.0");
    return CUDA_OK;
}

/* Context, module: nothing to keep but whose they are. */
static _Thread_local cuda_context current;
cuda_result double_cuDevicePrimaryCtxRetain(cuda_context *out, cuda_ordinal device) {
    static char context;
    (void)device;
    *out = (cuda_context)(void *)&context;
    n_retained++;
    return CUDA_OK;
}
cuda_result double_cuDevicePrimaryCtxRelease(cuda_ordinal device) {
    (void)device;
    settle();
    if (--n_retained > 0) return CUDA_OK;
    stop_card();
    if (bytes_taken == 0 && n_registered == 0) return CUDA_OK;
    (void)fprintf(stderr, "cuda_double: %zu bytes and %d ranges were not given back\n",
                  bytes_taken, n_registered);
    abort();
}
cuda_result double_cuDevicePrimaryCtxSetFlags(cuda_ordinal device, unsigned flags) {
    (void)device;
    (void)flags;
    return CUDA_OK;
}
cuda_result double_cuCtxSetCurrent(cuda_context context) {
    current = context;
    return CUDA_OK;
}
cuda_result double_cuModuleLoadData(cuda_module *out, const void *image) {
    static char module;
    (void)image;
    *out = (cuda_module)(void *)&module;
    n_modules++;
    return CUDA_OK;
}
cuda_result double_cuModuleUnload(cuda_module module) {
    (void)module;
    settle();
    n_modules--;
    return CUDA_OK;
}
cuda_result double_cuModuleGetFunction(cuda_function *out, cuda_module module,
                                       const char *name) {
    (void)module;
    for (uintptr_t i = 0; i < CUDA_KERNEL_COUNT; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (cuda_function)(i + 1);
        return CUDA_OK;
    }
    return NOT_FOUND;
}

/* What the compiler says of each kernel's own shared memory, for Turing; 0 without its report. */
static uint32_t own_shared[CUDA_KERNEL_COUNT];
static uint32_t asked_shared[CUDA_KERNEL_COUNT]; /* dynamic, by cuFuncSetAttribute */
enum { SHARED_WITHOUT_ASKING = 48 * 1024, SHARED_MOST = 64 * 1024 };

static void read_report(void) {
    static bool done;
    static const char properties[] = "Function properties for ", used[] = " bytes smem";
    char path[512], line[1024];
    const char *build = getenv("SILICEO_BUILD");
    if (done) return;
    done = true;
    if (build == NULL) build = "build";
    bool shares = strcmp(build, "build") == 0 || strncmp(build, "build/", 6) == 0 ||
                  strncmp(build, "build-", 6) == 0; /* as CUDA_OUT in the Makefile */
    (void)snprintf(path, sizeof path, "%s/cuda/sm_75.txt", shares ? "build" : build);
    FILE *report = fopen(path, "r");
    int kernel = CUDA_KERNEL_COUNT;
    while (report != NULL && fgets(line, sizeof line, report) != NULL) {
        const char *name = strstr(line, properties), *bytes = strstr(line, used);
        if (name != NULL) {
            char *end = strpbrk(line, "\r\n");
            if (end != NULL) *end = '\0';
            for (kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
                if (strcmp(names[kernel], name + sizeof properties - 1) == 0) break;
            }
        }
        if (bytes == NULL || kernel == CUDA_KERNEL_COUNT) continue;
        while (bytes > line && bytes[-1] >= '0' && bytes[-1] <= '9')
            bytes--;
        own_shared[kernel] = (uint32_t)strtoul(bytes, NULL, 10);
    }
    if (report != NULL) (void)fclose(report);
}

cuda_result double_cuFuncGetAttribute(int *out, int id, cuda_function f) {
    if (id != CUDA_FUNCTION_OWN_SHARED) return INVALID_VALUE;
    read_report();
    *out = (int)own_shared[(uintptr_t)f - 1];
    return CUDA_OK;
}
cuda_result double_cuFuncSetAttribute(cuda_function f, int id, int value) {
    uintptr_t kernel = (uintptr_t)f - 1;
    if (id != CUDA_FUNCTION_SHARED_BYTES || value < 0 ||
        own_shared[kernel] + (uint32_t)value > SHARED_MOST) {
        return INVALID_VALUE;
    }
    asked_shared[kernel] = (uint32_t)value;
    return CUDA_OK;
}
/* A block's shared memory is what was asked for, or little enough. */
static bool has_shared(uintptr_t kernel, uint32_t dynamic) {
    return dynamic <= asked_shared[kernel] ||
           own_shared[kernel] + dynamic <= SHARED_WITHOUT_ASKING;
}
cuda_result double_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, cuda_function f,
                                                               int block, size_t shared) {
    (void)f;
    (void)block;
    (void)shared;
    *out = 1;
    return CUDA_OK;
}

/* Graphs: what a stream that captures would do is kept in a list instead. */
static cuda_stream capturing; /* or NULL */
static deed *first_deed, **last_deed = &first_deed;

static deed *add_deed(void) {
    deed *d = calloc(1, sizeof *d);
    if (d == NULL) abort();
    *last_deed = d;
    last_deed = &d->next;
    return d;
}

enum { STREAMS = 4 }; /* of a backend, told apart by their order */
static char stream_marks[STREAMS];
static const cuda_stream of_kernels = (cuda_stream)(void *)&stream_marks[0];

static void copy_or_keep(void *to, const void *from, size_t n, cuda_stream stream) {
    if (capturing == NULL || stream != capturing) {
        if (stream == of_kernels) settle();
        memmove(to, from, n);
        return;
    }
    deed *d = add_deed();
    d->copies = true;
    d->to = to;
    d->from = from;
    d->n = n;
}

static void drop_deeds(deed *d) {
    while (d != NULL) {
        deed *next = d->next;
        free(d);
        d = next;
    }
}

/* SILICEO_DOUBLE_REFUSES is "CALL:N": the Nth call of that name since it was set, and all after it. */
static bool refuses(const char *call) {
    static char told[64];
    static int n_left;
    const char *now = getenv("SILICEO_DOUBLE_REFUSES");
    if (now == NULL) now = "";
    size_t n = strlen(call);
    if (strcmp(now, told) != 0) {
        (void)snprintf(told, sizeof told, "%s", now);
        const char *colon = strchr(now, ':');
        n_left = colon != NULL ? atoi(colon + 1) - 1 : 0;
    }
    return strncmp(now, call, n) == 0 && now[n] == ':' && n_left-- <= 0;
}

/* Memory: a block knows its size. */
enum { HEAD_BYTES = 256 };

static void *take(size_t n) {
    unsigned char *block = aligned_alloc(HEAD_BYTES, HEAD_BYTES + (n + 255) / 256 * 256);
    if (block == NULL) return NULL;
    memcpy(block, &n, sizeof n);
    memset(block + HEAD_BYTES, 0xff, n);
    bytes_taken += n;
    return block + HEAD_BYTES;
}
static size_t size_of(const void *at) {
    size_t n = 0;
    memcpy(&n, (const unsigned char *)at - HEAD_BYTES, sizeof n);
    return n;
}
static cuda_result give_back(void *at) {
    settle();
    if (at == NULL) return INVALID_VALUE;
    bytes_taken -= size_of(at);
    free((unsigned char *)at - HEAD_BYTES);
    return CUDA_OK;
}
static void *host(cuda_pointer at) {
    return (void *)(uintptr_t)at;
}

cuda_result double_cuMemGetInfo(size_t *left, size_t *total) {
    *total = card_bytes;
    *left = card_bytes > bytes_taken ? card_bytes - bytes_taken : 0;
    return CUDA_OK;
}
cuda_result double_cuMemAlloc(cuda_pointer *out, size_t n) {
    if (current == NULL) return NO_CONTEXT;
    if (n == 0 || n > card_bytes - bytes_taken) return CUDA_OUT_OF_MEMORY;
    *out = (cuda_pointer)(uintptr_t)take(n);
    if (*out == 0) return CUDA_OUT_OF_MEMORY;
    card_taken += in_steps(n);
    return CUDA_OK;
}
cuda_result double_cuMemFree(cuda_pointer at) {
    if (at != 0) card_taken -= in_steps(size_of(host(at)));
    return give_back(host(at));
}
cuda_result double_cuMemHostAlloc(void **out, size_t n, unsigned flags) {
    (void)flags;
    *out = take(n);
    if (*out == NULL) return CUDA_OUT_OF_MEMORY;
    pinned += n;
    return CUDA_OK;
}
cuda_result double_cuMemFreeHost(void *at) {
    if (at != NULL) pinned -= size_of(at);
    return give_back(at);
}
cuda_result double_cuMemHostRegister(void *at, size_t n, unsigned flags) {
    (void)flags;
    if (n == 0 || n_registered == MOST_REGISTERED) return INVALID_VALUE;
    registered[n_registered++] = (struct range){at, n};
    pinned += n;
    return CUDA_OK;
}
cuda_result double_cuMemHostUnregister(void *at) {
    for (int i = 0; i < n_registered; i++) {
        if (registered[i].at != at) continue;
        pinned -= registered[i].n;
        registered[i] = registered[--n_registered];
        return CUDA_OK;
    }
    return INVALID_VALUE;
}
cuda_result double_cuMemcpyHtoD(cuda_pointer to, const void *from, size_t n) {
    settle();
    memcpy(host(to), from, n);
    return CUDA_OK;
}
cuda_result double_cuMemcpyDtoH(void *to, cuda_pointer from, size_t n) {
    if (current == NULL) return NO_CONTEXT;
    settle();
    memcpy(to, host(from), n);
    return CUDA_OK;
}
cuda_result double_cuMemcpyHtoDAsync(cuda_pointer to, const void *from, size_t n,
                                     cuda_stream stream) {
    if (current == NULL) return NO_CONTEXT;
    copy_or_keep(host(to), from, n, stream);
    return CUDA_OK;
}
cuda_result double_cuMemcpyDtoHAsync(void *to, cuda_pointer from, size_t n,
                                     cuda_stream stream) {
    if (refuses("cuMemcpyDtoHAsync")) return CUDA_OUT_OF_MEMORY;
    copy_or_keep(to, host(from), n, stream);
    return CUDA_OK;
}
cuda_result double_cuMemcpyDtoDAsync(cuda_pointer to, cuda_pointer from, size_t n,
                                     cuda_stream stream) {
    if (current == NULL) return NO_CONTEXT;
    copy_or_keep(host(to), host(from), n, stream);
    return CUDA_OK;
}
cuda_result double_cuMemsetD8Async(cuda_pointer to, unsigned char value, size_t n,
                                   cuda_stream stream) {
    if (current == NULL) return NO_CONTEXT;
    if (stream == capturing && capturing != NULL) return INVALID_VALUE;
    settle();
    memset(host(to), value, n);
    return CUDA_OK;
}

static char event_mark;
static unsigned n_streams;

cuda_result double_cuStreamCreate(cuda_stream *out, unsigned flags) {
    (void)flags;
    *out = (cuda_stream)(void *)&stream_marks[n_streams++ % STREAMS];
    return CUDA_OK;
}
cuda_result double_cuStreamDestroy(cuda_stream stream) {
    (void)stream;
    return CUDA_OK;
}
cuda_result double_cuStreamSynchronize(cuda_stream stream) {
    (void)stream;
    if (capturing != NULL) return INVALID_VALUE;
    settle();
    return CUDA_OK;
}
cuda_result double_cuStreamQuery(cuda_stream stream) {
    (void)stream;
    return capturing != NULL ? INVALID_VALUE : is_busy() ? CUDA_NOT_READY : CUDA_OK;
}
cuda_result double_cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags) {
    (void)event;
    (void)flags;
    if (stream != of_kernels) settle();
    return CUDA_OK;
}
cuda_result double_cuEventCreate(cuda_event *out, unsigned flags) {
    (void)flags;
    *out = (cuda_event)(void *)&event_mark;
    return CUDA_OK;
}
cuda_result double_cuEventDestroy(cuda_event event) {
    (void)event;
    return CUDA_OK;
}
cuda_result double_cuEventRecord(cuda_event event, cuda_stream stream) {
    (void)event;
    (void)stream;
    return CUDA_OK;
}
cuda_result double_cuEventQuery(cuda_event event) {
    (void)event;
    return CUDA_OK;
}
cuda_result double_cuEventSynchronize(cuda_event event) {
    (void)event;
    settle();
    return CUDA_OK;
}
cuda_result double_cuEventElapsedTime(float *ms, cuda_event from, cuda_event to) {
    (void)from;
    (void)to;
    const char *told = getenv("SILICEO_DOUBLE_ELAPSED_MS");
    *ms = told != NULL ? strtof(told, NULL) : 0;
    return CUDA_OK;
}

cuda_result double_cuLaunchKernelEx(const cuda_launch_config *c, cuda_function f, void **args,
                                    void **extra) {
    if (current == NULL) return NO_CONTEXT;
    (void)extra;
    uintptr_t id = (uintptr_t)f;
    if (id == 0 || id > CUDA_KERNEL_COUNT || c->grid[0] == 0 || c->grid[1] == 0 ||
        c->grid[1] > 65535 || c->grid[2] == 0 || c->grid[2] > 65535 || c->block[0] > 1024 ||
        !has_shared(id - 1, c->shared_bytes)) {
        return INVALID_VALUE;
    }
    if (getenv("SILICEO_DOUBLE_JUDGES") != NULL) return CUDA_OK;
    const cuda_shape shape = {c->grid[0], c->grid[1], c->grid[2], c->block[0], c->shared_bytes};
    deed d = {.kernel = (cuda_kernel)(id - 1), .shape = shape};
    memcpy(d.args, args[0], cuda_emu_args_bytes(d.kernel));
    if (capturing != NULL && c->stream == capturing)
        *add_deed() = d;
    else
        enqueue(NULL, &d);
    return CUDA_OK;
}

cuda_result double_cuStreamBeginCapture(cuda_stream stream, int mode) {
    (void)mode;
    if (capturing != NULL) return INVALID_VALUE;
    if (refuses("cuStreamBeginCapture")) return CUDA_OUT_OF_MEMORY;
    capturing = stream;
    first_deed = NULL;
    last_deed = &first_deed;
    return CUDA_OK;
}
cuda_result double_cuStreamEndCapture(cuda_stream stream, cuda_graph *out) {
    if (capturing == NULL || capturing != stream) return INVALID_VALUE;
    capturing = NULL;
    if (refuses("cuStreamEndCapture")) {
        drop_deeds(first_deed);
        *out = NULL;
        return CUDA_OUT_OF_MEMORY;
    }
    *out = (cuda_graph)(void *)first_deed;
    return CUDA_OK;
}
cuda_result double_cuGraphInstantiate(cuda_graph_run *out, cuda_graph graph,
                                      unsigned long long flags) {
    (void)flags;
    if (refuses("cuGraphInstantiate")) {
        drop_deeds((deed *)(void *)graph);
        return CUDA_OUT_OF_MEMORY;
    }
    *out = (cuda_graph_run)(void *)graph; /* the run owns the list from here on */
    return graph != NULL ? CUDA_OK : INVALID_VALUE;
}
cuda_result double_cuGraphLaunch(cuda_graph_run graph, cuda_stream stream) {
    (void)stream;
    if (capturing != NULL) return INVALID_VALUE;
    if (refuses("cuGraphLaunch")) return CUDA_OUT_OF_MEMORY;
    enqueue((const deed *)(const void *)graph, NULL);
    return CUDA_OK;
}
cuda_result double_cuGraphExecDestroy(cuda_graph_run graph) {
    settle();
    drop_deeds((deed *)(void *)graph);
    return CUDA_OK;
}
cuda_result double_cuGraphDestroy(cuda_graph graph) {
    (void)graph;
    return CUDA_OK;
}

/* NVML, for SILICEO_LIBNVML: the same card. */
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
    return 0;
}
int nvmlShutdown(void);
int nvmlShutdown(void) {
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) {
    (void)bus_id;
    *out = &card_taken;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    *out = &card_taken;
    return index == 0 ? 0 : INVALID_VALUE;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) {
    (void)device;
    (void)sensor;
    *out = 0;
    return INVALID_VALUE;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *out);
int nvmlDeviceGetPowerUsage(void *device, unsigned *out) {
    return nvmlDeviceGetTemperature(device, 0, out);
}
int nvmlDeviceGetMemoryInfo(void *device, nvml_memory *out);
int nvmlDeviceGetMemoryInfo(void *device, nvml_memory *out) {
    (void)device;
    out->total = card_bytes;
    out->used = card_taken + driver_takes();
    out->free = out->total - out->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, void *out);
int nvmlDeviceGetUtilizationRates(void *device, void *out) {
    (void)device;
    (void)out;
    return INVALID_VALUE;
}
