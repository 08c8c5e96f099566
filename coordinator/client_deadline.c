#include "coordinator/client_deadline.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_S = 604800 }; /* a week */

/* A plain decimal number of seconds; negative: it is none. */
static double number(const char *text) {
    size_t n = strlen(text);
    if (n == 0 || n > 20 || strspn(text, "0123456789.") != n) return -1;
    char *end = NULL;
    double value = strtod(text, &end);
    return *end == '\0' ? value : -1;
}

status client_deadline_read(client_deadline *out, const char *deadline_ms,
                            const char *read_timeout_s, bool streams, error *err) {
    *out = (client_deadline){0, 0};
    double timeout_s = read_timeout_s == NULL ? -1 : number(read_timeout_s);
    if (timeout_s > 0 && timeout_s <= MAX_S)
        *(streams ? &out->quiet_ms : &out->answer_ms) = (uint64_t)(timeout_s * 1000);
    if (deadline_ms == NULL) return STATUS_OK;
    double ms = number(deadline_ms);
    if (!(ms >= 1 && ms <= MAX_S * 1000.0)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "X-Siliceo-Deadline-Ms: '%.40s' is not a number of milliseconds from "
                         "1 to %d000",
                         deadline_ms, MAX_S);
    }
    if (out->answer_ms == 0 || (uint64_t)ms < out->answer_ms) out->answer_ms = (uint64_t)ms;
    return STATUS_OK;
}
