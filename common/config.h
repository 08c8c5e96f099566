/* config.h - settings from a file, the environment and flags, by one table.
 *
 * Every key of a program stands once in its table.  Key `http.max_body_mib` is
 * [http] max_body_mib in the file (inih), SILICEO_HTTP_MAX_BODY_MIB in the environment and
 * --http-max-body-mib as a flag; a key without a dot has no section.
 * File < environment < flag.  An unknown key, flag, or a value of the wrong kind
 * or out of range is an error that names file, line, key and value.
 * Built once at start by one thread, then only read.
 */
#ifndef SILICEO_COMMON_CONFIG_H
#define SILICEO_COMMON_CONFIG_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum config_kind {
    CONFIG_STRING, /* const char *, owned by the config */
    CONFIG_INT,    /* int64_t with limits */
    CONFIG_REAL,   /* double with limits */
    CONFIG_BOOL,   /* bool: true/false, yes/no, on/off, 1/0; the bare flag means true */
    CONFIG_CHOICE, /* const char *, one of `choices`, separated by | */
    CONFIG_LIST    /* const char *, may be given again: values joined by a newline */
} config_kind;

typedef struct config_key {
    const char *name;
    config_kind kind;
    size_t offset;        /* of the field in the program's options struct */
    const char *fallback; /* the default as text, NULL: zero */
    double min, max;      /* CONFIG_INT and CONFIG_REAL; both 0: no limits */
    const char *choices;
    const char *help; /* one line, with the unit */
} config_key;

typedef struct config {
    const char *program;
    const config_key *keys;
    size_t n_keys;
    void *options; /* the struct that is filled */
    char **texts;  /* owned strings */
    size_t n_texts;
    unsigned char *source; /* per key: 0 default, 1 file, 2 environment, 3 flag */
} config;

/* Fill options with the defaults of the table.  options must be zeroed. */
status config_init(config *c, const char *program, const config_key *keys, size_t n_keys,
                   void *options, error *err);
void config_release(config *c);

/* Apply one file; path names it in errors. */
status config_read_file(config *c, const char *path, error *err);
/* Apply SILICEO_* of the environment.  Names that no key has are ignored. */
status config_read_environment(config *c, error *err);
/* Apply flags (--key value, --key=value, --no-key for bools).  argv[0] is not
 * looked at.  Words that are no flags are an error unless `words` is given. */
status config_read_flags(config *c, int argc, char *const argv[], const char **words,
                         size_t cap_words, size_t *n_words, error *err);
/* All three in order; the file is the value of --config or SILICEO_CONFIG, if any.
 * May be called again (after a profile was read): lists are then read anew. */
status config_read(config *c, int argc, char *const argv[], error *err);

/* Set one key as if by a flag.  For profiles and tests. */
status config_set(config *c, const char *name, const char *value, const char *where,
                  error *err);
bool config_is_set(const config *c, const char *name); /* not the default */

/* The keys with defaults and help, for --help. */
void config_print_help(const config *c, FILE *out);
/* The keys as they stand, in the file's syntax; keys named *key* or *secret* are hidden. */
void config_print(const config *c, FILE *out);

#endif
