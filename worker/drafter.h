/* drafter.h - who guesses the next tokens of sequences: prompt look-up, a draft model, the
 * model's own MTP block.
 *
 * A drafter knows a sequence by its place, a number below n_places, and by its key, which no
 * other sequence ever has.  It is asked for guesses between steps and never told what became
 * of them: the next time it sees the tokens.  What it has of a sequence it keeps until its
 * place is another's, so preemption, cached prompts and cancelling are nothing to it.
 *
 * Guesses are never wrong in the answer, only in vain: see speculate.h.
 * Allocates only when opened.  Thread: engine.
 */
#ifndef SILICEO_WORKER_DRAFTER_H
#define SILICEO_WORKER_DRAFTER_H

#include "common/error.h"
#include "common/gguf.h"
#include "worker/model/model.h"
#include "worker/speculate_stats.h"
#include <stdint.h>

typedef struct drafter_ask {
    uint64_t key;          /* 0: nobody */
    const int32_t *tokens; /* all that are known of the sequence, [n_tokens] */
    uint32_t n_tokens;
    uint32_t n_prompt;
    uint32_t place;
    uint32_t depth;   /* guesses wanted at most */
    int32_t *guesses; /* gets them, [depth] */
    uint32_t n_guesses;
    uint32_t match;  /* look-up: so many last tokens agreed with what came before the guesses */
    uint32_t n_read; /* rows of a model that were run for it, those of its prompt not counted */
    uint32_t n_read_prompt;
} drafter_ask;

/* What the model had of a sequence after its final norm. */
typedef struct drafter_rows {
    uint64_t key;
    const int32_t *tokens; /* of the sequence, those behind the rows included */
    const float *rows;     /* [n_rows][n_embd] */
    uint32_t n_rows;
    uint32_t position; /* of the first row; the token behind the last row is known */
    uint32_t place;
} drafter_rows;

typedef struct drafter drafter;
typedef struct drafter_ops {
    void (*close)(drafter *d);
    /* Guess for n different places; n_guesses may be 0, as while a prompt is being read. */
    status (*guess)(drafter *d, drafter_ask *asks, size_t n, error *err);
    /* Every row of the sequence that stays, in order; NULL: it needs none. */
    status (*see)(drafter *d, const drafter_rows *seen, error *err);
} drafter_ops;

/* Every drafter's struct begins with this. */
struct drafter {
    const drafter_ops *ops;
};

/* For sequences of up to n_context tokens. */
status drafter_lookup_open(drafter **out, uint32_t n_places, uint32_t n_context, error *err);

typedef struct drafter_model_params {
    const char *path;
    const gguf_file *target; /* whose vocabulary the draft must have */
    backend_kind backend;
    int32_t
        n_gpu_layers; /* on a GPU: the last ones and the head; -1: all.  The others compute on
                           * the CPU */
    uint32_t n_threads;
    kv_type kv;
    activation_type activations;
    uint32_t n_places;
    uint32_t n_context;
    uint32_t n_pages; /* KV pages, for all */
    uint32_t depth;   /* guesses in one go at most */
    uint32_t n_vocab; /* ids below it may be guessed */
} drafter_model_params;

/* Memory that a draft will need: of its file and states, and a page.  Refuses a draft whose
 * vocabulary is not target's. */
status drafter_model_fixed_bytes(uint64_t *fixed, uint64_t *page, const char *path,
                                 const gguf_file *target, kv_type kv, uint32_t n_states,
                                 error *err);
/* What a draft on the GPU takes: VRAM, with params->n_pages pages, and of the layers that are on the
 * CPU beside it the file's bytes and states, and a page. */
typedef struct drafter_model_parts {
    uint32_t n_layers, n_gpu_layers;
    uint64_t vram_bytes, ram_bytes, ram_page_bytes;
} drafter_model_parts;
status drafter_model_measure(drafter_model_parts *out, const drafter_model_params *params,
                             error *err);
status drafter_model_open(drafter **out, const drafter_model_params *params, error *err);

typedef struct drafter_mtp_params {
    const gguf_file *file; /* of the model; must outlive the drafter */
    const model *whole;    /* the same; NULL where the block computes on another device */
    backend_kind backend;
    uint32_t n_threads;
    kv_type kv;
    activation_type activations;
    uint32_t n_places;
    uint32_t n_context;
    uint32_t n_pages;
    uint32_t cap_held; /* rows of a step and sequence: 1 + guesses */
    uint32_t max_rows; /* of a step of the block, at least n_places * cap_held */
    uint32_t n_vocab;
} drafter_mtp_params;

/* Bytes of the file that a guess of the block reads; those of the head are the model's where it
 * computes on the CPU as well. */
status drafter_mtp_file_bytes(uint64_t *out, const gguf_file *file, bool with_head, error *err);
/* VRAM of the block on a GPU beside its model; params->whole is not asked. */
status drafter_mtp_vram_bytes(uint64_t *out, const drafter_mtp_params *params, error *err);
/* STATUS_BAD_INPUT when the file has no block. */
status drafter_mtp_open(drafter **out, const drafter_mtp_params *params, error *err);

#endif
