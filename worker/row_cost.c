#include "worker/row_cost.h"

static const double GUESSED_SLOPE = 0.3; /* units a row, where nothing was tried */
static const double LEAST_SLOPE = 0.02;
static const double MOST_OUTLIER = 2; /* times what was expected: it was held up */
enum {
    ENOUGH = 3,
    MEAN_OF = 12,
    TABLE_MEAN_OF = 5,
    TRIED_AS = 2,
    CHECKED = 4, /* steps without guesses; then those with them are no longer of just now */
    AGES = 4     /* steps with guesses; then one without that was seen before counts no more */
};

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
        c->is_tried = true;
        c->n_plain = TRIED_AS;
    } else if (c->first_ns > 0 && (!c->seen[n_rows] || took < c->units[n_rows] * c->first_ns)) {
        c->units[n_rows] = took / c->first_ns;
        c->seen[n_rows] = true;
    }
    draw_lines(c);
}

/* Steps with guesses of just now took what they took, whatever the unit was thought to be; all
 * others are taken to change with it. */
static void keep_recent(row_cost *c, double before_ns) {
    bool any = false;
    for (uint32_t r = 2; r <= ROW_COST_MAX; r++) {
        if (!c->recent[r]) continue;
        if (c->n_after >= CHECKED)
            c->recent[r] = false;
        else
            c->units[r] *= before_ns / c->unit_ns;
        any = true;
    }
    c->n_after++;
    if (any) draw_lines(c);
}

/* The unit was seen to be that.  What was seen before counts the less the longer it is ago, and what
 * was tried out as two steps at first. */
static void note_plain(row_cost *c, double unit_ns) {
    uint32_t n_old = c->n_since / AGES, least = c->is_tried ? 1 : 0;
    c->n_plain = c->n_plain > n_old + least ? c->n_plain - n_old : least;
    if (c->n_since > 0) c->n_after = 0;
    c->n_since = 0;
    if (c->n_plain < MEAN_OF) c->n_plain++;
    double before_ns = c->unit_ns;
    c->unit_ns += (unit_ns - c->unit_ns) / c->n_plain;
    keep_recent(c, before_ns);
}

/* A step with guesses took so many units.  What it took more or less than was thought others will in
 * part, the more alike in number: so not each number of rows must be run before it is known. */
static void note_guessing(row_cost *c, uint32_t n_rows, double units) {
    if (c->n_guessing < TABLE_MEAN_OF) c->n_guessing++;
    double more = (units - c->units[n_rows]) / (c->n_guessing + 2), own = n_rows - 1;
    for (uint32_t r = 2; r <= ROW_COST_MAX; r++)
        c->units[r] += more * (r < n_rows ? (r - 1) / own : own / (r - 1));
    c->seen[n_rows] = c->recent[n_rows] = true;
    draw_lines(c);
}

void row_cost_note(row_cost *c, uint32_t n_rows, uint64_t took_ns, bool plain) {
    if (n_rows == 0 || n_rows > ROW_COST_MAX || took_ns == 0) return;
    double took = (double)took_ns, expected = row_cost_ns(c, n_rows);
    if (row_cost_is_known(c) && took > MOST_OUTLIER * expected) took = MOST_OUTLIER * expected;
    if (plain) {
        c->recent[n_rows] = false; /* it says itself what they take now */
        note_plain(c, took / c->units[n_rows]);
    } else if (n_rows > 1 && c->unit_ns > 0) {
        c->n_since++;
        note_guessing(c, n_rows, took / c->unit_ns);
    }
}

bool row_cost_is_known(const row_cost *c) {
    return c->is_tried || c->n_plain >= ENOUGH;
}

double row_cost_ns(const row_cost *c, size_t n_rows) {
    return c->units[n_rows < ROW_COST_MAX ? n_rows : ROW_COST_MAX] * c->unit_ns;
}
