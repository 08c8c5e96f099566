/* wire.h - the messages between coordinator and workers, as structs, to and from msgpack.
 *
 * One message is one ZeroMQ frame: a msgpack array [version, type, field...].
 * Fields stand in the order of the struct.  Lengths and counts are bounded by
 * the WIRE_MAX_* below on both sides.  A newer peer may append fields to a message: an
 * older one ignores what it does not know, and where the appended ones (marked so) do
 * not come they are zero.  Another version is refused with a text that names both.
 *
 * Decoding copies nothing: strings and arrays of a decoded message point into
 * the frame or into the message's own zone and live until wire_release() and
 * while the frame's bytes live.  No globals; any thread.
 *
 *   worker -> coordinator: HELLO BEAT TOKENS DONE ERROR BYE
 *   coordinator -> worker: WELCOME SUBMIT CANCEL DRAIN ACK ERROR
 */
#ifndef SILICEO_COMMON_WIRE_H
#define SILICEO_COMMON_WIRE_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_VERSION = 1 };
enum {
    WIRE_MAX_FRAME = 48 * 1024 * 1024, /* a body of 32 MiB and its ids */
    WIRE_MAX_BODY = 32 * 1024 * 1024,
    WIRE_MAX_NAME = 128,  /* node, model, code, param */
    WIRE_MAX_TEXT = 4096, /* error texts, builds, GPU names */
    WIRE_MAX_TOKENS_TEXT = 1024 * 1024,
    WIRE_MAX_IDS = 1 << 20,
    WIRE_MAX_MODELS = 64,
    WIRE_MAX_CHOICES = 128,
    WIRE_MAX_CALLS = 128, /* of tools, in one choice */
    WIRE_MAX_BOUNDARIES = 4096
};

typedef enum wire_type {
    WIRE_HELLO = 1,
    WIRE_BEAT = 2,
    WIRE_TOKENS = 3,
    WIRE_DONE = 4,
    WIRE_ERROR = 5,
    WIRE_BYE = 6,
    WIRE_WELCOME = 16,
    WIRE_SUBMIT = 17,
    WIRE_CANCEL = 18,
    WIRE_DRAIN = 19,
    WIRE_ACK = 20
} wire_type;

/* Text or bytes inside a message; never terminated, NULL only when length is 0. */
typedef struct wire_bytes {
    const char *bytes;
    size_t length;
} wire_bytes;

typedef enum wire_kind { /* of a SUBMIT */
                         WIRE_CHAT = 1,
                         WIRE_COMPLETION,
                         WIRE_EMBED,
                         WIRE_RERANK,
                         WIRE_COUNT,
                         WIRE_TOKENIZE,
                         WIRE_DETOKENIZE
} wire_kind;

typedef enum wire_channel {
    WIRE_CONTENT = 0,
    WIRE_REASONING = 1,
    WIRE_TOOL_CALL = 2
} wire_channel;

typedef enum wire_finish {
    WIRE_FINISH_NONE = 0, /* the choice goes on */
    WIRE_FINISH_STOP,
    WIRE_FINISH_LENGTH,
    WIRE_FINISH_TOOL_CALLS
} wire_finish;
/* In the flags of TOKENS with a finish, from this bit on: 1 + the number of the stop string
 * that came. */
enum { WIRE_FLAG_STOP_SHIFT = 8 };

typedef enum wire_worker_state {
    WIRE_LOADING = 1,
    WIRE_READY,
    WIRE_DRAINING,
    WIRE_FAILED
} wire_worker_state;

enum { /* of TOKENS */
       WIRE_FLAG_THINKING_CUT = 1,
       WIRE_FLAG_GRACE = 2,
       WIRE_FLAG_MORE = 4,    /* the rest of this token's text is in the next message */
       WIRE_FLAG_CALL_CUT = 8 /* with the finish: the tool call `call` is not complete */
};

typedef struct wire_model {
    wire_bytes name;
    wire_bytes hash;     /* gguf_hash(): 32 hex digits */
    wire_bytes arch;     /* "qwen35moe" */
    wire_bytes numerics; /* backend, kernel family and KV type: equal ids give equal bits */
    uint64_t context_tokens;
} wire_model;

/* First message of a worker, and again whenever something in it changes. */
typedef struct wire_hello {
    wire_bytes node;
    uint64_t instance; /* random, fresh with every process start */
    wire_bytes build;
    wire_bytes profile;
    wire_bytes backend; /* "cpu", "cuda" */
    wire_bytes gpu;     /* empty without one */
    uint64_t vram_mib;
    uint64_t ram_mib;
    uint64_t slots;         /* expert slots; 0: experts are read where they lie */
    uint64_t experts_total; /* over all layers */
    uint64_t threads;
    uint64_t max_sequences;
    uint64_t credit;                /* requests that this coordinator may have in flight here */
    double prior_prefill_tok_per_s; /* own measurement at load; 0: not yet */
    double prior_decode_tok_per_s;
    const wire_model *models;
    size_t n_models;
} wire_hello;

/* Every second, from the link thread, whatever the engine does. */
typedef struct wire_beat {
    uint64_t number;
    uint64_t instance;
    wire_worker_state state;
    wire_bytes reason; /* why loading, draining or failed; may be empty */
    uint64_t loading_permille;
    uint64_t engine_age_ms; /* since the engine loop last came round */
    uint64_t running;
    uint64_t waiting;
    uint64_t free_sequences;
    uint64_t kv_pages_total;
    uint64_t kv_pages_free;
    uint64_t credit;
    double hit_rate; /* of expert look-ups lately, 0..1; negative: no cache */
    double misses_per_token;
    double prefill_tok_per_s; /* lately; 0: nothing to tell */
    double decode_tok_per_s;
    double temperature_c; /* negative: unknown */
    double power_w;       /* negative: unknown */
    uint64_t vram_used_mib;
    uint64_t vram_total_mib;
    uint64_t ram_used_mib;
    uint64_t rtt_us; /* BEAT to ACK, last measured; 0: not yet */
    /* appended */
    uint64_t loading_left_ms; /* until the model is loaded, by its progress; 0: not known */
    uint64_t gpu_use_percent; /* 0: idle, or not known */
    uint64_t
        unloaded_models;    /* bit i: models[i] of HELLO is loaded only when it is asked for */
    uint64_t loading_model; /* 1 + the number of the model that loading_* tell of; 0: none,
                                 or the state says it */
    uint64_t prefix_tokens; /* of prompts, skipped since the start */
    uint64_t prefix_snapshots;    /* beginnings of prompts from which one can go on */
    uint64_t prefix_mib;          /* RAM for them and their pages */
    uint64_t prefix_asked_tokens; /* of prompts that were looked up, since the start */
    uint64_t prefix_pages;        /* pages held, wherever they lie */
    uint64_t prefix_disk_mib;
    uint64_t prefix_hits;           /* prompts that skipped something, since the start */
    uint64_t prefix_hits_in_place;  /* of them, from a state beside the sequences' own */
    uint64_t prefix_reads;          /* snapshots that were read from disk, since the start */
    uint64_t displaced;             /* times that a sequence gave up its place */
    uint64_t guesses, guesses_true; /* tokens guessed ahead, and those that came */
} wire_beat;

typedef struct wire_tokens {
    uint64_t request;
    uint64_t epoch;
    uint64_t number; /* 0, 1, 2 ... without gaps, over all choices */
    uint64_t choice;
    wire_channel channel;
    const int32_t *ids;
    size_t n_ids;
    wire_bytes text; /* whole UTF-8 characters */
    uint64_t flags;
    wire_finish finish;  /* set in the last TOKENS of a choice */
    wire_bytes logprobs; /* JSON for the API, or empty */
    /* appended */
    uint64_t draws; /* of the choice's sampler so far: where a resume's draws go on */
    uint64_t
        prompt_tokens; /* of the whole request, so that a cut stream can be accounted for */
    uint64_t cached_tokens; /* of them, truly skipped */
    uint64_t call;          /* number of the tool call that the text belongs to */
    wire_bytes call_name;   /* not empty: that call begins here */
} wire_tokens;

/* The request is over and well; every choice has had its finish. */
typedef struct wire_done {
    uint64_t request;
    uint64_t epoch;
    uint64_t number; /* one more than that of the last TOKENS */
    uint64_t prompt_tokens;
    uint64_t cached_tokens; /* of the prompt, truly skipped */
    uint64_t completion_tokens;
    uint64_t reasoning_tokens; /* of the completion */
    double queue_ms;
    double prefill_ms;
    double decode_ms;
    double hit_rate; /* of this request's steps; negative: no cache */
    double misses_per_token;
    const uint64_t *boundaries; /* those of the SUBMIT that are now held */
    size_t n_boundaries;
    wire_bytes result; /* JSON of kinds that give no tokens (count, tokenize, embed) */
    /* appended */
    const uint64_t
        *lost; /* boundaries of earlier SUBMITs, of anyone's, that are held no more */
    size_t n_lost;
} wire_done;

/* The request failed (or, with request 0, the peer itself is refused). */
typedef struct wire_error {
    uint64_t request;
    uint64_t epoch;
    uint64_t http_status; /* what the API should answer: 400, 503 ... */
    wire_bytes code;      /* "context_length_exceeded" ...; may be empty */
    wire_bytes param;     /* the field at fault; may be empty */
    wire_bytes text;
    bool retryable; /* another node may do it */
} wire_error;

typedef struct wire_bye {
    uint64_t instance;
    wire_bytes reason;
} wire_bye;

typedef struct wire_welcome {
    wire_bytes coordinator;
    uint64_t instance; /* of the coordinator process */
    wire_bytes build;
    uint64_t beat_interval_ms;
} wire_welcome;

/* How far an interrupted request had come elsewhere; n_ids 0: from the start. */
typedef struct wire_resume {
    const int32_t *ids; /* emitted so far, choice 0 */
    size_t n_ids;
    wire_channel channel;
    uint64_t reasoning_spent;
    uint64_t answer_spent;
    uint64_t sampler_counter; /* draws made from the seed's stream */
} wire_resume;

typedef struct wire_submit {
    uint64_t request;
    uint64_t epoch;
    wire_kind kind;
    wire_bytes request_id; /* what the client sees; for logs */
    wire_bytes model;
    wire_bytes body;      /* the normalised request as JSON */
    uint64_t deadline_ms; /* from receipt; 0: none */
    uint64_t priority;    /* 0 interactive, 1 background */
    wire_resume resume;
    /* appended */
    uint64_t seed; /* for sampling where the body has none, the same on every node; 0: the
                      worker's own choice */
    /* Hashes of the prompt's beginnings, shortest first: one for each end of a message.  A
     * DONE tells which of them the worker now holds. */
    const uint64_t *boundaries;
    size_t n_boundaries;
} wire_submit;

typedef struct wire_cancel {
    uint64_t request;
    uint64_t epoch;
} wire_cancel;

typedef struct wire_drain {
    uint64_t limit_ms;
    bool resume; /* true: take work again */
} wire_drain;

typedef struct wire_ack {
    uint64_t number; /* of the BEAT */
} wire_ack;

typedef struct wire_message {
    wire_type type;
    union {
        wire_hello hello;
        wire_beat beat;
        wire_tokens tokens;
        wire_done done;
        wire_error error;
        wire_bye bye;
        wire_welcome welcome;
        wire_submit submit;
        wire_cancel cancel;
        wire_drain drain;
        wire_ack ack;
    };
    void *zone; /* private to wire.c */
} wire_message;

/* A growing output frame; reuse it for many messages. */
typedef struct wire_frame {
    char *bytes;
    size_t length;
    size_t capacity;
} wire_frame;
void wire_frame_release(wire_frame *frame);

/* Replace frame's content by the message.  STATUS_BAD_INPUT names the field that
 * is over its bound, so that an encoder never makes what a decoder refuses. */
status wire_encode(wire_frame *frame, const wire_message *message, error *err);

/* On failure *out needs no release and err names the field and value. */
status wire_decode(wire_message *out, const void *bytes, size_t length, error *err);
void wire_release(wire_message *message); /* accepts a zeroed one */

const char *wire_type_name(wire_type type);
/* The other kinds have their whole answer in DONE's result. */
static inline bool wire_kind_gives_tokens(wire_kind kind) {
    return kind == WIRE_CHAT || kind == WIRE_COMPLETION;
}
static inline wire_bytes wire_text(const char *text, size_t length) {
    return (wire_bytes){text, length};
}

#endif
