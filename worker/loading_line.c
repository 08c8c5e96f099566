#include "worker/loading_line.h"

#include "common/clock.h"
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { TERMINAL_MS = 200, PLAIN_MS = 3000 };

int loading_line_write(char *out, size_t cap, const engine_progress *p) {
    static const double GIB = 1024.0 * 1024.0 * 1024.0;
    char left[32] = "";
    if (p->n_total == 0) return snprintf(out, cap, "%s", p->what);
    if (p->left_ms > 0) (void)snprintf(left, sizeof left, ", %.0f s left", p->left_ms / 1e3);
    return snprintf(out, cap, "%s  %.1f of %.1f GiB%s", p->what, (double)p->n_bytes / GIB,
                    (double)p->n_total / GIB, left);
}

void loading_line_show(void *context, const engine_progress *p) {
    static uint64_t shown_ms; /* of the loading thread alone */
    static bool is_open;      /* a line of the terminal waits for its end */
    char text[128];
    (void)context;
    bool terminal = isatty(STDERR_FILENO) != 0, over = p->permille >= 1000;
    uint64_t now_ms = clock_monotonic_ms();
    if (shown_ms == 0) shown_ms = now_ms;
    if (over && is_open) (void)fputs("\r\x1b[K", stderr);
    if (over) is_open = false;
    if (over || now_ms - shown_ms < (terminal ? TERMINAL_MS : PLAIN_MS)) return;
    shown_ms = now_ms;
    (void)loading_line_write(text, sizeof text, p);
    (void)fprintf(stderr, terminal ? "\r%s\x1b[K" : "%s\n", text);
    (void)fflush(stderr);
    is_open = terminal;
}
