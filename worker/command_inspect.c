/* command_inspect.c - siliceo-worker inspect: what is in a GGUF file.
 *
 * Any well-formed GGUF is shown, also one that this build cannot run.
 *   --json    one line of JSON (inspect.h has the form); --no-arrays leaves arrays out
 *   --check   also reads all tensors and names those with scales that are not finite
 */
#include "common/config.h"
#include "worker/commands.h"
#include "worker/inspect.h"

#include <stdio.h>

typedef struct inspect_options {
    const char *config;
    const char *model;
    bool json;
    bool arrays;
    bool check;
    bool help;
} inspect_options;

#define KEY(name, kind, fallback, help)                                                        \
    { #name, kind, offsetof(inspect_options, name), fallback, 0, 0, NULL, help }

static const config_key keys[] = {
    KEY(config, CONFIG_STRING, NULL, "file with any of these keys"),
    KEY(model, CONFIG_STRING, NULL, "GGUF file; of a split model the first shard"),
    KEY(json, CONFIG_BOOL, "false", "one line of JSON instead of the table"),
    KEY(arrays, CONFIG_BOOL, "true", "items of arrays in the JSON"),
    KEY(check, CONFIG_BOOL, "false", "read all tensors and check that scales are finite"),
    KEY(help, CONFIG_BOOL, "false", "this list"),
};

/* One line for each bad tensor; the value is how many there are. */
static size_t check_tensors(const gguf_file *file) {
    size_t n_bad = 0;
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        error err = {STATUS_OK, ""};
        if (gguf_check_values(t, &err) == STATUS_OK) continue;
        (void)fprintf(stderr, "inspect: %s: %s\n", gguf_shard_path(file, t->shard), err.text);
        n_bad++;
    }
    return n_bad;
}

static int inspect(const inspect_options *o) {
    error err = {STATUS_OK, ""};
    gguf_file *file = NULL;
    size_t n_bad = 0;
    status rc = gguf_open(&file, o->model, &err);
    if (rc == STATUS_OK) {
        rc = o->json ? inspect_json(file, o->arrays, stdout, &err)
                     : inspect_table(file, stdout, &err);
    }
    if (rc == STATUS_OK && o->check) n_bad = check_tensors(file);
    gguf_close(file);
    if (rc != STATUS_OK) (void)fprintf(stderr, "inspect: %s\n", err.text);
    return rc == STATUS_OK && n_bad == 0 ? 0 : 1;
}

int command_inspect(int argc, char *argv[]) {
    inspect_options options = {0};
    config c = {0};
    error err = {STATUS_OK, ""};
    int code = 2;
    status rc = config_init(&c, "siliceo-worker inspect", keys, sizeof keys / sizeof keys[0],
                            &options, &err);
    if (rc == STATUS_OK) rc = config_read(&c, argc, argv, &err);
    if (rc == STATUS_OK && options.help) {
        (void)printf("usage: siliceo-worker inspect --model FILE [--key value]...\n\n");
        config_print_help(&c, stdout);
        code = 0;
    } else if (rc == STATUS_OK && options.model != NULL && options.model[0] != '\0') {
        code = inspect(&options);
    } else if (rc == STATUS_OK) {
        (void)fprintf(stderr, "inspect: --model is missing: the path of a GGUF file\n");
    } else {
        (void)fprintf(stderr, "inspect: %s\n", err.text);
    }
    config_release(&c);
    return code;
}
