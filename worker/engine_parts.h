/* engine_parts.h - what the files of the engine share.
 *
 *   engine_open.c     plan, model, vocabulary, memory of steps; closing
 *   engine_warm.c     steps before anybody asks for one
 *   engine_experts.c  which experts are used, over restarts
 *   engine.c          requests come, are cancelled, are too late, end
 *   engine_step.c     a step: pieces to segments, rows to tokens
 *   engine_vectors.c  the same for inputs of vector requests
 *   engine_memory.c   sequences give up what they hold, and get it back
 *   engine_prefix.c   what prompts have in common need not run again
 *   engine_ahead.c    the next turn's beginning runs while nobody wants anything
 *   engine_poison.c   tests have what nobody owns filled with NaN
 *   engine_speculate.c  who guesses, and for whom
 *   engine_figures.c  what others want to know of it, and its own measurement
 *
 * Private to those.  Thread: engine.
 */
#ifndef SILICEO_WORKER_ENGINE_PARTS_H
#define SILICEO_WORKER_ENGINE_PARTS_H

#include "worker/engine.h"
#include "worker/engine_rates.h"
#include "worker/memory/kv_pages.h"
#include "worker/memory/parked.h"
#include "worker/memory/plan.h"
#include "worker/memory/prefix_cache.h"
#include "worker/request.h"
#include "worker/scheduler.h"
#include "worker/speculate.h"

enum { ENGINE_MAX_WAITING = 256, ENGINE_MAX_WARNINGS = 4 };
enum { ENGINE_LOADED = 900 }; /* permille of opening */

struct engine {
    engine_params params;
    gguf_file *file;
    char hash[33];
    char numerics[64];
    tokenizer *vocab;
    token_trie *trie;
    memory_plan plan;
    char plan_text[4096];
    char warnings[ENGINE_MAX_WARNINGS][CHAT_WARNING_SIZE];
    size_t n_warnings;
    model *model;
    kv_pages *pages;
    parked_store *parked;
    prefix_cache *prefixes; /* NULL: prompts are not remembered */
    scheduler *scheduler;
    request_context context;
    request *requests;     /* newest first */
    request *answered;     /* over: what they began may run ahead; newest first */
    request *ahead;        /* of requests, the one that runs ahead; NULL: none */
    uint32_t *expert_uses; /* the list as it was read, while the model opens; NULL: none */
    uint64_t uses_saved_ms;
    uint64_t uses_saved_tokens; /* of stats.model, when the list was written */
    bool uses_complained;
    uint64_t loading_since_ms;
    uint64_t seed;
    uint64_t n_submitted;
    /* of a step */
    scheduler_piece *pieces;
    model_segment *segments;
    float *logits;
    bool owns_logits;  /* else the model does */
    model_best *best;  /* [max_outputs], where a step wants no more */
    bool has_logits;   /* the last step's are in logits, else in best what it gave */
    uint64_t model_ns; /* that the model took for it, what was replayed after it included */
    float *hidden;     /* [max_rows][n_embd], what inputs of vectors want */
    /* [SEQUENCE_CUT_PLACES][chunk_tokens][n_embd] of pieces that are cut, between their slices */
    float *cut_rows;
    float *raw_row;  /* a row as the model gave it, for log probabilities */
    float *fork_row; /* a row of a prompt, for the next of its choices */
    sampler_scratch *scratch;
    unsigned char *poison; /* a page or a state of NaN, where tests ask for it */
    int32_t *masked;       /* see make_masks() */
    size_t n_masked, n_masked_with_ends, n_masked_to_speak;
    speculate *guesses;     /* NULL: nobody guesses */
    uint32_t *states_after; /* [n_sequences][states_each] */
    sequence **decoding;    /* [n_sequences] */
    model_stats before;
    engine_rates rates;
    uint64_t ram_read_ms;
    uint64_t ram_used_bytes;
};

/* How far it is opened. */
void engine_tell_progress(const engine *e, uint32_t permille, const char *what);
/* Steps on state 0 and the first pages, which nobody has yet, and no trace of them. */
status engine_warm_up(engine *e, error *err);
/* Ids as different as those of a text. */
void engine_fill_ids(int32_t *ids, uint32_t n, uint32_t n_vocab);

/* Read the list, if one is wanted and there is one; what is wrong with it is logged. */
status engine_read_expert_list(engine *e, const model_config *c, error *err);
/* Tell what became of it when the model is open. */
void engine_tell_expert_list(engine *e);
/* Write it if there is anything new. */
void engine_save_expert_list(engine *e);

/* End r: well (fault NULL), or with an error.  It is freed by the next sweep. */
void engine_end_request(engine *e, request *r, const request_fault *fault);
/* Free what is over.  Not while pieces of a step may still point to it. */
void engine_sweep(engine *e);
request_fault engine_fault(uint32_t http_status, const char *code, bool retryable, status rc,
                           const char *text);
void engine_end_late_requests(engine *e, uint64_t now_ns);
/* Of a sequence whose piece is cut, what the layers that have run made of its rows. */
float *engine_cut_rows(const engine *e, const sequence *who);
scheduler_memory engine_memory_hooks(engine *e);
status engine_poison_begin(engine *e, error *err);
void engine_poison_states(void *context, const sequence *who);

/* Open e->prefixes, if the plan has room for it, and put its functions into hooks. */
status engine_open_prefixes(engine *e, scheduler_cache *hooks, error *err);
/* Whether r has to wait for the disk; if so, until engine_is_fetched(). */
bool engine_fetch_prefix(engine *e, request *r);
bool engine_is_fetched(engine *e, const request *r);
uint32_t engine_n_fetching(const engine *e); /* sequences that wait so */
bool engine_wait_fetching(engine *e);        /* for a moment; false where none does */
/* Give the scheduler requests whose waiting is over. */
void engine_start_fetched(engine *e);
/* Note in r which of its prompt's beginnings are held, and which of any are no more, before it
 * is told. */
void engine_note_held(engine *e, request *r);

/* Take over a request that is over, if the next turn's beginning is worth running. */
bool engine_keep_for_ahead(engine *e, request *r);
void engine_forget_answered(engine *e);
/* With nothing else to do: give the scheduler such a beginning.  False: there is none. */
bool engine_begin_ahead(engine *e);
/* A piece of it has run; it may be done then. */
void engine_advance_ahead(engine *e, const scheduler_piece *piece);
/* Somebody comes: it waits again, and what it has done is kept. */
void engine_leave_ahead(engine *e);

/* What guesses on a file need of the plan, of an engine that is not opened, too: how many there
 * are, and what a draft takes where it will compute.  Refuses a draft whose vocabulary is not
 * the file's. */
status engine_plan_guesses(const engine_params *p, const gguf_file *file, const model_config *c,
                           plan_request *wish, error *err);
/* Their drafters. */
status engine_open_guesses(engine *e, error *err);
/* The clock of what steps cost: a CPU step is computed by this thread and its pool together,
 * and a busy machine is no reason to guess less; a GPU is waited for. */
uint64_t engine_cost_ns(const engine *e);
/* Before a step is planned: guesses behind everyone that decodes. */
void engine_guess(engine *e);
/* The rows of a piece that stay are shown to who wants them. */
void engine_show_rows(engine *e, const sequence *who, const model_segment *s, uint32_t n_rows);
/* Let the rows of a piece with guesses be verified, each with its state. */
void engine_verify_rows(engine *e, size_t piece, model_segment *s);
/* Of such a piece the first n_rows rows stay: its sequence goes on from there. */
void engine_keep_rows(engine *e, size_t piece, uint32_t n_rows);

/* Give the scheduler inputs of vector requests for which there is room. */
void engine_begin_vectors(engine *e);
/* What a piece of such an input wants instead of a token; rows go to `place`, and the place
 * for the next is returned.  Other pieces stay as they are. */
float *engine_ask_vectors(const scheduler_piece *piece, model_segment *s, float *place);
/* What the step gave such a piece; its request may be over then. */
void engine_take_vectors(engine *e, const scheduler_piece *piece, const model_segment *s,
                         const float *logits);

#endif
