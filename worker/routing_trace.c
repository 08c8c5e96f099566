#include "worker/routing_trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 20, MOST_LAYERS = 256, MOST_EXPERTS = 65536, MOST_USED = 64 };

typedef struct scanner {
    const char *name;
    const char *at, *end;
    uint32_t line;
} scanner;

/* Digits after blanks on this line; false when there are none or the value is above most. */
static bool scan_number(scanner *s, uint32_t most, uint32_t *out) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t'))
        s->at++;
    const char *first = s->at;
    uint64_t value = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        value = value * 10 + (uint64_t)(*s->at++ - '0');
        if (value > most) return false;
    }
    *out = (uint32_t)value;
    return s->at > first;
}

static bool scan_line_end(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
    if (s->at < s->end && *s->at++ != '\n') return false;
    s->line++;
    return true;
}

static status scan_header(scanner *s, routing_trace *t, error *err) {
    static const char magic[] = "siliceo-routing 1";
    size_t n = sizeof magic - 1;
    bool known = (size_t)(s->end - s->at) > n && memcmp(s->at, magic, n) == 0;
    if (known) s->at += n;
    if (!known || !scan_number(s, MOST_TOKENS, &t->n_tokens) ||
        !scan_number(s, MOST_LAYERS, &t->n_layers) ||
        !scan_number(s, MOST_EXPERTS, &t->n_experts) ||
        !scan_number(s, MOST_USED, &t->n_used) || !scan_line_end(s) || t->n_tokens == 0 ||
        t->n_layers == 0 || t->n_used == 0 || t->n_used > t->n_experts) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: line 1 is not 'siliceo-routing 1 TOKENS LAYERS EXPERTS USED' "
                         "within bounds",
                         s->name);
    }
    return STATUS_OK;
}

static status scan_row(scanner *s, const routing_trace *t, uint16_t *row, error *err) {
    for (uint32_t i = 0; i < t->n_used; i++) {
        uint32_t id = 0;
        if (!scan_number(s, t->n_experts - 1, &id)) {
            return error_set(err, STATUS_BAD_INPUT, "%s: line %u: id %u is not in 0..%u",
                             s->name, s->line, i + 1, t->n_experts - 1);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (row[j] == id) {
                return error_set(err, STATUS_BAD_INPUT, "%s: line %u: expert %u stands twice",
                                 s->name, s->line, id);
            }
        }
        row[i] = (uint16_t)id;
    }
    if (scan_line_end(s)) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "%s: line %u has more than %u ids", s->name,
                     s->line, t->n_used);
}

status routing_trace_parse(routing_trace *out, const char *name, const char *text, size_t n,
                           error *err) {
    memset(out, 0, sizeof *out);
    scanner s = {name, text, text + n, 1};
    status rc = scan_header(&s, out, err);
    if (rc != STATUS_OK) return rc;
    size_t n_rows = (size_t)out->n_tokens * out->n_layers;
    /* An id and its separator are two bytes at least: a header alone cannot ask for memory. */
    if (n_rows * out->n_used > n) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %zu bytes cannot hold %zu ids", name, n,
                         n_rows * out->n_used);
    }
    out->ids = calloc(n_rows * out->n_used, sizeof *out->ids);
    if (out->ids == NULL) return error_set(err, STATUS_NO_MEMORY, "%s: no memory", name);
    for (size_t i = 0; i < n_rows && rc == STATUS_OK; i++)
        rc = scan_row(&s, out, out->ids + i * out->n_used, err);
    if (rc != STATUS_OK) routing_trace_release(out);
    return rc;
}

status routing_trace_read(routing_trace *out, const char *path, error *err) {
    memset(out, 0, sizeof *out);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    char *text = NULL;
    size_t cap = 0;
    ssize_t n = getdelim(&text, &cap, '\0', f);
    (void)fclose(f);
    status rc = n > 0 ? routing_trace_parse(out, path, text, (size_t)n, err)
                      : error_set(err, STATUS_BAD_INPUT, "%s is empty", path);
    free(text);
    return rc;
}

void routing_trace_release(routing_trace *t) {
    free(t->ids);
    memset(t, 0, sizeof *t);
}
