/* test_scheduler.c - pages and states are never mixed up or lost, and everyone comes to an end.
 *
 * The model is a double: a state is a number made of the tokens that it has seen, a page holds
 * its tokens.  A step checks both before it adds to them, so a wrong copy, a page written while
 * it is shared or a place resumed wrongly is seen at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/model/model.h"
#include "worker/scheduler.h"
#include "worker/step_cost.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_STATES = 16, MAX_SEQUENCES = 64, MAX_PAGES = 512, MAX_ENTRIES = 32 };

/* What the double of a cache knows of a prompt. */
typedef struct entry {
    const sequence *of; /* whose tokens */
    uint32_t n_tokens;  /* 0: no entry */
    uint64_t state;
    uint32_t pages[MAX_PAGES];
    bool moved_out; /* its pages had to make room: they are elsewhere */
    uint64_t used;
} entry;

typedef struct parked {
    uint32_t n_run;
    uint64_t state;
    int32_t tokens[4096];
} parked;

typedef struct bench {
    kv_pages *pages;
    scheduler *scheduler;
    uint32_t n_sequences, n_states_each;
    uint32_t chunk_tokens;
    uint64_t states[MAX_STATES]; /* of the model */
    int32_t page[MAX_PAGES][MODEL_PAGE_TOKENS];
    sequence sequences[MAX_SEQUENCES];
    uint32_t limits[MAX_SEQUENCES]; /* tokens at which a sequence ends */
    uint32_t n;
    uint32_t n_over;
    uint32_t n_parked, n_restored, n_park_limit;
    uint32_t n_shared_states; /* copies of states by forks */
    entry entries[MAX_ENTRIES];
    uint64_t clock;
    uint32_t n_begun, n_stopped;
    bool moves_out; /* the cache, what makes room; else it forgets that */
} bench;

static uint64_t see(uint64_t state, int32_t token) {
    return state * 6364136223846793005u + (uint64_t)token + 1;
}

static uint64_t state_after(const sequence *who, uint32_t n) {
    uint64_t state = 0;
    for (uint32_t i = 0; i < n; i++)
        state = see(state, who->tokens[i]);
    return state;
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
    for (uint32_t i = 0; i < from->n_run; i++)
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
    for (uint32_t i = 0; i < p->n_run; i++)
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

typedef struct bench_shape {
    uint32_t n_pages, n_sequences, chunk_tokens, max_waiting;
    uint32_t n_states_each; /* 0: one */
    uint32_t max_step_ms;
    uint32_t n_park; /* places for parked ones */
    bool has_cache;
} bench_shape;

static void open_bench(bench *b, const bench_shape *shape) {
    error err = {0};
    memset(b, 0, sizeof *b);
    b->n_sequences = shape->n_sequences;
    b->n_states_each = shape->n_states_each > 0 ? shape->n_states_each : 1;
    b->chunk_tokens = shape->chunk_tokens;
    b->n_park_limit = shape->n_park;
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
        .memory = {
            .context = b, .park = park, .unpark = unpark, .forget = forget, .copy = copy}};
    if (shape->has_cache) {
        p.cache = (scheduler_cache){b, cache_find, cache_begin, cache_at_stop, cache_reclaim};
    }
    assert_int_equal(scheduler_new(&b->scheduler, &p, &err), STATUS_OK);
}

static void close_bench(bench *b) {
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

/* text: which prompt; the same ones begin alike. */
static sequence *add_text(bench *b, int32_t text, uint32_t n_prompt, uint32_t n_output,
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

static sequence *add(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    return add_text(b, (int32_t)b->n, n_prompt, n_output, priority);
}

static sequence *submit(bench *b, uint32_t n_prompt, uint32_t n_output, uint32_t priority) {
    sequence *who = add(b, n_prompt, n_output, priority);
    assert_true(scheduler_submit(b->scheduler, who));
    return who;
}

/* Every page has as many owners as hold it, no state has two, and who runs has pages for what
 * it has run, and alone those that are written next. */
static void assert_invariants(const bench *b) {
    uint32_t owners[MAX_PAGES] = {0};
    bool group_taken[MAX_STATES] = {false};
    uint32_t n_held = 0, n_running = 0, n_waiting = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const sequence *who = &b->sequences[i];
        n_waiting += who->phase == SEQUENCE_WAITING;
        if (who->phase != SEQUENCE_RUNNING) {
            assert_int_equal(who->n_pages, 0);
            assert_true(who->n_run == 0 || who->parked != NULL);
            continue;
        }
        n_running++;
        assert_true(who->group < b->n_sequences && !group_taken[who->group]);
        group_taken[who->group] = true;
        assert_int_equal(who->n_states, b->n_states_each);
        for (uint32_t j = 0; j < who->n_states; j++)
            assert_int_equal(who->states[j], who->group * b->n_states_each + j);
        assert_true(who->n_pages * MODEL_PAGE_TOKENS >= who->n_run);
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
        assert_invariants(b);
        assert_int_equal(other->n_run, who->n_prompt);
        take_token(b, other);
    }
    if (sequence_append(who, 7 + (int32_t)(who - b->sequences))) return;
    scheduler_remove(b->scheduler, who);
    b->n_over++;
}

/* Guesses behind the last token of whoever decodes and has room for them; all are wrong. */
static void guess_some(bench *b, uint64_t dice) {
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

/* One step, checked before and after.  Returns the number of pieces; n_prompt_tokens may be
 * NULL. */
static size_t step_of(bench *b, uint32_t *n_prompt_tokens) {
    scheduler_piece pieces[MAX_STATES];
    size_t n = scheduler_plan(b->scheduler, pieces);
    uint32_t n_tokens = 0;
    assert_true(n <= b->n_sequences);
    assert_invariants(b);
    for (size_t i = 0; i < n; i++) {
        assert_piece(b, &pieces[i]);
        for (size_t j = 0; j < i; j++)
            assert_ptr_not_equal(pieces[i].who, pieces[j].who);
        if (pieces[i].who->n_run < pieces[i].who->n_prompt) n_tokens += pieces[i].n_tokens;
    }
    assert_true(n_tokens <= b->chunk_tokens);
    for (size_t i = 0; i < n; i++)
        run_piece(b, &pieces[i]);
    for (size_t i = 0; i < n; i++) {
        sequence *who = pieces[i].who;
        scheduler_advance(b->scheduler, who, pieces[i].n_tokens - pieces[i].n_drafted);
        who->n_drafted = 0; /* none of them was right */
        if (pieces[i].wants_logits) take_token(b, who);
    }
    assert_invariants(b);
    if (n_prompt_tokens != NULL) *n_prompt_tokens = n_tokens;
    return n;
}

static size_t step(bench *b) {
    return step_of(b, NULL);
}

static void run_to_the_end(bench *b, uint32_t max_steps) {
    for (uint32_t i = 0; i < max_steps; i++) {
        if (step(b) == 0) break;
    }
    assert_int_equal(b->n_over, b->n);
    for (uint32_t i = 0; i < b->n; i++)
        assert_int_equal(b->sequences[i].n_tokens, b->limits[i]);
}

static void a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 20, .n_sequences = 1, .chunk_tokens = 128, .max_waiting = 4});
    sequence *who = submit(&b, 300, 2, 0);
    const uint32_t after[] = {128, 256, 300, 301, 302};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(step(&b), 1);
        if (i < 4) assert_int_equal(who->n_run, after[i]);
    }
    assert_int_equal(b.n_over, 1);
    close_bench(&b);
}

static void prompts_share_a_step_and_decodes_go_on_beside_them(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 64, .n_sequences = 4, .chunk_tokens = 256, .max_waiting = 8});
    sequence *first = submit(&b, 40, 50, 0);
    assert_int_equal(step(&b), 1);
    sequence *second = submit(&b, 150, 5, 0), *third = submit(&b, 500, 5, 0);
    assert_int_equal(step(&b), 3);
    assert_int_equal(first->n_run, 41);
    assert_int_equal(second->n_run, 150);
    assert_int_equal(third->n_run, 64); /* of the 106 left, whole chunks */
    run_to_the_end(&b, 200);
    close_bench(&b);
}

static void interactive_comes_before_background(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 64, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 8});
    sequence *running = submit(&b, 10, 3, 0);
    (void)step(&b);
    sequence *late = submit(&b, 10, 3, 1), *soon = submit(&b, 10, 3, 0);
    assert_int_equal(running->phase, SEQUENCE_RUNNING);
    while (running->phase == SEQUENCE_RUNNING)
        (void)step(&b);
    (void)step(&b);
    assert_int_equal(soon->phase, SEQUENCE_RUNNING);
    assert_int_equal(late->phase, SEQUENCE_WAITING);
    run_to_the_end(&b, 50);
    close_bench(&b);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 8, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 2});
    (void)submit(&b, 10, 3, 0);
    (void)submit(&b, 10, 3, 0);
    assert_true(scheduler_has_room(b.scheduler, 0));
    assert_false(scheduler_has_room(b.scheduler, 1));
    sequence *third = add(&b, 10, 3, 0);
    assert_false(scheduler_submit(b.scheduler, third));
    assert_int_equal(third->phase, SEQUENCE_IDLE);
    (void)step(&b);
    assert_true(scheduler_submit(b.scheduler, third));
    run_to_the_end(&b, 50);
    close_bench(&b);
}

static void without_pages_the_youngest_waits_again_and_all_end(void **state) {
    (void)state;
    bench b;
    open_bench(
        &b, &(bench_shape){.n_pages = 9,
                           .n_sequences = 4,
                           .chunk_tokens = 64,
                           .max_waiting = 16}); /* one sequence of 500 tokens takes 8 pages */
    sequence *first = submit(&b, 60, 440, 0);
    for (int i = 0; i < 3; i++)
        (void)submit(&b, 60, 440, 0);
    for (int i = 0; i < 6; i++)
        (void)step(&b);
    assert_true(scheduler_n_running(b.scheduler) > 1);
    run_to_the_end(&b, 20000);
    uint32_t n_preempted = 0;
    for (uint32_t i = 0; i < b.n; i++)
        n_preempted += b.sequences[i].n_preempted;
    assert_true(n_preempted > 0);
    assert_int_equal(first->n_preempted, 0);
    close_bench(&b);
}

static void a_sequence_of_all_pages_runs_alone(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 4, .n_sequences = 4, .chunk_tokens = 64, .max_waiting = 16});
    (void)submit(&b, 200, 56, 0); /* 256 tokens: all four pages */
    (void)submit(&b, 20, 20, 0);
    run_to_the_end(&b, 500);
    close_bench(&b);
}

static void removing_at_any_point_frees_at_once(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 16, .n_sequences = 2, .chunk_tokens = 64, .max_waiting = 8});
    sequence *waiting = NULL;
    for (int i = 0; i < 3; i++)
        waiting = submit(&b, 130, 20, 0);
    (void)step(&b);
    scheduler_remove(b.scheduler, &b.sequences[0]); /* in the middle of its prompt */
    assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting);
    assert_invariants(&b);
    scheduler_remove(b.scheduler, waiting); /* a second time changes nothing */
    for (int i = 0; i < 6; i++)
        (void)step(&b);
    scheduler_remove(b.scheduler, &b.sequences[1]); /* while it decodes */
    assert_int_equal(kv_pages_available(b.pages), 16);
    assert_int_equal(step(&b), 0);
    close_bench(&b);
}

static void a_piece_ends_where_someone_wants_to_look(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 20,
                                  .n_sequences = 1,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *who = add(&b, 500, 1, 0);
    assert_true(sequence_add_stop(who, 320));
    assert_true(sequence_add_stop(who, 64));
    assert_true(sequence_add_stop(who, 320)); /* it is there already */
    assert_false(sequence_add_stop(who, 0));
    assert_false(sequence_add_stop(who, 100));
    assert_false(sequence_add_stop(who, 512)); /* behind the prompt */
    assert_int_equal(who->n_stops, 2);
    assert_true(scheduler_submit(b.scheduler, who));
    const uint32_t after[] = {64, 320, 500};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(step(&b), 1);
        assert_int_equal(who->n_run, after[i]);
    }
    assert_int_equal(b.n_stopped, 2);
    run_to_the_end(&b, 5);
    close_bench(&b);
}

static void stops_are_bounded_and_ascend(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 1, .n_sequences = 1, .chunk_tokens = 64, .max_waiting = 1});
    sequence *who = add(&b, 4096, 0, 0);
    uint32_t n_taken = 0;
    for (uint32_t i = 64; i > 0; i--)
        n_taken += sequence_add_stop(who, 64 * (i * 37 % 64 + 1));
    assert_int_equal(n_taken, SEQUENCE_MAX_STOPS);
    for (uint32_t i = 0; i < SEQUENCE_MAX_STOPS; i++)
        assert_int_equal(who->stops[i], 64 * (i + 1));
    close_bench(&b);
}

static void a_prompt_that_the_cache_knows_begins_behind_it(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 12,
                                  .n_sequences = 2,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *first = add_text(&b, 3, 300, 4, 0);
    assert_true(sequence_add_stop(first, 256));
    assert_true(scheduler_submit(b.scheduler, first));
    (void)step(&b);
    (void)step(&b);
    sequence *second = add_text(&b, 3, 400, 4, 0);
    assert_true(scheduler_submit(b.scheduler, second));
    (void)step(&b);
    assert_int_equal(b.n_begun, 1);
    assert_int_equal(second->n_run, 400); /* 7 pages, with 5 of the first: 4 are shared */
    run_to_the_end(&b, 20);
    assert_int_equal(kv_pages_available(b.pages), 8);
    sequence *third = submit(&b, 700, 4, 0); /* the cache has to give way */
    run_to_the_end(&b, 20);
    assert_int_equal(third->n_preempted, 0);
    assert_int_equal(b.entries[0].n_tokens, 0);
    close_bench(&b);
}

/* What it would begin from made room for it, so that there is too little room after all. */
static void nobody_begins_in_the_room_of_its_own_beginning(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 12,
                                  .n_sequences = 2,
                                  .chunk_tokens = 512,
                                  .max_waiting = 4,
                                  .has_cache = true});
    b.moves_out = true;
    sequence *first = add_text(&b, 3, 300, 1, 0);
    assert_true(sequence_add_stop(first, 256)); /* 4 pages */
    assert_true(scheduler_submit(b.scheduler, first));
    run_to_the_end(&b, 20);
    sequence *other = submit(&b, 350, 30, 0); /* 6 pages */
    (void)step(&b);
    sequence *second = add_text(&b, 3, 400, 4, 0); /* 7 pages */
    assert_true(scheduler_submit(b.scheduler, second));
    while (other->phase == SEQUENCE_RUNNING) {
        (void)step(&b);
        if (other->phase == SEQUENCE_RUNNING) assert_int_equal(b.n_begun, 0);
    }
    run_to_the_end(&b, 20);
    assert_int_equal(b.n_begun, 1);
    close_bench(&b);
}

static void a_sequence_whose_rows_are_all_wanted_runs_from_its_beginning(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 16,
                                  .n_sequences = 2,
                                  .chunk_tokens = 256,
                                  .max_waiting = 4,
                                  .has_cache = true});
    sequence *first = add_text(&b, 3, 300, 4, 0);
    assert_true(sequence_add_stop(first, 256));
    assert_true(scheduler_submit(b.scheduler, first));
    (void)step(&b);
    (void)step(&b);
    sequence *second = add_text(&b, 3, 400, 4, 0);
    second->runs_whole = true;
    assert_true(scheduler_submit(b.scheduler, second));
    (void)step(&b);
    assert_int_equal(b.n_begun, 0);
    assert_int_equal(second->n_run, 256);
    run_to_the_end(&b, 20);
    close_bench(&b);
}

static void guesses_get_pages_while_there_are_some(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 4,
                                  .n_sequences = 2,
                                  .chunk_tokens = 64,
                                  .max_waiting = 4,
                                  .n_states_each = 5});
    sequence *who = submit(&b, 63, 193, 0);
    (void)step(&b);
    for (uint32_t n = who->n_tokens; who->phase == SEQUENCE_RUNNING; n++) {
        uint32_t room = who->cap_tokens - who->n_tokens;
        who->n_drafted = room < 4 ? room : 4;
        for (uint32_t i = 0; i < who->n_drafted; i++)
            who->tokens[who->n_tokens + i] = 99;
        assert_int_equal(step(&b), 1);
        if (who->phase == SEQUENCE_RUNNING) assert_int_equal(who->n_tokens, n + 1);
    }
    run_to_the_end(&b, 1);
    sequence *long_one = submit(&b, 128, 20, 0), *other = submit(&b, 60, 10, 0);
    (void)step(&b);
    while (other->n_run < 61)
        (void)step(&b);
    assert_int_equal(kv_pages_available(b.pages), 0);
    other->n_drafted = 4; /* they would need a page, and nobody gives up one for them */
    (void)step(&b);
    assert_int_equal(other->n_run, 62);
    assert_int_equal(long_one->n_preempted + other->n_preempted, 0);
    run_to_the_end(&b, 50);
    close_bench(&b);
}

static void background_gives_way_and_goes_on_where_it_was(void **state) {
    (void)state;
    for (uint32_t n_park = 0; n_park < 2; n_park++) {
        bench b;
        open_bench(&b, &(bench_shape){.n_pages = 40,
                                      .n_sequences = 2,
                                      .chunk_tokens = 64,
                                      .max_waiting = 8,
                                      .n_park = n_park});
        sequence *old = submit(&b, 200, 30, 1), *young = submit(&b, 100, 30, 1);
        for (int i = 0; i < 12; i++)
            (void)step(&b);
        uint32_t n_run = young->n_run;
        assert_true(n_run > 100);
        sequence *user = submit(&b, 50, 5, 0);
        (void)step(&b);
        assert_int_equal(user->n_run, 50);
        assert_int_equal(old->phase, SEQUENCE_RUNNING);
        assert_int_equal(young->phase, SEQUENCE_WAITING);
        assert_int_equal(young->n_run, n_park > 0 ? n_run : 0);
        run_to_the_end(&b, 200);
        assert_int_equal(young->n_preempted, 1);
        assert_int_equal(b.n_restored, n_park);
        close_bench(&b);
    }
}

static void background_never_displaces_and_interactive_never_its_like(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 1,
                                  .chunk_tokens = 64,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *user = submit(&b, 50, 20, 0);
    (void)step(&b);
    sequence *second = submit(&b, 50, 5, 0), *background = submit(&b, 50, 5, 1);
    (void)step(&b);
    assert_int_equal(user->n_preempted, 0);
    assert_int_equal(second->phase, SEQUENCE_WAITING);
    assert_int_equal(background->phase, SEQUENCE_WAITING);
    run_to_the_end(&b, 100);
    close_bench(&b);
}

static void nobody_is_displaced_for_one_that_does_not_fit_then(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 4,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *user = submit(&b, 250, 20, 0), *background = submit(&b, 100, 20, 1);
    (void)step(&b);
    sequence *large = submit(&b, 400, 20, 0); /* 7 pages, and 5 are the user's */
    (void)step(&b);
    assert_int_equal(background->n_preempted, 0);
    assert_int_equal(large->phase, SEQUENCE_WAITING);
    run_to_the_end(&b, 100);
    assert_int_equal(user->n_preempted, 0);
    close_bench(&b);
}

static void removing_one_that_is_parked_frees_its_place(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 10,
                                  .n_sequences = 1,
                                  .chunk_tokens = 64,
                                  .max_waiting = 8,
                                  .n_park = 4});
    sequence *background = submit(&b, 50, 20, 1);
    (void)step(&b);
    (void)submit(&b, 50, 5, 0);
    (void)step(&b);
    assert_int_equal(b.n_parked, 1);
    scheduler_remove(b.scheduler, background);
    assert_int_equal(b.n_parked, 0);
    b.n_over++;
    b.limits[0] = background->n_tokens;
    run_to_the_end(&b, 100);
    close_bench(&b);
}

/* Choices of one prompt: n_run of the model's prompt rows are counted. */
static void choices_of_a_prompt_run_it_once(void **state) {
    (void)state;
    const struct {
        uint32_t n_sequences, n_park, n_prompt, n_prompt_rows;
    } cases[] = {{4, 0, 130, 130},
                 {4, 0, 128, 128},
                 {1, 4, 130, 130},
                 {2, 4, 60, 60},
                 {2, 0, 60, 60 + 60 + 60}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        open_bench(&b, &(bench_shape){.n_pages = 40,
                                      .n_sequences = cases[i].n_sequences,
                                      .chunk_tokens = 64,
                                      .max_waiting = 8,
                                      .n_park = cases[i].n_park});
        sequence *leader = add_text(&b, 1, cases[i].n_prompt, 10, 0);
        assert_true(scheduler_submit(b.scheduler, leader));
        for (int j = 0; j < 3; j++) {
            sequence *who = add_text(&b, 1, cases[i].n_prompt, 10, 0);
            who->leader = leader;
            assert_true(scheduler_submit(b.scheduler, who));
        }
        uint32_t n_prompt_rows = 0, rows = 0;
        while (step_of(&b, &rows) > 0)
            n_prompt_rows += rows;
        assert_int_equal(b.n_over, 4);
        assert_int_equal(n_prompt_rows, cases[i].n_prompt_rows);
        close_bench(&b);
    }
}

static void who_waits_for_a_leader_that_goes_runs_its_prompt(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){
                       .n_pages = 40, .n_sequences = 4, .chunk_tokens = 64, .max_waiting = 8});
    sequence *leader = add_text(&b, 1, 200, 10, 0), *who = add_text(&b, 1, 200, 10, 0);
    who->leader = leader;
    assert_true(scheduler_submit(b.scheduler, leader));
    assert_true(scheduler_submit(b.scheduler, who));
    assert_int_equal(step(&b), 1);
    scheduler_remove(b.scheduler, leader);
    b.n_over++;
    b.limits[0] = leader->n_tokens;
    run_to_the_end(&b, 100);
    close_bench(&b);
}

/* Steps whose time is known: 5 ms, 1 ms more for each row of prompt. */
static void prompts_beside_streams_keep_the_bound(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 400,
                                  .n_sequences = 3,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .max_step_ms = 250});
    (void)submit(&b, 40, 200, 0);
    uint32_t n_rows = 0, n_most = 0, n_steps = 0;
    for (int i = 0; i < 5; i++) {
        (void)step_of(&b, &n_rows);
        scheduler_note_time(b.scheduler, 5000000u + n_rows * 1000000ull);
    }
    sequence *large = submit(&b, 3000, 5, 0);
    for (; large->n_run < 3000; n_steps++) {
        assert_int_equal(step_of(&b, &n_rows), 2);
        assert_true(n_rows <= 245);
        assert_true(n_rows > 0);
        if (n_rows > n_most) n_most = n_rows;
        scheduler_note_time(b.scheduler, 5000000u + n_rows * 1000000ull);
    }
    assert_int_equal(n_most, 192);
    assert_true(n_steps < 20);
    run_to_the_end(&b, 300);
    sequence *alone = submit(&b, 1000, 5, 0);
    (void)step(&b);
    assert_int_equal(alone->n_run, 512); /* nobody waits */
    run_to_the_end(&b, 300);
    close_bench(&b);
}

static void a_bound_that_one_chunk_breaks_still_lets_prompts_go_on(void **state) {
    (void)state;
    bench b;
    open_bench(&b, &(bench_shape){.n_pages = 400,
                                  .n_sequences = 3,
                                  .chunk_tokens = 512,
                                  .max_waiting = 8,
                                  .max_step_ms = 10});
    (void)submit(&b, 40, 200, 0);
    (void)step(&b);
    sequence *large = submit(&b, 640, 5, 0);
    uint32_t n_rows = 0;
    while (large->n_run < 640) {
        (void)step_of(&b, &n_rows);
        assert_int_equal(n_rows, 64);
        scheduler_note_time(b.scheduler, 5000000u + n_rows * 1000000ull);
    }
    run_to_the_end(&b, 300);
    close_bench(&b);
}

static void costs_are_learnt_as_a_line_for_each_depth(void **state) {
    (void)state;
    step_cost c = {0};
    assert_true(step_cost_expect_ms(&c, 0, 64) == 0);
    assert_int_equal(step_cost_rows(&c, 0, 100, 64, 512), 64); /* nothing is known */
    for (int i = 0; i < 50; i++) {
        step_cost_add(&c, &(step_cost_step){.n_decoded = 2, .took_ms = 8});
        for (uint32_t rows = 64; rows <= 192; rows += 64) {
            double added = 20 + 0.25 * rows;
            step_cost_add(&c, &(step_cost_step){2, rows, 0, 8 + added});
            step_cost_add(&c, &(step_cost_step){2, rows, 5000, 8 + 2 * added});
        }
    }
    assert_true(c.base_ms > 7.9 && c.base_ms < 8.1);
    assert_true(step_cost_expect_ms(&c, 100, 256) > 83 &&
                step_cost_expect_ms(&c, 100, 256) < 85);
    assert_true(step_cost_expect_ms(&c, 3000, 64) < 37);   /* as the nearest below */
    assert_true(step_cost_expect_ms(&c, 100000, 64) > 71); /* as at 5,000 */
    assert_int_equal(step_cost_rows(&c, 0, 100, 64, 512), 192);
    assert_int_equal(step_cost_rows(&c, 5000, 130, 64, 512), 64);
    assert_int_equal(step_cost_rows(&c, 0, 1e9, 64, 512), 512);
}

static void a_random_crowd_keeps_the_invariants_and_ends(void **state) {
    (void)state;
    uint64_t random = 4711;
    for (uint32_t round = 0; round < 24; round++) {
        bench b;
        open_bench(&b, &(bench_shape){.n_pages = 14,
                                      .n_sequences = 1 + round % 8,
                                      .chunk_tokens = 64u << (round % 3),
                                      .max_waiting = MAX_SEQUENCES,
                                      .n_states_each = 1 + round % 2,
                                      .n_park = round % 5,
                                      .has_cache = round % 3 != 0});
        for (int steps = 0; steps < 60000; steps++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t dice = (uint32_t)(random >> 40);
            if (b.n < 40 && dice % 5 == 0) {
                sequence *who = add_text(&b, (int32_t)(dice / 17 % 4), 1 + dice / 7 % 500,
                                         dice / 11 % 300, dice / 13 % 2);
                for (uint32_t at = 64; at < who->n_prompt; at += 64 * (1 + dice / 19 % 4))
                    (void)sequence_add_stop(who, at);
                assert_true(scheduler_submit(b.scheduler, who));
                if (dice / 23 % 3 == 0 && b.n < 40) {
                    sequence *fork = add_text(&b, (int32_t)(dice / 17 % 4), who->n_prompt,
                                              dice / 29 % 300, who->priority);
                    fork->leader = who;
                    assert_true(scheduler_submit(b.scheduler, fork));
                }
            } else if (b.n > 0 && dice % 97 == 1) {
                sequence *who = &b.sequences[dice / 128 % b.n];
                if (who->phase != SEQUENCE_IDLE) b.n_over++;
                b.limits[who - b.sequences] = 0; /* cancelled */
                scheduler_remove(b.scheduler, who);
            }
            guess_some(&b, random >> 20);
            if (step(&b) == 0 && b.n == 40) break;
        }
        assert_int_equal(b.n_over, b.n);
        close_bench(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_runs_in_pieces_at_multiples_of_the_chunk),
        cmocka_unit_test(prompts_share_a_step_and_decodes_go_on_beside_them),
        cmocka_unit_test(interactive_comes_before_background),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(without_pages_the_youngest_waits_again_and_all_end),
        cmocka_unit_test(a_sequence_of_all_pages_runs_alone),
        cmocka_unit_test(removing_at_any_point_frees_at_once),
        cmocka_unit_test(a_piece_ends_where_someone_wants_to_look),
        cmocka_unit_test(stops_are_bounded_and_ascend),
        cmocka_unit_test(a_prompt_that_the_cache_knows_begins_behind_it),
        cmocka_unit_test(nobody_begins_in_the_room_of_its_own_beginning),
        cmocka_unit_test(a_sequence_whose_rows_are_all_wanted_runs_from_its_beginning),
        cmocka_unit_test(guesses_get_pages_while_there_are_some),
        cmocka_unit_test(background_gives_way_and_goes_on_where_it_was),
        cmocka_unit_test(background_never_displaces_and_interactive_never_its_like),
        cmocka_unit_test(nobody_is_displaced_for_one_that_does_not_fit_then),
        cmocka_unit_test(removing_one_that_is_parked_frees_its_place),
        cmocka_unit_test(choices_of_a_prompt_run_it_once),
        cmocka_unit_test(who_waits_for_a_leader_that_goes_runs_its_prompt),
        cmocka_unit_test(prompts_beside_streams_keep_the_bound),
        cmocka_unit_test(a_bound_that_one_chunk_breaks_still_lets_prompts_go_on),
        cmocka_unit_test(costs_are_learnt_as_a_line_for_each_depth),
        cmocka_unit_test(a_random_crowd_keeps_the_invariants_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
