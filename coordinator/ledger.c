#include "coordinator/ledger.h"

#include "common/json.h"
#include "common/log.h"
#include "common/ring.h"
#include "common/thread.h"
#include "coordinator/ledger_store.h"
#include <poll.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RING_ROWS = 4096,
    RING_SHARES = 4, /* one a second; more would be of no use */
    BATCH_ROWS = 512,
    LAST_TRIES = 6 /* at the end, while writing fails */
};

struct ledger {
    thread thread;
    ring ring;
    ring orders, news;   /* of sharing */
    ledger_store *store; /* the thread's, once it runs */
    char *url;
    uint64_t instance;
    size_t max_waiting;
    uint32_t retry_ms;
    /* io's: rows that found the ring full, oldest first */
    ledger_row *spill, **spill_end;
    uint64_t n_taken;
    /* both */
    atomic_uint_fast64_t n_written, n_lost;
    atomic_bool failing;
    atomic_int stop;
};

/* CLOSING: what cannot be written is given up after a while.  STOP: end once the ring is empty. */
enum { GO = 0, CLOSING, STOP };

/* ------------------------------------------------------------ the thread */

static size_t take_batch(ledger *l, ledger_row *rows[BATCH_ROWS], size_t n) {
    while (n < BATCH_ROWS && (rows[n] = ring_pop(&l->ring)) != NULL)
        n++;
    return n;
}

/* A connection that failed is opened anew. */
static status write_batch(ledger *l, ledger_row *const *rows, size_t n, error *err) {
    status rc = STATUS_OK;
    if (l->store == NULL) rc = ledger_store_open(&l->store, l->url, true, err);
    if (rc == STATUS_OK) rc = ledger_store_insert(l->store, rows, n, err);
    if (rc != STATUS_OK && rc != STATUS_UNAVAILABLE) {
        ledger_store_close(l->store);
        l->store = NULL;
    }
    return rc;
}

static void report(ledger *l, status rc, const error *err) {
    bool failed = rc != STATUS_OK;
    if (failed == atomic_exchange(&l->failing, failed)) return;
    if (failed)
        log_error("ledger-failing", "error=\"%s\"", err->text);
    else
        log_info("ledger-works", "again=true");
}

static void free_rows(ledger_row *const *rows, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(rows[i]);
}

/* What `io` tells and what it hears: uses of keys, and in the answer the keys. */
typedef struct share {
    size_t n, capacity;
    ledger_use *uses;
    json_text lines;
    bool failed;
} share;

static void share_free(share *s) {
    if (s == NULL) return;
    free(s->uses);
    json_text_release(&s->lines);
    free(s);
}

static void add_use(void *context, const ledger_use *use) {
    share *s = context;
    if (s->n == s->capacity) {
        size_t capacity = s->capacity == 0 ? 64 : 2 * s->capacity;
        ledger_use *more = realloc(s->uses, capacity * sizeof *more);
        s->failed = s->failed || more == NULL;
        if (more == NULL) return;
        s->uses = more;
        s->capacity = capacity;
    }
    s->uses[s->n++] = *use;
}

static void add_key(void *context, const char *line) {
    share *s = context;
    json_text_add(&s->lines, line, strlen(line));
    json_text_add(&s->lines, "\n", 1);
}

static void share_now(ledger *l, const share *told) {
    error err = {0};
    share *heard = calloc(1, sizeof *heard);
    status rc = heard == NULL ? STATUS_NO_MEMORY : STATUS_OK;
    if (rc == STATUS_OK && l->store == NULL)
        rc = ledger_store_open(&l->store, l->url, true, &err);
    if (rc == STATUS_OK)
        rc = ledger_store_put_use(l->store, l->instance, told->uses, told->n, &err);
    if (rc == STATUS_OK) rc = ledger_store_uses(l->store, l->instance, heard, add_use, &err);
    if (rc == STATUS_OK) rc = ledger_store_keys(l->store, heard, add_key, &err);
    bool whole = rc == STATUS_OK && !heard->failed && !heard->lines.failed;
    if (rc != STATUS_OK) log_debug("ledger-share", "error=\"%s\"", err.text);
    if (rc != STATUS_OK && rc != STATUS_UNAVAILABLE) {
        ledger_store_close(l->store);
        l->store = NULL;
    }
    if (!whole || !ring_push(&l->news, heard)) share_free(heard);
}

static void take_orders(ledger *l) {
    for (share *told; (told = ring_pop(&l->orders)) != NULL;) {
        if (atomic_load(&l->stop) == GO) share_now(l, told);
        share_free(told);
    }
}

static void ledger_body(void *argument) {
    ledger *l = argument;
    ledger_row *rows[BATCH_ROWS];
    size_t n = 0;
    int tries = 0;
    thread_ready();
    for (;;) {
        int stop = atomic_load(&l->stop); /* before the ring: what it held then is seen below */
        n = take_batch(l, rows, n);
        if (n == 0 && stop == STOP) return;
        error err = {0};
        status rc = n == 0 ? STATUS_OK : write_batch(l, rows, n, &err);
        if (n > 0) report(l, rc, &err);
        if (rc == STATUS_OK || (stop != GO && ++tries >= LAST_TRIES)) {
            free_rows(rows, n);
            atomic_fetch_add(rc == STATUS_OK ? &l->n_written : &l->n_lost, n);
            if (n == BATCH_ROWS || stop == STOP) {
                n = 0;
                continue;
            }
            n = 0;
        }
        take_orders(l);
        struct pollfd wait = {.fd = l->ring.event_fd, .events = POLLIN};
        /* A full batch in hand is tried again after a while, whatever else comes. */
        (void)poll(&wait, rc == STATUS_OK ? 1 : 0, (int)l->retry_ms);
        ring_clear_event(&l->ring);
    }
}

/* ------------------------------------------------------------ io */

status ledger_open(ledger **out, const char *url, uint64_t instance, size_t max_waiting,
                   uint32_t retry_ms, error *err) {
    *out = NULL;
    _Static_assert(sizeof(ledger) % alignof(ledger) == 0, "aligned_alloc's condition");
    ledger *l = aligned_alloc(alignof(ledger), sizeof *l); /* of the ring's cache lines */
    if (l == NULL) return error_set(err, STATUS_NO_MEMORY, "ledger: no memory");
    memset(l, 0, sizeof *l);
    l->ring.event_fd = l->orders.event_fd = l->news.event_fd = -1;
    l->spill_end = &l->spill;
    l->instance = instance;
    l->max_waiting = max_waiting;
    l->retry_ms = retry_ms;
    l->url = strdup(url);
    status rc = l->url == NULL ? error_set(err, STATUS_NO_MEMORY, "ledger: no memory")
                               : ledger_store_open(&l->store, url, true, err);
    if (rc == STATUS_OK) rc = ring_init(&l->ring, RING_ROWS, err);
    if (rc == STATUS_OK) rc = ring_init(&l->orders, RING_SHARES, err);
    if (rc == STATUS_OK) rc = ring_init(&l->news, RING_SHARES, err);
    if (rc == STATUS_OK) rc = thread_start(&l->thread, "ledger", ledger_body, l, err);
    if (rc != STATUS_OK) {
        ledger_close(l);
        return rc;
    }
    *out = l;
    return STATUS_OK;
}

static bool push_spilled(ledger *l) {
    while (l->spill != NULL) {
        ledger_row *row = l->spill, *next = row->next;
        if (!ring_push(&l->ring, row)) return false;
        l->spill = next;
    }
    l->spill_end = &l->spill;
    return true;
}

void ledger_write(ledger *l, const ledger_row *row) {
    if (l == NULL) return;
    l->n_taken++;
    ledger_row *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        log_error("ledger-row-lost", "request=%s error=\"no memory\"", row->request_id);
        atomic_fetch_add(&l->n_lost, 1);
        return;
    }
    *copy = *row;
    copy->next = NULL;
    copy->instance = l->instance;
    copy->number = l->n_taken;
    if (push_spilled(l) && ring_push(&l->ring, copy)) return;
    *l->spill_end = copy;
    l->spill_end = &copy->next;
}

ledger_stats ledger_get_stats(const ledger *l) {
    if (l == NULL) return (ledger_stats){0};
    ledger_stats s = {.written = atomic_load(&l->n_written),
                      .lost = atomic_load(&l->n_lost),
                      .failing = atomic_load(&l->failing)};
    s.waiting = l->n_taken - s.written - s.lost;
    return s;
}

bool ledger_is_full(const ledger *l) {
    return l != NULL && ledger_get_stats(l).waiting >= l->max_waiting;
}

void ledger_tick(ledger *l) {
    if (l != NULL) (void)push_spilled(l);
}

status ledger_read_keys(const char *url, char **lines, error *err) {
    ledger_store *store;
    share heard = {.n = 0};
    *lines = NULL;
    status rc = ledger_store_open(&store, url, true, err);
    if (rc != STATUS_OK) return rc;
    rc = ledger_store_keys(store, &heard, add_key, err);
    ledger_store_close(store);
    json_text_add(&heard.lines, "", 0); /* none is a text, too */
    if (rc == STATUS_OK && heard.lines.failed)
        rc = error_set(err, STATUS_NO_MEMORY, "no memory for keys");
    if (rc == STATUS_OK)
        *lines = heard.lines.bytes;
    else
        json_text_release(&heard.lines);
    return rc;
}

void ledger_share(ledger *l, const auth *a) {
    share *s = l == NULL ? NULL : calloc(1, sizeof *s);
    if (s == NULL) return;
    for (const tenant *t = a->first; t != NULL; t = t->next) {
        ledger_use use = {.requests = t->requests, .tokens = t->tokens};
        memcpy(use.name, t->name, sizeof use.name);
        add_use(s, &use);
    }
    if (s->failed || !ring_push(&l->orders, s))
        share_free(s); /* the last one is still under way */
    else
        ring_wake(&l->ring);
}

static void take_uses(auth *a, const share *s, uint64_t now_ms) {
    for (size_t i = 0; i < s->n; i++) {
        for (tenant *t = a->first; t != NULL; t = t->next) {
            if (strcmp(t->name, s->uses[i].name) == 0)
                tenant_used_elsewhere(t, s->uses[i].requests, s->uses[i].tokens, now_ms);
        }
    }
}

char *ledger_take_news(ledger *l, auth *a, uint64_t now_ms) {
    char *lines = NULL;
    for (share *s; l != NULL && (s = ring_pop(&l->news)) != NULL;) {
        take_uses(a, s, now_ms);
        free(lines);
        json_text_add(&s->lines, "", 0);
        lines = s->lines.bytes;
        memset(&s->lines, 0, sizeof s->lines);
        share_free(s);
    }
    return lines;
}

void ledger_close(ledger *l) {
    if (l == NULL) return;
    const struct timespec moment = {.tv_nsec = 5000000};
    /* The thread empties the ring, or gives up, so this ends. */
    atomic_store(&l->stop, CLOSING);
    while (l->thread.started && !push_spilled(l)) {
        (void)nanosleep(&moment, NULL);
    }
    if (l->thread.started) {
        atomic_store(&l->stop, STOP);
        ring_wake(&l->ring);
        thread_join(&l->thread);
        uint64_t lost = atomic_load(&l->n_lost);
        if (lost > 0) log_error("ledger-rows-lost", "rows=%llu", (unsigned long long)lost);
    }
    ledger_store_close(l->store);
    /* What nobody took; the rings of a half-built ledger are empty. */
    for (share *s; (s = ring_pop(&l->orders)) != NULL;)
        share_free(s);
    for (share *s; (s = ring_pop(&l->news)) != NULL;)
        share_free(s);
    ring_release(&l->orders);
    ring_release(&l->news);
    ring_release(&l->ring);
    free(l->url);
    free(l);
}
