#include "worker/speculate.h"

#include "common/clock.h"
#include <stdlib.h>
#include <string.h>

/* Shares are kept by how much a look-up rests on: tokens that agreed. */
enum { MATCHES = 4, CLASSES = MATCHES + DRAFTER_KINDS - 1 };

static const double ALLOWED_LOSS = 3;     /* tokens, and */
static const double ALLOWED_SHARE = 0.02; /* of all that it gave */
static const double MOST_CREDIT = 8;      /* tokens won before that may be lost again */
static const double RATE = 0.15;          /* of a new observation in a share */
static const double MOST_OUTLIER = 2;     /* means, of a step or guess that was held up */
static const double GUESSED_SLOPE = 0.3;  /* a row more, in rows, where nothing is known */
static const double WORTH = 1.06;         /* gain below which no guess is run */
enum {
    OFF_TOKENS = 64,
    MAX_OFF_SHIFT = 5,
    PLAIN_EVERY = 32, /* steps; one without guesses, to know what that costs now */
    MAX_ROWS = 256,
    ENOUGH = 3,
    MEASURED = 5,
    MEAN_OF = 12
};

typedef struct track_kind {
    double balance;     /* tokens won; negative: lost */
    uint32_t off_until; /* n_tokens from which it may be asked again */
    uint32_t off_shift; /* how often it went off */
    uint32_t tried_at;  /* n_tokens when it last had rows */
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
    int32_t *guesses; /* [depth], of a look-up at once, else when they are made */
    uint32_t most;    /* guesses that it may have; 0: none */
    uint32_t depth;   /* that it gets */
    uint32_t trial;   /* while they are given out */
    double next;      /* chance that one more after `trial` comes true, and all before it */
} plan_entry;

/* What steps of so many rows take in the mean. */
typedef struct step_costs {
    double mean_ns[MAX_ROWS + 1];
    uint32_t n_seen[MAX_ROWS + 1];
    double ns[MAX_ROWS + 1]; /* filled in between, see learn() */
    bool known;
} step_costs;

struct speculate {
    drafter *drafters[DRAFTER_KINDS];
    uint32_t n_places;
    uint32_t depth;
    bool fixed;
    track *tracks;                  /* [n_places] */
    double share[CLASSES];          /* of all sequences, where a new one begins */
    double guess_ns[DRAFTER_KINDS]; /* of one guess */
    uint32_t n_guessed[DRAFTER_KINDS];
    step_costs cost;
    double row_ns; /* what a row of a guess adds to the step under way */
    /* Of the step under way, [n_places] each; guesses [n_places][cap_depth]. */
    plan_entry *entries;
    drafter_ask *asks;
    int32_t *guesses;
    uint32_t cap_depth;
    double token_ns;     /* what a token takes without guesses */
    uint32_t n_guessing; /* steps with guesses since the last without */
    speculate_stats stats;
};

status speculate_new(speculate **out, drafter *drafters[DRAFTER_KINDS], uint32_t n_places,
                     uint32_t depth, error *err) {
    *out = NULL;
    CHECK(depth > 0 && depth <= SPECULATE_MAX_DEPTH);
    speculate *s = calloc(1, sizeof *s);
    if (s == NULL) {
        for (int k = 0; k < DRAFTER_KINDS; k++)
            if (drafters[k] != NULL) drafters[k]->ops->close(drafters[k]);
        return error_set(err, STATUS_NO_MEMORY, "speculation: no memory");
    }
    memcpy(s->drafters, drafters, sizeof s->drafters);
    s->n_places = n_places;
    s->depth = s->cap_depth = depth;
    s->tracks = calloc(n_places, sizeof *s->tracks);
    s->entries = calloc(n_places, sizeof *s->entries);
    s->asks = calloc(n_places, sizeof *s->asks);
    s->guesses = calloc((size_t)n_places * depth, sizeof *s->guesses);
    if (s->tracks == NULL || s->entries == NULL || s->asks == NULL || s->guesses == NULL) {
        speculate_free(s);
        return error_set(err, STATUS_NO_MEMORY, "speculation: no memory for %u sequences",
                         n_places);
    }
    static const double prior[CLASSES] = {0.5, 0.65, 0.8, 0.9, 0.75, 0.75};
    memcpy(s->share, prior, sizeof s->share);
    *out = s;
    return STATUS_OK;
}

void speculate_free(speculate *s) {
    if (s == NULL) return;
    for (int k = 0; k < DRAFTER_KINDS; k++)
        if (s->drafters[k] != NULL) s->drafters[k]->ops->close(s->drafters[k]);
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

status speculate_measure(speculate *s, error *err) {
    int32_t tokens[2] = {0, 0};
    drafter_kind kind = second_kind(s);
    drafter *d = s->drafters[kind];
    for (int i = 0; d != NULL && i < MEASURED; i++) {
        drafter_ask ask = {.key = UINT64_MAX - (uint64_t)i, /* nobody's */
                           .tokens = tokens,
                           .n_tokens = 2,
                           .depth = s->depth,
                           .guesses = s->guesses};
        uint64_t begun_ns = clock_thread_ns();
        status rc = d->ops->guess(d, &ask, 1, err);
        if (rc != STATUS_OK) return rc;
        if (ask.n_read > 0)
            add_to_mean(&s->guess_ns[kind], s->n_guessed[kind]++,
                        (double)(clock_thread_ns() - begun_ns) / ask.n_read);
    }
    return STATUS_OK;
}

void speculate_fix_depth(speculate *s, uint32_t depth) {
    CHECK(depth <= s->cap_depth);
    s->fixed = true;
    s->depth = depth;
}

/* --- what a step costs --- */

void speculate_note_step(speculate *s, uint32_t n_rows, uint64_t took_ns) {
    step_costs *c = &s->cost;
    if (n_rows == 0 || n_rows > MAX_ROWS) return;
    add_to_mean(&c->mean_ns[n_rows], c->n_seen[n_rows]++, (double)took_ns);
}

static double mean_slope(const step_costs *c, uint32_t first, uint32_t last) {
    double each = c->mean_ns[first] / first;
    if (first == last) return GUESSED_SLOPE * each;
    double slope = (c->mean_ns[last] - c->mean_ns[first]) / (last - first);
    if (slope < 0.02 * each) return 0.02 * each;
    return slope < each ? slope : each;
}

/* Costs of all numbers of rows: between those seen often enough a line, beyond them the mean
 * slope; fewer rows never cost more, nor do rows together more than alone. */
static void learn(step_costs *c) {
    uint32_t first = 0, last = 0;
    for (uint32_t r = 1; r <= MAX_ROWS; r++) {
        if (c->n_seen[r] < ENOUGH) continue;
        if (first == 0) first = r;
        for (uint32_t i = last + 1; i < r && last > 0; i++) {
            double part = (double)(i - last) / (r - last);
            c->ns[i] = c->mean_ns[last] + part * (c->mean_ns[r] - c->mean_ns[last]);
        }
        c->ns[r] = c->mean_ns[r];
        last = r;
    }
    c->known = first > 0;
    if (!c->known) return;
    double slope = mean_slope(c, first, last);
    for (uint32_t r = 1; r < first; r++)
        c->ns[r] = c->mean_ns[first] - slope * (first - r);
    for (uint32_t r = last + 1; r <= MAX_ROWS; r++)
        c->ns[r] = c->mean_ns[last] + slope * (r - last);
    for (uint32_t r = MAX_ROWS - 1; r > 0; r--)
        if (c->ns[r] > c->ns[r + 1]) c->ns[r] = c->ns[r + 1];
    for (uint32_t r = 2; r <= MAX_ROWS; r++)
        if (c->ns[r] > r * c->ns[1]) c->ns[r] = r * c->ns[1];
}

static double step_ns(const speculate *s, size_t n_rows) {
    return s->cost.ns[n_rows < MAX_ROWS ? n_rows : MAX_ROWS];
}

/* --- what guesses are worth --- */

static track *track_of(speculate *s, const sequence *who) {
    track *t = &s->tracks[who->group];
    uint64_t key = who->arrival + 1;
    if (t->key == key) return t;
    *t = (track){.key = key, .n_first = who->n_tokens};
    memcpy(t->share, s->share, sizeof t->share);
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

/* Rows that may stand behind the tokens: the last token needs none after it. */
static uint32_t room_of(const speculate *s, const sequence *who) {
    uint32_t left = who->cap_tokens - who->n_tokens, most = who->n_states - 1;
    if (left > 0) left--;
    if (most > s->depth) most = s->depth;
    return left < most ? left : most;
}

static status look_up(speculate *s, size_t n, error *err) {
    size_t n_asks = 0;
    drafter *d = s->drafters[DRAFTER_LOOKUP];
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        if (e->most == 0 || is_off(s, e->track, DRAFTER_LOOKUP, e->who->n_tokens)) continue;
        s->asks[n_asks++] = ask_for(e, e->most);
    }
    if (n_asks == 0) return STATUS_OK;
    uint64_t begun_ns = clock_thread_ns();
    status rc = d->ops->guess(d, s->asks, n_asks, err);
    s->stats.draft_ns[DRAFTER_LOOKUP] += clock_thread_ns() - begun_ns;
    return rc;
}

/* Who guesses for each entry, and how many it may have. */
static void choose_kinds(speculate *s, size_t n) {
    const drafter_ask *ask = s->asks;
    drafter_kind other = second_kind(s);
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        uint32_t found = 0, n_tokens = e->who->n_tokens;
        if (e->most > 0 && !is_off(s, e->track, DRAFTER_LOOKUP, n_tokens)) {
            found = ask->n_guesses;
            e->track->class = class_of(DRAFTER_LOOKUP, ask->match);
            ask++;
        }
        e->track->kind = DRAFTER_LOOKUP;
        if (found == 0 && !is_off(s, e->track, other, n_tokens)) {
            found = e->most;
            e->track->kind = other;
            e->track->class = class_of(other, 0);
        }
        e->most = found;
    }
}

/* Rows are given to the likeliest guess, whoever's, while tokens for the time grow. */
static void choose_depths(speculate *s, size_t n) {
    size_t rows = n;
    double tokens = (double)n, draft_ns = 0, best = WORTH * tokens / step_ns(s, n);
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
        if (most == NULL) return;
        most->trial++;
        rows++;
        tokens += most->next;
        most->next *= most->track->share[most->track->class];
        draft_ns += s->guess_ns[most->track->kind];
        double rate = tokens / (step_ns(s, rows) + draft_ns);
        if (rate < 0.8 * best) return;
        if (rate < best) continue;
        best = rate;
        for (size_t i = 0; i < n; i++)
            s->entries[i].depth = s->entries[i].trial;
    }
}

/* Whether guesses would pay if they all came true. */
static bool may_pay(const speculate *s, size_t n, drafter_kind kind) {
    double now = (double)n / step_ns(s, n), depth = s->depth;
    double all = (double)n * (1 + depth);
    double ns = step_ns(s, n * (1 + s->depth)) + (all - (double)n) * s->guess_ns[kind];
    double one = (double)(n + 1) / (step_ns(s, n + 1) + s->guess_ns[kind]);
    return all / ns > WORTH * now || one > WORTH * now;
}

/* What is tried whatever is thought of it: all where the depth is fixed, one where what is
 * known is old and a guess may pay at all. */
static void choose_trials(speculate *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        plan_entry *e = &s->entries[i];
        drafter_kind kind = e->track->kind;
        if (s->fixed) e->depth = e->most;
        if (e->depth > 0 || e->most == 0) continue;
        if (is_stale(e->track, kind, e->who->n_tokens) && may_pay(s, n, kind)) e->depth = 1;
    }
}

static void charge(speculate *s, track *t, drafter_kind kind, double ns) {
    if (s->token_ns > 0) t->kinds[kind].balance -= ns / s->token_ns;
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
        e->depth = ask->n_guesses < e->depth ? ask->n_guesses : e->depth;
        ask++;
    }
    return rc;
}

status speculate_guess(speculate *s, sequence *const *who, size_t n, error *err) {
    CHECK(n <= s->n_places);
    learn(&s->cost);
    s->token_ns = n > 0 ? step_ns(s, n) / (double)n : 0;
    for (size_t i = 0; i < n; i++) {
        s->entries[i] = (plan_entry){.who = who[i],
                                     .track = track_of(s, who[i]),
                                     .guesses = s->guesses + i * s->cap_depth,
                                     .most = room_of(s, who[i])};
        who[i]->n_drafted = 0;
    }
    /* Without one step to compare with nothing can be weighed. */
    if (n == 0 || (!s->cost.known && !s->fixed)) return STATUS_OK;
    status rc = look_up(s, n, err);
    if (rc != STATUS_OK) return rc;
    choose_kinds(s, n);
    choose_depths(s, n);
    choose_trials(s, n);
    bool plain = !s->fixed && s->n_guessing >= PLAIN_EVERY;
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
    s->n_guessing = rows > n ? s->n_guessing + 1 : 0;
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
