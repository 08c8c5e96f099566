#include "worker/command_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static status read_stdin(json_text *input, error *err) {
    char buffer[65536];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, stdin)) > 0)
        json_text_add(input, buffer, n);
    if (ferror(stdin)) return error_set_errno(err, STATUS_IO, errno, "cannot read stdin");
    json_text_add(input, "", 0); /* an empty input has bytes as well */
    if (input->failed) return error_set(err, STATUS_NO_MEMORY, "no memory for stdin");
    return STATUS_OK;
}

status command_text_write(const char *bytes, size_t length, error *err) {
    if (fwrite(bytes, 1, length, stdout) != length || fflush(stdout) != 0) {
        return error_set_errno(err, STATUS_IO, errno, "cannot write stdout");
    }
    return STATUS_OK;
}

int command_text_run(int argc, char *argv[], const config_key *own_key,
                     status (*work)(const text_options *o, const json_text *input,
                                    error *err)) {
    config_key keys[] = {OPTIONS_MODEL_KEYS(text_options, model), {.name = NULL}};
    size_t n_keys = sizeof keys / sizeof keys[0] - 1;
    if (own_key != NULL) keys[n_keys++] = *own_key;
    config c;
    text_options o = {0};
    int code = options_read(&c, argv[0], keys, n_keys, &o, &o.model, true, argc, argv);
    if (code >= 0) return code;
    error err = {0};
    json_text input = {0};
    status rc = read_stdin(&input, &err);
    if (rc == STATUS_OK) rc = work(&o, &input, &err);
    if (rc != STATUS_OK) (void)fprintf(stderr, "%s: %s\n", argv[0], err.text);
    json_text_release(&input);
    config_release(&c);
    return rc == STATUS_OK ? 0 : 1;
}
