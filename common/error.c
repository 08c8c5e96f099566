#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void error_record(error *err, status code, const char *format, ...) {
    if (err == NULL) return;
    err->code = code;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
}

void error_record_errno(error *err, status code, int errnum, const char *format, ...) {
    if (err == NULL) return;
    err->code = code;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof err->text) return;
    char buffer[128];
    const char *reason = strerror_r(errnum, buffer, sizeof buffer);
    (void)snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", reason);
}

const char *status_name(status code) {
    switch (code) {
    case STATUS_OK:
        return "ok";
    case STATUS_BAD_INPUT:
        return "bad-input";
    case STATUS_NO_MEMORY:
        return "no-memory";
    case STATUS_TIMEOUT:
        return "timeout";
    case STATUS_CANCELLED:
        return "cancelled";
    case STATUS_IO:
        return "io";
    case STATUS_UNAVAILABLE:
        return "unavailable";
    case STATUS_DEVICE:
        return "device";
    case STATUS_COUNT:
        break;
    }
    return "unknown";
}

void check_failed(const char *file, int line, const char *expression) {
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
    abort();
}
