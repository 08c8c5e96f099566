/* command_text.h - what the subcommands tokenize, detokenize and template share. */
#ifndef SILICEO_WORKER_COMMAND_TEXT_H
#define SILICEO_WORKER_COMMAND_TEXT_H

#include "common/error.h"
#include "common/json.h"
#include "worker/options.h"

typedef struct text_options {
    model_options model;
    const char *added; /* tokenize */
    const char *style; /* template */
} text_options;

/* Read options, with one key of the subcommand's own besides the model's (NULL:
 * none); run `work` on all of stdin; print its error.  The value is the exit code. */
int command_text_run(int argc, char *argv[], const config_key *own_key,
                     status (*work)(const text_options *o, const json_text *input, error *err));

/* Write all of it to stdout. */
status command_text_write(const char *bytes, size_t length, error *err);

#endif
