/* exchange.h - what the three threads of a serving worker hand to each other.
 *
 *     link   -- orders  --> engine   submit, cancel, stop
 *     engine -- reports --> link     models, progress, loaded, stats, results, failed
 *     main   -- wishes  --> link     drain
 *     link   -- notices --> main     loaded, failed, finished
 *
 * Each ring has one pusher and one popper; an item belongs to whoever holds it.
 * The exchange outlives both threads.
 */
#ifndef SILICEO_WORKER_EXCHANGE_H
#define SILICEO_WORKER_EXCHANGE_H

#include "common/error.h"
#include "common/ring.h"
#include "common/wire.h"
#include "worker/engine.h"
#include <stdatomic.h>
#include <zmq.h>

enum { ENGINE_LOOP_MAX_MODELS = 16 }; /* that one worker serves */

typedef enum order_kind { ORDER_SUBMIT, ORDER_CANCEL, ORDER_STOP } order_kind;

typedef struct order {
    order_kind kind;
    uint64_t request; /* the link's own number: coordinators may use the same ones */
    uint64_t epoch;
    wire_message message; /* ORDER_SUBMIT; points into frame */
    zmq_msg_t frame;
    struct order *next;     /* among those that wait for their model */
    uint64_t held_since_ms; /* since then */
} order;

/* What is known once the model is loaded; before, what its file tells. */
typedef struct engine_facts {
    char model[WIRE_MAX_NAME + 1];
    char hash[64];
    char arch[16];
    char numerics[WIRE_MAX_NAME + 1];
    char backend[16];
    char gpu[96];        /* empty: none */
    char gpu_bus_id[32]; /* as NVML wants it */
    uint64_t vram_bytes;
    uint64_t context_tokens;
    uint64_t slots;
    uint64_t experts_total;
    uint64_t threads;
    uint64_t max_sequences;
    double prefill_tok_per_s; /* own measurement; 0: none */
    double decode_tok_per_s;
} engine_facts;

typedef enum report_kind {
    REPORT_MODEL,    /* facts of a model that is not loaded: what its file tells */
    REPORT_PROGRESS, /* of the one that loads */
    REPORT_LOADED,
    REPORT_UNLOADED, /* closed, or not loaded after all */
    REPORT_STARTED,  /* all that is loaded at the start is */
    REPORT_STATS,
    REPORT_MESSAGE,
    REPORT_FAILED
} report_kind;

typedef struct report {
    report_kind kind;
    uint32_t model; /* number of it; of MODEL, PROGRESS, LOADED and UNLOADED */
    union {
        struct {
            uint32_t permille;
            uint64_t left_ms; /* 0: not known */
            char what[96];
        } progress;
        engine_facts facts;
        engine_stats stats;
        wire_message message; /* TOKENS, DONE or ERROR; points into the same block */
        error failed;
    };
} report;

report *report_new(report_kind kind); /* zeroed, for free(); NULL without memory, logged */

typedef enum notice_kind { NOTICE_LOADED, NOTICE_FAILED, NOTICE_FINISHED } notice_kind;

typedef struct notice {
    notice_kind kind;
    char text[sizeof((error *)0)->text]; /* the models' names, or why it failed */
} notice;

typedef struct exchange {
    ring orders;
    ring reports;
    ring wishes; /* an item says: drain and finish */
    ring notices;
    atomic_uint_fast64_t engine_round_ms; /* when the engine loop last came round */
    atomic_bool link_gone;                /* nobody pops reports any more */
} exchange;

/* max_requests: how many the engine may hold at once. */
status exchange_init(exchange *x, size_t max_requests, error *err);
/* Frees what still lies in the rings.  Accepts a half-built one and a zeroed one
 * whose descriptors are -1 (EXCHANGE_NONE). */
void exchange_release(exchange *x);
#define EXCHANGE_NONE                                                                          \
    {                                                                                          \
        .orders = {.event_fd = -1}, .reports = {.event_fd = -1}, .wishes = {.event_fd = -1},   \
        .notices = {                                                                           \
            .event_fd = -1                                                                     \
        }                                                                                      \
    }

void order_free(order *o);

/* A copy of TOKENS, DONE or ERROR in one block for free(); NULL without memory. */
report *report_copy(const wire_message *message);

/* From the engine: waits while the ring is full, for the link never waits for
 * the engine.  Frees the report where the link is gone. */
void exchange_report(exchange *x, report *r);

#endif
