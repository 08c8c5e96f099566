#include "worker/scheduler.h"

#include "worker/model/model.h"
#include <stdlib.h>
#include <string.h>

struct scheduler {
    kv_pages *pages;
    uint32_t n_states;
    uint32_t chunk_tokens;
    uint32_t max_waiting;
    sequence **running; /* in order */
    uint32_t n_running;
    uint32_t *free_states;
    uint32_t n_free_states;
    sequence *waiting; /* in order, linked by next */
    uint32_t n_waiting;
    uint64_t n_arrived;
};

status scheduler_new(scheduler **out, kv_pages *pages, uint32_t n_states, uint32_t chunk_tokens,
                     uint32_t max_waiting, error *err) {
    *out = NULL;
    CHECK(chunk_tokens >= MODEL_CHUNK_TOKENS && chunk_tokens % MODEL_CHUNK_TOKENS == 0);
    scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) goto no_memory;
    s->pages = pages;
    s->n_states = n_states;
    s->chunk_tokens = chunk_tokens;
    s->max_waiting = max_waiting;
    s->running = calloc(n_states, sizeof(sequence *));
    s->free_states = calloc(n_states, sizeof *s->free_states);
    if (s->running == NULL || s->free_states == NULL) goto no_memory;
    for (uint32_t i = 0; i < n_states; i++)
        s->free_states[i] = n_states - 1 - i;
    s->n_free_states = n_states;
    *out = s;
    return STATUS_OK;
no_memory:
    scheduler_free(s);
    return error_set(err, STATUS_NO_MEMORY, "scheduler: no memory for %u sequences", n_states);
}

void scheduler_free(scheduler *s) {
    if (s == NULL) return;
    CHECK(s->n_running == 0 && s->n_waiting == 0);
    free(s->free_states);
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
    if (s->n_waiting >= s->max_waiting) return false;
    who->arrival = s->n_arrived++;
    insert_waiting(s, who);
    return true;
}

/* --- running --- */

static void give_up_memory(scheduler *s, sequence *who) {
    for (uint32_t i = 0; i < who->n_pages; i++)
        kv_pages_release(s->pages, who->pages[i]);
    who->n_pages = 0;
    who->n_run = 0;
    s->free_states[s->n_free_states++] = who->state;
}

static void stop_running(scheduler *s, sequence *who) {
    uint32_t at = 0;
    while (s->running[at] != who) {
        at++;
        CHECK(at < s->n_running);
    }
    s->n_running--;
    memmove(s->running + at, s->running + at + 1, (s->n_running - at) * sizeof(sequence *));
    give_up_memory(s, who);
    who->phase = SEQUENCE_IDLE;
}

void scheduler_remove(scheduler *s, sequence *who) {
    if (who->phase == SEQUENCE_WAITING) {
        unlink_waiting(s, who);
    } else if (who->phase == SEQUENCE_RUNNING) {
        stop_running(s, who);
    }
}

static uint32_t pages_for(uint32_t n_tokens) {
    return (n_tokens + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
}

/* Take pages until who can hold n_tokens; false when there are none left. */
static bool grow(scheduler *s, sequence *who, uint32_t n_tokens) {
    while (who->n_pages < pages_for(n_tokens)) {
        if (!kv_pages_take(s->pages, &who->pages[who->n_pages])) return false;
        who->n_pages++;
    }
    return true;
}

static void start_running(scheduler *s, sequence *who) {
    unlink_waiting(s, who);
    who->state = s->free_states[--s->n_free_states];
    who->n_run = 0;
    bool grown = grow(s, who, who->n_tokens);
    CHECK(grown);
    uint32_t at = s->n_running++;
    for (; at > 0 && comes_before(who, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = who;
    who->phase = SEQUENCE_RUNNING;
}

static void admit(scheduler *s) {
    while (s->waiting != NULL && s->n_free_states > 0) {
        uint32_t needed = pages_for(s->waiting->n_tokens) + s->n_running;
        if (needed > kv_pages_available(s->pages)) return;
        start_running(s, s->waiting);
    }
}

/* Pages for the next token of who, if need be from those after it in order.  False when
 * who itself had to go. */
static bool make_room(scheduler *s, sequence *who) {
    while (!grow(s, who, who->n_run + 1)) {
        sequence *last = s->running[s->n_running - 1];
        stop_running(s, last);
        last->n_preempted++;
        insert_waiting(s, last);
        if (last == who) return false;
    }
    return true;
}

/* --- the step --- */

static bool decodes(const sequence *who) {
    return who->n_run >= who->n_prompt;
}

static scheduler_piece make_piece(sequence *who, uint32_t n_tokens) {
    return (scheduler_piece){who, n_tokens, who->n_run + n_tokens == who->n_tokens};
}

/* Victims are taken from the end of the order, and pieces from its beginning, so nobody
 * loses pages after being placed. */
static size_t plan_decodes(scheduler *s, scheduler_piece *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        sequence *who = s->running[i];
        if (!decodes(who) || who->n_run == who->n_tokens) continue;
        if (!make_room(s, who)) break; /* it was the last */
        out[n++] = make_piece(who, 1);
    }
    return n;
}

/* How much of a prompt fits into budget tokens. */
static uint32_t piece_length(const sequence *who, uint32_t budget) {
    uint32_t left = who->n_prompt - who->n_run;
    if (left <= budget) return left;
    uint32_t end = (who->n_run + budget) / MODEL_CHUNK_TOKENS * MODEL_CHUNK_TOKENS;
    return end > who->n_run ? end - who->n_run : 0;
}

static size_t plan_prompts(scheduler *s, scheduler_piece *out) {
    size_t n = 0;
    uint32_t budget = s->chunk_tokens;
    for (uint32_t i = 0; i < s->n_running && budget > 0; i++) {
        sequence *who = s->running[i];
        if (decodes(who)) continue;
        uint32_t length = piece_length(who, budget);
        if (length == 0) continue;
        out[n++] = make_piece(who, length);
        budget -= length;
    }
    return n;
}

size_t scheduler_plan(scheduler *s, scheduler_piece *out) {
    admit(s);
    size_t n = plan_decodes(s, out);
    return n + plan_prompts(s, out + n);
}

uint32_t scheduler_n_running(const scheduler *s) {
    return s->n_running;
}

uint32_t scheduler_n_waiting(const scheduler *s) {
    return s->n_waiting;
}

uint32_t scheduler_n_free_states(const scheduler *s) {
    return s->n_free_states;
}

bool scheduler_has_room(const scheduler *s, uint32_t n) {
    return n <= s->max_waiting && s->n_waiting <= s->max_waiting - n;
}
