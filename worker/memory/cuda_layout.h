/* cuda_layout.h - where everything lies in the one VRAM allocation of the CUDA backend.
 *
 * Pure arithmetic on geometry, tensor sizes and parameters: the memory plan prints its
 * parts and the backend allocates exactly their sum, so the plan holds to the byte.
 * All offsets are from the start of the allocation and multiples of CUDA_LAYOUT_ALIGN.
 * What the driver itself takes (context, code) is not in it.  Any thread.
 */
#ifndef SILICEO_WORKER_MEMORY_CUDA_LAYOUT_H
#define SILICEO_WORKER_MEMORY_CUDA_LAYOUT_H

#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_LAYOUT_ALIGN = 256,
    CUDA_STAGING_SLOTS = 32, /* records for experts without a slot */
    CUDA_WAVE_EXPERTS = CUDA_STAGING_SLOTS / 2,
    /* Tables of a layer's waves: of what is in slots, of missing ones in two kinds and one that
     * turns out empty, of those that came ahead, of the CPU lane's. */
    CUDA_MOST_WAVES = 6 + 1024 / CUDA_WAVE_EXPERTS,
    CUDA_STAGING_BYTES = 32 * 1024 * 1024, /* pinned, in two halves */
};

typedef enum cuda_part {
    CUDA_PART_BACKBONE,
    CUDA_PART_SLOTS,
    CUDA_PART_STAGING,
    CUDA_PART_PAGES,
    CUDA_PART_STATES,
    CUDA_PART_WORKSPACE,
    CUDA_PART_LOGITS,
    CUDA_PART_COUNT
} cuda_part;

/* Offsets of the workspace, in bytes.  What is never in use at the same time lies at the same
 * place: within a layer attention and the delta net, then both and the feed-forward part. */
typedef struct cuda_work {
    uint64_t runs, row_run, pages, output_rows; /* the batch */
    uint64_t best;                              /* [outputs] keys of the largest logits */
    uint64_t fetch;                             /* kernels/cuda/experts_fetch.h: fetch_step */
    uint64_t embed_rows, embed_ids;             /* the tokens' rows of the table as they are */
    uint64_t routed;   /* [layers][rows][used] ids of a trace; 0 bytes without experts */
    uint64_t inv_freq; /* [n_rot / 2] */
    uint64_t residual, q, k, v, u, z, alpha, beta;
    uint64_t convolved; /* [rows][conv_dim] */
    uint64_t hidden, hidden_act;
    uint64_t mixed, mixed_act;
    uint64_t gated, gated_act; /* dense, or the shared expert's rows */
    uint64_t gated_up;
    uint64_t final, final_act;
    uint64_t mixer_space; /* of the delta net or attention, whichever is more */
    uint64_t delta_raw;
    uint64_t
        turns; /* [n_decode][n_key_heads] of the delta net's steps, zeros between launches */
    /* experts */
    uint64_t router_logits, shared_logit, chosen, weights;
    uint64_t places, expert_turns;  /* of decoding rows: kernels/cuda/experts.h */
    uint64_t fetch_notes;           /* [layers][pairs], kernels/cuda/experts_fetch.h */
    uint64_t records;               /* [layers][experts] device addresses, 0: not here */
    uint64_t slot_of;               /* [layers][experts] */
    uint64_t slot_owner, slot_step; /* [n_slots] */
    uint64_t before, pair,
        pair_rows_act;     /* of an MTP block: [rows][E] twice, and side by side */
    uint64_t wave_records; /* [CUDA_MOST_WAVES][experts], of the running layer */
    uint64_t pair_row, pair_out, group_first, tiles, n_tiles;
    uint64_t pair_gate, pair_up, pair_act; /* [pairs][n_ff] */
    uint64_t pair_down;                    /* [pairs][n_embd] */
    uint64_t shared_down;                  /* [rows][n_embd] */
    uint64_t foreign;            /* [n_decode * used][n_embd], what the CPU computed */
    uint64_t step_h, step_h_act; /* of decoding rows: [(used + 1) * rows][n_ff] */
} cuda_work;

typedef struct cuda_layout {
    uint64_t part_offset[CUDA_PART_COUNT];
    uint64_t part_bytes[CUDA_PART_COUNT];
    uint64_t total_bytes;
    uint64_t slot_bytes; /* of one record: gate, up, down */
    uint32_t n_slots;
    uint32_t n_staging; /* records behind the slots, 0 when every expert has a slot */
    uint32_t n_decode;  /* rows that decode at once */
    uint32_t n_pages_listed;
    cuda_work work;
} cuda_layout;

void cuda_layout_make(cuda_layout *out, const model_config *c, const model_weights *w,
                      const model_params *p);

/* Every matrix and vector that the backbone keeps in VRAM, in order, with its bytes rounded
 * up; experts and the embedding are not among them. */
typedef struct cuda_backbone_item {
    weight_matrix *matrix; /* or */
    weight_vector *vector;
    bool transposed; /* the taps of a convolution */
    uint64_t offset; /* in the backbone */
    uint64_t bytes;
} cuda_backbone_item;
typedef void (*cuda_backbone_visit)(void *context, const cuda_backbone_item *item);
/* Returns the bytes of all. */
uint64_t cuda_backbone_walk(model_weights *w, cuda_backbone_visit visit, void *context);

/* Bytes of the largest expert record of any layer. */
uint64_t cuda_record_bytes(const model_weights *w);

#endif
