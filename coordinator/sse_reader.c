#include "coordinator/sse_reader.h"

#include <string.h>

void sse_reader_release(sse_reader *r) {
    json_text_release(&r->line);
    json_text_release(&r->data);
    memset(r, 0, sizeof *r);
}

static void take_line(sse_reader *r, const char *line, size_t n) {
    if (n < 5 || memcmp(line, "data:", 5) != 0) return;
    line += 5;
    n -= 5;
    if (n > 0 && *line == ' ') {
        line++;
        n--;
    }
    if (r->has_data) json_text_add(&r->data, "\n", 1);
    if (n > 0) json_text_add(&r->data, line, n);
    r->has_data = true;
}

static status end_line(sse_reader *r, void *context,
                       status (*on_event)(void *context, const char *data, size_t n,
                                          error *err),
                       error *err) {
    status rc = STATUS_OK;
    if (r->line.length > 0) {
        take_line(r, r->line.bytes, r->line.length);
        json_text_clear(&r->line);
    } else if (r->has_data) {
        rc = on_event(context, r->data.length > 0 ? r->data.bytes : "", r->data.length, err);
        json_text_clear(&r->data);
        r->has_data = false;
    }
    return rc;
}

status sse_reader_add(sse_reader *r, const char *bytes, size_t n, void *context,
                      status (*on_event)(void *context, const char *data, size_t n, error *err),
                      error *err) {
    size_t at = 0;
    while (at < n) {
        if (r->after_cr && bytes[at] == '\n') at++;
        r->after_cr = false;
        size_t end = at;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        if (end > at) json_text_add(&r->line, bytes + at, end - at);
        if (r->line.failed || r->data.failed)
            return error_set(err, STATUS_NO_MEMORY, "no memory for an event");
        if (r->line.length + r->data.length > SSE_MAX_EVENT)
            return error_set(err, STATUS_BAD_INPUT, "an event is over %d bytes",
                             (int)SSE_MAX_EVENT);
        if (end == n) break;
        r->after_cr = bytes[end] == '\r';
        at = end + 1;
        status rc = end_line(r, context, on_event, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}
