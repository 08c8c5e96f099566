#include "coordinator/aliases.h"

#include "common/wire.h"
#include <string.h>

static bool take(char *out, const char *text, size_t length) {
    if (length == 0 || length > WIRE_MAX_NAME) return false;
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

/* One line of ALIAS=MODEL; a model's name may hold further '='. */
static bool read_line(const char *line, size_t length, char *alias, char *model) {
    const char *equals = memchr(line, '=', length);
    if (equals == NULL) return false;
    size_t n = (size_t)(equals - line);
    return take(alias, line, n) && take(model, equals + 1, length - n - 1);
}

bool aliases_next(const char **at, char *alias, char *model) {
    while (*at != NULL && **at != '\0') {
        const char *line = *at;
        size_t length = strcspn(line, "\n");
        *at += length + (line[length] == '\n');
        if (read_line(line, length, alias, model)) return true;
    }
    return false;
}

status aliases_check(const char *list, error *err) {
    char alias[WIRE_MAX_NAME + 1], model[WIRE_MAX_NAME + 1];
    for (const char *line = list; line != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (!read_line(line, length, alias, model)) {
            return error_set(err, STATUS_BAD_INPUT,
                             "alias: '%.*s' is not ALIAS=MODEL with names of up to %d bytes",
                             length > 80 ? 80 : (int)length, line, WIRE_MAX_NAME);
        }
        line += length + (line[length] == '\n');
    }
    return STATUS_OK;
}

bool aliases_resolve(const char *list, char *name) {
    char alias[WIRE_MAX_NAME + 1], model[WIRE_MAX_NAME + 1];
    for (const char *at = list; aliases_next(&at, alias, model);) {
        if (strcmp(alias, name) != 0) continue;
        memcpy(name, model, strlen(model) + 1);
        return true;
    }
    return false;
}
