/* backend_cuda.h - the CUDA backend's parts, private to backend_cuda*.c.
 *
 * One VRAM allocation holds everything (memory/cuda_layout.h).  Ops enqueue kernels on the
 * stream `compute` and return; `h2d` carries expert records, and events order the two.
 * The first failure of a step is kept, later calls do nothing, and logits or end tell it.
 *
 * A step's rows are cut into spans: neighbouring rows that decode (runs of one row, or verified
 * row by row) or that belong to prompts (longer runs).  Each kind has its own kernels, so that a row's bits do not
 * depend on who else is in the batch.
 *
 * Thread: the engine thread, to which the context is current.
 */
#ifndef SILICEO_WORKER_BACKEND_CUDA_H
#define SILICEO_WORKER_BACKEND_CUDA_H

#include "kernels/cpu/pool.h"
#include "kernels/cuda/experts_fetch.h"
#include "kernels/cuda/launch.h"
#include "worker/backend.h"
#include "worker/cuda_driver.h"
#include "worker/memory/cuda_layout.h"
#include "worker/memory/expert_cache.h"
#include "worker/memory/host_tier.h"

enum { CUDA_RECORD_BUFFERS = 16, CUDA_FEW_ROWS = 1 };

/* Neighbouring rows of one kind.  view points to device memory; its runs count rows and its
 * row_run counts runs from the start of the span. */
typedef struct cuda_span {
    uint32_t first_row;
    uint32_t n_rows;
    bool decodes;
    batch_view view;
} cuda_span;

/* Records on their way from the host tier or to it, which holds each until its event says that
 * it has arrived; the oldest is next. */
typedef struct cuda_staging {
    cuda_event used[CUDA_RECORD_BUFFERS];
    bool held[CUDA_RECORD_BUFFERS];
    bool comes_back[CUDA_RECORD_BUFFERS]; /* from VRAM */
    uint32_t layer[CUDA_RECORD_BUFFERS], expert[CUDA_RECORD_BUFFERS];
    uint32_t next;
} cuda_staging;

typedef struct cuda_lane cuda_lane;

typedef struct cuda_experts {
    expert_cache *cache; /* NULL: every expert has a slot of its own */
    cuda_staging staging;
    host_tier *host;        /* records in RAM */
    unsigned char *all;     /* pinned, [n_layers][n_experts] records; NULL: some are on disk */
    void *registered;       /* the tier's own arena, pinned by the driver */
    int32_t *missing;       /* [n_experts] */
    uint64_t *records;      /* pinned, [n_layers][n_experts]: what the device's table gets */
    uint64_t *wave_records; /* pinned, [CUDA_MOST_WAVES][n_experts] */
    int32_t *chosen;        /* pinned, [max_rows][n_used] */
    /* Distinct experts of the running span. */
    int32_t *active;        /* [n_experts] */
    uint32_t *counts;       /* [n_experts]: rows that use active[i] */
    uint32_t *late;         /* [n_experts]: of those, among the last rows */
    uint32_t *first;        /* [n_experts + 1]: places of expert e, by number of expert */
    int32_t *slots;         /* [n_experts] */
    expert_insert *inserts; /* [n_experts] */
    size_t n_active;
    /* Of a prompt's next layer, in staging records (backend_cuda_ahead.c). */
    uint32_t *last_use; /* [n_layers][n_experts] rows of the last long prompt */
    int32_t *ahead;     /* [n_ahead <= CUDA_STAGING_SLOTS] */
    bool *is_ahead;     /* [n_experts] */
    uint32_t n_ahead, ahead_layer;
    uint32_t n_coming; /* of them, of the running layer, */
    double
        since_arrived_ns; /* whose router was done so long after the records of the one before */
    cuda_event ahead_here, routed;
    /* Steps whose missing experts the GPU brings in (backend_cuda_fetch.c). */
    bool fetches;      /* the running step is one */
    bool tables_stale; /* the device's tables are not the cache's */
    uint32_t n_fetching_steps;
    int32_t *tables;   /* pinned: slot_of, slot_owner, slot_step */
    fetch_note *notes; /* pinned, [n_layers][pairs of the step]; NULL: the host ships */
    /* The CPU lane; NULL: off. */
    cuda_lane *lane;
    lane_box *box;    /* pinned; NULL: steps that fetch have no part for it */
    bool serves;      /* the running step has one, and */
    uint32_t served;  /* so many layers are done */
    uint32_t n_fills; /* of FETCH_FILLS_OF layers, as many as the bus has time for */
    bool *on_cpu;     /* [n_experts]: the lane computes active[i] */
    size_t n_on_cpu;  /* of those */
    float *hidden;    /* pinned, [max_rows][n_embd] */
    double ship_ns;   /* a record's journey when the backend was opened */
    size_t n_shipped; /* since `departed`, and */
    size_t n_arrived; /* of those until `arrived` */
    bool fills;       /* a slot of the running layer is to be filled for later steps */
    expert_insert fill;
    cuda_event sent;
    bool filling; /* one of this layer is being filled, until: */
    uint32_t filling_layer;
    cuda_event filled;
    cuda_event departed;     /* a layer's first record, and */
    cuda_event arrived;      /* what h2d carried for the running wave */
    cuda_event wave_done[2]; /* the staging half is free again */
    uint64_t lookups, hits, bytes_moved;
    uint32_t n_filled, n_by_use; /* slots at the start */
} cuda_experts;

/* Steps of decoding rows are recorded once and replayed: the launches between two looks of
 * the host (a segment) are one graph.  A step has one segment, or one more than layers where
 * the host chooses slots between. */
typedef enum cuda_mode { MODE_PLAIN, MODE_RECORD, MODE_REPLAY } cuda_mode;

/* What a recording stands for. */
typedef struct cuda_step_shape {
    uint32_t n_rows, n_runs, n_outputs;
    uint32_t best_of;    /* 0: logits are wanted */
    uint8_t routed;      /* ids are told */
    uint8_t in_segments; /* the host looks at the step after every layer's router */
    uint16_t reserved;
} cuda_step_shape;

typedef struct cuda_recording {
    cuda_step_shape shape;
    bool seen;  /* it ran once without being recorded: everything is loaded */
    bool whole; /* it can be replayed */
    uint32_t n_segments;
    uint64_t launches;        /* kernels of all segments */
    cuda_graph_run *segments; /* [n_layers + 1] */
} cuda_recording;

enum { CUDA_MOST_RECORDINGS = 64 };

typedef struct backend_cuda {
    backend base;
    const model_config *config;
    const model_weights *weights;
    model_params params;
    cuda_driver *driver;
    cuda_card card;
    cuda_context context;
    cuda_module module;
    cuda_function functions[CUDA_KERNEL_COUNT];
    uint32_t own_shared[CUDA_KERNEL_COUNT]; /* bytes of shared memory that a kernel declares */
    cuda_stream compute;
    cuda_stream h2d;
    cuda_stream d2h;      /* a prompt's rows on their way to the CPU lane */
    cuda_stream recorder; /* only captures */
    pool *threads;
    cuda_layout layout;
    cuda_pointer arena;
    size_t state_bytes;
    size_t page_bytes;
    size_t layer_page_bytes;
    unsigned char *pinned; /* a picture of the batch's part of the workspace */
    float *pinned_logits;  /* [max_outputs][n_vocab], NULL when that is too much to pin */
    batch batch;           /* of the running step */
    cuda_span *spans;      /* [n_decode + 1] */
    size_t n_spans;
    bool has_act[INPUT_COUNT]; /* the input has quantized rows */
    const float *norm;         /* of INPUT_HIDDEN, whose readers run it */
    uint32_t n_cols[INPUT_COUNT];
    cuda_experts experts;
    cuda_mode mode; /* of the running step */
    bool capturing;
    bool no_graphs;     /* they are not wanted, or the driver launched one no more */
    bool no_recordings; /* the driver refused one */
    uint32_t segment;
    cuda_recording *recording; /* of the running step, in a mode that has one */
    cuda_recording recordings[CUDA_MOST_RECORDINGS];
    status failed;
    error failure;
    uint64_t launches;
    uint64_t pinned_bytes;
    disk_tier *disk;       /* while weights are uploaded */
    uint64_t loaded_bytes; /* of load_bytes, for model_progress */
    uint64_t load_bytes;
    uint64_t filled_bytes; /* of those, records */
    uint64_t load_disk_bytes;
} backend_cuda;

/* probe */
status cuda_check_card(const cuda_card *card, error *err);

/* context */
/* The card, its context, current, and the streams; then cuda_load_kernels(). */
status cuda_open_context(backend_cuda *b, error *err);
void cuda_close_context(backend_cuda *b); /* accepts half of it; leaves the driver open */

/* launch */
/* The embedded fatbin, or the reason why there is none. */
status cuda_find_kernels(const void **out, error *err);
status cuda_load_kernels(backend_cuda *b, error *err);
/* Whether any card may be asked for this launch; else the kernel and the limit are named. */
status cuda_check_shape(const backend_cuda *b, cuda_kernel kernel, cuda_shape shape,
                        error *err);
void cuda_launch(backend_cuda *b, cuda_kernel kernel, cuda_shape shape, const void *args);
/* The same for a kernel that reads before its wait what the one before it has written. */
void cuda_launch_after(backend_cuda *b, cuda_kernel kernel, cuda_shape shape, const void *args);
/* Note a driver result; true when nothing has failed in this step. */
bool cuda_went(backend_cuda *b, cuda_result result, const char *call);
#define CUDA_DO(b, name, ...)                                                                  \
    ((b)->failed == STATUS_OK && cuda_went((b), (b)->driver->name(__VA_ARGS__), #name))

/* Addresses. */
static inline cuda_pointer cuda_part_at(const backend_cuda *b, cuda_part part) {
    return b->arena + b->layout.part_offset[part];
}
static inline cuda_pointer cuda_work_at(const backend_cuda *b, uint64_t offset) {
    return cuda_part_at(b, CUDA_PART_WORKSPACE) + offset;
}
static inline void *cuda_ptr(cuda_pointer at) {
    return (void *)(uintptr_t)at;
}
/* Row `row` of a float table, or of quantized rows, in the workspace. */
static inline float *cuda_rows(const backend_cuda *b, uint64_t offset, size_t row,
                               size_t n_cols) {
    return cuda_ptr(cuda_work_at(b, offset) + row * n_cols * sizeof(float));
}
void *cuda_acts(const backend_cuda *b, uint64_t offset, size_t row, uint32_t n_cols);
bool cuda_wants_act(input_forms forms);

/* How a matrix of the file is told to a kernel: Q6_K lies split (kernels/cuda/weights.h). */
typedef struct cuda_matrix {
    uint64_t row_bytes;
    uint64_t split_d;
    uint32_t type;
} cuda_matrix;
cuda_matrix cuda_matrix_of(const weight_matrix *m);

/* How many of a span's decoding rows the host gathers experts for at once. */
uint32_t cuda_gathers_at_once(const backend_cuda *b, uint32_t n_rows);

/* graph */
/* Whether the running step, whose spans are cut, is about to be recorded. */
bool cuda_will_record(backend_cuda *b);
/* Choose the mode of a step whose batch is on the device. */
void cuda_choose_mode(backend_cuda *b);
/* The host must see what was enqueued: run the segment.  Nothing in plain mode. */
void cuda_end_segment(backend_cuda *b);
/* Go on recording after a look. */
void cuda_begin_segment(backend_cuda *b);
/* What was enqueued on the compute stream goes into the segment, where one is recorded. */
void cuda_record_launch(backend_cuda *b, cuda_launch_config config, cuda_function function,
                        void **parameters);
/* A copy that is part of its segment. */
void cuda_copy_to_host(backend_cuda *b, void *to, cuda_pointer from, size_t n);
void cuda_end_step(backend_cuda *b);
void cuda_release_recordings(backend_cuda *b);

/* upload */
status cuda_upload_weights(backend_cuda *b, model_weights *w, error *err);
/* Every expert's record waits in pinned memory. */
bool cuda_pins_all(const backend_cuda *b);
/* Slots that a small tier above the disk begins with: those of experts that are known to be used. */
uint32_t cuda_count_listed(const backend_cuda *b);
/* Every record of the host tier to a slot of its own. */
status cuda_upload_experts(backend_cuda *b, error *err);
void cuda_tell_progress(backend_cuda *b, uint64_t n_bytes);
/* A matrix as the device has it, from the file's form and back. */
void cuda_copy_matrix(const weight_matrix *m, const void *data, unsigned char *out);
void cuda_copy_back(const weight_matrix *m, size_t first_block, size_t n_blocks,
                    const unsigned char *data, unsigned char *out);
/* The record of the host tier is whole: what was on its way from VRAM has arrived. */
void cuda_await_record(backend_cuda *b, uint32_t layer, uint32_t expert);
/* Put an expert's record on its way over h2d. */
void cuda_ship(backend_cuda *b, uint32_t layer, uint32_t expert, cuda_pointer to);

/* ops, one file a group */
void cuda_norm(backend *base, const weight_vector *weight, input_forms forms);
void cuda_hidden(backend *base, const weight_vector *weight);
void cuda_final_norm(backend *base, const weight_vector *weight, input_forms forms);
void cuda_project(backend *base, backend_input in, const projection *list, size_t n);
void cuda_gated(backend *base, const weight_matrix *gate, const weight_matrix *up,
                input_forms forms);
status cuda_logits(backend *base, const weight_matrix *head, float *out, error *err);
status cuda_read_logits(backend *base, float *out, error *err);
/* The host's picture of a part of the batch, what send_batch copies. */
void *cuda_picture(const backend_cuda *b, uint64_t offset);
void cuda_delta_net(backend *base, const layer_weights *layer, uint32_t ordinal,
                    input_forms forms);
void cuda_attention(backend *base, const layer_weights *layer, uint32_t ordinal,
                    input_forms forms);
void cuda_route(backend *base, const layer_weights *layer);
void cuda_expert_layer(backend *base, const layer_weights *layer, uint32_t layer_index,
                       input_forms forms, input_forms shared_forms);
/* out = W x for n_rows rows; x and act (NULL: none) are the rows, out their results. */
typedef struct cuda_product {
    const weight_matrix *matrix;
    float *out;
    uint64_t out_stride; /* floats */
    bool add;
} cuda_product;
void cuda_multiply(backend_cuda *b, bool few, const cuda_product *list, size_t n,
                   const float *x, const void *act, size_t n_rows);
/* Quantized rows out = silu(gate x) * (up x) of many rows act, in one launch, where that can be. */
bool cuda_can_gate(const weight_matrix *gate, const weight_matrix *up, const void *act,
                   const void *out);
void cuda_multiply_gated(backend_cuda *b, const weight_matrix *gate, const weight_matrix *up,
                         const void *act, void *out, size_t n_rows);
void cuda_swiglu(backend_cuda *b, const float *gate, const float *up, float *out, void *act,
                 size_t n_rows, uint32_t n_cols);

/* block: the beginning of an MTP block (backend_cuda_block.c) */
void cuda_send_before(backend_cuda *b);
void cuda_embed_after(backend *base, const weight_matrix *table, const block_weights *block,
                      input_forms forms);

/* lane: experts on the CPU, at the same time as the GPU (backend_cuda_lane.c).  All of it does
 * nothing where there is no lane. */
status cuda_lane_open(cuda_lane **out, backend_cuda *b, error *err);
void cuda_lane_close(cuda_lane *lane, const cuda_driver *driver); /* accepts NULL */
/* Before and after a step whose spans are cut: which way decoding rows go, and what it met. */
void cuda_lane_begin_step(backend_cuda *b);
void cuda_lane_end_step(backend_cuda *b);
/* Whether decoding rows of the running step leave missing experts to the lane and the bus rather
 * than to the GPU's own fetching. */
bool cuda_lane_pays(const backend_cuda *b);
/* The threads are awake when the GPU comes to the host's look of decoding rows. */
void cuda_lane_wake(backend_cuda *b);
/* Do sums of the model's experts come out alike on both sides in prompts?  Without that the lane
 * is left out but for CPU_LANE_ALL. */
bool cuda_lane_is_exact(const backend_cuda *b);
/* Does the lane take part in decoding steps?  Their sums are alike, or CPU_LANE_ALL. */
bool cuda_lane_in_steps(const backend_cuda *b);
/* The lane's threads stay awake, or no more. */
void cuda_lane_hold(backend_cuda *b, bool held);
/* Of 1, 2, .. n experts that a layer of the running step misses the lane's, at 0, 1, .., where the
 * step is recorded; false: none, whatever out has. */
bool cuda_lane_shares(const backend_cuda *b, size_t n, uint8_t *out);
/* Mark what the notes of a layer's n pairs leave to the lane. */
void cuda_lane_mark(backend_cuda *b, const fetch_note *notes, size_t n);
/* Whether the lane can take all that a decoding step's layer misses. */
bool cuda_lane_takes_any(const backend_cuda *b);
/* Mark the missing experts of a span that the CPU takes: all, or its share, which leaves
 * most_shipped at most to the bus where the lane can take the rest; slots say which miss. */
void cuda_lane_choose(backend_cuda *b, const cuda_span *s, bool all, size_t most_shipped);
/* A prompt's rows begin to come, when some are marked. */
void cuda_lane_bring_rows(backend_cuda *b, const cuda_span *s);
/* Compute what is marked for rows whose hidden state is in experts.hidden or, of a prompt, on
 * its way there. */
void cuda_lane_run(backend_cuda *b, const layer_weights *l, size_t n_rows);
/* The expert that the CPU computes now and the bus brings into a slot for later steps; or -1. */
int32_t cuda_lane_fills(const backend_cuda *b);
/* What it computed: rows of marked experts' pairs among [pairs][n_embd], which the GPU can read. */
const float *cuda_lane_outputs(const backend_cuda *b);
/* The same to `to` on the device, [pairs][n_embd]; rows between are spoilt. */
void cuda_lane_send(backend_cuda *b, cuda_pointer to);
/* n records were under way for so long; it took the host so long to send them off. */
void cuda_lane_shipped(backend_cuda *b, size_t n, double ns);
void cuda_lane_enqueued(backend_cuda *b, size_t n, double ns);
void cuda_lane_read_stats(const backend_cuda *b, model_stats *out);

/* fetch: decoding steps without a look of the host (backend_cuda_fetch.c) */
status cuda_fetch_init(backend_cuda *b, error *err);
/* Choose for the running step whether the GPU fetches; *step is what is sent with the batch. */
void cuda_fetch_begin(backend_cuda *b, fetch_step *step);
/* Whether the launch of a layer's experts brings in what is missing, so that the router must
 * plan it. */
bool cuda_brings(const backend_cuda *b, const cuda_span *s, const layer_weights *l);
/* The router of such a layer. */
void cuda_fetch_route(backend_cuda *b, const layer_weights *l, uint32_t layer,
                      const router_cuda_args *router);
/* Of another layer: launch between the router and the experts. */
void cuda_fetch_layer(backend_cuda *b, const layer_weights *l, uint32_t layer,
                      const int32_t *experts);
/* The step is over: the cache learns what the GPU did. */
void cuda_fetch_settle(backend_cuda *b);

/* box: the lane's part of steps that fetch (backend_cuda_box.c, kernels/cuda/lane.h).  While such a
 * step runs the engine thread serves it wherever it would wait for the GPU. */
status cuda_box_init(backend_cuda *b, error *err);
/* Whether the running step, of decoding rows alone, can have the lane's part. */
bool cuda_box_fits(const backend_cuda *b);
/* Before a step: what the one before it had brought into slots is there, or not yet. */
void cuda_box_learn(backend_cuda *b);
/* What the lane will take of the step. */
void cuda_box_begin(backend_cuda *b, fetch_step *step);
/* The step is on its way: threads wake up. */
void cuda_box_wake(backend_cuda *b);
/* Serve layers up to end_layer, as far as they have work for the lane. */
void cuda_box_serve(backend_cuda *b, uint32_t end_layer);
/* The step is over, or failed: nobody waits for anybody. */
void cuda_box_end(backend_cuda *b);
/* Wait until everything that is enqueued has run. */
bool cuda_finish(backend_cuda *b);

/* Pinned memory; *out is a pointer. */
status cuda_pin(backend_cuda *b, void *out, size_t bytes, error *err);
void cuda_ahead_init(backend_cuda *b);
status cuda_experts_init(backend_cuda *b, error *err);
void cuda_experts_release(backend_cuda *b);

#endif
