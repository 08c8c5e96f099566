/* command_generate.c - `siliceo-worker generate`: a greedy continuation of ids or of stdin.
 *
 * The ids on the first line, as JSON and with the one that ended the text; then the text.
 */
#include "worker/commands.h"

#include "worker/memory/plan.h"
#include "worker/options.h"
#include "worker/text/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generate_options {
    model_options common;
    const char *ids;
    int64_t n;
    bool ignore_eog;
} generate_options;

static const config_key keys[] = {
    OPTIONS_MODEL_KEYS(generate_options, common),
    {"ids", CONFIG_STRING, offsetof(generate_options, ids), NULL, 0, 0, NULL,
     "prompt as token ids, 1,2,3; without it the prompt is the text on stdin"},
    {"n", CONFIG_INT, offsetof(generate_options, n), "128", 1, 1048576, NULL,
     "tokens to generate at most; also -n N"},
    {"ignore_eog", CONFIG_BOOL, offsetof(generate_options, ignore_eog), "false", 0, 0, NULL,
     "never choose a token that ends the text"},
};

typedef struct answer {
    json_text ids;
    json_text text;
    bool failed;
} answer;

static void take_tokens(void *context, const wire_tokens *tokens) {
    answer *a = context;
    for (size_t i = 0; i < tokens->n_ids; i++)
        json_text_format(&a->ids, "%s%d", a->ids.length > 0 ? ", " : "", tokens->ids[i]);
    json_text_add(&a->text, tokens->text.bytes, tokens->text.length);
}

static void take_done(void *context, const wire_done *done) {
    (void)context;
    (void)done;
}

static void take_error(void *context, const wire_error *e) {
    answer *a = context;
    a->failed = true;
    (void)fprintf(stderr, "siliceo-worker generate: %.*s\n", (int)e->text.length,
                  e->text.bytes);
}

static status read_stdin(json_text *out, error *err) {
    char buffer[65536];
    size_t n = 0;
    while ((n = fread(buffer, 1, sizeof buffer, stdin)) > 0)
        json_text_add(out, buffer, n);
    if (ferror(stdin)) return error_set(err, STATUS_IO, "stdin: cannot be read");
    return out->failed ? error_set(err, STATUS_NO_MEMORY, "stdin: no memory") : STATUS_OK;
}

/* Text may hold any byte, which JSON cannot, so it is encoded here. */
static status encode_stdin(const gguf_file *file, bool nfc, json_text *ids, error *err) {
    json_text text = {0};
    tokenizer *vocab = NULL;
    token_list list = {0};
    status rc = read_stdin(&text, err);
    if (rc == STATUS_OK) rc = tokenizer_open(&vocab, file, nfc, err);
    if (rc == STATUS_OK) {
        rc = tokenizer_encode(vocab, text.bytes, text.length, TOKENIZER_ADDED_ALL, &list, err);
    }
    for (size_t i = 0; rc == STATUS_OK && i < list.length; i++)
        json_text_format(ids, "%s%d", i > 0 ? "," : "", list.ids[i]);
    token_list_release(&list);
    tokenizer_close(vocab);
    json_text_release(&text);
    return rc;
}

/* "1,2, 3"; a JSON array's brackets are welcome too. */
static status copy_ids(const char *text, json_text *out, error *err) {
    text += strspn(text, " [");
    size_t length = strcspn(text, "]"), known = strspn(text, "0123456789, ");
    if (length == 0 || known < length) {
        return error_set(err, STATUS_BAD_INPUT, "--ids: '%.20s' is no token id", text + known);
    }
    json_text_add(out, text, length);
    return STATUS_OK;
}

/* The number of experts, which resolves a share of slots, and the prompt. */
static status read_input(const generate_options *o, engine_params *params, json_text *ids,
                         error *err) {
    gguf_file *file = NULL;
    model_config geometry;
    status rc = gguf_open(&file, o->common.model, err);
    if (rc != STATUS_OK) return rc;
    rc = model_config_read(&geometry, file, err);
    if (rc == STATUS_OK) {
        rc = options_engine_params(&o->common, plan_n_experts(&geometry), params, err);
        if (params->prefix_ram_mib < 0) params->prefix_ram_mib = 0; /* one prompt alone */
    }
    if (rc == STATUS_OK && o->ids != NULL) {
        rc = copy_ids(o->ids, ids, err);
    } else if (rc == STATUS_OK) {
        rc = encode_stdin(file, o->common.nfc, ids, err);
    }
    gguf_close(file);
    return rc;
}

static status generate(const generate_options *o, answer *a, error *err) {
    engine_params params;
    engine *e = NULL;
    json_text ids = {0}, body = {0};
    status rc = read_input(o, &params, &ids, err);
    if (rc != STATUS_OK) goto done;
    const engine_sink sink = {a, take_tokens, take_done, take_error};
    params.n_sequences = 1;
    rc = engine_open(&e, &params, &sink, err);
    if (rc != STATUS_OK) goto done;
    json_text_format(&body,
                     "{\"prompt\":[%s],\"max_tokens\":%lld,\"temperature\":0,"
                     "\"repetition_penalty\":1,\"ignore_eos\":%s}",
                     ids.length > 0 ? ids.bytes : "", (long long)o->n,
                     o->ignore_eog ? "true" : "false");
    wire_submit submit = {
        .request = 1, .kind = WIRE_COMPLETION, .body = wire_text(body.bytes, body.length)};
    rc = engine_submit(e, &submit, err);
    for (bool working = true; rc == STATUS_OK && working;)
        rc = engine_step(e, &working, err);
done:
    engine_close(e);
    json_text_release(&body);
    json_text_release(&ids);
    return rc;
}

int command_generate(int argc, char *argv[]) {
    generate_options options = {0};
    config c = {0};
    error err = {0};
    answer a = {0};
    char long_n[] = "--n";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0) argv[i] = long_n;
    }
    int code = options_read(&c, "siliceo-worker generate", keys, sizeof keys / sizeof keys[0],
                            &options, &options.common, true, argc, argv);
    if (code >= 0) return code;
    status rc = generate(&options, &a, &err);
    config_release(&c);
    if (rc != STATUS_OK && !a.failed) {
        (void)fprintf(stderr, "siliceo-worker generate: %s\n", err.text);
    }
    bool well = rc == STATUS_OK && !a.failed;
    if (well) {
        (void)printf("[%s]\n", a.ids.bytes != NULL ? a.ids.bytes : "");
        (void)fwrite(a.text.bytes, 1, a.text.length, stdout);
        (void)printf("\n");
    }
    json_text_release(&a.ids);
    json_text_release(&a.text);
    return well ? 0 : 1;
}
