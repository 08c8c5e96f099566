/* plan.h - what a model will take, part by part, before anything is loaded.
 *
 * Pure arithmetic on the geometry, the tensor sizes and the user's wishes; it fixes the
 * numbers that everything else allocates by: context, KV pages, states, expert slots,
 * rows of a step.  A wish that cannot be met is refused with the reason; nothing is
 * reduced silently except what was left to choose (a context of 0).
 * Any thread.
 */
#ifndef SILICEO_WORKER_MEMORY_PLAN_H
#define SILICEO_WORKER_MEMORY_PLAN_H

#include "common/error.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"
#include <stddef.h>
#include <stdint.h>

typedef struct plan_request {
    uint32_t n_context;        /* 0: as much of the trained context as memory allows */
    uint32_t n_sequences;      /* running at once */
    uint32_t n_guesses;        /* of a sequence in a step */
    uint32_t n_step_guesses;   /* of all in a step: rows more; 0: as many for each */
    bool remembers_guesses;    /* a state more for each sequence; else one a guess */
    uint64_t draft_bytes;      /* of a draft model: its file and states, and */
    uint64_t draft_page_bytes; /* as many pages as the model has */
    uint64_t draft_vram_bytes; /* of a draft on the GPU: all it has there */
    bool draft_is_block;       /* what draft_bytes are of is the model's MTP block */
    uint32_t draft_layers;     /* of such a draft, and how many of them are there: the last */
    uint32_t draft_gpu_layers;
    bool knows_driver;     /* the next two were measured; else they are estimated */
    uint64_t driver_bytes; /* VRAM that the driver takes for itself, of it */
    uint64_t kernel_bytes; /* the kernels, which a draft on the GPU loads again */
    uint32_t chunk_tokens; /* 0: auto, 512 or on a GPU with experts up to 2,048 */
    kv_type kv;
    int64_t n_slots;    /* -1: auto: on the CPU 0, experts are read where they lie; on a GPU as
                         * many as fit */
    int64_t park_bytes; /* -1: auto */
    uint64_t ram_bytes; /* what may be taken; see host_ram_available_bytes() */
    backend_kind backend;
    bool has_lane;          /* the CPU may compute experts that have no slot */
    uint64_t vram_bytes;    /* what may be taken, the driver's own part included */
    int64_t prefix_ram_mib; /* for beginnings of prompts; -1: a share; 0: none */
    uint32_t prefix_states; /* of the model, for snapshots of them */
} plan_request;

typedef enum plan_place {
    PLAN_MAPPED, /* pages of the model file, which the kernel can drop and read again */
    PLAN_DISK,   /* read from the file when needed, past the page cache */
    PLAN_RAM,
    PLAN_PINNED, /* RAM that the GPU reads by itself */
    PLAN_VRAM,
    PLAN_DRIVER /* VRAM that the driver takes for itself */
} plan_place;

typedef struct plan_line {
    const char *part;
    plan_place place;
    uint64_t bytes;
    char note[96];
} plan_line;

enum { PLAN_MAX_LINES = 24, PLAN_RECORDS_UNDER_WAY = 16 };

typedef struct memory_plan {
    uint32_t n_context;
    uint32_t n_pages;
    uint32_t n_sequences;
    uint32_t n_guesses;
    uint32_t n_step_guesses;
    uint32_t n_remembered; /* rows of a step: see model_replay() */
    uint32_t states_each;  /* of a sequence */
    uint32_t n_states;
    uint32_t n_slots;      /* 0: experts are read where they lie */
    bool pins_experts;     /* on a GPU: every expert's record stays in pinned RAM, and there is
                        * room for the file's pages beside them */
    uint32_t host_records; /* experts kept in RAM; fewer than all: the others on disk.  0: none,
                            * the page cache does it, or all are in VRAM */
    uint64_t park_bytes;   /* RAM for sequences that gave up their place, see parked.h */
    uint32_t n_snapshots;  /* states behind those: for prompts */
    uint64_t prefix_bytes; /* RAM for beginnings of prompts; 0: they are not remembered */
    uint32_t chunk_tokens;
    uint32_t max_rows;
    uint32_t max_outputs;
    uint64_t n_experts_total;
    uint64_t budget_bytes;
    uint64_t vram_budget_bytes; /* 0 on the CPU */
    uint64_t vram_needed_bytes; /* with the driver's part */
    uint64_t needed_bytes;      /* RAM: all but experts that stay on disk, with head room */
    plan_line lines[PLAN_MAX_LINES];
    size_t n_lines;
} memory_plan;

status plan_make(memory_plan *out, const model_config *config, const model_weights *weights,
                 const plan_request *request, error *err);

/* The VRAM that a request for a GPU may plan with: vram_mib where it is given, else what is
 * free now less head room; and what the driver takes of it, measured where that can be.
 * Nothing to do for the CPU. */
status plan_vram_budget(plan_request *request, uint64_t vram_mib, error *err);

/* Records that a tier above the disk has at least: a layer's experts and some under way. */
uint32_t plan_least_records(const model_config *config);

/* Bytes of a remembered row, all linear layers. */
uint64_t plan_remembered_bytes(const model_config *config);
/* Bytes of one KV page, all full-attention layers. */
uint64_t plan_page_bytes(const model_config *config, kv_type kv);
/* Layers times experts; 0 for a dense model. */
uint64_t plan_n_experts(const model_config *config);

/* The plan for people, one part a line.  Returns the length without the terminator, as
 * snprintf does. */
size_t plan_print(const memory_plan *plan, char *out, size_t cap);

#endif
