#include "tests/unit/scheduler_bench.h"

#include <stdlib.h>
#include <string.h>

static uint64_t see(uint64_t state, int32_t token) {
    return state * 6364136223846793005u + (uint64_t)token + 1;
}

static uint64_t state_after(const sequence *who, uint32_t n) {
    uint64_t state = 0;
    for (uint32_t i = 0; i < n; i++)
        state = see(state, who->tokens[i]);
    return state;
}

/* Between the layers of a piece. */
static uint64_t half_state(const sequence *who, uint32_t n_done) {
    return n_done > 0 ? see(state_after(who, who->n_run), (int32_t)n_done + 123456)
                      : state_after(who, who->n_run);
}

static half_piece *rows_of(bench *b, const sequence *who) {
    return &b->rows[sequence_cut_place(who)];
}

/* --- the memory's double --- */

static bool park(void *context, const sequence *from, sequence *who) {
    bench *b = context;
    if (b->n_parked >= b->n_park_limit) return false;
    parked *p = calloc(1, sizeof *p);
    assert_non_null(p);
    assert_null(who->parked);
    p->n_run = from->n_run;
    p->state = b->states[from->state];
    if (sequence_is_cut(from)) p->half = *rows_of(b, from);
    for (uint32_t i = 0; i < sequence_n_begun(from); i++)
        p->tokens[i] = b->page[from->pages[i / MODEL_PAGE_TOKENS]][i % MODEL_PAGE_TOKENS];
    who->parked = p;
    b->n_parked++;
    return true;
}

static void forget(void *context, sequence *who) {
    bench *b = context;
    free(who->parked);
    b->n_parked--;
}

static void unpark(void *context, sequence *who) {
    bench *b = context;
    const parked *p = who->parked;
    assert_int_equal(who->n_run, p->n_run);
    b->states[who->state] = p->state;
    if (sequence_is_cut(who)) {
        *rows_of(b, who) = p->half;
        b->n_halves_restored++;
    }
    for (uint32_t i = 0; i < sequence_n_begun(who); i++)
        b->page[who->pages[i / MODEL_PAGE_TOKENS]][i % MODEL_PAGE_TOKENS] = p->tokens[i];
    b->n_restored++;
    forget(context, who);
}

static void copy(void *context, const sequence *from, const sequence *to, uint32_t from_page,
                 uint32_t to_page) {
    bench *b = context;
    b->states[to->state] = b->states[from->state];
    b->n_shared_states++;
    if (from_page != to_page) memcpy(b->page[to_page], b->page[from_page], sizeof b->page[0]);
}

/* --- the cache's double --- */

static entry *best_entry(bench *b, const sequence *who) {
    entry *best = NULL;
    for (size_t i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &b->entries[i];
        if (e->n_tokens == 0 || e->n_tokens >= who->n_prompt) continue;
        if (memcmp(e->of->tokens, who->tokens, e->n_tokens * sizeof *who->tokens) != 0)
            continue;
        if (best == NULL || e->n_tokens > best->n_tokens) best = e;
    }
    if (best != NULL) best->used = ++b->clock;
    return best;
}

static uint32_t cache_find(void *context, const sequence *who) {
    const entry *e = best_entry(context, who);
    return e != NULL && !e->moved_out ? e->n_tokens : 0;
}

/* Its pages back, in free ones; false when there are too few. */
static bool bring_back(bench *b, entry *e) {
    uint32_t n = e->n_tokens / MODEL_PAGE_TOKENS;
    if (kv_pages_available(b->pages) < n) return false;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(kv_pages_take(b->pages, &e->pages[i]));
        memcpy(b->page[e->pages[i]], e->of->tokens + (size_t)i * MODEL_PAGE_TOKENS,
               sizeof b->page[0]);
    }
    e->moved_out = false;
    return true;
}

static uint32_t cache_begin(void *context, sequence *who) {
    bench *b = context;
    entry *e = best_entry(b, who);
    assert_int_equal(who->n_pages, 0);
    if (e == NULL || (e->moved_out && !bring_back(b, e))) return 0;
    for (uint32_t i = 0; i < e->n_tokens / MODEL_PAGE_TOKENS; i++) {
        kv_pages_share(b->pages, e->pages[i]);
        who->pages[who->n_pages++] = e->pages[i];
    }
    b->states[who->state] = e->state;
    b->n_begun++;
    return e->n_tokens;
}

static void drop_entry(bench *b, entry *e) {
    if (e->moved_out) return;
    for (uint32_t i = 0; i < e->n_tokens / MODEL_PAGE_TOKENS; i++)
        kv_pages_release(b->pages, e->pages[i]);
    e->moved_out = b->moves_out;
    if (!b->moves_out) e->n_tokens = 0;
}

static void cache_at_stop(void *context, sequence *who) {
    bench *b = context;
    b->n_stopped++;
    for (size_t i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &b->entries[i];
        if (e->n_tokens != 0) continue;
        *e = (entry){.of = who, .n_tokens = who->n_run, .state = b->states[who->state]};
        e->used = ++b->clock;
        assert_int_equal(who->n_run % MODEL_PAGE_TOKENS, 0);
        for (uint32_t j = 0; j < e->n_tokens / MODEL_PAGE_TOKENS; j++) {
            e->pages[j] = who->pages[j];
            kv_pages_share(b->pages, e->pages[j]);
        }
        return;
    }
}

static void cache_reclaim(void *context, uint32_t n) {
    bench *b = context;
    uint32_t wanted = kv_pages_available(b->pages) + n;
    while (kv_pages_available(b->pages) < wanted) {
        entry *oldest = NULL;
        for (size_t i = 0; i < MAX_ENTRIES; i++) {
            entry *e = &b->entries[i];
            if (e->n_tokens == 0 || e->moved_out) continue;
            if (oldest == NULL || e->used < oldest->used) oldest = e;
        }
        if (oldest == NULL) return;
        drop_entry(b, oldest);
    }
}

/* --- the bench --- */

void bench_open(bench *b, const bench_shape *shape) {
    error err = {0};
    memset(b, 0, sizeof *b);
    b->n_sequences = shape->n_sequences;
    b->n_states_each = shape->n_states_each > 0 ? shape->n_states_each : 1;
    b->chunk_tokens = shape->chunk_tokens;
    b->n_park_limit = shape->n_park;
    b->n_layers = shape->n_layers;
    b->piece_ms = shape->piece_ms;
    b->row_ms = shape->row_ms;
    b->deep_ms = shape->deep_ms;
    assert_true(shape->n_pages <= MAX_PAGES);
    assert_true(b->n_sequences * b->n_states_each <= MAX_STATES);
    assert_int_equal(kv_pages_new(&b->pages, shape->n_pages, &err), STATUS_OK);
    scheduler_params p = {
        .pages = b->pages,
        .n_sequences = shape->n_sequences,
        .states_per_sequence = b->n_states_each,
        .chunk_tokens = shape->chunk_tokens,
        .max_waiting = shape->max_waiting,
        .max_step_ms = shape->max_step_ms,
        .n_layers = shape->n_layers,
        .memory = {
            .context = b, .park = park, .unpark = unpark, .forget = forget, .copy = copy}};
    if (shape->has_cache) {
        p.cache = (scheduler_cache){b, cache_find, cache_begin, cache_at_stop, cache_reclaim};
    }
    assert_int_equal(scheduler_new(&b->scheduler, &p, &err), STATUS_OK);
}

void bench_close(bench *b) {
    for (uint32_t i = 0; i < b->n; i++)
        scheduler_remove(b->scheduler, &b->sequences[i]);
    for (size_t i = 0; i < MAX_ENTRIES; i++)
        drop_entry(b, &b->entries[i]);
    for (uint32_t i = 0; i < b->n; i++)
        sequence_release(&b->sequences[i]);
    assert_int_equal(b->n_parked, 0);
    assert_int_equal(kv_pages_available(b->pages), kv_pages_total(b->pages));
    assert_int_equal(scheduler_n_free(b->scheduler), b->n_sequences);
    scheduler_free(b->scheduler);
    kv_pages_free(b->pages);
}

sequence *bench_add_text(bench *b, int32_t text, uint32_t n_prompt, uint32_t n_output,
                         uint32_t priority) {
    int32_t prompt[4096];
    error err = {0};
    sequence *who = &b->sequences[b->n];
    assert_true(n_prompt + n_output <= 4096 && b->n < MAX_SEQUENCES);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = text * 10000 + (int32_t)i;
    assert_int_equal(sequence_init(who, prompt, n_prompt, n_prompt + n_output, &err),
                     STATUS_OK);
    who->priority = priority;
    b->limits[b->n++] = n_prompt + n_output;
    return who;
}

sequence *bench_add(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    return bench_add_text(b, (int32_t)b->n, n_prompt, n_output, priority);
}

sequence *bench_submit(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    sequence *who = bench_add(b, n_prompt, n_output, priority);
    assert_true(scheduler_submit(b->scheduler, who));
    return who;
}

void bench_cancel(bench *b, sequence *who) {
    if (who->phase != SEQUENCE_IDLE) b->n_over++;
    b->limits[who - b->sequences] = 0;
    scheduler_remove(b->scheduler, who);
}

void bench_assert_invariants(const bench *b) {
    uint32_t owners[MAX_PAGES] = {0};
    bool group_taken[MAX_STATES] = {false}, place_taken[SEQUENCE_CUT_PLACES] = {false};
    uint32_t n_held = 0, n_running = 0, n_waiting = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const sequence *who = &b->sequences[i];
        n_waiting += who->phase == SEQUENCE_WAITING;
        if (who->phase != SEQUENCE_RUNNING) {
            assert_int_equal(who->n_pages, 0);
            assert_true(sequence_n_begun(who) == 0 || who->parked != NULL);
            continue;
        }
        if (sequence_is_cut(who)) {
            assert_false(place_taken[sequence_cut_place(who)]);
            place_taken[sequence_cut_place(who)] = true;
        }
        n_running++;
        assert_true(who->group < b->n_sequences && !group_taken[who->group]);
        group_taken[who->group] = true;
        assert_int_equal(who->n_states, b->n_states_each);
        for (uint32_t j = 0; j < who->n_states; j++)
            assert_int_equal(who->states[j], who->group * b->n_states_each + j);
        assert_true(who->n_pages * MODEL_PAGE_TOKENS >= sequence_n_begun(who));
        for (uint32_t j = 0; j < who->n_pages; j++)
            owners[who->pages[j]]++;
    }
    for (size_t i = 0; i < MAX_ENTRIES; i++) {
        const entry *e = &b->entries[i];
        for (uint32_t j = 0; !e->moved_out && j < e->n_tokens / MODEL_PAGE_TOKENS; j++)
            owners[e->pages[j]]++;
    }
    for (uint32_t i = 0; i < kv_pages_total(b->pages); i++) {
        assert_int_equal(kv_pages_owners(b->pages, i), owners[i]);
        n_held += owners[i] > 0;
    }
    assert_int_equal(kv_pages_total(b->pages) - kv_pages_available(b->pages), n_held);
    assert_int_equal(scheduler_n_running(b->scheduler), n_running);
    assert_int_equal(scheduler_n_waiting(b->scheduler), n_waiting);
    assert_int_equal(scheduler_n_free(b->scheduler), b->n_sequences - n_running);
}

static void assert_piece(const bench *b, const scheduler_piece *piece) {
    const sequence *who = piece->who;
    uint32_t end = who->n_run + piece->n_tokens;
    assert_int_equal(who->phase, SEQUENCE_RUNNING);
    assert_true(piece->n_tokens > piece->n_drafted && end <= who->n_tokens + who->n_drafted);
    assert_true(who->n_pages * MODEL_PAGE_TOKENS >= end);
    assert_int_equal(piece->wants_logits, end - piece->n_drafted == who->n_tokens);
    for (uint32_t i = who->n_run / MODEL_PAGE_TOKENS; i * MODEL_PAGE_TOKENS < end; i++)
        assert_int_equal(kv_pages_owners(b->pages, who->pages[i]), 1);
    if (who->n_run < who->n_prompt) {
        assert_int_equal(who->n_run % MODEL_CHUNK_TOKENS, 0);
        assert_true(end == who->n_prompt || end % MODEL_CHUNK_TOKENS == 0);
        assert_true(piece->n_tokens <= b->chunk_tokens);
        for (uint32_t i = 0; i < who->n_stops; i++)
            assert_true(who->stops[i] <= who->n_run || who->stops[i] >= end);
    } else {
        assert_int_equal(piece->n_tokens, 1 + piece->n_drafted);
        assert_int_equal(piece->n_drafted, who->n_drafted);
    }
}

/* What the model would do: look at all that went before, add to it. */
static void run_piece(bench *b, const scheduler_piece *piece) {
    const sequence *who = piece->who;
    uint64_t *state = &b->states[who->state];
    if (who->n_run == 0) *state = 0;
    assert_true(*state == state_after(who, who->n_run));
    for (uint32_t i = 0; i < who->n_run + piece->n_tokens; i++) {
        int32_t *at = &b->page[who->pages[i / MODEL_PAGE_TOKENS]][i % MODEL_PAGE_TOKENS];
        if (i < who->n_run) {
            assert_int_equal(*at, who->tokens[i]);
            continue;
        }
        *at = who->tokens[i];
        if (i < who->n_run + piece->n_tokens - piece->n_drafted) *state = see(*state, *at);
    }
}

/* A token for who, and for those that wait for the same prompt. */
static void take_token(bench *b, sequence *who) {
    for (uint32_t i = 0; i < b->n; i++) {
        sequence *other = &b->sequences[i];
        if (other->leader != who || who->n_run != who->n_prompt) continue;
        if (!scheduler_fork(b->scheduler, who, other)) continue;
        bench_assert_invariants(b);
        assert_int_equal(other->n_run, who->n_prompt);
        take_token(b, other);
    }
    if (sequence_append(who, 7 + (int32_t)(who - b->sequences))) return;
    scheduler_remove(b->scheduler, who);
    b->n_over++;
}

void bench_guess_some(bench *b, uint64_t dice) {
    for (uint32_t i = 0; i < b->n; i++) {
        sequence *who = &b->sequences[i];
        if (who->phase != SEQUENCE_RUNNING || who->n_run + 1 != who->n_tokens) continue;
        uint32_t room = who->cap_tokens - who->n_tokens,
                 wish = (uint32_t)(dice >> (i % 32)) % 5;
        who->n_drafted = wish < room ? wish : room;
        for (uint32_t j = 0; j < who->n_drafted; j++)
            who->tokens[who->n_tokens + j] = 99;
    }
}

static void take_piece(bench *b, const scheduler_piece *piece) {
    sequence *who = piece->who;
    scheduler_advance(b->scheduler, who, piece->n_tokens - piece->n_drafted);
    who->n_drafted = 0; /* none of them was right */
    if (piece->wants_logits) take_token(b, who);
}

/* Layers run in order, each once; the rows and what the piece has written are those of the layers
 * before. */
static void run_slice(bench *b, const scheduler_slice *slice) {
    const sequence *who = slice->piece.who;
    half_piece *rows = rows_of(b, who);
    uint32_t first = slice->first_layer, n_tokens = slice->piece.n_tokens;
    uint64_t *state = &b->states[who->state];
    assert_piece(b, &slice->piece);
    assert_true(slice->end_layer > first && slice->end_layer <= b->n_layers);
    b->sliced = who;
    b->n_slice_layers = slice->end_layer - first;
    b->n_slice_tokens = n_tokens;
    if (first == 0) {
        if (who->n_run == 0) *state = 0;
        *rows = (half_piece){.who = who, .n_tokens = n_tokens};
    }
    assert_ptr_equal(rows->who, who);
    assert_int_equal(rows->n_done, first);
    assert_int_equal(rows->n_tokens, n_tokens);
    assert_true(*state == half_state(who, first));
    for (uint32_t i = who->n_run; i < who->n_run + n_tokens; i++) {
        int32_t *at = &b->page[who->pages[i / MODEL_PAGE_TOKENS]][i % MODEL_PAGE_TOKENS];
        if (first > 0) assert_int_equal(*at, who->tokens[i]);
        *at = who->tokens[i];
    }
    double row_ms = b->row_ms + b->deep_ms * who->n_run;
    rows->n_done = slice->end_layer;
    *state = half_state(who, rows->n_done);
    if (rows->n_done == b->n_layers) {
        *state = state_after(who, who->n_run);
        run_piece(b, &slice->piece);
        memset(rows, 0, sizeof *rows);
        take_piece(b, &slice->piece);
    }
    double took_ms = (b->piece_ms + row_ms * n_tokens) * b->n_slice_layers / b->n_layers;
    b->step_ms += took_ms;
    scheduler_note_slice(b->scheduler, (uint64_t)(took_ms * 1e6));
}

size_t bench_step_of(bench *b, uint32_t *n_prompt_tokens) {
    scheduler_piece pieces[MAX_STATES];
    scheduler_slice slice;
    size_t n = scheduler_plan(b->scheduler, pieces, &slice);
    uint32_t n_tokens = 0;
    double deep_ms = 0;
    assert_true(n <= b->n_sequences);
    if (slice.piece.who != NULL) assert_true(sequence_is_cut(slice.piece.who));
    bench_assert_invariants(b);
    for (size_t i = 0; i < n; i++) {
        assert_piece(b, &pieces[i]);
        for (size_t j = 0; j < i; j++)
            assert_ptr_not_equal(pieces[i].who, pieces[j].who);
        if (pieces[i].who->n_run >= pieces[i].who->n_prompt) continue;
        n_tokens += pieces[i].n_tokens;
        deep_ms += b->deep_ms * pieces[i].n_tokens * pieces[i].who->n_run;
    }
    assert_true(n_tokens <= b->chunk_tokens);
    for (size_t i = 0; i < n; i++)
        run_piece(b, &pieces[i]);
    for (size_t i = 0; i < n; i++)
        take_piece(b, &pieces[i]);
    bool takes_time = b->piece_ms + b->row_ms > 0;
    b->step_ms = n == 0 ? 0 : 5 + deep_ms + b->row_ms * n_tokens;
    if (n_tokens > 0) b->step_ms += b->piece_ms;
    if (takes_time && n > 0) scheduler_note_time(b->scheduler, (uint64_t)(b->step_ms * 1e6));
    b->n_slice_layers = b->n_slice_tokens = 0;
    b->sliced = NULL;
    if (slice.piece.who != NULL && sequence_is_cut(slice.piece.who)) run_slice(b, &slice);
    bench_assert_invariants(b);
    if (n_prompt_tokens != NULL) *n_prompt_tokens = n_tokens;
    return n + (slice.piece.who != NULL);
}

size_t bench_step(bench *b) {
    return bench_step_of(b, NULL);
}

void bench_run_to_the_end(bench *b, uint32_t max_steps) {
    for (uint32_t i = 0; i < max_steps; i++) {
        if (bench_step(b) == 0) break;
    }
    assert_int_equal(b->n_over, b->n);
    for (uint32_t i = 0; i < b->n; i++)
        assert_int_equal(b->sequences[i].n_tokens, b->limits[i]);
}
