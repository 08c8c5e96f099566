/* test_cuda_plan.c - what a card gives is what the plan says, and not a step of 2 MiB more.
 *
 * The driver double tells by NVML what is taken: memory in steps, a context, kernels of every
 * model, the page tables of pinned memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden/cuda_double.h"
#include "worker/cuda_driver.h"
#include <inttypes.h>

/* Room for graphs, of which the double's take none, and for small pinned memory. */
static const uint64_t most_spare = 12 << 20;

static int choose_both(void **state) {
    int rc = choose_driver(state);
    const char *library = getenv("SILICEO_LIBCUDA");
    return rc == 0 && library != NULL ? setenv("SILICEO_LIBNVML", library, 1) : rc;
}

static uint64_t used_bytes(void) {
    gpu_sensors *sensors = NULL;
    gpu_reading now = {0};
    error err = {0};
    if (gpu_sensors_open(&sensors, NULL, &err) != STATUS_OK ||
        gpu_sensors_read(sensors, &now, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    gpu_sensors_close(sensors);
    return now.used_bytes;
}

static engine_params params_of(const char *path, uint64_t vram_mib) {
    engine_params p = run_params();
    p.model_path = path;
    p.backend = BACKEND_CUDA;
    p.vram_mib = vram_mib;
    p.n_context = 128;
    p.n_sequences = 1;
    p.chunk_tokens = 32;
    p.speculate = SPECULATE_OFF;
    return p;
}

/* How many bytes of the plan were left when all had been taken. */
static uint64_t spare_of(const engine_params *p, uint32_t *n_slots) {
    engine_run r;
    uint64_t before = used_bytes();
    run_open(&r, p);
    (void)run_one(&r, WIRE_COMPLETION,
                  "{\"prompt\":\"one two three\",\"max_tokens\":2,\"temperature\":0}");
    uint64_t used = used_bytes() - before, planned = engine_planned_vram(r.e);
    if (used > planned || planned > p->vram_mib << 20) {
        fail_msg("%" PRIu64 " bytes in use, %" PRIu64 " planned of %" PRIu64 " MiB", used,
                 planned, p->vram_mib);
    }
    *n_slots = engine_n_slots(r.e);
    run_close(&r);
    assert_int_equal(used_bytes(), before);
    return planned - used;
}

static void slots_fill_what_the_driver_leaves(void **state) {
    (void)state;
    uint32_t few = 0, more = 0;
    engine_params p = params_of("deploy/models/demo.gguf", 75);
    assert_true(spare_of(&p, &few) <= most_spare);
    p.vram_mib = 77;
    assert_true(spare_of(&p, &more) <= most_spare);
    assert_true(few < more);
}

static void a_draft_is_counted_with_its_own_kernels(void **state) {
    (void)state;
    uint32_t n_slots = 0;
    engine_params p = params_of("deploy/models/draft.gguf", 200);
    p.draft_path = p.model_path;
    p.speculate = SPECULATE_DRAFT;
    p.draft_tokens = 2;
    p.draft_gpu_layers = -1;
    assert_true(spare_of(&p, &n_slots) <= most_spare);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_fill_what_the_driver_leaves),
        cmocka_unit_test(a_draft_is_counted_with_its_own_kernels),
    };
    return cmocka_run_group_tests(tests, choose_both, NULL);
}
