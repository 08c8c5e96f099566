/* command_detokenize.c - siliceo-worker detokenize: a JSON array of token ids to bytes. */
#include "worker/command_text.h"
#include "worker/commands.h"
#include "worker/text/tokenizer.h"

static status add_bytes(const tokenizer *t, const cJSON *id, size_t index, json_text *out,
                        error *err) {
    double n_tokens = (double)tokenizer_n_tokens(t);
    if (!cJSON_IsNumber(id) || id->valuedouble != (double)id->valueint || id->valueint < 0 ||
        id->valuedouble >= n_tokens) {
        return error_set(err, STATUS_BAD_INPUT, "stdin: [%zu] is not a token id from 0 to %.0f",
                         index, n_tokens - 1);
    }
    size_t length;
    const char *bytes = tokenizer_bytes(t, id->valueint, &length);
    json_text_add(out, bytes, length);
    return STATUS_OK;
}

static status write_text(const tokenizer *t, const cJSON *ids, error *err) {
    json_text out = {0};
    status rc = STATUS_OK;
    size_t index = 0;
    if (!cJSON_IsArray(ids)) {
        return error_set(err, STATUS_BAD_INPUT, "stdin: not an array of token ids");
    }
    for (const cJSON *id = ids->child; id != NULL && rc == STATUS_OK; id = id->next) {
        rc = add_bytes(t, id, index++, &out, err);
    }
    if (rc == STATUS_OK && out.failed) {
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for the output");
    }
    if (rc == STATUS_OK) rc = command_text_write(out.bytes, out.length, err);
    json_text_release(&out);
    return rc;
}

static status detokenize(const text_options *o, const json_text *input, error *err) {
    gguf_file *file = NULL;
    tokenizer *t = NULL;
    cJSON *ids = NULL;
    status rc = gguf_open(&file, o->model.model, err);
    if (rc == STATUS_OK) rc = tokenizer_open(&t, file, false, err);
    if (rc == STATUS_OK) rc = json_parse(&ids, input->bytes, input->length, "stdin", err);
    if (rc == STATUS_OK) rc = write_text(t, ids, err);
    cJSON_Delete(ids);
    tokenizer_close(t);
    gguf_close(file);
    return rc;
}

int command_detokenize(int argc, char *argv[]) {
    return command_text_run(argc, argv, NULL, detokenize);
}
