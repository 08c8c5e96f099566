/* command_tokenize.c - siliceo-worker tokenize: stdin bytes to a JSON array of token ids. */
#include "worker/command_text.h"
#include "worker/commands.h"
#include "worker/text/tokenizer.h"

#include <string.h>

static tokenizer_added added_of(const char *word) {
    if (strcmp(word, "none") == 0) return TOKENIZER_ADDED_NONE;
    return strcmp(word, "user") == 0 ? TOKENIZER_ADDED_USER_DEFINED : TOKENIZER_ADDED_ALL;
}

static status write_ids(const token_list *ids, error *err) {
    json_text text = {0};
    json_text_add(&text, "[", 1);
    for (size_t i = 0; i < ids->length; i++) {
        json_text_format(&text, "%s%d", i > 0 ? "," : "", ids->ids[i]);
    }
    json_text_add(&text, "]\n", 2);
    status rc = text.failed ? error_set(err, STATUS_NO_MEMORY, "no memory for the output")
                            : command_text_write(text.bytes, text.length, err);
    json_text_release(&text);
    return rc;
}

static status tokenize(const text_options *o, const json_text *input, error *err) {
    gguf_file *file = NULL;
    tokenizer *t = NULL;
    token_list ids = {0};
    status rc = gguf_open(&file, o->model.model, err);
    if (rc == STATUS_OK) rc = tokenizer_open(&t, file, o->model.nfc, err);
    if (rc == STATUS_OK) {
        rc = tokenizer_encode(t, input->bytes, input->length, added_of(o->added), &ids, err);
    }
    if (rc == STATUS_OK) rc = write_ids(&ids, err);
    token_list_release(&ids);
    tokenizer_close(t);
    gguf_close(file);
    return rc;
}

int command_tokenize(int argc, char *argv[]) {
    static const config_key added = {.name = "added",
                                     .kind = CONFIG_CHOICE,
                                     .offset = offsetof(text_options, added),
                                     .fallback = "all",
                                     .choices = "all|user|none",
                                     .help = "added tokens that are found in the text"};
    return command_text_run(argc, argv, &added, tokenize);
}
