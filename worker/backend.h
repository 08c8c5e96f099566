/* backend.h - what a compute device must do for the forward pass: a table of functions.
 *
 * The forward pass (model/forward.c) is one file for all devices.  It names
 * buffers and calls ops in order; a backend owns every buffer and never tells
 * where it lies.  Ops are fixed and as coarse as a GPU fuses them (norm with
 * quantization, several matrices on one input, all active experts at once), so
 * a backend is free to launch each as one kernel and to return before it ran.
 *
 * Data flow of one step, rows are tokens of all segments together:
 *
 *   begin    the batch                    -> device
 *   embed    tokens                       -> BUFFER_RESIDUAL
 *   embed_after  tokens, rows before them -> BUFFER_RESIDUAL
 *   norm     BUFFER_RESIDUAL              -> INPUT_HIDDEN
 *   project  an input                     -> buffers, or added to the residual
 *   delta_net  BUFFER_U, Z, ALPHA, BETA, states -> INPUT_MIXED, states
 *   attention  BUFFER_Q, K, V, pages      -> INPUT_MIXED, pages
 *   gated    INPUT_HIDDEN                 -> INPUT_GATED (dense feed forward)
 *   route    INPUT_HIDDEN                 -> experts and weights of each row
 *   experts  INPUT_HIDDEN, route          -> added to the residual
 *   hidden   BUFFER_RESIDUAL              -> INPUT_HIDDEN, normed; for read_hidden
 *   final_norm  BUFFER_RESIDUAL           -> INPUT_FINAL, rows that give logits
 *   logits   INPUT_FINAL                  -> the caller's memory, or the batch's best; waits
 *   end      waits for what still runs and says whether the step succeeded
 *
 * A row's results depend on its own sequence alone, bit for bit: neither on the
 * other rows nor on where its experts lie.  A run verified row by row gives each row
 * what a step of that row alone gives.
 *
 * Errors  Only begin, end and logits report; an op after a failure does nothing.
 * Memory  Everything is allocated by open, from model_params; no op allocates.
 * Thread  The engine thread.
 */
#ifndef SILICEO_WORKER_BACKEND_H
#define SILICEO_WORKER_BACKEND_H

#include "common/error.h"
#include "kernels/args.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* float32 rows; the length of a row is that of what is stored in it. */
typedef enum backend_buffer {
    BUFFER_RESIDUAL, /* [n_rows][E] */
    BUFFER_Q,        /* [n_rows][2 Hq head_dim], query and gate of a head side by side */
    BUFFER_K,        /* [n_rows][Hkv head_dim] */
    BUFFER_V,        /* [n_rows][Hkv head_dim] */
    BUFFER_U,        /* [n_rows][conv_dim] */
    BUFFER_Z,        /* [n_rows][inner_dim] */
    BUFFER_ALPHA,    /* [n_rows][Hv] */
    BUFFER_BETA,     /* [n_rows][Hv] */
    BUFFER_COUNT
} backend_buffer;

/* Inputs of matrices: rows in each numeric form that a consumer needs, made once. */
typedef enum backend_input {
    INPUT_HIDDEN, /* [n_rows][E] */
    INPUT_MIXED,  /* [n_rows][Hq head_dim or inner_dim] */
    INPUT_GATED,  /* [n_rows][n_ff] */
    INPUT_FINAL,  /* [n_outputs][E] */
    INPUT_COUNT
} backend_input;

/* A set of act_format bits: 1 << ACT_F32 and so on. */
typedef unsigned input_forms;

/* Rows after the final norm that the caller wants beside the logits. */
typedef struct batch_hidden {
    uint32_t first_row;
    uint32_t n_rows;
    float *out; /* [n_rows][E] */
} batch_hidden;

#define BATCH_FORGOTTEN UINT32_MAX

/* One step.  Arrays are borrowed until end. */
typedef struct batch {
    batch_view view;       /* rows, runs (the segments) and pages, see kernels/args.h */
    const int32_t *tokens; /* [n_rows] */
    uint32_t first_layer, end_layer; /* those that run: [first_layer, end_layer) */
    /* [n_rows][E] what layers before these have made of the tokens, here or elsewhere; they are in
     * the residual after begin, and nothing is embedded.  NULL: there are none. */
    const float *residual;
    const uint32_t *output_rows; /* [n_outputs], rows that give logits */
    uint32_t n_outputs;
    const batch_hidden *hidden; /* [n_hidden] */
    uint32_t n_hidden;
    const float *const *before; /* [n_runs] of each run, see model_segment */
    /* [n_runs] the first remembered row of each run, or BATCH_FORGOTTEN.  The list of states of
     * a remembered run names one state for all its rows: each row's takes the place of the one
     * before it. */
    const uint32_t *remembered;
    /* [n_layers][n_rows][n_experts_used] ids that replace the router's; NULL: none do. */
    const int32_t *routed;
    bool watched; /* someone looks into the step while it runs */
    /* [n_outputs], wanted in place of the logits, among the first best_of; NULL: the logits. */
    model_best *best;
    uint32_t best_of;
} batch;

typedef struct projection {
    const weight_matrix *matrix;
    backend_buffer out;
    bool add; /* out += W x instead of out = W x */
} projection;

typedef struct backend backend;

typedef struct backend_ops {
    const char *name;          /* "cpu" */
    bool verifies_rows;        /* runs may be verified row by row, see kernels/args.h */
    void (*close)(backend *b); /* accepts a half-built one */

    status (*begin)(backend *b, const batch *step, error *err);
    void (*embed)(backend *b, const weight_matrix *table);
    /* Instead of embed, in an MTP block: BUFFER_RESIDUAL = in (norm(embedding) | norm(before)). */
    void (*embed_after)(backend *b, const weight_matrix *table, const block_weights *block,
                        input_forms forms);
    void (*norm)(backend *b, const weight_vector *weight, input_forms forms);
    void (*project)(backend *b, backend_input in, const projection *list, size_t n);
    /* ordinal counts the layers of the kind: which states or pages. */
    void (*delta_net)(backend *b, const layer_weights *layer, uint32_t ordinal,
                      input_forms forms);
    void (*attention)(backend *b, const layer_weights *layer, uint32_t ordinal,
                      input_forms forms);
    void (*gated)(backend *b, const weight_matrix *gate, const weight_matrix *up,
                  input_forms forms);
    void (*route)(backend *b, const layer_weights *layer);
    /* layer_index names the experts in the cache.  forms: of the experts' hidden rows;
     * shared_forms: of the shared expert's. */
    void (*experts)(backend *b, const layer_weights *layer, uint32_t layer_index,
                    input_forms forms, input_forms shared_forms);
    /* The norm of every row, in floats alone, until end; before final_norm. */
    void (*hidden)(backend *b, const weight_vector *weight);
    void (*final_norm)(backend *b, const weight_vector *weight, input_forms forms);
    status (*logits)(backend *b, const weight_matrix *head, float *out, error *err);
    /* Rows that `hidden` made; waits. */
    void (*read_hidden)(backend *b, uint32_t first_row, uint32_t n_rows, float *out);
    status (*end)(backend *b, error *err);
    /* The logits of the last step, which wanted the best alone; NULL: no step may want that. */
    status (*read_logits)(backend *b, float *out, error *err);
    /* Memory for the logits of a step that needs no copy; NULL: the caller's own does. */
    float *(*logits_memory)(backend *b);

    /* Looks into a running step; they wait for the device.  out: [n_rows][E],
     * [n_outputs][E] and [n_rows][n_experts_used]. */
    void (*read_residual)(backend *b, float *out);
    void (*read_final)(backend *b, float *out);
    void (*read_experts)(backend *b, float *out);

    /* Between steps.  A state is model_config_state_bytes() bytes. */
    void (*state_clear)(backend *b, uint32_t state);
    void (*state_save)(backend *b, uint32_t state, void *bytes);
    void (*state_load)(backend *b, uint32_t state, const void *bytes);
    void (*state_copy)(backend *b, uint32_t to, uint32_t from);
    /* The state before a run of the last step becomes that after its first n_rows rows, which
     * are remembered from `first` on.  NULL: this device remembers none. */
    void (*state_replay)(backend *b, const batch_run *run, uint32_t first, uint32_t n_rows);
    size_t (*page_bytes)(const backend *b);
    void (*page_save)(backend *b, uint32_t page, void *bytes);
    void (*page_load)(backend *b, uint32_t page, const void *bytes);
    void (*page_copy)(backend *b, uint32_t to, uint32_t from);

    void (*forget_experts)(backend *b);        /* empty the slots */
    void (*set_trial)(backend *b, bool trial); /* see model.h */
    uint32_t *(*expert_uses)(const backend *b);
    void (*read_stats)(const backend *b, model_stats *out);
} backend_ops;

/* Every backend's struct begins with this. */
struct backend {
    const backend_ops *ops;
};

/* Make a backend with all its memory.  weights belongs to the caller, outlives the
 * backend and gets its `place` pointers filled.  On failure *out is NULL. */
status backend_cpu_open(backend **out, const model_config *config, model_weights *weights,
                        const model_params *params, error *err);

status backend_cuda_open(backend **out, const model_config *config, model_weights *weights,
                         const model_params *params, error *err);

/* STATUS_OK when this build has kernels and this machine a GPU for them; else the reason. */
status backend_cuda_available(error *err);
/* What the first GPU is, for people and for NVML; empty where there is none. */
void backend_cuda_describe(char *name, size_t name_cap, char *bus_id, size_t bus_id_cap,
                           uint64_t *vram_bytes);
/* Free and total VRAM of the first GPU, the context that this process will make counted as
 * taken or not as NVML is there or not. */
status backend_cuda_memory(uint64_t *free_bytes, uint64_t *total_bytes, error *err);
/* VRAM that no model of ours gets: what a context with its streams and kernels takes, and of that
 * the kernels, which every further model loads again.  A context is made for it and NVML asked
 * before and after; without NVML, or where the card's use falls meanwhile, it fails. */
status backend_cuda_overhead(uint64_t *all_bytes, uint64_t *kernel_bytes, error *err);
/* What copies within the first GPU's memory reach, bytes read and bytes written together.  Takes
 * 512 MiB for some milliseconds. */
status backend_cuda_bandwidth(double *gb_per_s, error *err);

/* Add what a tier of records did to the figures of a backend; host may be NULL. */
struct host_tier;
void model_stats_add_host(model_stats *out, const struct host_tier *host);

/* The form that the rows of a matrix are multiplied with. */
input_forms backend_form_of(quant_type type, activation_type activations);

#endif
