#include "common/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

enum { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };
enum { MAX_NAME = 96 };

static void *field_of(const config *c, const config_key *key) {
    return (char *)c->options + key->offset;
}

/* The name of a key as a flag (--http-port) or variable (SILICEO_HTTP_PORT). */
static void spell(const char *name, char *out, size_t cap, char separator, bool capitals) {
    size_t n = 0;
    for (; name[n] != '\0' && n + 1 < cap; n++) {
        char ch = name[n];
        if (ch == '.' || ch == '_' || ch == '-') ch = separator;
        out[n] = capitals ? (char)toupper((unsigned char)ch) : ch;
    }
    out[n] = '\0';
}

/* Remember a copy of text, so that options may point to it. */
static const char *keep(config *c, const char *text) {
    char **grown = realloc(c->texts, (c->n_texts + 1) * sizeof *grown);
    if (grown == NULL) return NULL;
    c->texts = grown;
    char *copy = strdup(text);
    if (copy == NULL) return NULL;
    c->texts[c->n_texts++] = copy;
    return copy;
}

static status parse_bool(const char *value, bool *out) {
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcasecmp(value, yes[i]) == 0) return (void)(*out = true), STATUS_OK;
        if (strcasecmp(value, no[i]) == 0) return (void)(*out = false), STATUS_OK;
    }
    return STATUS_BAD_INPUT;
}

static bool choice_allows(const char *choices, const char *value) {
    size_t length = strlen(value);
    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strncmp(at, value, length) == 0 && (at[length] == '|' || at[length] == '\0')) {
            return length > 0;
        }
    }
    return false;
}

static status store_number(const config *c, const config_key *key, const char *value,
                           const char *where, error *err) {
    char *end = NULL;
    errno = 0;
    double real = strtod(value, &end);
    if (end == value || *end != '\0' || errno == ERANGE || !isfinite(real)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s = '%s' is no number", where, key->name,
                         value);
    }
    bool limited = key->min < key->max;
    if (limited && (real < key->min || real > key->max)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s = %s is outside %.15g to %.15g", where,
                         key->name, value, key->min, key->max);
    }
    if (key->kind == CONFIG_REAL) {
        *(double *)field_of(c, key) = real;
        return STATUS_OK;
    }
    errno = 0;
    long long whole = strtoll(value, &end, 10);
    if (*end != '\0' || errno == ERANGE) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s = '%s' is no whole number", where,
                         key->name, value);
    }
    *(int64_t *)field_of(c, key) = whole;
    return STATUS_OK;
}

/* A list keeps what the same source gave before and replaces what a weaker one did. */
static status store_text(config *c, const config_key *key, const char *value, bool append,
                         error *err) {
    const char **field = field_of(c, key);
    const char *kept = NULL;
    if (append && *field != NULL) {
        size_t size = strlen(*field) + strlen(value) + 2;
        char *joined = malloc(size);
        if (joined == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for settings");
        (void)snprintf(joined, size, "%s\n%s", *field, value);
        kept = keep(c, joined);
        free(joined);
    } else {
        kept = keep(c, value);
    }
    if (kept == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for settings");
    *field = kept;
    return STATUS_OK;
}

static status store(config *c, size_t index, const char *value, unsigned char source,
                    const char *where, error *err) {
    const config_key *key = &c->keys[index];
    status rc = STATUS_OK;
    switch (key->kind) {
    case CONFIG_INT:
    case CONFIG_REAL:
        rc = store_number(c, key, value, where, err);
        break;
    case CONFIG_BOOL:
        rc = parse_bool(value, field_of(c, key));
        if (rc != STATUS_OK) {
            error_record(err, rc, "%s: %s = '%s' is neither true nor false", where, key->name,
                         value);
        }
        break;
    case CONFIG_CHOICE:
        if (!choice_allows(key->choices, value)) {
            return error_set(err, STATUS_BAD_INPUT, "%s: %s = '%s' is none of %s", where,
                             key->name, value, key->choices);
        }
        rc = store_text(c, key, value, false, err);
        break;
    case CONFIG_STRING:
        rc = store_text(c, key, value, false, err);
        break;
    case CONFIG_LIST:
        rc = store_text(c, key, value, c->source[index] == source, err);
        break;
    }
    if (rc == STATUS_OK) c->source[index] = source;
    return rc;
}

static bool find_key(const config *c, const char *name, size_t *index) {
    for (size_t i = 0; i < c->n_keys; i++) {
        if (strcmp(c->keys[i].name, name) == 0) return (void)(*index = i), true;
    }
    return false;
}

static bool find_flag(const config *c, const char *flag, size_t length, size_t *index) {
    for (size_t i = 0; i < c->n_keys; i++) {
        char name[MAX_NAME];
        spell(c->keys[i].name, name, sizeof name, '-', false);
        if (strlen(name) == length && strncmp(name, flag, length) == 0) {
            return (void)(*index = i), true;
        }
    }
    return false;
}

status config_init(config *c, const char *program, const config_key *keys, size_t n_keys,
                   void *options, error *err) {
    memset(c, 0, sizeof *c);
    c->program = program;
    c->keys = keys;
    c->n_keys = n_keys;
    c->options = options;
    c->source = calloc(n_keys, 1);
    if (c->source == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for settings");
    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].fallback == NULL) continue;
        status rc = store(c, i, keys[i].fallback, SOURCE_DEFAULT, "default", err);
        if (rc != STATUS_OK) {
            config_release(c);
            return rc;
        }
    }
    return STATUS_OK;
}

void config_release(config *c) {
    for (size_t i = 0; i < c->n_texts; i++) {
        free(c->texts[i]);
    }
    free(c->texts);
    free(c->source);
    memset(c, 0, sizeof *c);
}

typedef struct file_reading {
    config *c;
    const char *path;
    FILE *file;
    int line; /* inih does not tell it, so the reader counts */
    status rc;
    error *err;
} file_reading;

static char *read_line(char *text, int cap, void *stream) {
    file_reading *reading = stream;
    char *line = fgets(text, cap, reading->file);
    if (line == NULL) return NULL;
    reading->line++;
    bool cut = strchr(line, '\n') == NULL && !feof(reading->file);
    if (cut && reading->rc == STATUS_OK) {
        reading->rc = error_set(reading->err, STATUS_BAD_INPUT, "%s:%d: longer than %d bytes",
                                reading->path, reading->line, cap - 2);
    }
    return line;
}

static int store_line(void *context, const char *section, const char *name, const char *value) {
    file_reading *reading = context;
    if (reading->rc != STATUS_OK) return 0; /* the first error is the one to tell */
    char full[MAX_NAME], where[320];
    (void)snprintf(full, sizeof full, "%s%s%s", section, *section != '\0' ? "." : "", name);
    (void)snprintf(where, sizeof where, "%s:%d", reading->path, reading->line);
    size_t index = 0;
    if (!find_key(reading->c, full, &index)) {
        reading->rc = error_set(reading->err, STATUS_BAD_INPUT,
                                "%s: unknown key '%s' = '%.80s'", where, full, value);
        return 0;
    }
    reading->rc = store(reading->c, index, value, SOURCE_FILE, where, reading->err);
    return reading->rc == STATUS_OK;
}

status config_read_file(config *c, const char *path, error *err) {
    file_reading reading = {.c = c, .path = path, .rc = STATUS_OK, .err = err};
    reading.file = fopen(path, "re");
    if (reading.file == NULL) return error_set_errno(err, STATUS_IO, errno, "config %s", path);
    int line = ini_parse_stream(read_line, &reading, store_line, &reading);
    bool broken = ferror(reading.file) != 0; /* as a folder is */
    int why = errno;
    (void)fclose(reading.file);
    if (broken) return error_set_errno(err, STATUS_IO, why, "config %s", path);
    if (reading.rc != STATUS_OK) return reading.rc;
    if (line != 0) {
        return error_set(err, STATUS_BAD_INPUT, "%s:%d: not of the form key = value", path,
                         line);
    }
    return STATUS_OK;
}

status config_read_environment(config *c, error *err) {
    for (size_t i = 0; i < c->n_keys; i++) {
        char name[MAX_NAME] = "SILICEO_";
        spell(c->keys[i].name, name + 8, sizeof name - 8, '_', true);
        const char *value = getenv(name);
        if (value == NULL) continue;
        status rc = store(c, i, value, SOURCE_ENVIRONMENT, name, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

/* One flag at argv[*at]; moves *at over the words it takes. */
static status read_flag(config *c, int argc, char *const argv[], int *at, error *err) {
    const char *word = argv[*at] + 2;
    const char *equals = strchr(word, '=');
    size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    size_t index = 0;
    char where[MAX_NAME];
    (void)snprintf(where, sizeof where, "--%.*s", (int)(length < 80 ? length : 80), word);
    if (find_flag(c, word, length, &index)) {
        bool is_bool = c->keys[index].kind == CONFIG_BOOL;
        if (equals != NULL) return store(c, index, equals + 1, SOURCE_FLAG, where, err);
        if (is_bool) return store(c, index, "true", SOURCE_FLAG, where, err);
        if (*at + 1 >= argc)
            return error_set(err, STATUS_BAD_INPUT, "%s: needs a value", where);
        *at += 1;
        return store(c, index, argv[*at], SOURCE_FLAG, where, err);
    }
    if (length > 3 && strncmp(word, "no-", 3) == 0 && equals == NULL &&
        find_flag(c, word + 3, length - 3, &index) && c->keys[index].kind == CONFIG_BOOL) {
        return store(c, index, "false", SOURCE_FLAG, where, err);
    }
    return error_set(err, STATUS_BAD_INPUT, "unknown flag %s; --help lists them", where);
}

status config_read_flags(config *c, int argc, char *const argv[], const char **words,
                         size_t cap_words, size_t *n_words, error *err) {
    if (n_words != NULL) *n_words = 0;
    for (int at = 1; at < argc && argv[at] != NULL; at++) {
        if (strncmp(argv[at], "--", 2) == 0 && argv[at][2] != '\0') {
            status rc = read_flag(c, argc, argv, &at, err);
            if (rc != STATUS_OK) return rc;
        } else if (strcmp(argv[at], "-n") == 0 || words == NULL || n_words == NULL ||
                   *n_words >= cap_words) {
            /* -n N is the one short flag: the count of `generate`. */
            size_t index = 0;
            if (strcmp(argv[at], "-n") != 0 || !find_key(c, "n", &index) || at + 1 >= argc) {
                return error_set(err, STATUS_BAD_INPUT,
                                 "%s: unexpected word '%s'; --help helps", c->program,
                                 argv[at]);
            }
            status rc = store(c, index, argv[++at], SOURCE_FLAG, "-n", err);
            if (rc != STATUS_OK) return rc;
        } else {
            words[(*n_words)++] = argv[at];
        }
    }
    return STATUS_OK;
}

/* The value of --config before the other flags are read, or SILICEO_CONFIG. */
static const char *config_path(int argc, char *const argv[]) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0) return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) return argv[i + 1];
    }
    return getenv("SILICEO_CONFIG");
}

/* A list that is read again starts anew instead of growing by what it held. */
static void restart_lists(config *c) {
    for (size_t i = 0; i < c->n_keys; i++) {
        if (c->keys[i].kind == CONFIG_LIST) c->source[i] = SOURCE_DEFAULT;
    }
}

status config_read(config *c, int argc, char *const argv[], error *err) {
    size_t index = 0;
    restart_lists(c);
    const char *path = find_key(c, "config", &index) ? config_path(argc, argv) : NULL;
    status rc = path != NULL && *path != '\0' ? config_read_file(c, path, err) : STATUS_OK;
    if (rc == STATUS_OK) rc = config_read_environment(c, err);
    if (rc == STATUS_OK) rc = config_read_flags(c, argc, argv, NULL, 0, NULL, err);
    return rc;
}

status config_set(config *c, const char *name, const char *value, const char *where,
                  error *err) {
    size_t index = 0;
    if (!find_key(c, name, &index)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: unknown key '%s'", where, name);
    }
    return store(c, index, value, SOURCE_FLAG, where, err);
}

bool config_is_set(const config *c, const char *name) {
    size_t index = 0;
    return find_key(c, name, &index) && c->source[index] != SOURCE_DEFAULT;
}

void config_print_help(const config *c, FILE *out) {
    for (size_t i = 0; i < c->n_keys; i++) {
        const config_key *key = &c->keys[i];
        char flag[MAX_NAME];
        spell(key->name, flag, sizeof flag, '-', false);
        (void)fprintf(out, "  --%-26s %s", flag, key->help);
        if (key->kind == CONFIG_CHOICE) (void)fprintf(out, " [%s]", key->choices);
        if (key->fallback != NULL && *key->fallback != '\0') {
            (void)fprintf(out, " (default %s)", key->fallback);
        }
        (void)fputc('\n', out);
    }
    (void)fprintf(
        out, "\nA key a.b_c is --a-b-c as a flag, SILICEO_A_B_C in the environment and\n"
             "b_c under [a] in the file of --config; flag beats environment beats file.\n");
}

static bool is_secret(const char *name) {
    return strstr(name, "key") != NULL || strstr(name, "secret") != NULL;
}

/* A url with user:password@, or a password among its parameters. */
static bool has_password(const char *text) {
    const char *rest = strstr(text, "://");
    if (rest == NULL) return false;
    size_t authority = strcspn(rest + 3, "/?");
    return memchr(rest + 3, '@', authority) != NULL || strstr(rest, "password=") != NULL;
}

static void print_value(const config *c, const config_key *key, FILE *out) {
    const void *field = field_of(c, key);
    switch (key->kind) {
    case CONFIG_INT:
        (void)fprintf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case CONFIG_REAL:
        (void)fprintf(out, "%.15g", *(const double *)field);
        break;
    case CONFIG_BOOL:
        (void)fputs(*(const bool *)field ? "true" : "false", out);
        break;
    case CONFIG_STRING:
    case CONFIG_CHOICE:
    case CONFIG_LIST: {
        const char *text = *(const char *const *)field;
        bool hidden =
            text != NULL && *text != '\0' && (is_secret(key->name) || has_password(text));
        (void)fputs(text == NULL ? "" : hidden ? "(hidden)" : text, out);
        break;
    }
    }
}

void config_print(const config *c, FILE *out) {
    char section[MAX_NAME] = "";
    for (int pass = 0; pass < 2; pass++) { /* keys without a section come first */
        for (size_t i = 0; i < c->n_keys; i++) {
            const config_key *key = &c->keys[i];
            const char *dot = strchr(key->name, '.');
            if ((dot != NULL) != (pass == 1) || strcmp(key->name, "config") == 0) continue;
            size_t length = dot != NULL ? (size_t)(dot - key->name) : 0;
            if (dot != NULL && (strncmp(section, key->name, length) != 0 || section[length])) {
                (void)snprintf(section, sizeof section, "%.*s", (int)length, key->name);
                (void)fprintf(out, "\n[%s]\n", section);
            }
            (void)fprintf(out, "%s = ", dot != NULL ? dot + 1 : key->name);
            print_value(c, key, out);
            (void)fputc('\n', out);
        }
    }
}
