/* make_model_params.c - one table of fields; presets are JSON read by the same table. */
#include "tests/benchmark/make_model_params.h"

#include "common/json.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const made_params defaults = {
    .moe = true,
    .layers = 2,
    .interval = 2,
    .hidden = 256,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 256,
    .rope = 64,
    .experts = 8,
    .topk = 2,
    .ff_exp = 256,
    .ff_shexp = 256,
    .ff = 512,
    .k_heads = 2,
    .v_heads = 4,
    .state = 128,
    .conv = 4,
    .vocab = 512,
    .ctx = 4096,
    .align = 32,
    .seed = 1,
    .type = QUANT_F32,
};

/* Limits keep every product of four fields inside 63 bits. */
static const struct {
    const char *name;
    size_t offset;
    int64_t min, max;
} integers[] = {
    {"layers", offsetof(made_params, layers), 1, 4096},
    {"interval", offsetof(made_params, interval), 1, 4096},
    {"hidden", offsetof(made_params, hidden), 1, 1 << 17},
    {"heads", offsetof(made_params, heads), 1, 1024},
    {"kv_heads", offsetof(made_params, kv_heads), 1, 1024},
    {"head_dim", offsetof(made_params, head_dim), 2, 4096},
    {"rope", offsetof(made_params, rope), 2, 4096},
    {"experts", offsetof(made_params, experts), 1, 4096},
    {"topk", offsetof(made_params, topk), 1, 4096},
    {"ff_exp", offsetof(made_params, ff_exp), 1, 1 << 17},
    {"ff_shexp", offsetof(made_params, ff_shexp), 1, 1 << 17},
    {"ff", offsetof(made_params, ff), 1, 1 << 20},
    {"k_heads", offsetof(made_params, k_heads), 1, 1024},
    {"v_heads", offsetof(made_params, v_heads), 1, 1024},
    {"state", offsetof(made_params, state), 1, 4096},
    {"conv", offsetof(made_params, conv), 2, 64},
    {"vocab", offsetof(made_params, vocab), 271, 1 << 24},
    {"ctx", offsetof(made_params, ctx), 1, INT32_MAX},
    {"router_skew", offsetof(made_params, router_skew), 0, 16},
    {"align", offsetof(made_params, align), 8, 1024},
    {"seed", offsetof(made_params, seed), 0, UINT32_MAX},
};

static const struct {
    const char *name;
    size_t offset;
} switches[] = {
    {"tied", offsetof(made_params, tied)},
    {"fused", offsetof(made_params, fused)},
    {"mtp", offsetof(made_params, mtp)},
};

#define PRESET_COMMON                                                                          \
    "\"interval\":4,\"head_dim\":256,\"rope\":64,\"k_heads\":16,\"state\":128,\"conv\":4,"     \
    "\"vocab\":248320,\"ctx\":262144,\"type\":\"Q4_K_M\",\"router_skew\":2,\"seed\":1}"

static const struct {
    const char *name;
    const char *json;
} presets[] = {
    {"35b-a3b", "{\"arch\":\"qwen35moe\",\"layers\":40,\"hidden\":2048,\"heads\":16,"
                "\"kv_heads\":2,\"v_heads\":32,\"experts\":256,\"topk\":8,\"ff_exp\":512,"
                "\"ff_shexp\":512," PRESET_COMMON},
    {"9b", "{\"arch\":\"qwen35\",\"layers\":32,\"hidden\":4096,\"heads\":16,\"kv_heads\":4,"
           "\"v_heads\":32,\"ff\":12288," PRESET_COMMON},
    {"0.8b", "{\"arch\":\"qwen35\",\"tied\":true,\"layers\":24,\"hidden\":1024,\"heads\":8,"
             "\"kv_heads\":2,\"v_heads\":16,\"ff\":3584," PRESET_COMMON},
};

static status read_integer(made_params *p, size_t i, const cJSON *value, error *err) {
    double number = value->valuedouble;
    if (!cJSON_IsNumber(value) || number != floor(number)) {
        return error_set(err, STATUS_BAD_INPUT, "field '%s': is not a whole number",
                         integers[i].name);
    }
    if (number < (double)integers[i].min || number > (double)integers[i].max) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field '%s': %.17g is not from %" PRId64 " to %" PRId64,
                         integers[i].name, number, integers[i].min, integers[i].max);
    }
    int64_t whole = (int64_t)number;
    memcpy((char *)p + integers[i].offset, &whole, sizeof whole);
    return STATUS_OK;
}

static status read_type(const cJSON *value, quant_type *out, error *err) {
    if (quant_type_by_name(value->valuestring, out)) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "field '%s': type '%.40s' is not known",
                     value->string, value->valuestring);
}

/* An optional type: the empty text means that there is none. */
static status read_optional_type(const cJSON *value, bool *has, quant_type *out, error *err) {
    *has = value->valuestring[0] != 0;
    return *has ? read_type(value, out, err) : STATUS_OK;
}

static status read_text(made_params *p, const cJSON *value, error *err) {
    const char *name = value->string;
    if (!cJSON_IsString(value)) {
        return error_set(err, STATUS_BAD_INPUT, "field '%s': is not a string", name);
    }
    if (strcmp(name, "expert_type") == 0) {
        return read_optional_type(value, &p->has_expert_type, &p->expert_type, err);
    }
    if (strcmp(name, "expert_down_type") == 0) {
        return read_optional_type(value, &p->has_expert_down_type, &p->expert_down_type, err);
    }
    if (strcmp(name, "type") == 0) {
        p->q4_k_m = strcmp(value->valuestring, "Q4_K_M") == 0;
        return p->q4_k_m ? STATUS_OK : read_type(value, &p->type, err);
    }
    p->moe = strcmp(value->valuestring, "qwen35moe") == 0;
    if (p->moe || strcmp(value->valuestring, "qwen35") == 0) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "field 'arch': '%.40s' is not qwen35moe or qwen35",
                     value->valuestring);
}

static status read_field(made_params *p, const cJSON *value, error *err) {
    static const char *const texts[] = {"arch", "type", "expert_type", "expert_down_type"};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        if (strcmp(value->string, integers[i].name) == 0) return read_integer(p, i, value, err);
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(value->string, switches[i].name) != 0) continue;
        if (!cJSON_IsBool(value)) {
            return error_set(err, STATUS_BAD_INPUT, "field '%s': is not true or false",
                             value->string);
        }
        bool on = cJSON_IsTrue(value) != 0;
        memcpy((char *)p + switches[i].offset, &on, sizeof on);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(value->string, texts[i]) == 0) return read_text(p, value, err);
    }
    return error_set(err, STATUS_BAD_INPUT, "field '%.60s' is not known", value->string);
}

static status read_fields(made_params *p, const cJSON *object, error *err) {
    const cJSON *value;
    cJSON_ArrayForEach(value, object) {
        if (strcmp(value->string, "preset") == 0) continue;
        status rc = read_field(p, value, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status read_json(made_params *p, const char *json, error *err);

/* "NAME" or "NAME:LAYERS". */
static status read_preset(made_params *p, const cJSON *value, error *err) {
    if (!cJSON_IsString(value)) {
        return error_set(err, STATUS_BAD_INPUT, "field 'preset': is not a string");
    }
    const char *text = value->valuestring;
    size_t length = strcspn(text, ":");
    size_t i = 0;
    size_t n = sizeof presets / sizeof presets[0];
    while (i < n &&
           (strlen(presets[i].name) != length || memcmp(presets[i].name, text, length) != 0)) {
        i++;
    }
    if (i == n) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'preset': '%.40s' is not known; there are 35b-a3b, 9b and 0.8b",
                         text);
    }
    status rc = read_json(p, presets[i].json, err);
    if (rc != STATUS_OK || text[length] == 0) return rc;
    char *end = NULL;
    const char *digits = text + length + 1;
    long layers = strtol(digits, &end, 10);
    if (digits[strspn(digits, "0123456789")] != 0 || end == digits || layers < 1 ||
        layers > 4096) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'preset': layers '%.40s' is not from 1 to 4096", digits);
    }
    p->layers = layers;
    p->interval = layers < 4 ? layers : 4; /* so that there is a full layer */
    return STATUS_OK;
}

static status read_json(made_params *p, const char *json, error *err) {
    cJSON *root = NULL;
    status rc = json_parse(&root, json, strlen(json), "parameters", err);
    if (rc != STATUS_OK) return rc;
    if (!cJSON_IsObject(root)) {
        rc = error_set(err, STATUS_BAD_INPUT, "parameters: not a JSON object");
    }
    const cJSON *preset = cJSON_GetObjectItemCaseSensitive(root, "preset");
    if (rc == STATUS_OK && preset != NULL) rc = read_preset(p, preset, err);
    if (rc == STATUS_OK) rc = read_fields(p, root, err);
    cJSON_Delete(root);
    return rc;
}

/* Values that are possible alone, but not together. */
static status check_together(const made_params *p, error *err) {
    if (p->heads % p->kv_heads != 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'kv_heads': %" PRId64 " does not divide heads %" PRId64,
                         p->kv_heads, p->heads);
    }
    if (p->v_heads % p->k_heads != 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'k_heads': %" PRId64 " does not divide v_heads %" PRId64,
                         p->k_heads, p->v_heads);
    }
    if (p->rope % 2 != 0 || p->rope > p->head_dim) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'rope': %" PRId64 " is odd or more than head_dim %" PRId64,
                         p->rope, p->head_dim);
    }
    if (p->moe && p->topk > p->experts) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'topk': %" PRId64 " is more than experts %" PRId64, p->topk,
                         p->experts);
    }
    if ((p->align & (p->align - 1)) != 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "field 'align': %" PRId64 " is not a power of two", p->align);
    }
    return STATUS_OK;
}

status made_params_read(made_params *out, const char *json, error *err) {
    *out = defaults;
    status rc = read_json(out, json, err);
    return rc == STATUS_OK ? check_together(out, err) : rc;
}
