#include "worker/speculate.h"

#include "common/clock.h"
#include "worker/row_cost.h"
#include <stdlib.h>
#include <string.h>

/* Shares are kept by how much a look-up rests on: tokens that agreed. */
enum { MATCHES = 4, CLASSES = MATCHES + DRAFTER_KINDS - 1 };

/* Before anything was observed. */
static const double first_share[CLASSES] = {0.5, 0.8, 0.9, 0.97, 0.75, 0.75};
static const double ALLOWED_LOSS = 3;     /* tokens, and */
static const double ALLOWED_SHARE = 0.01; /* of all that it gave */
static const double MOST_CREDIT = 16;     /* tokens won before that may be lost again */
static const double RATE = 0.12;          /* of a new observation in a share */
static const double MOST_OUTLIER = 2;     /* means, of a step or guess that was held up */
static const double WORTH = 1.1;          /* gain below which no guess is run */
static const double CLEAR = 1.5;          /* gain that a unit a little wrong does not undo */
static const double SAME = 0.15;          /* share by which two checks may differ */
enum {
    OFF_TOKENS = 64,
    MAX_OFF_SHIFT = 5,
    /* Steps with guesses between checks of what one without takes now: few at first and where the
     * last check found something else, more where guesses bring so much that it hardly matters. */
    LEAST_UNCHECKED = 8,
    MOST_UNCHECKED = 64,
    UNCHECKED_IF_CLEAR = 4, /* times as many */
    CHECK_STEPS = 3,        /* without guesses; the first finds other things in the caches */
    ENOUGH = 3,
    MEASURED = 5,
    MEASURED_ROWS = 64,
    /* Tokens taken to come at least, of an answer of unknown length. */
    LEAST_LEFT = 32,
    MEAN_OF = 12
};

typedef struct track_kind {
    double balance;     /* tokens won; negative: lost */
    uint32_t off_until; /* n_tokens from which it may be asked again */
    uint32_t off_shift; /* how often it went off */
    uint32_t tried_at;  /* n_tokens when it last had rows */
    uint32_t n_read;    /* n_tokens when it was last asked: the draft has read those */
} track_kind;

/* What is known of a sequence. */
typedef struct track {
    uint64_t key;
    uint32_t n_first; /* tokens when it was first seen */
    double share[CLASSES];
    track_kind kinds[DRAFTER_KINDS];
    /* of the step under way */
    drafter_kind kind;
    uint32_t class;
} track;

/* What a sequence may get in the step under way. */
typedef struct plan_entry {
    sequence *who;
    track *track;
    int32_t *guesses; /* [cap_depth], of a look-up at once, else when they are made */
    uint32_t most;    /* guesses that it may have; 0: none */
    uint32_t depth;   /* that it gets */
    uint32_t trial;   /* while they are given out */
    double next;      /* chance that one more after `trial` comes true, and all before it */
} plan_entry;

struct speculate {
    drafter *drafters[DRAFTER_KINDS];
    speculate_params params;
    bool fixed;
    track *tracks;                  /* [n_places] */
    double share[CLASSES];          /* of all sequences; a new one begins better */
    double guess_ns[DRAFTER_KINDS]; /* of one guess */
    double read_ns;                 /* of a row that a draft reads to catch up */
    int32_t *ends;                  /* [params.n_ends] */
    uint32_t n_guessed[DRAFTER_KINDS];
    row_cost cost;
    double row_ns; /* what a row of a guess adds to the step under way */
    /* Of the step under way, [n_places] each; guesses [n_places][cap_depth]. */
    uint32_t n_entries, n_guesses;
    plan_entry *entries;
    drafter_ask *asks;
    int32_t *guesses;
    uint32_t cap_depth;
    double token_ns;        /* what a token takes without guesses */
    double gain;            /* of the rate of tokens, that the last guesses were given for */
    uint32_t n_guessing;    /* noted steps with guesses since the last check */
    uint32_t n_plain;       /* steps without since the last with */
    uint32_t most_guessing; /* until the next check */
    double checked_ns;      /* a step of one row, by the last check */
    speculate_stats stats;
};

static uint32_t deepest(const speculate_params *p) {
    uint32_t most = 0;
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (p->depth[k] > most) most = p->depth[k];
    CHECK(most > 0 && most <= SPECULATE_MAX_DEPTH);
    return most;
}

status speculate_new(speculate **out, drafter *drafters[DRAFTER_KINDS],
                     const speculate_params *params, error *err) {
    const uint32_t n_places = params->n_places, depth = deepest(params);
    *out = NULL;
    speculate *s = calloc(1, sizeof *s);
    if (s == NULL) {
        for (int k = 0; k < DRAFTER_KINDS; k++)
            if (drafters[k] != NULL) drafters[k]->ops->close(drafters[k]);
        return error_set(err, STATUS_NO_MEMORY, "speculation: no memory");
    }
    memcpy(s->drafters, drafters, sizeof s->drafters);
    s->params = *params;
    row_cost_init(&s->cost);
    s->most_guessing = LEAST_UNCHECKED;
    s->cap_depth = depth;
    s->tracks = calloc(n_places, sizeof *s->tracks);
    s->entries = calloc(n_places, sizeof *s->entries);
    s->asks = calloc(n_places, sizeof *s->asks);
    s->guesses = calloc((size_t)n_places * depth, sizeof *s->guesses);
    s->ends = calloc(params->n_ends + 1, sizeof *s->ends);
    if (s->tracks == NULL || s->entries == NULL || s->asks == NULL || s->guesses == NULL ||
        s->ends == NULL) {
        speculate_free(s);
        return error_set(err, STATUS_NO_MEMORY, "speculation: no memory for %u sequences",
                         n_places);
    }
    for (size_t i = 0; i < params->n_ends; i++)
        s->ends[i] = params->ends[i];
    memcpy(s->share, first_share, sizeof s->share);
    *out = s;
    return STATUS_OK;
}

void speculate_free(speculate *s) {
    if (s == NULL) return;
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (s->drafters[k] != NULL) s->drafters[k]->ops->close(s->drafters[k]);
    free(s->ends);
    free(s->guesses);
    free(s->asks);
    free(s->entries);
    free(s->tracks);
    free(s);
}

/* The mean of the first few, then one that forgets.  What was held up says little. */
static void add_to_mean(double *mean, uint32_t n_seen, double now) {
    if (n_seen >= ENOUGH && now > MOST_OUTLIER * *mean) now = MOST_OUTLIER * *mean;
    *mean += (now - *mean) / (n_seen < MEAN_OF ? n_seen + 1 : MEAN_OF);
}

static drafter_kind second_kind(const speculate *s) {
    return s->drafters[DRAFTER_MODEL] != NULL ? DRAFTER_MODEL : DRAFTER_MTP;
}

/* What reading MEASURED_ROWS rows takes, a first guess included. */
static status measure_reading(speculate *s, drafter *d, const int32_t *tokens, error *err) {
    drafter_ask ask = {.key = UINT64_MAX - MEASURED,
                       .tokens = tokens,
                       .n_tokens = MEASURED_ROWS,
                       .n_prompt = MEASURED_ROWS,
                       .depth = 1,
                       .guesses = s->guesses};
    uint64_t begun_ns = clock_thread_ns();
    status rc = d->ops->guess(d, &ask, 1, err);
    if (ask.n_read_prompt > 0)
        s->read_ns = (double)(clock_thread_ns() - begun_ns) / ask.n_read_prompt;
    return rc;
}

status speculate_measure(speculate *s, error *err) {
    int32_t tokens[MEASURED_ROWS] = {0};
    drafter_kind kind = second_kind(s);
    drafter *d = s->drafters[kind];
    if (d == NULL) return STATUS_OK;
    for (int i = 0; i < MEASURED; i++) {
        drafter_ask ask = {.key = UINT64_MAX - (uint64_t)i, /* nobody's */
                           .tokens = tokens,
                           .n_tokens = 2,
                           .depth = s->params.depth[kind],
                           .guesses = s->guesses};
        uint64_t begun_ns = clock_thread_ns();
        status rc = d->ops->guess(d, &ask, 1, err);
        if (rc != STATUS_OK) return rc;
        if (ask.n_read > 0)
            add_to_mean(&s->guess_ns[kind], s->n_guessed[kind]++,
                        (double)(clock_thread_ns() - begun_ns) / ask.n_read);
    }
    return measure_reading(s, d, tokens, err);
}

void speculate_fix_depth(speculate *s, uint32_t depth) {
    s->fixed = true;
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (s->params.depth[k] > depth) s->params.depth[k] = depth;
}

/* --- what a step costs --- */

void speculate_try_step(speculate *s, uint32_t n_rows, uint64_t took_ns) {
    row_cost_try(&s->cost, n_rows, took_ns);
}

static double step_ns(const speculate *s, size_t n_rows) {
    return row_cost_ns(&s->cost, n_rows);
}

static void charge(speculate *s, track *t, drafter_kind kind, double ns) {
    if (s->token_ns > 0) t->kinds[kind].balance -= ns / s->token_ns;
}

/* speculate_take() charged what rows were thought to cost; now it is known. */
static void correct_charges(speculate *s, double took_ns) {
    double expected = step_ns(s, s->n_entries) + s->row_ns * s->n_guesses;
    if (took_ns > MOST_OUTLIER * expected) took_ns = MOST_OUTLIER * expected;
    for (uint32_t i = 0; i < s->n_entries; i++) {
        const plan_entry *e = &s->entries[i];
        double share = (double)e->depth / s->n_guesses;
        if (e->depth > 0) charge(s, e->track, e->track->kind, (took_ns - expected) * share);
    }
}

/* What a step without guesses takes was seen again: where that is what it was the next check may
 * wait longer. */
static void end_check(speculate *s) {
    double now_ns = step_ns(s, 1);
    bool same = now_ns < (1 + SAME) * s->checked_ns && s->checked_ns < (1 + SAME) * now_ns;
    s->checked_ns = now_ns;
    s->n_guessing = 0;
    if (same && s->most_guessing < MOST_UNCHECKED) s->most_guessing *= 2;
    if (!same && s->most_guessing > LEAST_UNCHECKED) s->most_guessing /= 2;
}

static bool is_check_due(const speculate *s) {
    bool clear = s->gain > CLEAR && s->most_guessing > LEAST_UNCHECKED;
    uint32_t most = s->most_guessing * (clear ? UNCHECKED_IF_CLEAR : 1);
    return !s->fixed && s->n_guessing >= (most < MOST_UNCHECKED ? most : MOST_UNCHECKED);
}

void speculate_note_step(speculate *s, uint32_t n_rows, uint64_t took_ns) {
    if (s->n_guesses > 0 && n_rows == s->n_entries + s->n_guesses)
        correct_charges(s, (double)took_ns);
    /* The first step after those with guesses finds other things in the caches. */
    if (s->n_guesses > 0 || s->n_plain != 1)
        row_cost_note(&s->cost, n_rows, took_ns, s->n_guesses == 0);
    if (s->n_guesses > 0) s->n_guessing++;
    if (s->n_guesses == 0 && s->n_plain >= CHECK_STEPS && s->n_guessing > 0) end_check(s);
    s->n_guesses = 0;
}

/* --- what guesses are worth --- */

static track *track_of(speculate *s, const sequence *who) {
    track *t = &s->tracks[who->group];
    uint64_t key = who->arrival + 1;
    if (t->key == key) return t;
    *t = (track){.key = key, .n_first = who->n_tokens};
    for (int i = 0; i < CLASSES; i++)
        t->share[i] = (s->share[i] + first_share[i]) / 2;
    return t;
}

static uint32_t class_of(drafter_kind kind, uint32_t match) {
    if (kind != DRAFTER_LOOKUP) return MATCHES + (uint32_t)kind - 1;
    return match < 3 ? 0 : match < 5 ? 1 : match < 12 ? 2 : 3;
}

/* What a kind may have lost in all for a sequence of n_tokens. */
static double allowed_loss(const track *t, uint32_t n_tokens) {
    return ALLOWED_LOSS + ALLOWED_SHARE * (n_tokens - t->n_first);
}

static bool is_off(const speculate *s, const track *t, drafter_kind kind, uint32_t n_tokens) {
    const track_kind *k = &t->kinds[kind];
    if (s->drafters[kind] == NULL) return true;
    return !s->fixed && (n_tokens < k->off_until || -k->balance > allowed_loss(t, n_tokens));
}

/* Nothing was tried for so long that what is known of it is old. */
static bool is_stale(const track *t, drafter_kind kind, uint32_t n_tokens) {
    const track_kind *k = &t->kinds[kind];
    uint32_t since = k->tried_at > 0 ? k->tried_at : t->n_first;
    return n_tokens >= since + ((uint32_t)OFF_TOKENS << k->off_shift);
}

/* --- guessing --- */

static drafter_ask ask_for(const plan_entry *e, uint32_t depth) {
    return (drafter_ask){.key = e->track->key,
                         .tokens = e->who->tokens,
                         .n_tokens = e->who->n_tokens,
                         .n_prompt = e->who->n_prompt,
                         .place = e->who->group,
                         .depth = depth,
                         .guesses = e->guesses};
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Rows that may stand behind the tokens: the last token needs none after it. */
static uint32_t room_of(const speculate *s, const sequence *who) {
    uint32_t left = who->cap_tokens - who->n_tokens;
    return smaller(left > 0 ? left - 1 : 0, s->cap_depth);
}

static status look_up(speculate *s, size_t n, error *err) {
    size_t n_asks = 0;
    drafter *d = s->drafters[DRAFTER_LOOKUP];
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        if (e->most == 0 || is_off(s, e->track, DRAFTER_LOOKUP, e->who->n_tokens)) continue;
        s->asks[n_asks++] = ask_for(e, smaller(e->most, s->params.depth[DRAFTER_LOOKUP]));
    }
    if (n_asks == 0) return STATUS_OK;
    uint64_t begun_ns = clock_thread_ns();
    status rc = d->ops->guess(d, s->asks, n_asks, err);
    s->stats.draft_ns[DRAFTER_LOOKUP] += clock_thread_ns() - begun_ns;
    return rc;
}

/* Guesses before the one that ends the text: behind that nothing is guessed, and itself it needs
 * no row. */
static uint32_t before_end(const speculate *s, const int32_t *guesses, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (size_t e = 0; e < s->params.n_ends; e++)
            if (guesses[i] == s->ends[e]) return i;
    return n;
}

/* Who guesses for each entry, and how many it may have. */
static void choose_kinds(speculate *s, size_t n) {
    const drafter_ask *ask = s->asks;
    drafter_kind other = second_kind(s);
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        uint32_t found = 0, n_tokens = e->who->n_tokens;
        if (e->most > 0 && !is_off(s, e->track, DRAFTER_LOOKUP, n_tokens)) {
            found = before_end(s, ask->guesses, ask->n_guesses);
            e->track->class = class_of(DRAFTER_LOOKUP, ask->match);
            ask++;
        }
        e->track->kind = DRAFTER_LOOKUP;
        if (found == 0 && !is_off(s, e->track, other, n_tokens)) {
            found = smaller(e->most, s->params.depth[other]);
            e->track->kind = other;
            e->track->class = class_of(other, 0);
        }
        e->most = found;
    }
}

/* What its kind may still lose for a sequence. */
static double left_ns(const speculate *s, const plan_entry *e) {
    const track_kind *k = &e->track->kinds[e->track->kind];
    return (k->balance + allowed_loss(e->track, e->who->n_tokens)) * s->token_ns;
}

/* What a draft needs to read what it does not know yet. */
static double catch_up_ns(const speculate *s, const plan_entry *e) {
    if (e->track->kind != DRAFTER_MODEL) return 0;
    return (e->who->n_tokens - e->track->kinds[DRAFTER_MODEL].n_read) * s->read_ns;
}

/* All of them may be wrong: what is left to lose bounds them, but for one. */
static void bound_risks(speculate *s, size_t n) {
    for (size_t i = 0; i < n && !s->fixed; i++) {
        plan_entry *e = &s->entries[i];
        const drafter_kind kind = e->track->kind;
        double ns = step_ns(s, n) + left_ns(s, e);
        uint32_t most = 1;
        while (most < e->most &&
               step_ns(s, n + most + 1) + (most + 1) * s->guess_ns[kind] <= ns)
            most++;
        e->most = smaller(e->most, most);
    }
}

/* Guesses of a step at most; beyond some number nobody knows what rows cost. */
static size_t room_of_step(const speculate *s, size_t n) {
    size_t known = n < ROW_COST_MAX ? ROW_COST_MAX - n : 0;
    return known < s->params.step_guesses ? known : s->params.step_guesses;
}

/* A draft that has much to read must win that back: the answer is taken to get twice as long as
 * it is.  gain: of the rate of tokens, by the depths chosen. */
static void refuse_reading(speculate *s, size_t n, double gain) {
    for (size_t i = 0; i < n && !s->fixed; i++) {
        plan_entry *e = &s->entries[i];
        double ns = catch_up_ns(s, e), so_far = e->who->n_tokens - e->who->n_prompt;
        double to_come = so_far > LEAST_LEFT ? so_far : LEAST_LEFT;
        if (e->who->cap_tokens - e->who->n_tokens < to_come)
            to_come = e->who->cap_tokens - e->who->n_tokens;
        if (e->depth > 0 && ns > left_ns(s, e) && ns > (1 - 1 / gain) * to_come * s->token_ns)
            e->depth = 0;
    }
}

/* Rows are given to the likeliest guess, whoever's, while tokens for the time grow. */
static void choose_depths(speculate *s, size_t n) {
    size_t rows = n, most_rows = n + room_of_step(s, n);
    const double plain = (double)n / step_ns(s, n);
    double tokens = (double)n, draft_ns = 0, best = WORTH * plain;
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        e->depth = e->trial = 0;
        e->next = e->track->share[e->track->class];
    }
    for (;;) {
        plan_entry *most = NULL;
        for (size_t i = 0; i < n; i++) {
            plan_entry *e = &s->entries[i];
            if (e->trial < e->most && (most == NULL || e->next > most->next)) most = e;
        }
        if (most == NULL || rows == most_rows) break;
        most->trial++;
        rows++;
        tokens += most->next;
        most->next *= most->track->share[most->track->class];
        draft_ns += s->guess_ns[most->track->kind];
        double rate = tokens / (step_ns(s, rows) + draft_ns);
        if (rate < 0.8 * best) break;
        if (rate < best) continue;
        best = rate;
        for (size_t i = 0; i < n; i++)
            s->entries[i].depth = s->entries[i].trial;
    }
    s->gain = best / plain;
    refuse_reading(s, n, s->gain);
}

/* Whether guesses would pay if they all came true. */
static bool may_pay(const speculate *s, size_t n, drafter_kind kind) {
    size_t most = n * s->params.depth[kind], room = room_of_step(s, n);
    if (most > room) most = room;
    double now = (double)n / step_ns(s, n), all = (double)(n + most);
    double ns = step_ns(s, n + most) + (double)most * s->guess_ns[kind];
    double one = (double)(n + 1) / (step_ns(s, n + 1) + s->guess_ns[kind]);
    return all / ns > WORTH * now || one > WORTH * now;
}

/* What is tried whatever is thought of it: all where the depth is fixed, one where what is
 * known is old and a guess may pay at all. */
static void choose_trials(speculate *s, size_t n) {
    size_t room = room_of_step(s, n);
    for (size_t i = 0; i < n && !s->fixed; i++)
        room -= s->entries[i].depth;
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        drafter_kind kind = e->track->kind;
        uint32_t most = e->most < room ? e->most : (uint32_t)room;
        if (s->fixed) {
            e->depth = most;
            room -= most;
        } else if (e->depth == 0 && most > 0 && may_pay(s, n, kind) &&
                   is_stale(e->track, kind, e->who->n_tokens) &&
                   catch_up_ns(s, e) <= left_ns(s, e)) {
            e->depth = 1;
            room--;
        }
    }
}

/* The draft or the block guesses where it was chosen; they compute on this thread, mostly. */
static status draft(speculate *s, size_t n, error *err) {
    drafter_kind kind = second_kind(s);
    drafter *d = s->drafters[kind];
    size_t n_asks = 0;
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        if (e->track->kind == kind && e->depth > 0) s->asks[n_asks++] = ask_for(e, e->depth);
    }
    if (n_asks == 0) return STATUS_OK;
    uint64_t begun_ns = clock_thread_ns();
    status rc = d->ops->guess(d, s->asks, n_asks, err);
    double ns = (double)(clock_thread_ns() - begun_ns), n_read = 0, n_guesses = 0;
    s->stats.draft_ns[kind] += (uint64_t)ns;
    for (size_t i = 0; i < n_asks; i++) {
        n_read += s->asks[i].n_read + s->asks[i].n_read_prompt;
        n_guesses += s->asks[i].n_guesses;
    }
    if (n_guesses > 0) add_to_mean(&s->guess_ns[kind], s->n_guessed[kind]++, ns / n_read);
    const drafter_ask *ask = s->asks;
    for (size_t i = 0; i < n && n_read > 0; i++) {
        plan_entry *e = &s->entries[i];
        if (e->track->kind != kind || e->depth == 0) continue;
        double share = ns / n_read < s->guess_ns[kind] ? ns / n_read : s->guess_ns[kind];
        charge(s, e->track, kind, share * ask->n_read);
        e->track->kinds[kind].n_read = ask->n_tokens;
        e->depth = before_end(s, ask->guesses, smaller(ask->n_guesses, e->depth));
        ask++;
    }
    return rc;
}

status speculate_guess(speculate *s, sequence *const *who, size_t n, error *err) {
    CHECK(n <= s->params.n_places);
    s->n_entries = s->n_guesses = 0;
    s->token_ns = n > 0 ? step_ns(s, n) / (double)n : 0;
    for (size_t i = 0; i < n; i++) {
        s->entries[i] = (plan_entry){.who = who[i],
                                     .track = track_of(s, who[i]),
                                     .guesses = s->guesses + i * s->cap_depth,
                                     .most = room_of(s, who[i])};
        who[i]->n_drafted = 0;
    }
    /* Without one step to compare with nothing can be weighed. */
    if (n == 0 || (!row_cost_is_known(&s->cost) && !s->fixed)) return STATUS_OK;
    status rc = look_up(s, n, err);
    if (rc != STATUS_OK) return rc;
    choose_kinds(s, n);
    bound_risks(s, n);
    choose_depths(s, n);
    choose_trials(s, n);
    /* A check whose steps nobody noted, as prompts ran beside them, is given up. */
    if (s->n_plain >= CHECK_STEPS) s->n_guessing = 0;
    bool plain = is_check_due(s);
    for (size_t i = 0; plain && i < n; i++)
        s->entries[i].depth = 0;
    rc = draft(s, n, err);
    if (rc != STATUS_OK) return rc;
    size_t rows = n;
    for (size_t i = 0; i < n; i++) {
        const plan_entry *e = &s->entries[i];
        rows += e->depth;
        memcpy(who[i]->tokens + who[i]->n_tokens, e->guesses, e->depth * sizeof *e->guesses);
        who[i]->n_drafted = e->depth;
    }
    s->n_entries = (uint32_t)n;
    s->n_guesses = (uint32_t)(rows - n);
    s->n_plain = rows > n ? 0 : s->n_plain + 1;
    if (rows > n) s->row_ns = (step_ns(s, rows) - step_ns(s, n)) / (double)(rows - n);
    return STATUS_OK;
}

/* --- what became of them --- */

bool speculate_wants_rows(const speculate *s) {
    return s->drafters[DRAFTER_MTP] != NULL;
}

status speculate_see(speculate *s, const sequence *who, uint32_t position, const float *rows,
                     uint32_t n_rows, error *err) {
    drafter *d = s->drafters[DRAFTER_MTP];
    const drafter_rows seen = {.key = who->arrival + 1,
                               .tokens = who->tokens,
                               .rows = rows,
                               .n_rows = n_rows,
                               .position = position,
                               .place = who->group};
    CHECK(position + n_rows < who->n_tokens);
    return d->ops->see(d, &seen, err);
}

static void observe(double *share, uint32_t n_accepted, bool failed) {
    for (uint32_t i = 0; i < n_accepted; i++)
        *share += RATE * (1 - *share);
    if (failed) *share -= RATE * *share;
}

void speculate_take(speculate *s, const sequence *who, uint32_t n_drafted,
                    uint32_t n_accepted) {
    track *t = &s->tracks[who->group];
    s->stats.rows_steps++;
    if (n_drafted == 0 || t->key != who->arrival + 1) return;
    track_kind *k = &t->kinds[t->kind];
    s->stats.drafted[t->kind] += n_drafted;
    s->stats.accepted[t->kind] += n_accepted;
    observe(&t->share[t->class], n_accepted, n_accepted < n_drafted);
    observe(&s->share[t->class], n_accepted, n_accepted < n_drafted);
    charge(s, t, t->kind, s->row_ns * n_drafted);
    k->balance += n_accepted;
    if (k->balance > MOST_CREDIT) k->balance = MOST_CREDIT;
    k->tried_at = who->n_tokens;
    if (n_drafted == 1 && n_accepted == 0 && k->off_shift < MAX_OFF_SHIFT) k->off_shift++;
    if (n_accepted == n_drafted) k->off_shift = 0;
    if (s->fixed || -k->balance <= allowed_loss(t, who->n_tokens)) return;
    k->off_until = who->n_tokens + ((uint32_t)OFF_TOKENS << k->off_shift);
    if (k->off_shift < MAX_OFF_SHIFT) k->off_shift++;
    s->stats.switched_off++;
}

void speculate_read_stats(const speculate *s, speculate_stats *out) {
    *out = s->stats;
}
