#include "worker/cuda_driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_VERSION = 11080 }; /* the first with cuLaunchKernelEx */

/* A function of a library.  ISO C has no conversion from object to function pointer, POSIX
 * promises that the bits are the same. */
static status find_function(void *library, const char *from, const char *symbol, void *out,
                            error *err) {
    void *at = dlsym(library, symbol);
    if (at == NULL) {
        return error_set(err, STATUS_UNAVAILABLE, "%s: %s is missing: the driver is too old",
                         from, symbol);
    }
    memcpy(out, &at, sizeof at);
    return STATUS_OK;
}

static status find_driver_functions(cuda_driver *d, error *err) {
#define FIND(name, symbol, parameters)                                                         \
    if (find_function(d->library, "libcuda", symbol, &d->name, err) != STATUS_OK)              \
        return STATUS_UNAVAILABLE;
    CUDA_DRIVER_FUNCTIONS(FIND)
#undef FIND
    return STATUS_OK;
}

static status start_driver(cuda_driver *d, error *err) {
    int n_devices = 0;
    cuda_result started = d->cuInit(0);
    if (started == CUDA_NO_DEVICE) {
        return error_set(err, STATUS_UNAVAILABLE, "libcuda: no GPU on this machine");
    }
    status rc = cuda_check(d, started, "cuInit", err);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuDriverGetVersion, &d->version);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuDeviceGetCount, &n_devices);
    if (rc != STATUS_OK) return rc;
    if (d->version < OLDEST_VERSION) {
        return error_set(err, STATUS_UNAVAILABLE,
                         "libcuda: the driver is of CUDA %d.%d, 11.8 is needed",
                         d->version / 1000, d->version % 1000 / 10);
    }
    if (n_devices == 0) {
        return error_set(err, STATUS_UNAVAILABLE, "libcuda: no GPU on this machine");
    }
    return STATUS_OK;
}

status cuda_driver_open(cuda_driver **out, error *err) {
    *out = NULL;
    cuda_driver *d = calloc(1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "cuda: no memory");
    const char *name = getenv("SILICEO_LIBCUDA");
    if (name == NULL || *name == '\0') name = "libcuda.so.1";
    status rc = STATUS_OK;
    d->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL) {
        rc =
            error_set(err, STATUS_UNAVAILABLE, "no CUDA driver on this machine: %s", dlerror());
        goto fail;
    }
    rc = find_driver_functions(d, err);
    if (rc != STATUS_OK) goto fail;
    rc = start_driver(d, err);
    if (rc != STATUS_OK) goto fail;
    *out = d;
    return STATUS_OK;
fail:
    cuda_driver_close(d);
    return rc;
}

/* The library stays loaded: the driver has threads that outlive a dlclose. */
void cuda_driver_close(cuda_driver *d) {
    free(d);
}

status cuda_check(const cuda_driver *d, cuda_result result, const char *call, error *err) {
    if (result == CUDA_OK) return STATUS_OK;
    const char *name = NULL, *text = NULL;
    if (d->cuGetErrorName(result, &name) != CUDA_OK || name == NULL) name = "unknown";
    if (d->cuGetErrorString(result, &text) != CUDA_OK || text == NULL) text = "unknown error";
    status code = result == CUDA_OUT_OF_MEMORY ? STATUS_NO_MEMORY : STATUS_DEVICE;
    return error_set(err, code, "cuda: %s: %s (%d), %s", call, name, result, text);
}

status cuda_card_read(const cuda_driver *d, int index, cuda_card *out, error *err) {
    memset(out, 0, sizeof *out);
    status rc = CUDA_CALL(d, err, cuDeviceGet, &out->device, index);
    if (rc == STATUS_OK) {
        rc = CUDA_CALL(d, err, cuDeviceGetName, out->name, sizeof out->name, out->device);
    }
    if (rc == STATUS_OK) {
        rc = CUDA_CALL(d, err, cuDeviceGetPCIBusId, out->bus_id, sizeof out->bus_id,
                       out->device);
    }
    const struct {
        int id;
        int *to;
    } attributes[] = {{CUDA_DEVICE_MAJOR, &out->major},
                      {CUDA_DEVICE_MINOR, &out->minor},
                      {CUDA_DEVICE_SMS, &out->n_sms}};
    for (size_t i = 0; i < 3 && rc == STATUS_OK; i++) {
        rc = CUDA_CALL(d, err, cuDeviceGetAttribute, attributes[i].to, attributes[i].id,
                       out->device);
    }
    int registers = 0, same = 0;
    out->reads_registered =
        rc == STATUS_OK &&
        d->cuDeviceGetAttribute(&registers, CUDA_DEVICE_REGISTERS, out->device) == CUDA_OK &&
        d->cuDeviceGetAttribute(&same, CUDA_DEVICE_SAME_ADDRESS, out->device) == CUDA_OK &&
        registers != 0 && same != 0;
    if (rc == STATUS_OK) {
        rc = CUDA_CALL(d, err, cuDeviceTotalMem, &out->total_bytes, out->device);
    }
    return rc;
}

/* NVML. */

typedef struct nvml_use {
    unsigned gpu, memory; /* percent of the time */
} nvml_use;

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

struct gpu_sensors {
    void *library;
    void *device;
    int started;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus_id)(const char *, void **);
    int (*by_index)(unsigned, void **);
    int (*temperature)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
    int (*memory)(void *, nvml_memory *);
    int (*use)(void *, nvml_use *);
};

static status find_sensor_functions(gpu_sensors *s, error *err) {
    const struct {
        const char *symbol;
        void *to;
    } functions[] = {{"nvmlInit_v2", &s->init},
                     {"nvmlShutdown", &s->shutdown},
                     {"nvmlDeviceGetHandleByPciBusId_v2", &s->by_bus_id},
                     {"nvmlDeviceGetHandleByIndex_v2", &s->by_index},
                     {"nvmlDeviceGetTemperature", &s->temperature},
                     {"nvmlDeviceGetPowerUsage", &s->power},
                     {"nvmlDeviceGetMemoryInfo", &s->memory},
                     {"nvmlDeviceGetUtilizationRates", &s->use}};
    status rc = STATUS_OK;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && rc == STATUS_OK; i++)
        rc = find_function(s->library, "libnvidia-ml", functions[i].symbol, functions[i].to,
                           err);
    return rc;
}

status gpu_sensors_open(gpu_sensors **out, const char *bus_id, error *err) {
    *out = NULL;
    gpu_sensors *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "nvml: no memory");
    status rc = STATUS_OK;
    int result = 0;
    const char *path = getenv("SILICEO_LIBNVML");
    s->library = dlopen(path != NULL ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL) {
        rc = error_set(err, STATUS_UNAVAILABLE, "no NVML on this machine: %s", dlerror());
        goto fail;
    }
    rc = find_sensor_functions(s, err);
    if (rc != STATUS_OK) goto fail;
    result = s->init();
    s->started = result == 0;
    if (result == 0) {
        result = bus_id != NULL ? s->by_bus_id(bus_id, &s->device) : s->by_index(0, &s->device);
    }
    if (result != 0) {
        rc = error_set(err, STATUS_UNAVAILABLE, "nvml: error %d finding GPU %s", result,
                       bus_id != NULL ? bus_id : "0");
        goto fail;
    }
    *out = s;
    return STATUS_OK;
fail:
    gpu_sensors_close(s);
    return rc;
}

void gpu_sensors_close(gpu_sensors *s) {
    if (s == NULL) return;
    if (s->started) (void)s->shutdown();
    if (s->library != NULL) (void)dlclose(s->library);
    free(s);
}

status gpu_sensors_read(const gpu_sensors *s, gpu_reading *out, error *err) {
    enum { CORE_SENSOR = 0 };
    nvml_memory memory = {0};
    nvml_use use = {0};
    unsigned celsius = 0, milliwatts = 0;
    int result = s->memory(s->device, &memory);
    if (result != 0) return error_set(err, STATUS_DEVICE, "nvml: error %d", result);
    bool has_celsius = s->temperature(s->device, CORE_SENSOR, &celsius) == 0;
    bool has_power = s->power(s->device, &milliwatts) == 0;
    *out = (gpu_reading){.temperature_c = has_celsius ? (int)celsius : -1,
                         .use_percent = s->use(s->device, &use) == 0 ? (int)use.gpu : -1,
                         .power_w = has_power ? milliwatts / 1000.0 : -1,
                         .used_bytes = memory.used,
                         .total_bytes = memory.total};
    return STATUS_OK;
}
