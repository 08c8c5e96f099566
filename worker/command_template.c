/* command_template.c - siliceo-worker template: a chat request to the prompt text.
 *
 * The bare template, with its errors: what the API maps or refuses before it
 * (common/chat_request.h) is not done here.
 */
#include "worker/command_text.h"
#include "worker/commands.h"
#include "worker/text/chat_template.h"

#include <stdio.h>
#include <string.h>

/* The style asked for, or that of the model's own template. */
static chat_style style_of(const text_options *o, const gguf_file *file) {
    char warning[CHAT_WARNING_SIZE];
    gguf_string text = {"", 0};
    if (strcmp(o->style, "think") == 0) return CHAT_THINK;
    if (strcmp(o->style, "nothink") == 0) return CHAT_NOTHINK;
    const gguf_key *key = gguf_find_key(file, "tokenizer.chat_template");
    if (key != NULL) (void)gguf_read_string(key, &text);
    chat_style style = chat_template_recognise(text.bytes, text.length, warning);
    if (warning[0] != '\0') (void)fprintf(stderr, "template: warning: %s\n", warning);
    return style;
}

static status write_prompt(const text_options *o, const json_text *input, error *err) {
    gguf_file *file = NULL;
    cJSON *request = NULL;
    prompt p = {0};
    status rc = gguf_open(&file, o->model.model, err);
    if (rc == STATUS_OK) rc = json_parse(&request, input->bytes, input->length, "stdin", err);
    if (rc == STATUS_OK) rc = chat_template_render(request, style_of(o, file), &p, err);
    if (rc == STATUS_OK) rc = command_text_write(p.text.bytes, p.text.length, err);
    prompt_release(&p);
    cJSON_Delete(request);
    gguf_close(file);
    return rc;
}

int command_template(int argc, char *argv[]) {
    static const config_key style = {.name = "style",
                                     .kind = CONFIG_CHOICE,
                                     .offset = offsetof(text_options, style),
                                     .fallback = "auto",
                                     .choices = "auto|think|nothink",
                                     .help = "which official template; auto: the model's own"};
    return command_text_run(argc, argv, &style, write_prompt);
}
