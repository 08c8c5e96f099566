/* command_plan.c - `siliceo-worker plan`: the memory plan of a model; nothing is loaded. */
#include "worker/commands.h"

#include "worker/engine_parts.h"
#include "worker/memory/host_ram.h"
#include "worker/memory/plan.h"
#include "worker/options.h"
#include <stdio.h>
#include <string.h>

typedef struct plan_options {
    model_options common;
} plan_options;

static const config_key keys[] = {OPTIONS_MODEL_KEYS(plan_options, common)};

static status print_plan(const model_options *o, error *err) {
    gguf_file *file = NULL;
    model_config geometry = {0};
    model_weights weights = {0};
    engine_params params = {0};
    memory_plan plan = {0};
    char text[4096];
    /* With VRAM named, a plan for a GPU needs none here. */
    bool elsewhere = strcmp(o->backend, "cuda") == 0 && o->vram_mib > 0;
    model_options here = *o;
    if (elsewhere) here.backend = "cpu";
    status rc = gguf_open(&file, o->model, err);
    if (rc != STATUS_OK) goto done;
    rc = model_config_read(&geometry, file, err);
    if (rc != STATUS_OK) goto done;
    rc = model_weights_map(&weights, &geometry, file, err);
    if (rc != STATUS_OK) goto done;
    rc = options_engine_params(&here, plan_n_experts(&geometry), &params, err);
    if (rc != STATUS_OK) goto done;
    if (elsewhere) params.backend = BACKEND_CUDA;
    plan_request wish = {
        .n_context = params.n_context,
        .n_sequences = params.n_sequences,
        .chunk_tokens = params.chunk_tokens,
        .kv = params.kv,
        .n_slots = params.n_slots,
        .park_bytes = params.park_mib < 0 ? -1 : params.park_mib << 20,
        .ram_bytes = params.ram_mib > 0 ? params.ram_mib << 20 : host_ram_available_bytes(),
        .backend = params.backend,
        .has_lane = params.lane != CPU_LANE_OFF,
        .prefix_ram_mib = params.prefix_ram_mib,
        .prefix_states = params.prefix_states,
    };
    rc = plan_vram_budget(&wish, params.vram_mib, err);
    if (rc != STATUS_OK) goto done;
    rc = engine_plan_guesses(&params, file, &geometry, &wish, err);
    if (rc != STATUS_OK) goto done;
    rc = plan_make(&plan, &geometry, &weights, &wish, err);
    if (rc != STATUS_OK) goto done;
    (void)plan_print(&plan, text, sizeof text);
    (void)printf("%s (%s), profile %s\n%s", geometry.name, geometry.arch, params.profile, text);
done:
    model_weights_release(&weights);
    gguf_close(file);
    return rc;
}

int command_plan(int argc, char *argv[]) {
    plan_options options = {0};
    config c = {0};
    error err = {0};
    int code = options_read(&c, "siliceo-worker plan", keys, sizeof keys / sizeof keys[0],
                            &options, &options.common, true, argc, argv);
    if (code >= 0) return code;
    status rc = print_plan(&options.common, &err);
    if (rc != STATUS_OK) (void)fprintf(stderr, "siliceo-worker plan: %s\n", err.text);
    config_release(&c);
    return rc == STATUS_OK ? 0 : 1;
}
