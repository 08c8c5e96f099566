#include "common/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int minimum_level = LOG_INFO;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_set_level(log_level level) {
    atomic_store_explicit(&minimum_level, (int)level, memory_order_relaxed);
}

int log_parse_level(const char *word, log_level *out) {
    for (int i = 0; i <= (int)LOG_ERROR; i++) {
        if (strcmp(word, level_names[i]) == 0) {
            *out = (log_level)i;
            return 0;
        }
    }
    return -1;
}

/* Control characters in a value must not forge a second line. */
static void keep_one_line(char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) text[i] = ' ';
    }
}

void log_write(log_level level, const char *event, const char *format, ...) {
    if ((int)level < atomic_load_explicit(&minimum_level, memory_order_relaxed)) return;
    char line[1024];
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc) == NULL) return;
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    int n = snprintf(line + used, sizeof line - used, ".%03ldZ %s %s ", now.tv_nsec / 1000000,
                     level_names[level], event);
    if (n > 0) used += (size_t)n;
    va_list args;
    va_start(args, format);
    n = vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    if (n > 0) used += (size_t)n < sizeof line - used - 1 ? (size_t)n : sizeof line - used - 2;
    keep_one_line(line, used);
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* a closed stderr must not stop the program */
}
