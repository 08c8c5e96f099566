#include "worker/scheduler.h"

#include "worker/model/model.h"
#include "worker/step_cost.h"
#include <stdlib.h>
#include <string.h>

struct scheduler {
    scheduler_params params;
    kv_pages *pages;
    sequence **running; /* in order */
    uint32_t n_running;
    uint32_t *states; /* [n_sequences][states_per_sequence]: the groups */
    uint32_t *free_groups;
    uint32_t n_free_groups;
    sequence *waiting; /* in order, linked by next */
    uint32_t n_waiting;
    uint64_t n_arrived;
    step_cost cost;
    step_cost_step planned; /* but for its time */
    /* Who runs and has a piece that is cut, by sequence_cut_place(); NULL: nobody. */
    sequence *cuts[SEQUENCE_CUT_PLACES];
    /* The slice that was planned last: of whom, unless its piece is over or left its place since, and
     * of which piece, as it was before the slice. */
    sequence *sliced;
    step_cost_piece slice_of;
    uint32_t n_slice_layers;
};

status scheduler_new(scheduler **out, const scheduler_params *params, error *err) {
    *out = NULL;
    CHECK(params->chunk_tokens >= MODEL_CHUNK_TOKENS &&
          params->chunk_tokens % MODEL_CHUNK_TOKENS == 0);
    CHECK(params->states_per_sequence > 0);
    uint32_t n = params->n_sequences, n_states = n * params->states_per_sequence;
    scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) goto no_memory;
    s->params = *params;
    s->pages = params->pages;
    s->running = calloc(n, sizeof(sequence *));
    s->states = calloc(n_states, sizeof *s->states);
    s->free_groups = calloc(n, sizeof *s->free_groups);
    if (s->running == NULL || s->states == NULL || s->free_groups == NULL) goto no_memory;
    for (uint32_t i = 0; i < n_states; i++)
        s->states[i] = i;
    for (uint32_t i = 0; i < n; i++)
        s->free_groups[i] = n - 1 - i;
    s->n_free_groups = n;
    *out = s;
    return STATUS_OK;
no_memory:
    scheduler_free(s);
    return error_set(err, STATUS_NO_MEMORY, "scheduler: no memory for %u sequences", n);
}

void scheduler_free(scheduler *s) {
    if (s == NULL) return;
    CHECK(s->n_running == 0 && s->n_waiting == 0);
    free(s->free_groups);
    free(s->states);
    free(s->running);
    free(s);
}

static bool comes_before(const sequence *a, const sequence *b) {
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->arrival < b->arrival;
}

/* --- the waiting list --- */

static void insert_waiting(scheduler *s, sequence *who) {
    sequence **at = &s->waiting;
    while (*at != NULL && comes_before(*at, who))
        at = &(*at)->next;
    who->next = *at;
    *at = who;
    who->phase = SEQUENCE_WAITING;
    s->n_waiting++;
}

static void unlink_waiting(scheduler *s, sequence *who) {
    sequence **at = &s->waiting;
    while (*at != who) {
        CHECK(*at != NULL);
        at = &(*at)->next;
    }
    *at = who->next;
    who->next = NULL;
    who->phase = SEQUENCE_IDLE;
    s->n_waiting--;
}

bool scheduler_submit(scheduler *s, sequence *who) {
    CHECK(who->phase == SEQUENCE_IDLE);
    if (s->n_waiting >= s->params.max_waiting) return false;
    who->arrival = s->n_arrived++;
    insert_waiting(s, who);
    return true;
}

/* Of those who can run, the first. */
static sequence *first_ready(const scheduler *s) {
    sequence *who = s->waiting;
    while (who != NULL && who->leader != NULL)
        who = who->next;
    return who;
}

/* --- running --- */

static void insert_running(scheduler *s, sequence *who) {
    uint32_t at = s->n_running++;
    for (; at > 0 && comes_before(who, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = who;
    who->phase = SEQUENCE_RUNNING;
}

static void take_group(scheduler *s, sequence *who) {
    who->group = s->free_groups[--s->n_free_groups];
    who->n_states = s->params.states_per_sequence;
    who->states = s->states + (size_t)who->group * who->n_states;
    who->state = who->states[0];
}

static void give_up_memory(scheduler *s, sequence *who) {
    for (uint32_t i = 0; i < who->n_pages; i++)
        kv_pages_release(s->pages, who->pages[i]);
    who->n_pages = 0;
    if (s->params.memory.leave != NULL) s->params.memory.leave(s->params.memory.context, who);
    s->free_groups[s->n_free_groups++] = who->group;
    who->n_states = 0;
}

static void leave_cut_place(scheduler *s, const sequence *who) {
    sequence **place = &s->cuts[sequence_cut_place(who)];
    CHECK(*place == who);
    *place = NULL;
    if (s->sliced == who) s->sliced = NULL;
}

static void forget_cut(sequence *who) {
    memset(&who->cut, 0, sizeof who->cut);
}

static void stop_running(scheduler *s, sequence *who) {
    uint32_t at = 0;
    while (s->running[at] != who) {
        at++;
        CHECK(at < s->n_running);
    }
    s->n_running--;
    if (sequence_is_cut(who)) leave_cut_place(s, who);
    memmove(s->running + at, s->running + at + 1, (s->n_running - at) * sizeof(sequence *));
    give_up_memory(s, who);
    who->phase = SEQUENCE_IDLE;
}

static void forget_parked(scheduler *s, sequence *who) {
    if (who->parked != NULL) s->params.memory.forget(s->params.memory.context, who);
    who->parked = NULL;
}

void scheduler_remove(scheduler *s, sequence *who) {
    if (who->phase == SEQUENCE_IDLE) return;
    if (who->phase == SEQUENCE_WAITING) {
        unlink_waiting(s, who);
        forget_parked(s, who);
    } else {
        stop_running(s, who);
    }
    who->n_run = who->n_drafted = 0;
    forget_cut(who);
    who->leader = NULL;
    for (sequence *other = s->waiting; other != NULL; other = other->next) {
        if (other->leader == who) other->leader = NULL; /* nobody runs its prompt now */
    }
}

/* Take from who what it holds; it waits again, with it or with its tokens alone. */
static void pause_running(scheduler *s, sequence *who) {
    const scheduler_memory *m = &s->params.memory;
    bool may_keep = (who->n_run > 0 || who->cut.n_done > 0) && m->park != NULL;
    bool kept = may_keep && m->park(m->context, who, who);
    who->n_drafted = 0;
    stop_running(s, who);
    if (!kept) {
        who->n_run = 0;
        forget_cut(who);
    }
    who->n_preempted++;
    insert_waiting(s, who);
}

/* --- pages --- */

static uint32_t pages_for(uint32_t n_tokens) {
    return (n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
}

/* Let the cache give back pages until n are free. */
static bool reclaim(scheduler *s, uint32_t n) {
    uint32_t available = kv_pages_available(s->pages);
    const scheduler_cache *c = &s->params.cache;
    if (available < n && c->reclaim != NULL) c->reclaim(c->context, n - available);
    return kv_pages_available(s->pages) >= n;
}

/* Take pages until who can hold n_tokens; false when there are none left. */
static bool grow(scheduler *s, sequence *who, uint32_t n_tokens) {
    while (who->n_pages < pages_for(n_tokens)) {
        if (!reclaim(s, 1) || !kv_pages_take(s->pages, &who->pages[who->n_pages])) return false;
        who->n_pages++;
    }
    return true;
}

/* Pages for n_tokens of who, if need be from those after it in order.  False when who itself
 * had to go. */
static bool make_room(scheduler *s, sequence *who, uint32_t n_tokens) {
    while (!grow(s, who, n_tokens)) {
        sequence *last = s->running[s->n_running - 1];
        pause_running(s, last);
        if (last == who) return false;
    }
    return true;
}

/* --- admission --- */

/* Pages to be taken for who, and one of growth for each of n_running. */
static uint32_t pages_wanted(const scheduler *s, const sequence *who, uint32_t n_running) {
    const scheduler_cache *c = &s->params.cache;
    uint32_t n = pages_for(who->n_tokens);
    if (who->parked == NULL && !who->runs_whole && c->find != NULL) {
        uint32_t found = c->find(c->context, who) / MODEL_PAGE_TOKENS;
        n -= found < n ? found : n;
    }
    return n + n_running;
}

/* What makes room may be what it would begin from, and then it wants more. */
static bool fits(scheduler *s, const sequence *who) {
    return s->n_free_groups > 0 && reclaim(s, pages_wanted(s, who, s->n_running)) &&
           kv_pages_available(s->pages) >= pages_wanted(s, who, s->n_running);
}

/* Would who fit if all that may give way to it had gone?  Pages that they share count as
 * theirs alone. */
static bool could_fit(scheduler *s, const sequence *who) {
    uint32_t n_freed = 0, n_groups = s->n_free_groups, n_left = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const sequence *other = s->running[i];
        if (other->priority <= who->priority) {
            n_left++;
            continue;
        }
        n_groups++;
        n_freed += other->n_pages;
    }
    uint32_t wanted = pages_wanted(s, who, n_left);
    return n_groups > 0 && (wanted <= n_freed || reclaim(s, wanted - n_freed));
}

/* Room for who, from background work if it is not. */
static bool find_room(scheduler *s, const sequence *who) {
    if (fits(s, who)) return true;
    if (!could_fit(s, who)) return false;
    while (!fits(s, who)) {
        sequence *last = s->n_running > 0 ? s->running[s->n_running - 1] : NULL;
        if (last == NULL || last->priority <= who->priority) return false;
        pause_running(s, last);
    }
    return true;
}

static void begin(scheduler *s, sequence *who) {
    const scheduler_cache *c = &s->params.cache;
    bool may = !who->runs_whole && c->begin != NULL;
    who->n_run = may ? c->begin(c->context, who) : 0;
    CHECK(who->n_run % MODEL_CHUNK_TOKENS == 0 && who->n_run < who->n_prompt);
    CHECK(who->n_pages == pages_for(who->n_run));
}

/* False when the cache had less than it said, and now there are not enough pages. */
static bool start_running(scheduler *s, sequence *who) {
    take_group(s, who);
    if (who->parked == NULL) begin(s, who);
    if (!grow(s, who, who->n_tokens)) {
        give_up_memory(s, who);
        if (who->parked == NULL) who->n_run = 0;
        return false;
    }
    if (who->parked != NULL) s->params.memory.unpark(s->params.memory.context, who);
    who->parked = NULL;
    if (sequence_is_cut(who)) s->cuts[sequence_cut_place(who)] = who;
    unlink_waiting(s, who);
    insert_running(s, who);
    return true;
}

/* Whether who would go on with a piece that is cut where another's piece is. */
static bool lacks_cut_place(const scheduler *s, const sequence *who) {
    return sequence_is_cut(who) && s->cuts[sequence_cut_place(who)] != NULL;
}

static void admit(scheduler *s) {
    for (sequence *who = first_ready(s); who != NULL; who = first_ready(s)) {
        if (lacks_cut_place(s, who) || !find_room(s, who) || !start_running(s, who)) return;
    }
}

/* --- the step --- */

static bool decodes(const sequence *who) {
    return who->n_run >= who->n_prompt;
}

static scheduler_piece make_piece(sequence *who, uint32_t n_tokens, uint32_t n_drafted) {
    return (scheduler_piece){who, n_tokens + n_drafted, n_drafted,
                             who->n_run + n_tokens == who->n_tokens};
}

/* Victims are taken from the end of the order, and pieces from its beginning, so nobody
 * loses pages after being placed. */
static size_t plan_decodes(scheduler *s, scheduler_piece *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        sequence *who = s->running[i];
        if (!decodes(who) || who->n_run == who->n_tokens) {
            who->n_drafted = 0;
            continue;
        }
        if (!make_room(s, who, who->n_run + 1)) break; /* it was the last */
        /* Guesses stand behind the last known token, and are not worth anyone's place. */
        if (who->n_run + 1 != who->n_tokens || !grow(s, who, who->n_tokens + who->n_drafted))
            who->n_drafted = 0;
        out[n++] = make_piece(who, 1, who->n_drafted);
        s->planned.n_decoded += out[n - 1].n_tokens;
    }
    return n;
}

/* How much of a prompt fits into budget tokens and ends before its next stop. */
static uint32_t piece_length(const sequence *who, uint32_t budget) {
    uint32_t end = who->n_prompt;
    for (uint32_t i = 0; i < who->n_stops; i++) {
        if (who->stops[i] <= who->n_run) continue;
        end = who->stops[i];
        break;
    }
    if (end - who->n_run <= budget) return end - who->n_run;
    end = (who->n_run + budget) / MODEL_CHUNK_TOKENS * MODEL_CHUNK_TOKENS;
    return end > who->n_run ? end - who->n_run : 0;
}

/* Tokens of prompts that a step may have, who's prompt being the first. */
static uint32_t prompt_budget(const scheduler *s, const sequence *who) {
    const scheduler_params *p = &s->params;
    bool is_awaited = s->planned.n_decoded > 0 || who->priority == SEQUENCE_AHEAD;
    if (p->max_step_ms == 0 || !is_awaited) return p->chunk_tokens;
    return step_cost_rows(&s->cost, who->n_run, p->max_step_ms, MODEL_CHUNK_TOKENS,
                          p->chunk_tokens);
}

static sequence *first_prompt(const scheduler *s) {
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (!decodes(s->running[i])) return s->running[i];
    }
    return NULL;
}

/* Cut the next piece of a prompt by layers, where it is to be.  A single token decodes as far as a
 * device is concerned. */
static bool begin_cut(scheduler *s, sequence *who) {
    const scheduler_params *p = &s->params;
    if (p->max_step_ms == 0 || p->n_layers < 2 || s->planned.n_decoded == 0) return false;
    uint32_t length = piece_length(who, p->chunk_tokens);
    if (step_cost_fits(&s->cost, who->n_run, length, p->max_step_ms)) return false;
    step_cost_piece cut = {
        .depth = who->n_run, .n_layers = p->n_layers, .is_linear = p->is_linear};
    length = piece_length(who, step_cost_cut_rows(&s->cost, &cut, p->max_step_ms,
                                                  MODEL_CHUNK_TOKENS, p->chunk_tokens));
    if (length < 2) return false;
    cut.n_rows = length;
    who->cut = cut;
    s->cuts[sequence_cut_place(who)] = who;
    return true;
}

/* Whose piece is to run some layers now; NULL: prompts are not cut.  A piece that is cut comes before
 * the other prompts of its place, and waits for those of the place before it. */
static sequence *choose_cut(scheduler *s) {
    sequence *first = first_prompt(s);
    if (first == NULL) return NULL;
    sequence *cut = s->cuts[sequence_cut_place(first)];
    if (cut != NULL) return cut;
    return begin_cut(s, first) ? first : NULL;
}

static void plan_slice(scheduler *s, sequence *who, scheduler_slice *out) {
    const step_cost_piece *p = &who->cut;
    bool is_awaited = s->planned.n_decoded > 0;
    s->sliced = who;
    s->slice_of = *p;
    s->n_slice_layers = is_awaited ? step_cost_layers(&s->cost, p, s->params.max_step_ms)
                                   : p->n_layers - p->n_done;
    *out = (scheduler_slice){make_piece(who, p->n_rows, 0), p->n_done,
                             p->n_done + s->n_slice_layers};
}

/* Behind the first piece, whose depth tells nothing of another's. */
static bool may_share(const scheduler *s, const sequence *who, uint32_t length) {
    uint32_t bound = s->params.max_step_ms;
    return bound == 0 || s->planned.n_decoded == 0 ||
           step_cost_fits(&s->cost, who->n_run, s->planned.n_prompt + length, bound);
}

static size_t plan_prompts(scheduler *s, scheduler_piece *out) {
    size_t n = 0;
    uint32_t budget = s->params.chunk_tokens, longest = 0;
    for (uint32_t i = 0; i < s->n_running && budget > 0; i++) {
        sequence *who = s->running[i];
        if (decodes(who)) continue;
        if (s->cuts[sequence_cut_place(who)] != NULL) break; /* which comes before it */
        if (n == 0) budget = prompt_budget(s, who);
        uint32_t length = piece_length(who, budget);
        if (length == 0 || (n > 0 && !may_share(s, who, length))) continue;
        out[n++] = make_piece(who, length, 0);
        budget -= length;
        s->planned.n_prompt += length;
        if (length > longest) s->planned.depth = who->n_run, longest = length;
    }
    return n;
}

size_t scheduler_plan(scheduler *s, scheduler_piece *out, scheduler_slice *slice) {
    memset(&s->planned, 0, sizeof s->planned);
    memset(slice, 0, sizeof *slice);
    admit(s);
    size_t n = plan_decodes(s, out);
    sequence *cut = choose_cut(s);
    if (cut == NULL) return n + plan_prompts(s, out + n);
    plan_slice(s, cut, slice);
    return n;
}

void scheduler_advance(scheduler *s, sequence *who, uint32_t n_tokens) {
    const scheduler_cache *c = &s->params.cache;
    if (who->phase != SEQUENCE_RUNNING) return; /* it ended with another of its request */
    bool was_prompt = who->n_run < who->n_prompt;
    if (sequence_is_cut(who)) leave_cut_place(s, who);
    forget_cut(who);
    who->n_run += n_tokens;
    if (was_prompt && c->at_stop != NULL && sequence_is_at_stop(who))
        c->at_stop(c->context, who);
}

void scheduler_note_time(scheduler *s, uint64_t took_ns) {
    s->planned.took_ms = (double)took_ns / 1e6;
    step_cost_add(&s->cost, &s->planned);
}

void scheduler_note_slice(scheduler *s, uint64_t took_ns) {
    step_cost_add_slice(&s->cost, &s->slice_of, s->n_slice_layers, (double)took_ns / 1e6);
    if (s->sliced != NULL) s->sliced->cut = s->slice_of;
    s->sliced = NULL;
}

/* --- choices of one prompt --- */

/* The whole pages of leader, shared, and one for the rest: false when there is none for it. */
static bool share_pages(scheduler *s, const sequence *leader, sequence *who) {
    uint32_t n_whole = leader->n_run / MODEL_PAGE_TOKENS, n = pages_for(leader->n_run);
    uint32_t rest = 0;
    if (!reclaim(s, n - n_whole + s->n_running)) return false;
    if (n > n_whole && !kv_pages_take(s->pages, &rest)) return false;
    for (uint32_t i = 0; i < n_whole; i++) {
        kv_pages_share(s->pages, leader->pages[i]);
        who->pages[i] = leader->pages[i];
    }
    if (n > n_whole) who->pages[n_whole] = rest;
    who->n_pages = n;
    return true;
}

bool scheduler_fork(scheduler *s, const sequence *leader, sequence *who) {
    const scheduler_memory *m = &s->params.memory;
    CHECK(who->phase == SEQUENCE_WAITING && who->leader == leader);
    CHECK(leader->phase == SEQUENCE_RUNNING && leader->n_run == leader->n_prompt);
    CHECK(!sequence_is_cut(leader));
    who->leader = NULL;
    if (m->copy != NULL && s->n_free_groups > 0 && share_pages(s, leader, who)) {
        uint32_t last = who->n_pages - 1;
        take_group(s, who);
        m->copy(m->context, leader, who, leader->pages[last], who->pages[last]);
        who->n_run = leader->n_run;
        unlink_waiting(s, who);
        insert_running(s, who);
        return true;
    }
    if (m->park == NULL || !m->park(m->context, leader, who)) return false;
    who->n_run = leader->n_run;
    return true;
}

uint32_t scheduler_n_running(const scheduler *s) {
    return s->n_running;
}

uint32_t scheduler_n_waiting(const scheduler *s) {
    return s->n_waiting;
}

uint32_t scheduler_n_free(const scheduler *s) {
    return s->n_free_groups;
}

bool scheduler_has_room(const scheduler *s, uint32_t n) {
    return n <= s->params.max_waiting && s->n_waiting <= s->params.max_waiting - n;
}
