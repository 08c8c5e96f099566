/* engine.h - requests in, tokens out: template, tokenizer, scheduler, model, sampler.
 *
 * An engine is a loaded model with its running sequences.  It is driven:
 * engine_step() does one step for everyone who runs and reports through the
 * sink; it never blocks and starts no thread of its own (the backend's pool
 * apart).  Everything is called from one thread, which `worker/engine_loop`
 * owns in a worker process and the subcommands are themselves.
 *
 * Nothing is lost silently: each accepted request ends with exactly one
 * on_done or on_error, also when it is cancelled or the engine closes.
 */
#ifndef SILICEO_WORKER_ENGINE_H
#define SILICEO_WORKER_ENGINE_H

#include "common/error.h"
#include "common/wire.h"
#include "worker/budget_settings.h"
#include "worker/embedding_settings.h"
#include "worker/memory/prefix_cache.h"
#include "worker/model/model.h"
#include "worker/speculate_stats.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct engine engine;

/* How far an engine is opened. */
typedef struct engine_progress {
    uint32_t permille;
    const char *what;
    uint64_t n_bytes, n_total; /* read of the model; 0 of 0 before and after that */
    uint64_t left_ms;          /* until it is read, by the rate so far; 0: not known */
} engine_progress;

/* Who may guess tokens ahead; see speculate.h. */
typedef enum speculate_wish {
    SPECULATE_OFF,
    SPECULATE_AUTO, /* look-up, and the draft where one is named, as far as it costs little */
    SPECULATE_LOOKUP,
    SPECULATE_DRAFT,
    SPECULATE_MTP /* the model's own block */
} speculate_wish;

typedef struct engine_params {
    const char *model_path;
    backend_kind backend;
    char cpu_reason[200];  /* why auto took the CPU; empty when it did not */
    uint32_t n_threads;    /* 0: one a physical core */
    uint32_t n_context;    /* tokens a sequence may hold; 0: what the model and memory allow */
    uint32_t n_sequences;  /* running at once */
    uint32_t chunk_tokens; /* prefill tokens a step */
    uint32_t max_step_ms;  /* of a step beside running streams; 0: no bound */
    kv_type kv;
    activation_type activations;
    uint32_t inserts_per_layer;
    cpu_lane lane;
    uint32_t n_loaders;       /* threads that read experts from disk; 0: as many as usual */
    uint32_t prefix_states;   /* of the model, for the newest of them */
    uint64_t prefix_disk_mib; /* the same on disk; 0: none */
    const char *prefix_disk_dir;
    bool prefix_ahead;            /* run an answer as what the next turn begins with */
    uint32_t prefix_every_tokens; /* between snapshots in long prompts; 0: at messages alone */
    int64_t warm_up_ms; /* for steps before it is ready (engine_warm.c); 0: a token; -1: auto */
    const char *experts_dir;  /* for the list of experts used most; NULL: none is kept */
    uint64_t experts_save_ms; /* between two of its versions */
    embedding_pooling pooling;
    speculate_wish speculate;
    uint32_t draft_tokens;  /* guesses of a sequence and step at most; 0: auto */
    int64_t n_slots;        /* -1: auto */
    uint64_t vram_mib;      /* 0: measured */
    uint64_t ram_mib;       /* 0: measured */
    int64_t park_mib;       /* RAM for what sequences held that wait again; -1: auto */
    int64_t prefix_ram_mib; /* for beginnings of prompts; 0: none; -1: a share of RAM */
    int32_t
        draft_gpu_layers;   /* of the draft's, the last; -1: all where the model is on a GPU */
    const char *draft_path; /* of a smaller model with the same vocabulary; NULL: none */
    const char *profile;    /* name for the records */
    uint64_t seed;          /* for requests without one */
    budget_settings budgets;
    bool no_graphs;   /* cuda: every kernel is launched by itself */
    bool nfc;         /* normalise message text; llama.cpp does not */
    bool fixed_depth; /* draft_tokens guesses always, whatever they cost */
    bool poison;      /* tests: what is free is filled with NaN, see engine_poison.c */
    void (*on_progress)(void *context, const engine_progress *p); /* while opening, or NULL */
    void *progress_context;
} engine_params;

/* Where results go.  Messages are borrowed for the call; request and epoch are
 * those of the submit. */
typedef struct engine_sink {
    void *context;
    void (*on_tokens)(void *context, const wire_tokens *tokens);
    void (*on_done)(void *context, const wire_done *done);
    void (*on_error)(void *context, const wire_error *error);
} engine_sink;

typedef struct engine_stats {
    uint32_t running;
    uint32_t waiting;
    uint32_t free_sequences;
    uint32_t kv_pages_total;
    uint32_t kv_pages_free;
    prefix_stats prefixes; /* zeros where there is no cache of them */
    double hit_rate;       /* lately; negative: no cache */
    double misses_per_token;
    double prefill_tok_per_s;
    double decode_tok_per_s;
    model_stats model;       /* since the start */
    speculate_stats guesses; /* since the start */
    uint64_t ram_used_bytes;
    /* Sequences that gave up their place: with all they held, without it, and those of the
     * former, choices of a parked prompt too, that got it back; since the start. */
    uint64_t parked, not_parked, restored;
} engine_stats;

/* Plan the memory, print nothing, load, warm up.  The plan is in engine_plan(). */
status engine_open(engine **out, const engine_params *params, const engine_sink *sink,
                   error *err);
void engine_close(engine *e); /* ends what runs with on_error; accepts NULL */

/* Take a request (a wire_submit: kind, body, deadline, resume).  The message is
 * copied.  A body that is wrong is answered by on_error, like every later
 * failure; the status is for a full queue or no memory, and then nothing is called. */
status engine_submit(engine *e, const wire_submit *submit, error *err);
/* End it: on_error with http_status 499.  False when it is not known (any more). */
bool engine_cancel(engine *e, uint64_t request, uint64_t epoch);

/* One step for all that run; *did_work false: nothing to do until the next submit. */
status engine_step(engine *e, bool *did_work, error *err);

/* Write the list of experts used most where enough time has passed since it was written; between
 * steps, as often as one likes. */
void engine_tend_experts(engine *e, uint64_t now_ms);

void engine_read_stats(engine *e, engine_stats *out);
/* Measure prefill and decode for about budget_ms on an empty engine. */
status engine_measure(engine *e, uint32_t budget_ms, double *prefill_tok_per_s,
                      double *decode_tok_per_s, error *err);

/* Between steps: see model.h. */
/* A request with the id i takes trace i % n_traces. */
status engine_set_routing(engine *e, const routing_trace *traces, uint32_t n_traces,
                          error *err);
void engine_forget_experts(engine *e);

const model_config *engine_model_config(const engine *e);
const char *engine_file_hash(const engine *e); /* 32 hex digits */
const char *engine_numerics_id(const engine *e);
uint32_t engine_context_tokens(const engine *e);
uint32_t engine_n_slots(const engine *e);      /* 0: experts are read where they lie */
const char *engine_plan_text(const engine *e); /* the memory plan, many lines */
/* Bytes of VRAM that the plan needs, the driver's included; 0 on the CPU. */
uint64_t engine_planned_vram(const engine *e);
/* A warning about the file (another chat template, no MTP tensors), or NULL. */
const char *engine_warning(const engine *e, size_t index);

#endif
