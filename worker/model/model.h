/* model.h - a loaded model that runs steps: the one forward pass over a backend.
 *
 * A model owns the weights' view, the backend and every large buffer (KV pages,
 * recurrent states, expert slots, workspace), all made in model_open() from
 * sizes the memory plan fixed.  It knows nothing of requests: a step takes
 * segments, each the next tokens of one sequence, with the ids of the pages and
 * of the state that this sequence owns.  Who owns which page is memory/kv_pages.
 *
 * Batch invariance: the logits of a row depend on the tokens of its own
 * sequence alone, bit for bit, not on the other segments.  Prefill pieces that
 * start at a multiple of MODEL_CHUNK_TOKENS keep bits also when split otherwise.
 *
 * Speculation: a segment with states_after is verified row by row.  Every row gives the
 * bits that it gives in a step of its own, whatever follows it, and the state after row t
 * goes to states_after[t]; so after a step, a sequence goes on from any of its rows by
 * taking that row's state for its own, and nothing needs to be undone: keys and values of
 * the rows beyond it are written again before they are read.
 * A state a row is much to write where many rows are verified and mostly all are right.  Where
 * a segment is `remembered`, what its rows bring into the state is kept instead, a thousandth
 * of it; the state after the last row is made beside the one before, and model_replay() makes
 * that after any other row, bit for bit, from the one before.
 *
 * Slices: a piece of a prompt may run some layers at a time, with steps of other sequences
 * between.  What its layers have made is with the caller meanwhile; rows being independent, no bit
 * changes.  The experts that a layer brings in serve the whole piece, so that a long piece cut by
 * layers costs hardly more than one that is not, where one cut by tokens would bring them again.
 *
 * Thread: the engine thread alone (the backend has threads of its own inside).
 */
#ifndef SILICEO_WORKER_MODEL_MODEL_H
#define SILICEO_WORKER_MODEL_MODEL_H

#include "common/error.h"
#include "common/gguf.h"
#include "kernels/kv_layout.h" /* kv_type */
#include "kernels/kv_layout.h"
#include "worker/model/config.h"
#include "worker/routing_trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_PAGE_TOKENS = KV_PAGE_TOKENS, MODEL_CHUNK_TOKENS = 64 };

typedef enum backend_kind { BACKEND_CPU, BACKEND_CUDA } backend_kind;
typedef enum activation_type { ACTIVATIONS_INT8, ACTIVATIONS_F32 } activation_type;

/* Experts without a slot on a GPU: shipped all; shared with the CPU as the rates say, where no bit
 * depends on who computed one, which is so of prompts; shared everywhere; or, of decoding rows, all
 * computed on the CPU, and no slot filled. */
typedef enum cpu_lane { CPU_LANE_OFF, CPU_LANE_PROMPTS, CPU_LANE_ON, CPU_LANE_ALL } cpu_lane;

/* Told on the caller's thread while a model opens: bytes read of those to read. */
typedef struct model_progress {
    void (*report)(void *context, uint64_t n_bytes, uint64_t n_total); /* or NULL */
    void *context;
} model_progress;

typedef struct model_params {
    backend_kind backend;
    uint32_t n_threads;
    kv_type kv;
    activation_type activations;
    uint32_t n_pages;      /* KV pages of MODEL_PAGE_TOKENS tokens, all full layers */
    uint32_t n_states;     /* recurrent states */
    uint32_t max_rows;     /* tokens of one step, all segments together */
    uint32_t max_outputs;  /* rows of one step that give logits */
    uint32_t n_remembered; /* rows of a step that may be remembered, where the backend does */
    uint32_t
        n_cpu_layers; /* of a dense model: so many first layers, with the embedding, compute on
                            * the CPU, and `backend` has the others and the head */
    uint32_t n_slots; /* expert slots over all layers; 0: read experts where they lie
                          (cpu), or a slot for each (cuda) */
    cpu_lane lane;
    bool pin_experts;           /* cuda: keep every expert's record in pinned RAM */
    uint32_t inserts_per_layer; /* cap of experts brought into slots a layer and step */
    bool poison;    /* tests, cpu: slots are filled with NaN before others use them */
    bool no_graphs; /* cuda: launch every kernel of every step by itself */
    /* Records of experts kept in RAM above the disk; 0: the page cache does it (cpu). */
    uint32_t host_records;
    uint32_t n_loaders; /* threads that read from disk; 0: as many as usual */
    /* [n_layers][n_experts] rows that experts had before this start: slots are filled with those
     * that had the most.  NULL: not known.  Borrowed while it opens. */
    const uint32_t *expert_uses;
    model_progress progress;
} model_params;

typedef struct model model;

/* The next tokens of one sequence. */
typedef struct model_segment {
    uint32_t state;    /* recurrent state this sequence owns */
    uint32_t position; /* of tokens[0] in the sequence */
    uint32_t n_tokens;
    uint32_t n_outputs; /* logits wanted for the last n_outputs tokens */
    uint32_t trace;     /* where traces choose the experts: which of them */
    uint32_t n_hidden;  /* of the last so many tokens the row after the final norm is wanted */
    const int32_t *tokens;
    const uint32_t *pages; /* page of positions [64 i, 64 i + 63]; covers position + n_tokens */
    float *hidden;         /* gets [n_hidden][n_embd]; costs no product with the head */
    /* NULL: a piece, and `state` becomes the state after its last token.  Else [n_tokens]
     * different states: where the one after each token goes.  `state` is left as it is unless
     * it is among them; nobody else of the step may have any of them. */
    const uint32_t *states_after;
    /* states_after is one state, not `state`, and gets that after the last token; see
     * model_replay(). */
    bool remembered;
    /* Of an MTP block: [n_tokens][n_embd], of each token the model's row after the final norm of
     * the position before it.  Else NULL. */
    const float *before;
} model_segment;

/* Some layers of a piece: [first_layer, end_layer). */
typedef struct model_slice {
    uint32_t first_layer, end_layer;
    float *rows; /* [n_tokens][n_embd] what the layers before have made, then what these have */
} model_slice;

/* The largest logit of a row; of equals that with the lowest id. */
typedef struct model_best {
    int32_t id; /* -1: no logit is a number */
    float logit;
} model_best;

typedef struct model_stats {
    uint64_t expert_lookups; /* distinct experts asked for, a layer and step */
    uint64_t expert_hits;
    uint64_t expert_inserts;
    uint64_t expert_bytes_moved;         /* host to slot (on a GPU: over PCIe) */
    uint32_t slots_filled, slots_by_use; /* while it opened; of those, by expert_uses */
    uint64_t tokens;                     /* rows run */
    uint64_t steps;
    uint64_t slices;   /* of pieces that were cut by layers, but for each one's last, a step */
    uint64_t launches; /* kernels launched; 0 on the CPU */
    /* Of a GPU's CPU lane; 0 without one.  An expert of a decoding step [0] takes first, its layer
     * more; one of n rows of a prompt [1] takes first + more (n - 1); a record's journey ship. */
    uint64_t lane_experts;
    double lane_first_us[2], lane_more_us[2], ship_us;
    /* Records between RAM and disk; 0 where there are none. */
    uint64_t host_fetches;
    uint64_t disk_misses; /* records read from disk */
    uint64_t disk_bytes;  /* read past the page cache, whole blocks, loading included */
    uint64_t disk_wait_ns;
    uint64_t host_received; /* records that slots gave back to RAM */
    bool disk_direct;       /* O_DIRECT went */
    uint64_t pinned_bytes;  /* the driver's host memory, which is not resident memory */
} model_stats;

/* Look into a step (tests, --dump): called with what a layer gave.  what is
 * "embed", "layer", "final" (rows of n_embd floats) or "experts" (rows of
 * n_experts_used ids as float, largest weight first). */
typedef void (*model_tap)(void *context, const char *what, uint32_t layer, const float *rows,
                          size_t n_rows, size_t row_length);

/* file must outlive the model.  On failure *out is NULL. */
status model_open(model **out, const gguf_file *file, const model_params *params, error *err);
void model_close(model *m); /* accepts NULL */

/* The file's MTP block (spec 4.9) as a model of its own: a layer of full attention
 * whose input is made of a token and the row before it, and whose logits are those of the token
 * after it.  Position t is that of the row before.  Its rows after the norm before the head are
 * what a further guess has for `before`.  No recurrent states: n_states is how many sequences
 * may be in a step.  STATUS_BAD_INPUT when the file has no block.
 * whole: the model of the same file, which outlives it, on the same backend; the block reads that
 * one's head where it has none of its own.  NULL: it has a head for itself. */
status model_open_block(model **out, const gguf_file *file, const model *whole,
                        const model_params *params, error *err);

const model_config *model_configuration(const model *m);

/* Set a state to that of an empty sequence, by assignment. */
void model_state_clear(model *m, uint32_t state);
/* Copy a state out of, into or between places; bytes: model_config_state_bytes(). */
void model_state_save(model *m, uint32_t state, void *bytes);
void model_state_load(model *m, uint32_t state, const void *bytes);
void model_state_copy(model *m, uint32_t to, uint32_t from);
/* The bytes of a KV page (keys then values of every full layer). */
size_t model_page_bytes(const model *m);
void model_page_save(model *m, uint32_t page, void *bytes);
void model_page_load(model *m, uint32_t page, const void *bytes);
void model_page_copy(model *m, uint32_t to, uint32_t from);

/* Run one step.  logits gets [sum of n_outputs][n_vocab], segment by segment; it
 * may be NULL when no row asks.  After a failure (STATUS_DEVICE) the states and
 * pages of all segments are undefined. */
status model_step(model *m, const model_segment *segments, size_t n_segments, float *logits,
                  error *err);

/* Run a slice of a piece of two tokens or more that has no states_after.  The slices of a piece run
 * in order, from layer 0 on, each with the same segment and rows; hidden rows and logits come with
 * the last.  Until then the segment's state is that of nowhere: it may be saved, with its pages and
 * rows, and loaded elsewhere for the next slice, but nobody may run anything else from it, and
 * who gives the piece up clears or loads it.  Not where layers compute on the CPU beside a GPU
 * (n_cpu_layers). */
status model_step_slice(model *m, const model_segment *segment, const model_slice *slice,
                        float *logits, error *err);

/* Whether segments may have states_after. */
bool model_verifies_rows(const model *m);
/* Whether they may be remembered. */
bool model_remembers_rows(const model *m);
/* Let `state` of a remembered segment of the last step be that after its first n_rows rows, once
 * and before the next step.  `segment` counts those of the step. */
void model_replay(model *m, size_t segment, uint32_t n_rows);

/* Whether a device finds the largest logits where they are, for model_step_best(). */
bool model_finds_best(const model *m);
/* Run one step whose logits stay where they are: best gets [sum of n_outputs], each the largest
 * of a row's first n_vocab logits. */
status model_step_best(model *m, const model_segment *segments, size_t n_segments,
                       uint32_t n_vocab, model_best *best, error *err);
/* What model_step() would have given in the place of the last model_step_best(). */
status model_read_logits(model *m, float *logits, error *err);

/* Let traces choose the experts from now on (0: the router again): the row at a position of a
 * segment takes the ids that its trace has for it.  Traces must outlive their use; layers, experts
 * and experts per token must be the model's. */
status model_set_routing(model *m, const routing_trace *traces, uint32_t n_traces, error *err);
/* Empty the slots of experts, where slots are fewer than experts. */
void model_forget_experts(model *m);

/* Rows that experts had, [n_layers][n_experts], as params.expert_uses wants them; they change with
 * every step, and may be written between steps.  NULL: there are no slots. */
uint32_t *model_expert_uses(const model *m);
/* Steps of a trial leave no trace in the slots and in what is counted: neither uses nor any figure
 * of model_read_stats().  What is learnt of the machine stays. */
void model_set_trial(model *m, bool trial);

/* Memory for the logits of a step, [max_outputs][n_vocab], that a GPU writes without a copy in
 * between; it is the model's.  NULL: there is none. */
float *model_logits_memory(model *m);

void model_set_tap(model *m, model_tap tap, void *context);
void model_read_stats(const model *m, model_stats *out);
/* "cpu/int8/f16" and the like: equal ids on equal files give equal bits. */
void model_numerics_id(const model *m, char *out, size_t cap);

#endif
