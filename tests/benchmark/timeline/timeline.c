/* timeline.c - when kernels and copies ran, for timeline.py.
 *
 *     gcc -shared -fPIC -I CUPTI/include tests/benchmark/timeline/timeline.c -o timeline.so -lcupti
 *     CUDA_INJECTION64_PATH=timeline.so TIMELINE=out.csv siliceo-worker bench ...
 *
 * The driver loads the library into the program and calls InitializeInjection() once.  A line
 * an activity: name (copies: copy, and CUPTI's kind), begin and end in ns, bytes of a copy.
 * Only for machines with CUPTI: no part of the build.  Thread: CUPTI's own.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 8 << 20, BUFFER_ALIGN = 8 };

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records) {
    *buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
    *bytes = *buffer != NULL ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer,
                                 size_t bytes, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context;
    (void)stream;
    (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel8 *k = (const CUpti_ActivityKernel8 *)record;
            (void)fprintf(out, "%s,%llu,%llu,0\n", k->name, (unsigned long long)k->start,
                          (unsigned long long)k->end);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy5 *c = (const CUpti_ActivityMemcpy5 *)record;
            (void)fprintf(out, "copy%d,%llu,%llu,%llu\n", c->copyKind,
                          (unsigned long long)c->start, (unsigned long long)c->end,
                          (unsigned long long)c->bytes);
        }
    }
    free(buffer);
}

static void finish(void) {
    (void)cuptiActivityFlushAll(1);
    (void)fclose(out);
}

int InitializeInjection(void);
int InitializeInjection(void) {
    const char *path = getenv("TIMELINE");
    out = path != NULL ? fopen(path, "w") : NULL;
    if (out == NULL) return 0;
    if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS) {
        (void)fprintf(stderr, "timeline: CUPTI refuses\n");
        return 0;
    }
    return atexit(finish) == 0;
}
