#include "worker/options.h"

#include "common/log.h"
#include "worker/backend.h"
#include "worker/loading_line.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef SILICEO_PROFILE_DIR
#define SILICEO_PROFILE_DIR "/usr/local/share/siliceo/profiles"
#endif

/* A profile name is looked for in SILICEO_PROFILES, beside the program's build
 * folder and where `make install` puts it; a word with a slash is a path. */
static status find_profile(const char *name, char *path, size_t cap, error *err) {
    if (strchr(name, '/') != NULL) {
        (void)snprintf(path, cap, "%s", name);
        return STATUS_OK;
    }
    char self[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) *slash = '\0';
    const char *folder = getenv("SILICEO_PROFILES");
    const struct {
        const char *base, *below;
    } places[] = {{folder, ""},
                  {self, "/../deploy/profiles"},
                  {self, "/../share/siliceo/profiles"},
                  {self, "/profiles"},
                  {SILICEO_PROFILE_DIR, ""}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (places[i].base == NULL) continue;
        int length = snprintf(path, cap, "%s%s/%s.conf", places[i].base, places[i].below, name);
        if (length > 0 && (size_t)length < cap && access(path, R_OK) == 0) return STATUS_OK;
    }
    return error_set(err, STATUS_BAD_INPUT,
                     "profile = '%s': no %s.conf in %s/../deploy/profiles, "
                     "%s/../share/siliceo/profiles or " SILICEO_PROFILE_DIR
                     " (SILICEO_PROFILES names another folder)",
                     name, name, self, self);
}

/* A profile is weaker than everything the user said: read it first, then the rest again. */
static status read_all(config *c, const model_options *common, int argc, char *argv[],
                       error *err) {
    status rc = config_read(c, argc, argv, err);
    if (rc != STATUS_OK || common->profile == NULL || *common->profile == '\0') return rc;
    char path[PATH_MAX + 128];
    rc = find_profile(common->profile, path, sizeof path, err);
    if (rc == STATUS_OK) rc = config_read_file(c, path, err);
    if (rc == STATUS_OK) rc = config_read(c, argc, argv, err);
    return rc;
}

int options_read(config *c, const char *program, const config_key *keys, size_t n_keys,
                 void *options, const model_options *common, bool needs_model, int argc,
                 char *argv[]) {
    error err = {0};
    status rc = config_init(c, program, keys, n_keys, options, &err);
    if (rc == STATUS_OK) rc = read_all(c, common, argc, argv, &err);
    if (rc == STATUS_OK && common->help) {
        (void)printf("usage: %s [--key value]...\n\n", program);
        config_print_help(c, stdout);
        config_release(c);
        return 0;
    }
    if (rc == STATUS_OK && needs_model && (common->model == NULL || *common->model == '\0')) {
        rc = error_set(&err, STATUS_BAD_INPUT, "--model is missing: the path of a GGUF file");
    }
    if (rc != STATUS_OK) {
        (void)fprintf(stderr, "%s: %s\n", program, err.text);
        config_release(c);
        return 2;
    }
    log_level level = LOG_INFO;
    if (log_parse_level(common->log_level, &level) == 0) log_set_level(level);
    return -1;
}

static status parse_slots(const char *text, uint64_t n_experts_total, int64_t *out,
                          error *err) {
    if (strcmp(text, "auto") == 0) return (void)(*out = -1), STATUS_OK;
    if (strcmp(text, "all") == 0) return (void)(*out = (int64_t)n_experts_total), STATUS_OK;
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    bool share = *end == '%' && end[1] == '\0';
    if (end == text || errno != 0 || !(value >= 0) || (!share && *end != '\0') ||
        (share && value > 100) || value > 1e9 || (!share && value != (double)(int64_t)value)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "slots = '%s' is neither a count, a share as 25%%, all nor auto",
                         text);
    }
    *out = share ? (int64_t)(value / 100 * (double)n_experts_total + 0.5) : (int64_t)value;
    if ((uint64_t)*out > n_experts_total) {
        return error_set(err, STATUS_BAD_INPUT,
                         "slots = %s is more than the model's %llu experts", text,
                         (unsigned long long)n_experts_total);
    }
    return STATUS_OK;
}

status options_backend(const char *wish, backend_kind *out, char *reason, size_t cap,
                       error *err) {
    reason[0] = 0;
    error why = {0};
    *out = BACKEND_CPU;
    if (strcmp(wish, "cpu") == 0) return STATUS_OK;
    status rc = backend_cuda_available(&why);
    if (rc == STATUS_OK) {
        *out = BACKEND_CUDA;
        return STATUS_OK;
    }
    if (strcmp(wish, "cuda") == 0) return error_set(err, rc, "backend = cuda: %s", why.text);
    log_debug("backend-auto", "backend=cpu reason=\"%s\"", why.text);
    (void)snprintf(reason, cap, "%s", why.text);
    return STATUS_OK;
}

status options_engine_params(const model_options *o, uint64_t n_experts_total,
                             engine_params *out, error *err) {
    memset(out, 0, sizeof *out);
    if (strchr(o->model, '\n') != NULL) {
        return error_set(err, STATUS_BAD_INPUT, "model: several are named, this takes one");
    }
    out->model_path = o->model;
    status rc = options_backend(o->backend, &out->backend, out->cpu_reason,
                                sizeof out->cpu_reason, err);
    if (rc != STATUS_OK) return rc;
    out->profile = o->profile != NULL ? o->profile : "default";
    out->n_threads = (uint32_t)o->threads;
    out->n_context = (uint32_t)o->ctx;
    out->n_sequences = (uint32_t)o->sequences;
    out->chunk_tokens = (uint32_t)o->chunk;
    out->park_mib = o->park_mib;
    out->max_step_ms = (uint32_t)o->max_step_ms;
    out->lane = strcmp(o->cpu_lane, "on") == 0        ? CPU_LANE_ON
                : strcmp(o->cpu_lane, "all") == 0     ? CPU_LANE_ALL
                : strcmp(o->cpu_lane, "prompts") == 0 ? CPU_LANE_PROMPTS
                                                      : CPU_LANE_OFF;
    out->inserts_per_layer = (uint32_t)o->inserts;
    out->no_graphs = !o->graphs;
    out->vram_mib = (uint64_t)o->vram_mib;
    out->ram_mib = (uint64_t)o->ram_mib;
    out->n_loaders = (uint32_t)o->loaders;
    out->on_progress = loading_line_show;
    out->seed = (uint64_t)o->seed;
    out->nfc = o->nfc;
    out->budgets = (budget_settings){.thinking_tokens = o->thinking_tokens,
                                     .loop_reasoning = (uint32_t)o->loop_reasoning,
                                     .loop_answer = (uint32_t)o->loop_answer,
                                     .loop_code = (uint32_t)o->loop_code,
                                     .grace_tokens = (uint32_t)o->grace_tokens};
    out->prefix_ram_mib = o->prefix_ram_mib;
    out->prefix_states = (uint32_t)o->prefix_states;
    out->prefix_disk_mib = (uint64_t)o->prefix_disk_mib;
    out->prefix_disk_dir = o->prefix_disk_dir;
    if (o->prefix_disk_mib > 0 && (o->prefix_disk_dir == NULL || *o->prefix_disk_dir == '\0'))
        return error_set(err, STATUS_BAD_INPUT,
                         "prefix.disk_mib = %lld needs prefix.disk_dir, a folder",
                         (long long)o->prefix_disk_mib);
    out->prefix_every_tokens = (uint32_t)o->prefix_every_tokens;
    out->prefix_ahead = o->prefix_ahead;
    out->experts_dir =
        o->experts_dir != NULL && *o->experts_dir != '\0' ? o->experts_dir : NULL;
    out->experts_save_ms = (uint64_t)(o->experts_save_s * 1000);
    out->warm_up_ms = o->warm_up_ms;
    out->pooling = strcmp(o->pooling, "mean") == 0   ? POOLING_MEAN
                   : strcmp(o->pooling, "last") == 0 ? POOLING_LAST
                                                     : POOLING_AUTO;
    out->speculate = strcmp(o->speculate, "auto") == 0     ? SPECULATE_AUTO
                     : strcmp(o->speculate, "lookup") == 0 ? SPECULATE_LOOKUP
                     : strcmp(o->speculate, "draft") == 0  ? SPECULATE_DRAFT
                     : strcmp(o->speculate, "mtp") == 0    ? SPECULATE_MTP
                                                           : SPECULATE_OFF;
    out->draft_path = o->draft;
    out->draft_tokens = (uint32_t)o->draft_tokens;
    out->draft_gpu_layers = (int32_t)o->draft_gpu_layers;
    out->kv = strcmp(o->kv, "f32") == 0  ? KV_F32
              : strcmp(o->kv, "q8") == 0 ? KV_Q8
              : strcmp(o->kv, "q4") == 0 ? KV_Q4
                                         : KV_F16;
    out->activations = strcmp(o->activations, "f32") == 0 ? ACTIVATIONS_F32 : ACTIVATIONS_INT8;
    return parse_slots(o->slots, n_experts_total, &out->n_slots, err);
}
