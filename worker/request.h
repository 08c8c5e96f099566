/* request.h - one accepted SUBMIT: its choices, its numbers, and what it reports.
 *
 * A request is made whole from a submit: body parsed, template rendered, prompt encoded,
 * one sequence, sampler and text pipeline for each choice.  The engine runs the sequences;
 * a token goes through request_take() and out by the sink.  Exactly one of request_done()
 * and request_fail() ends it; after that it reports nothing.
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_REQUEST_H
#define SILICEO_WORKER_REQUEST_H

#include "worker/budget.h"
#include "worker/embedding_settings.h"
#include "worker/engine.h"
#include "worker/generation.h"
#include "worker/job.h"
#include "worker/prefix_marks.h"
#include "worker/sampler.h"
#include "worker/sequence.h"
#include "worker/text/answer_format.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"

/* What all requests of an engine share; constant after open. */
typedef struct request_context {
    const tokenizer *vocab;
    const token_trie *trie; /* of vocab */
    chat_style style;
    sampler_params defaults;
    uint32_t n_context;
    uint32_t n_vocab;       /* ids below it exist */
    size_t max_token_bytes; /* of the longest token */
    budget_settings budgets;
    int32_t closing[BUDGET_N_CLOSING]; /* see budget.h */
    /* of embedding.h */
    embedding_pooling pooling; /* not AUTO */
    uint32_t n_embd;
    int32_t text_end; /* what the file wants behind a text; -1: nothing */
    int32_t yes, no;  /* how these words begin */
    prefix_rule prefix;
    engine_sink sink;
} request_context;

/* Why a request cannot be served, as the API should say it. */
typedef struct request_fault {
    uint32_t http_status;
    const char *code; /* static text, or "" */
    char param[CHAT_PARAM_SIZE];
    bool retryable;
    error err;
} request_fault;

typedef struct choice {
    sequence timeline; /* timeline.owner is the request */
    sampler *draws;
    generation text;
    budget spent;
    /* see request_format.h */
    answer_format *format; /* NULL: free text */
    bool format_begun, format_left;
    answer_format *call_format; /* NULL: calls are free */
    bool in_call;
    size_t n_opened;  /* of the request's opening, tokens that have come */
    int32_t ending;   /* the token that ended it and is not on the timeline; -1: none */
    wire_finish over; /* NONE: it goes on */
    bool open;
} choice;

struct embedding;

enum { REQUEST_MAX_LOST = 64 };

typedef struct request {
    struct request *next; /* the engine's list */
    const request_context *context;
    uint64_t id;
    uint64_t epoch;
    job job;
    json_grammar *grammar;      /* NULL: free text */
    json_grammar *call_grammar; /* of a forced call; NULL: calls are free */
    int32_t call_open;          /* the token that opens a call; -1: there is none */
    choice *choices;
    uint32_t n_choices;
    uint32_t n_open;
    uint32_t n_prompt;
    bool is_fetching;  /* it waits for what its prompt can go on from, on disk now */
    uint32_t n_cached; /* of the prompt, that need not run: choice 0's, when it began */
    prefix_marks marks;
    uint64_t *held; /* names of the ends that are held at its own end */
    size_t n_held;
    uint64_t lost[REQUEST_MAX_LOST]; /* names that are held no more, to tell with its end */
    size_t n_lost;
    uint32_t priority;         /* of its sequences */
    struct embedding *vectors; /* NULL: it has choices; see embedding.h */
    bool over, ended_well;
    bool opens_thinking; /* its prompt does */
    bool ahead;          /* it tells nobody: see engine_ahead.c */
    uint32_t n_guessed;  /* of what may come after it, see there */
    uint64_t number;     /* of the next TOKENS */
    json_text logprobs;
    token_list opening; /* of a forced call, see request_opening.h */
    char *result;       /* JSON of kinds without tokens */
    /* times of the monotonic clock, ns; 0: not yet */
    uint64_t submitted_ns, started_ns, first_token_ns, deadline_ns;
    /* of the steps it took part in */
    uint64_t expert_lookups, expert_hits;
    double expert_misses; /* its share by rows */
    uint64_t rows;
} request;

/* Complete a fault by what a failed step of the making means to the client; rc again. */
status request_fault_from(request_fault *f, status rc);

/* seed: for a request without one.  On failure *out is NULL and fault is filled. */
status request_make(request **out, const request_context *context, const wire_submit *submit,
                    uint64_t seed, request_fault *fault);
void request_free(request *r); /* its sequences must be idle; accepts NULL */

/* The token that must come next whatever the logits say; -1: none. */
int32_t request_forced(const choice *c);
/* What is taken for a sampled id: itself, mostly (see budget_settle_end()). */
int32_t request_settle(const request *r, choice *c, int32_t id);
/* Must the answer begin, so that nothing may end it or think again? */
bool request_must_speak(const choice *c);

/* A row of logits gave this choice a token: put it on the timeline and report it.  False
 * when the choice is over with it (its finish has been reported). */
bool request_take(request *r, choice *c, int32_t id);

/* Note in r->logprobs what the API wants to know of a pick: raw are the model's logits. */
void request_note_logprobs(request *r, sampler_scratch *scratch, const float *raw, int32_t id);

/* A resume may bring a choice that is over already: report its finish.  False if it is not. */
bool request_finish_if_over(request *r, choice *c);

void request_done(request *r, bool has_cache);
void request_fail(request *r, const request_fault *fault);
/* The same for a submit that never became a request. */
void request_refuse(const request_context *context, const wire_submit *submit,
                    const request_fault *fault);

#endif
