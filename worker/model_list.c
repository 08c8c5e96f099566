/* model_list.c - cuts the entries, reads their settings, and opens their files for the loop. */
#include "worker/model_list.h"

#include "common/log.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(model_entry, options),
    {"name", CONFIG_STRING, offsetof(model_entry, name), NULL, 0, 0, NULL,
     "name under which the model is served"},
};

/* Settings of the process, which no model can have for itself. */
static bool is_common(const char *key) {
    static const char *const common[] = {"config", "model", "profile", "log_level", "help"};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        if (strcmp(key, common[i]) == 0) return true;
    }
    return false;
}

/* Where the next " key=" begins, at its blank; NULL: there is none. */
static char *find_setting(char *text) {
    for (char *at = strchr(text, ' '); at != NULL; at = strchr(at + 1, ' ')) {
        size_t n = 1;
        while (islower((unsigned char)at[n]) || at[n] == '_' || at[n] == '.')
            n++;
        if (n > 1 && at[n] == '=') return at;
    }
    return NULL;
}

static status read_setting(model_entry *e, char *word, error *err) {
    char *value = strchr(word, '=');
    *value++ = '\0';
    if (is_common(word)) {
        return error_set(err, STATUS_BAD_INPUT, "model: '%s' cannot be set for one model",
                         word);
    }
    for (size_t n = strlen(value); n > 0 && value[n - 1] == ' '; n--)
        value[n - 1] = '\0';
    return config_set(&e->config, word, value, "model", err);
}

static status read_entry(model_entry *e, const char *text, size_t length,
                         const model_options *common, error *err) {
    e->text = strndup(text, length);
    if (e->text == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the models");
    status rc = config_init(&e->config, "model", keys, sizeof keys / sizeof keys[0], e, err);
    if (rc != STATUS_OK) return rc;
    e->options = *common;
    e->options.model = e->text;
    for (char *at = find_setting(e->text); at != NULL && rc == STATUS_OK;) {
        *at++ = '\0';
        char *next = find_setting(at);
        char *word = at;
        if (next != NULL) *next = '\0';
        rc = read_setting(e, word, err);
        if (next != NULL) *next = ' '; /* the loop cuts here again */
        at = next;
    }
    if (rc == STATUS_OK && e->name != NULL && strlen(e->name) > WIRE_MAX_NAME) {
        rc = error_set(err, STATUS_BAD_INPUT, "model: name = '%.40s...' is over %d bytes",
                       e->name, WIRE_MAX_NAME);
    }
    return rc;
}

/* The geometry of an entry's file, the caller's to free, and the file, which stays open. */
static status read_geometry(const model_entry *e, model_config **out, gguf_file **file,
                            error *err) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for the geometry");
    status rc = gguf_open(file, e->options.model, err);
    return rc == STATUS_OK ? model_config_read(*out, *file, err) : rc;
}

/* The share of slots needs the model's geometry. */
static status prepare(void *context, engine_params *out, error *err) {
    const model_entry *e = context;
    gguf_file *file = NULL;
    model_config *c = NULL;
    status rc = read_geometry(e, &c, &file, err);
    if (rc == STATUS_OK) {
        rc = options_engine_params(&e->options, (uint64_t)c->n_experts * c->n_layers, out, err);
    }
    if (rc == STATUS_OK && out->cpu_reason[0] != '\0') {
        log_info("backend-auto", "backend=cpu reason=\"%s\"", out->cpu_reason);
    }
    gguf_close(file);
    free(c);
    return rc;
}

static status describe(void *context, engine_facts *out, error *err) {
    const model_entry *e = context;
    gguf_file *file = NULL;
    model_config *c = NULL;
    status rc = read_geometry(e, &c, &file, err);
    if (rc == STATUS_OK) {
        const char *path = strrchr(e->options.model, '/');
        path = path == NULL ? e->options.model : path + 1;
        (void)snprintf(out->model, sizeof out->model, "%s",
                       c->name[0] != '\0' ? c->name : path);
        (void)snprintf(out->arch, sizeof out->arch, "%s", c->arch);
        gguf_hash(file, out->hash);
        uint64_t wanted = (uint64_t)e->options.ctx;
        out->context_tokens = wanted > 0 && wanted < c->n_context ? wanted : c->n_context;
        out->experts_total = (uint64_t)c->n_experts * c->n_layers;
    }
    gguf_close(file);
    free(c);
    return rc;
}

status model_list_read(model_list *list, const char *text, const model_options *common,
                       error *err) {
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        if (length > 0) {
            if (list->n == ENGINE_LOOP_MAX_MODELS) {
                return error_set(err, STATUS_BAD_INPUT, "model: over %zu are named", list->n);
            }
            model_entry *e = &list->entries[list->n++];
            status rc = read_entry(e, at, length, common, err);
            if (rc != STATUS_OK) return rc;
            list->models[list->n - 1] = (loop_model){
                .name = e->name, .prepare = prepare, .describe = describe, .context = e};
        }
        at += length + (at[length] == '\n');
    }
    return STATUS_OK;
}

void model_list_release(model_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->entries[i].config.keys != NULL) config_release(&list->entries[i].config);
        free(list->entries[i].text);
    }
    list->n = 0;
}
