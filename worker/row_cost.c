#include "worker/row_cost.h"

static const double GUESSED_SLOPE = 0.3; /* units a row, where nothing was tried */
static const double LEAST_SLOPE = 0.02;
static const double MOST_OUTLIER = 2; /* times what was expected: it was held up */
enum { ENOUGH = 3, MEAN_OF = 12, TABLE_MEAN_OF = 6 };

/* Between those seen a line, beyond them the mean slope; fewer rows never cost more, nor do rows
 * together more than alone. */
static void draw_lines(row_cost *c) {
    uint32_t last = 1;
    for (uint32_t r = 2; r <= ROW_COST_MAX; r++) {
        if (!c->seen[r]) continue;
        for (uint32_t i = last + 1; i < r; i++) {
            double part = (double)(i - last) / (r - last);
            c->units[i] = c->units[last] + part * (c->units[r] - c->units[last]);
        }
        last = r;
    }
    double slope = last > 1 ? (c->units[last] - 1) / (last - 1) : GUESSED_SLOPE;
    if (slope < LEAST_SLOPE) slope = LEAST_SLOPE;
    for (uint32_t r = last + 1; r <= ROW_COST_MAX; r++)
        c->units[r] = c->units[last] + slope * (r - last);
    for (uint32_t r = 2; r <= ROW_COST_MAX; r++) {
        if (c->units[r] < c->units[r - 1]) c->units[r] = c->units[r - 1];
        if (c->units[r] > r) c->units[r] = r;
    }
}

void row_cost_init(row_cost *c) {
    *c = (row_cost){.units = {0, 1}, .seen = {false, true}};
    draw_lines(c);
}

void row_cost_try(row_cost *c, uint32_t n_rows, uint64_t took_ns) {
    if (n_rows == 0 || n_rows > ROW_COST_MAX || took_ns == 0) return;
    double took = (double)took_ns;
    if (n_rows == 1) {
        double before = c->first_ns;
        if (before > 0 && took >= before) return;
        for (uint32_t r = 2; r <= ROW_COST_MAX && before > 0; r++)
            c->units[r] *= before / took;
        c->first_ns = c->unit_ns = took;
        c->n_plain = ENOUGH;
    } else if (c->first_ns > 0 && (!c->seen[n_rows] || took < c->units[n_rows] * c->first_ns)) {
        c->units[n_rows] = took / c->first_ns;
        c->seen[n_rows] = true;
    }
    draw_lines(c);
}

void row_cost_note(row_cost *c, uint32_t n_rows, uint64_t took_ns, bool plain) {
    if (n_rows == 0 || n_rows > ROW_COST_MAX) return;
    double took = (double)took_ns, expected = row_cost_ns(c, n_rows);
    if (row_cost_is_known(c) && took > MOST_OUTLIER * expected) took = MOST_OUTLIER * expected;
    if (plain) {
        uint32_t n = ++c->n_plain < MEAN_OF ? c->n_plain : MEAN_OF;
        c->unit_ns += (took / c->units[n_rows] - c->unit_ns) / n;
    } else if (n_rows > 1 && c->unit_ns > 0) {
        c->units[n_rows] += (took / c->unit_ns - c->units[n_rows]) / TABLE_MEAN_OF;
        c->seen[n_rows] = true;
        draw_lines(c);
    }
}

bool row_cost_is_known(const row_cost *c) {
    return c->n_plain >= ENOUGH;
}

double row_cost_ns(const row_cost *c, size_t n_rows) {
    return c->units[n_rows < ROW_COST_MAX ? n_rows : ROW_COST_MAX] * c->unit_ns;
}
