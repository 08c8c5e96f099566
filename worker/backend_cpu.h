/* backend_cpu.h - the CPU backend's parts, private to backend_cpu*.c.
 *
 * One struct holds every buffer; all are made in backend_cpu_open().  An op is cut
 * into tasks for the pool: ranges of items that write disjoint outputs, so that
 * bits never depend on the number of threads.  Small ops run on the caller, which
 * costs less than waking a thread.
 *
 * Thread: the engine thread; task bodies run on any worker of the pool.
 */
#ifndef SILICEO_WORKER_BACKEND_CPU_H
#define SILICEO_WORKER_BACKEND_CPU_H

#include "kernels/cpu/pool.h"
#include "kernels/cpu/tier.h"
#include "kernels/kv_layout.h"
#include "kernels/matmul.h"
#include "worker/backend.h"
#include "worker/memory/expert_cache.h"
#include "worker/memory/host_tier.h"

enum { CPU_ALIGN = 64, CPU_FORMS = ACT_FORMATS };

/* Rows in the forms that the matrices after them read.  The float form is always
 * made: it is where the rows are computed. */
typedef struct cpu_input {
    void *form[CPU_FORMS];    /* by act_format */
    size_t stride[CPU_FORMS]; /* bytes from row to row */
    uint32_t n_cols;          /* as last written */
    act_format quantized;     /* what all quantized matrices read; ACT_F32: each its own */
} cpu_input;

/* Where one expert of the running layer is read: in a slot or in the mapping. */
typedef struct expert_place {
    const unsigned char *gate;
    const unsigned char *up;
    const unsigned char *down;
} expert_place;

/* Mixture of experts of a running layer; a pair is a row with one of its experts. */
typedef struct cpu_experts {
    float *logits;       /* [rows][n_experts] */
    float *shared_logit; /* [rows] */
    int32_t *chosen;     /* [rows][n_used], largest weight first */
    float *weights;      /* [rows][n_used] */
    /* Pairs sorted by expert. */
    uint32_t *first;   /* first sorted pair of each active expert */
    uint32_t *next;    /* [n_experts], while sorting */
    int32_t *pair_row; /* [pairs]: the row a sorted pair reads */
    int32_t *pair_out; /* [pairs]: row * n_used + rank, where its output goes */
    /* Distinct experts of the layer, in order. */
    int32_t *active;
    uint32_t *counts;
    int32_t *slots;
    expert_place *places;
    size_t n_active;
    float *down;        /* [pairs][E] */
    float *shared_up;   /* [rows][n_ff_shared] */
    float *shared_down; /* [rows][E] */
    cpu_input shared;   /* the shared expert's hidden rows */
    /* Slots, when the profile has them. */
    expert_cache *cache;
    unsigned char *arena;
    size_t slot_bytes;
    expert_insert *inserts; /* [n_experts] */
    /* Records between RAM and disk; NULL: experts are read where the file is mapped. */
    host_tier *host;
    int32_t *missing; /* [n_experts] */
    bool failed;      /* a record could not be read in this step */
    uint64_t lookups;
    uint64_t bytes_moved;
    uint32_t n_by_use; /* slots filled at the start */
} cpu_experts;

/* Rows of the last step whose effect on the states can be had again: what the convolution and
 * the delta net of each linear layer read, [n_linear_layers][cap_rows][row_floats]. */
typedef struct cpu_journal {
    float *rows; /* of a row: conv_dim inputs, then alpha, then beta */
    size_t row_floats;
    size_t cap_rows;
    uint32_t *states; /* [1 + cap_rows], the list of a replay, from 1 on */
} cpu_journal;

/* The rows that a linear layer mixes. */
typedef struct cpu_delta_rows {
    batch_view batch;
    const float *u; /* before the convolution, whose rows go to BUFFER_U */
    const float *alpha;
    const float *beta;
    size_t u_stride; /* floats */
    size_t alpha_stride, beta_stride;
} cpu_delta_rows;

typedef struct backend_cpu {
    backend base;
    const model_config *config;
    const model_weights *weights;
    model_params params;
    cpu_tier tier;
    pool *threads;
    uint32_t n_threads;
    batch batch; /* of the running step */
    float *buffer[BUFFER_COUNT];
    size_t row[BUFFER_COUNT]; /* floats of a row */
    cpu_input input[INPUT_COUNT];
    cpu_input pair; /* [rows][2 E], of an MTP block */
    float *delta;   /* [rows][E], what the last projection adds to the residual */
    bool has_delta;
    float *up; /* [rows or pairs][n_ff], and the gate is the input's float form */
    float *inv_freq;
    float *rope; /* [rows][n_rot] */
    unsigned char *states;
    size_t state_bytes;
    cpu_journal journal;
    unsigned char *pages;
    size_t page_bytes;
    size_t layer_page_bytes;
    float *conv; /* [n_linear_layers][taps][conv_dim], transposed */
    cpu_experts experts;
    unsigned char *scratch; /* [n_threads], scratch_bytes each */
    size_t scratch_bytes;
    matmul_job *jobs; /* of the running op */
    size_t *job_end;  /* chunks up to and with each job */
    size_t cap_jobs;
} backend_cpu;

/* A range op: items first .. end - 1 of args on a worker. */
typedef void (*cpu_range)(const backend_cpu *b, const void *args, size_t first, size_t end,
                          uint32_t worker);

/* Run all items, cut at multiples of `multiple`; ns_per_item is a rough cost that
 * decides whether and how finely the work is shared. */
void cpu_run_range(backend_cpu *b, size_t n_items, size_t multiple, double ns_per_item,
                   cpu_range body, const void *args);
void *cpu_scratch(const backend_cpu *b, uint32_t worker);

/* What matrices need: tier, threads, jobs and scratch; config, params and n_threads are set. */
status cpu_work_init(backend_cpu *b, error *err);
void cpu_work_release(backend_cpu *b); /* accepts a half-built one */

/* 64-byte aligned and not cleared: what a step reads, it wrote.  NULL without memory. */
void *cpu_alloc(size_t bytes);
/* Large memory that becomes real when touched, zeroed; NULL without memory. */
void *cpu_reserve(size_t bytes);
void cpu_unreserve(void *at, size_t bytes);

/* The forms that inputs may need on this path. */
unsigned cpu_all_forms(const backend_cpu *b);

/* inputs */
status cpu_input_init(cpu_input *in, size_t n_rows, size_t max_cols, unsigned forms,
                      error *err);
void cpu_input_release(cpu_input *in);
static inline float *cpu_input_row(const cpu_input *in, size_t row) {
    return (void *)((unsigned char *)in->form[ACT_F32] + row * in->stride[ACT_F32]);
}
static inline size_t cpu_input_floats(const cpu_input *in) {
    return in->stride[ACT_F32] / sizeof(float);
}
/* Start rows of n_cols values: strides for the forms. */
void cpu_input_begin(cpu_input *in, uint32_t n_cols);
/* The form of an input that matrices of a type read. */
act_format cpu_input_form(const backend_cpu *b, const cpu_input *in, quant_type type);
/* Make the other forms of one row, or of n rows, from its float form. */
void cpu_input_quantize(const backend_cpu *b, const cpu_input *in, size_t row,
                        input_forms forms);
void cpu_input_quantize_rows(backend_cpu *b, const cpu_input *in, size_t n, input_forms forms);

/* matrices */
matmul_job cpu_job(const backend_cpu *b, const weight_matrix *w, const void *weights,
                   const cpu_input *in, size_t n_rows, float *out, size_t out_stride);
void cpu_run_jobs(backend_cpu *b, const matmul_job *jobs, size_t n);
/* The same for jobs of one size that come from memory: as many pieces for each thread. */
void cpu_run_jobs_evenly(backend_cpu *b, const matmul_job *jobs, size_t n);
/* silu(gate) * up of n rows: the gate stands in the input's float form, the product
 * replaces it and gets the other forms. */
void cpu_run_swiglu(backend_cpu *b, const cpu_input *in, const float *up, size_t n,
                    input_forms forms);
/* x += what the last projection left to add; norms do it on their way. */
void cpu_flush_delta(backend_cpu *b);

/* ops, one file a group */
void cpu_embed_after(backend *base, const weight_matrix *table, const block_weights *block,
                     input_forms forms);
void cpu_norm(backend *base, const weight_vector *weight, input_forms forms);
void cpu_hidden(backend *base, const weight_vector *weight);
void cpu_final_norm(backend *base, const weight_vector *weight, input_forms forms);
void cpu_project(backend *base, backend_input in, const projection *list, size_t n);
void cpu_gated(backend *base, const weight_matrix *gate, const weight_matrix *up,
               input_forms forms);
status cpu_logits(backend *base, const weight_matrix *head, float *out, error *err);
void cpu_delta_net(backend *base, const layer_weights *layer, uint32_t ordinal,
                   input_forms forms);
/* Convolution and delta net of a linear layer: rows to INPUT_MIXED, and states. */
void cpu_mix_delta(backend_cpu *b, const layer_weights *layer, uint32_t ordinal,
                   const cpu_delta_rows *rows);
void cpu_attention(backend *base, const layer_weights *layer, uint32_t ordinal,
                   input_forms forms);
void cpu_route(backend *base, const layer_weights *layer);
void cpu_expert_layer(backend *base, const layer_weights *layer, uint32_t layer_index,
                      input_forms forms, input_forms shared_forms);

/* remembered rows */
status cpu_journal_init(backend_cpu *b, error *err);
void cpu_journal_release(backend_cpu *b);
void cpu_remember(backend_cpu *b, uint32_t ordinal); /* the running layer's */
void cpu_state_replay(backend *base, const batch_run *run, uint32_t first, uint32_t n_rows);

status cpu_experts_init(backend_cpu *b, const model_weights *w, error *err);
/* Slots begin with what was used most before this start, where that is known. */
status cpu_experts_fill(backend_cpu *b, const model_weights *w, error *err);
void cpu_forget_experts(backend *base);
void cpu_experts_release(backend_cpu *b);

#endif
