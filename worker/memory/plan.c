#include "worker/memory/plan.h"

#include "kernels/cuda/lane.h"
#include "kernels/matmul.h"
#include "worker/backend.h"
#include "worker/memory/cuda_layout.h"
#include "worker/sequence.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    PARKED_SHARE = 32,
    HEAD_ROOM_MAX = 128 * 1024 * 1024,
    NOTE_BYTES = sizeof((plan_line){0}.note)
};

static const double MIB = 1024.0 * 1024.0;

uint64_t plan_n_experts(const model_config *config) {
    return config->moe ? (uint64_t)config->n_layers * config->n_experts : 0;
}

uint64_t plan_remembered_bytes(const model_config *config) {
    uint64_t floats = (uint64_t)config->conv_dim + 2 * (uint64_t)config->n_value_heads;
    return config->n_linear_layers * ((floats + 15) / 16 * 16) * sizeof(float);
}

uint64_t plan_page_bytes(const model_config *config, kv_type kv) {
    return kv_layer_bytes((uint32_t)kv, config->n_kv_heads, config->head_dim) *
           (uint64_t)config->n_full_layers;
}

static status refuse_pages(const model_config *c, error *err) {
    return error_set(err, STATUS_BAD_INPUT,
                     "kv: %u full layers of %u heads of %u values have no pages",
                     c->n_full_layers, c->n_kv_heads, c->head_dim);
}

/* The new line's note, [NOTE_BYTES], for the caller to write. */
static char *add_line(memory_plan *plan, const char *part, plan_place place, uint64_t bytes) {
    CHECK(plan->n_lines < PLAN_MAX_LINES);
    plan_line *line = &plan->lines[plan->n_lines++];
    line->part = part;
    line->place = place;
    line->bytes = bytes;
    return line->note;
}

/* --- sizes of parts --- */

static uint64_t matrix_bytes(const weight_matrix *m) {
    return (uint64_t)m->n_rows * m->row_bytes;
}

static uint64_t layer_backbone_bytes(const layer_weights *l) {
    const weight_matrix *matrices[] = {
        &l->q,    &l->k,    &l->v,  &l->attn_out, &l->qkv,    &l->z,       &l->alpha,
        &l->beta, &l->gate, &l->up, &l->down,     &l->router, &l->ssm_out, &l->shared_gate};
    const weight_vector *vectors[] = {&l->attn_norm, &l->ffn_norm, &l->q_norm, &l->k_norm,
                                      &l->conv,      &l->dt_bias,  &l->decay,  &l->ssm_norm};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        sum += matrix_bytes(matrices[i]);
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        sum += (uint64_t)vectors[i]->n * sizeof(float);
    return sum;
}

static uint64_t backbone_bytes(const model_config *c, const model_weights *w) {
    uint64_t sum = matrix_bytes(&w->embedding) + (uint64_t)w->output_norm.n * sizeof(float);
    if (!c->tied_head) sum += matrix_bytes(&w->head);
    for (uint32_t i = 0; i < w->n_layers; i++)
        sum += layer_backbone_bytes(&w->layers[i]);
    return sum;
}

static void expert_bytes(const model_config *c, const model_weights *w, uint64_t *total,
                         uint64_t *largest) {
    *total = *largest = 0;
    for (uint32_t i = 0; c->moe && i < w->n_layers; i++) {
        uint64_t one = layer_expert_bytes(&w->layers[i]);
        *total += one * c->n_experts;
        if (one > *largest) *largest = one;
    }
}

/* A record of the CPU backend begins on a cache line. */
static uint64_t slot_bytes(uint64_t largest) {
    return (largest + 63) / 64 * 64;
}

/* Float rows of the residual, every projection, their quantized copies and the hidden
 * rows of the experts: what a backend needs for one row of a step, rounded up. */
static uint64_t row_bytes(const model_config *c) {
    uint64_t mixer = 2 * (uint64_t)c->n_heads * c->head_dim +
                     2 * (uint64_t)c->n_kv_heads * c->head_dim + c->conv_dim + c->inner_dim +
                     2 * (uint64_t)c->n_value_heads;
    uint64_t mixed = (uint64_t)c->n_heads * c->head_dim > c->inner_dim
                         ? (uint64_t)c->n_heads * c->head_dim
                         : c->inner_dim;
    uint64_t feed = c->moe ? 2 * (uint64_t)c->n_experts_used * c->n_ff_expert +
                                 2 * (uint64_t)c->n_ff_shared + c->n_experts +
                                 (uint64_t)c->n_experts_used * c->n_embd
                           : 2 * (uint64_t)c->n_ff;
    return 4 * (mixer + feed + 3 * (uint64_t)c->n_embd) + 6 * (c->n_embd + mixed);
}

/* --- experts in RAM, above the disk --- */

uint32_t plan_least_records(const model_config *config) {
    return config->n_experts + PLAN_RECORDS_UNDER_WAY;
}

/* As many records as `left` holds; too few are refused. */
static status plan_records(memory_plan *plan, const model_config *c, const plan_request *r,
                           uint64_t left, uint64_t record_bytes, plan_place place, error *err) {
    CHECK(record_bytes > 0);
    uint64_t n = left / record_bytes, least = plan_least_records(c);
    if (n < least) {
        return error_set(err, STATUS_NO_MEMORY,
                         "memory: of %.0f MiB that may be used, %.0f MiB are left for experts, "
                         "%" PRIu64 " records of %" PRIu64 " bytes; at least %" PRIu64
                         " are needed, a layer's %u and %d under way: %.0f MiB",
                         (double)r->ram_bytes / MIB, (double)left / MIB, n, record_bytes, least,
                         c->n_experts, PLAN_RECORDS_UNDER_WAY,
                         (double)(least * record_bytes) / MIB);
    }
    if (n > plan->n_experts_total) n = plan->n_experts_total;
    plan->host_records = (uint32_t)n;
    char *note = add_line(plan, "expert records", place, n * record_bytes);
    (void)snprintf(note, NOTE_BYTES, "%" PRIu64 " of %" PRIu64 " bytes, %.1f %% of the experts",
                   n, record_bytes, 100.0 * (double)n / (double)plan->n_experts_total);
    return STATUS_OK;
}

static void experts_stay_on_disk(memory_plan *plan) {
    for (size_t i = 0; i < plan->n_lines; i++) {
        if (strcmp(plan->lines[i].part, "experts") == 0) plan->lines[i].place = PLAN_DISK;
    }
}

/* --- beginnings of prompts --- */

enum { PREFIX_SHARE = 16, PREFIX_MAX_MIB = 4096 };

/* A share that holds no two snapshots is of no use; so much is refused only as a wish. */
static status plan_prefixes(memory_plan *plan, const model_config *c, const plan_request *r,
                            error *err) {
    uint64_t state = model_config_state_bytes(c), bytes = (uint64_t)r->prefix_ram_mib << 20;
    if (r->prefix_ram_mib < 0) {
        bytes = r->ram_bytes / PREFIX_SHARE;
        if (bytes > (uint64_t)PREFIX_MAX_MIB << 20) bytes = (uint64_t)PREFIX_MAX_MIB << 20;
        if (bytes < 2 * state) bytes = 0;
    }
    if (bytes == 0) return STATUS_OK;
    if (bytes < state) {
        return error_set(err, STATUS_BAD_INPUT,
                         "prefix.ram_mib = %" PRId64 " holds no snapshot of %.1f MiB",
                         r->prefix_ram_mib, (double)state / MIB);
    }
    plan->prefix_bytes = bytes;
    char *note = add_line(plan, "prompt prefixes", PLAN_RAM, bytes);
    (void)snprintf(note, NOTE_BYTES, "up to %" PRIu64 " snapshots, or pages", bytes / state);
    return STATUS_OK;
}

/* --- the steps of the plan --- */

static status plan_slots(memory_plan *plan, const model_config *c, const plan_request *r,
                         error *err) {
    uint64_t working_set = (uint64_t)c->n_layers * c->n_experts_used;
    plan->n_experts_total = plan_n_experts(c);
    if (r->n_slots <= 0) return STATUS_OK;
    uint64_t asked = (uint64_t)r->n_slots;
    if (!c->moe) {
        return error_set(err, STATUS_BAD_INPUT, "slots = %" PRIu64 ": %s has no experts", asked,
                         c->arch);
    }
    if (asked < working_set) {
        return error_set(err, STATUS_BAD_INPUT,
                         "slots = %" PRIu64 " is below %" PRIu64
                         ", the experts that one token uses (%u layers x %u): every look-up "
                         "would miss",
                         asked, working_set, c->n_layers, c->n_experts_used);
    }
    if (asked > plan->n_experts_total) {
        return error_set(err, STATUS_BAD_INPUT,
                         "slots = %" PRIu64 " is more than the model's %" PRIu64 " experts",
                         asked, plan->n_experts_total);
    }
    plan->n_slots = (uint32_t)asked;
    return STATUS_OK;
}

/* Drafts and MTP blocks compute on the CPU; n_pages: those of its pages that are counted here. */
static void add_draft_line(memory_plan *plan, const plan_request *r, uint32_t n_pages) {
    uint64_t bytes = r->draft_bytes + n_pages * r->draft_page_bytes;
    if (bytes == 0) return;
    char *note = add_line(plan, "draft model", PLAN_RAM, bytes);
    if (r->draft_is_block) {
        (void)snprintf(note, NOTE_BYTES, "the MTP block, on the CPU; up to %u guesses",
                       r->n_guesses);
    } else if (r->draft_vram_bytes > 0) {
        (void)snprintf(note, NOTE_BYTES, "its embedding and first %u of %u layers",
                       r->draft_layers - r->draft_gpu_layers, r->draft_layers);
    } else {
        (void)snprintf(note, NOTE_BYTES, "its file and states; up to %u guesses", r->n_guesses);
    }
}

static void add_expert_lines(memory_plan *plan, const model_config *c, const model_weights *w) {
    uint64_t experts = 0, largest = 0;
    expert_bytes(c, w, &experts, &largest);
    char *note = add_line(plan, "experts", PLAN_MAPPED, experts);
    (void)snprintf(note, NOTE_BYTES, "%" PRIu64 " of up to %" PRIu64 " bytes",
                   plan->n_experts_total, largest);
    uint64_t slot = slot_bytes(largest);
    note = add_line(plan, "expert slots", PLAN_RAM, plan->n_slots * slot);
    if (plan->n_slots == 0) {
        (void)snprintf(note, NOTE_BYTES, "none");
    } else {
        (void)snprintf(note, NOTE_BYTES, "%u slots, %.1f %% of the experts", plan->n_slots,
                       100.0 * plan->n_slots / (double)plan->n_experts_total);
    }
}

/* On every backend: of a step what inputs of vectors and drafts want, and of pieces that are cut by
 * layers what waits between two. */
static void add_hidden_line(memory_plan *plan, const model_config *c) {
    uint64_t n_cut = (uint64_t)SEQUENCE_CUT_PLACES * plan->chunk_tokens;
    char *note = add_line(plan, "hidden rows", PLAN_RAM,
                          (plan->max_rows + n_cut) * c->n_embd * sizeof(float));
    (void)snprintf(note, NOTE_BYTES, "of a step, and of %d pieces between their layers",
                   SEQUENCE_CUT_PLACES);
}

static void add_fixed_lines(memory_plan *plan, const model_config *c, const model_weights *w,
                            const plan_request *r) {
    char *note = add_line(plan, "backbone", PLAN_MAPPED, backbone_bytes(c, w));
    (void)snprintf(note, NOTE_BYTES, "embedding, head, %u layers", c->n_layers);
    if (c->moe) add_expert_lines(plan, c, w);
    uint64_t state = model_config_state_bytes(c);
    uint32_t n_states = plan->n_states + plan->n_snapshots;
    note = add_line(plan, "recurrent states", PLAN_RAM, n_states * state);
    (void)snprintf(note, NOTE_BYTES, "%u of %" PRIu64 " bytes", n_states, state);
    if (plan->n_remembered > 0) {
        note = add_line(plan, "remembered rows", PLAN_RAM,
                        plan->n_remembered * plan_remembered_bytes(c));
        (void)snprintf(note, NOTE_BYTES, "%u, for up to %u guesses of a sequence",
                       plan->n_remembered, plan->n_guesses);
    }
    add_draft_line(plan, r, 0); /* the model's pages are planned with the draft's */
    note = add_line(plan, "workspace", PLAN_RAM, plan->max_rows * row_bytes(c));
    (void)snprintf(note, NOTE_BYTES, "%u rows a step, an estimate", plan->max_rows);
    add_hidden_line(plan, c);
    /* One float row a sequence, and the sampler's copy and candidates. */
    uint64_t logits = (uint64_t)c->n_vocab * (4 * (uint64_t)plan->max_outputs + 4 + 8);
    note = add_line(plan, "logits", PLAN_RAM, logits);
    (void)snprintf(note, NOTE_BYTES, "%u rows of %u, and the sampler", plan->max_outputs,
                   c->n_vocab);
    uint64_t room = r->ram_bytes / 50;
    if (room > HEAD_ROOM_MAX) room = HEAD_ROOM_MAX;
    note = add_line(plan, "head room", PLAN_RAM, room);
    (void)snprintf(note, NOTE_BYTES, "requests, code, buffers of the link");
}

/* Experts that stay in the file are read through the page cache as it has room. */
static uint64_t needed_bytes(const memory_plan *plan) {
    uint64_t sum = 0;
    for (size_t i = 0; i < plan->n_lines; i++) {
        const plan_line *line = &plan->lines[i];
        if (line->place != PLAN_VRAM && line->place != PLAN_DRIVER &&
            strcmp(line->part, "experts") != 0) {
            sum += line->bytes;
        }
    }
    return sum;
}

static status plan_context(memory_plan *plan, const model_config *c, const model_weights *w,
                           const plan_request *r, error *err) {
    uint64_t page = plan_page_bytes(c, r->kv), fixed = needed_bytes(plan);
    if (page == 0) return refuse_pages(c, err);
    page += r->draft_page_bytes;
    if (fixed + page > r->ram_bytes) {
        return error_set(err, STATUS_NO_MEMORY,
                         "memory: %.0f MiB are needed before any context, %.0f MiB may be used "
                         "(fewer slots, sequences or a smaller chunk need less)",
                         (double)fixed / MIB, (double)r->ram_bytes / MIB);
    }
    if (r->n_context > c->n_context) {
        return error_set(err, STATUS_BAD_INPUT,
                         "ctx = %u is more than the %u tokens the model was trained for",
                         r->n_context, c->n_context);
    }
    if (r->n_context != 0 && r->n_context < MODEL_PAGE_TOKENS) {
        return error_set(err, STATUS_BAD_INPUT,
                         "ctx = %u is less than one KV page of %u tokens", r->n_context,
                         (unsigned)MODEL_PAGE_TOKENS);
    }
    /* A context that is ours to choose leaves half of what is free to others. */
    uint64_t left = r->ram_bytes - fixed;
    uint64_t experts = 0, largest = 0;
    expert_bytes(c, w, &experts, &largest);
    uint64_t least = plan_least_records(c) * slot_bytes(largest);
    uint32_t wish = r->n_context != 0 ? r->n_context : c->n_context;
    uint64_t each = ((uint64_t)wish + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    uint64_t fewest = r->n_context != 0 ? each : 1; /* pages without which there is no use */
    if (experts > left && left > least && (left - least) / page >= fewest) left -= least;
    uint64_t fit = (r->n_context == 0 ? left / 2 : left) / page;
    if (fit == 0) fit = 1;
    if (r->n_context != 0 && fit < each) {
        return error_set(err, STATUS_NO_MEMORY,
                         "ctx = %u needs %.0f MiB of KV pages, %.0f MiB are left of %.0f MiB",
                         r->n_context, (double)(each * page) / MIB, (double)left / MIB,
                         (double)r->ram_bytes / MIB);
    }
    uint64_t n_pages = each * r->n_sequences;
    plan->n_pages = (uint32_t)(n_pages < fit ? n_pages : fit);
    uint64_t held = (uint64_t)plan->n_pages * MODEL_PAGE_TOKENS;
    plan->n_context = held < wish ? (uint32_t)held : wish;
    char *note = add_line(plan, "KV pages", PLAN_RAM, plan->n_pages * page);
    (void)snprintf(note, NOTE_BYTES, "%u of %u tokens, %" PRIu64 " bytes%s", plan->n_pages,
                   (unsigned)MODEL_PAGE_TOKENS, page,
                   r->draft_page_bytes > 0 ? ", the draft's with them" : "");
    return STATUS_OK;
}

/* Left to choose it is room for all sequences, and little of what is left beside `reserve`. */
static status plan_parked(memory_plan *plan, const model_config *c, const plan_request *r,
                          uint64_t reserve, error *err) {
    uint64_t needed = needed_bytes(plan), pages = plan->n_context / MODEL_PAGE_TOKENS + 1;
    uint64_t left = needed < r->ram_bytes ? r->ram_bytes - needed : 0;
    uint64_t each = model_config_state_bytes(c) + pages * plan_page_bytes(c, r->kv);
    uint64_t most = each * r->n_sequences;
    uint64_t share = left > reserve ? (left - reserve) / PARKED_SHARE : 0;
    plan->park_bytes = most < share ? most : share;
    if (r->park_bytes >= 0) {
        plan->park_bytes = (uint64_t)r->park_bytes;
        if (plan->park_bytes > left) {
            return error_set(
                err, STATUS_NO_MEMORY, "park_mib = %.0f: %.0f MiB are left of %.0f MiB",
                (double)r->park_bytes / MIB, (double)left / MIB, (double)r->ram_bytes / MIB);
        }
    }
    char *note = add_line(plan, "parked sequences", PLAN_RAM, plan->park_bytes);
    (void)snprintf(note, NOTE_BYTES, "at most, a whole one is %.1f MiB", (double)each / MIB);
    return STATUS_OK;
}

/* The page cache holds the experts where it can; else they have an arena of their own. */
static status plan_cpu_records(memory_plan *plan, const model_config *c, const model_weights *w,
                               const plan_request *r, error *err) {
    uint64_t experts = 0, largest = 0, needed = needed_bytes(plan);
    expert_bytes(c, w, &experts, &largest);
    if (needed + experts <= r->ram_bytes) return STATUS_OK;
    uint64_t left = needed < r->ram_bytes ? r->ram_bytes - needed : 0;
    experts_stay_on_disk(plan);
    return plan_records(plan, c, r, left, slot_bytes(largest), PLAN_RAM, err);
}

/* --- on a GPU --- */

enum { DRIVER_MIB = 672, DRIVER_RAM_MIB = 384, AUTO_CONTEXT = 32768, VRAM_HEAD_ROOM_MIB = 512 };

/* A card gives memory in steps, lists every page of pinned RAM in its own, and needs some for what
 * is recorded later, most for steps in which the host looks between layers: two of 41 graphs each
 * took 15 MiB on an H200.  backend_cuda_graph.c records two of those with a CPU lane, else one. */
enum { VRAM_STEP = 2 * 1024 * 1024, GRAPH_ROOM = 4 * VRAM_STEP, LANE_ROOM = 4 * VRAM_STEP };
enum { PINNED_PAGE = 4096, PAGE_ENTRY = 8, SMALL_PINNED_MIB = 256 };

status plan_vram_budget(plan_request *request, uint64_t vram_mib, error *err) {
    if (request->backend != BACKEND_CUDA) return STATUS_OK;
    uint64_t left = 0, total = 0;
    status rc = STATUS_OK;
    request->vram_bytes = vram_mib << 20;
    if (vram_mib == 0) {
        rc = backend_cuda_memory(&left, &total, err);
        uint64_t room = left / 16, most = (uint64_t)VRAM_HEAD_ROOM_MIB << 20;
        request->vram_bytes = left - (room < most ? room : most);
    }
    request->knows_driver = backend_cuda_overhead(&request->driver_bytes,
                                                  &request->kernel_bytes, NULL) == STATUS_OK;
    return rc;
}

static uint64_t in_steps(uint64_t bytes) {
    return (bytes + VRAM_STEP - 1) / VRAM_STEP * VRAM_STEP;
}

static cuda_layout lay_out(const memory_plan *plan, const model_config *c,
                           const model_weights *w, const plan_request *r) {
    const model_params p = {.backend = BACKEND_CUDA,
                            .kv = r->kv,
                            .n_pages = plan->n_pages,
                            .n_states = plan->n_states + plan->n_snapshots,
                            .max_rows = plan->max_rows,
                            .max_outputs = plan->max_outputs,
                            .n_slots = plan->n_slots};
    cuda_layout out;
    cuda_layout_make(&out, c, w, &p);
    return out;
}

/* A context that is ours to choose is the model's up to AUTO_CONTEXT, and an eighth of the
 * VRAM at most. */
static status plan_cuda_context(memory_plan *plan, const model_config *c, const plan_request *r,
                                error *err) {
    if (r->n_context > c->n_context) {
        return error_set(err, STATUS_BAD_INPUT,
                         "ctx = %u is more than the %u tokens the model was trained for",
                         r->n_context, c->n_context);
    }
    uint64_t page = plan_page_bytes(c, r->kv);
    if (page == 0) return refuse_pages(c, err);
    uint64_t wish = r->n_context != 0 ? r->n_context : c->n_context;
    if (r->n_context == 0 && wish > AUTO_CONTEXT) wish = AUTO_CONTEXT;
    uint64_t each = (wish + MODEL_PAGE_TOKENS - 1) / MODEL_PAGE_TOKENS;
    uint64_t fit = r->vram_bytes / 8 / page;
    uint64_t n_pages = each * r->n_sequences;
    if (r->n_context == 0 && n_pages > fit) n_pages = fit > 0 ? fit : 1;
    if (n_pages > UINT32_MAX / 2) n_pages = UINT32_MAX / 2;
    plan->n_pages = (uint32_t)n_pages;
    uint64_t held = n_pages * MODEL_PAGE_TOKENS;
    plan->n_context = held < wish ? (uint32_t)held : (uint32_t)wish;
    return STATUS_OK;
}

static uint64_t driver_bytes(const plan_request *r) {
    uint64_t graphs = GRAPH_ROOM + (r->has_lane ? LANE_ROOM : 0);
    if (r->knows_driver) return in_steps(r->driver_bytes + graphs);
    uint64_t room = r->vram_bytes / 16;
    return room < (uint64_t)DRIVER_MIB << 20 ? room : (uint64_t)DRIVER_MIB << 20;
}

static uint64_t draft_bytes(const plan_request *r) {
    if (r->draft_vram_bytes == 0) return 0;
    return in_steps(r->draft_vram_bytes) + in_steps(r->kernel_bytes);
}

/* The card's list of pinned pages: every record there may be room for, and what is small. */
static uint64_t table_bytes(const memory_plan *plan, const model_weights *w,
                            const plan_request *r) {
    uint64_t pinned = plan->n_slots < plan->n_experts_total
                          ? plan->n_experts_total * cuda_record_bytes(w)
                          : 0;
    if (pinned > r->ram_bytes) pinned = r->ram_bytes;
    pinned += (uint64_t)SMALL_PINNED_MIB << 20;
    return in_steps(pinned / PINNED_PAGE * PAGE_ENTRY);
}

/* What is left for the one allocation, with so many slots. */
static uint64_t arena_limit(const memory_plan *plan, const model_weights *w,
                            const plan_request *r) {
    uint64_t others = driver_bytes(r) + draft_bytes(r) + table_bytes(plan, w, r);
    return r->vram_bytes > others ? (r->vram_bytes - others) / VRAM_STEP * VRAM_STEP : 0;
}

/* As many slots as fit beside everything else. */
static void choose_cuda_slots(memory_plan *plan, const model_config *c, const model_weights *w,
                              const plan_request *r) {
    plan->n_slots = (uint32_t)plan->n_experts_total; /* first without staging records */
    cuda_layout all = lay_out(plan, c, w, r);
    if (all.total_bytes <= arena_limit(plan, w, r)) return;
    uint64_t working_set = (uint64_t)c->n_layers * c->n_experts_used;
    plan->n_slots = (uint32_t)working_set;
    uint64_t limit = arena_limit(plan, w, r);
    cuda_layout least = lay_out(plan, c, w, r);
    if (least.total_bytes >= limit) return; /* refused by the caller, with the reason */
    plan->n_slots += (uint32_t)((limit - least.total_bytes) / least.slot_bytes);
    while (plan->n_slots > working_set && lay_out(plan, c, w, r).total_bytes > limit)
        plan->n_slots--; /* what the workspace notes of each slot */
}

static void add_cuda_lines(memory_plan *plan, const model_config *c, const model_weights *w,
                           const plan_request *r) {
    cuda_layout l = lay_out(plan, c, w, r);
    const uint64_t *bytes = l.part_bytes;
    char *note = add_line(plan, "backbone", PLAN_VRAM, bytes[CUDA_PART_BACKBONE]);
    (void)snprintf(note, NOTE_BYTES, "head and %u layers, without experts", c->n_layers);
    if (c->moe) {
        note = add_line(plan, "expert slots", PLAN_VRAM, bytes[CUDA_PART_SLOTS]);
        (void)snprintf(note, NOTE_BYTES,
                       "%u slots of %" PRIu64 " bytes, %.1f %% of the experts", plan->n_slots,
                       l.slot_bytes, 100.0 * plan->n_slots / (double)plan->n_experts_total);
        note = add_line(plan, "expert staging", PLAN_VRAM, bytes[CUDA_PART_STAGING]);
        (void)snprintf(note, NOTE_BYTES, "%u records on their way", l.n_staging);
    }
    note = add_line(plan, "KV pages", PLAN_VRAM, bytes[CUDA_PART_PAGES]);
    (void)snprintf(note, NOTE_BYTES, "%u of %u tokens, %" PRIu64 " bytes", plan->n_pages,
                   (unsigned)MODEL_PAGE_TOKENS, plan_page_bytes(c, r->kv));
    note = add_line(plan, "recurrent states", PLAN_VRAM, bytes[CUDA_PART_STATES]);
    (void)snprintf(note, NOTE_BYTES, "%u of %" PRIu64 " bytes",
                   plan->n_states + plan->n_snapshots, model_config_state_bytes(c));
    note = add_line(plan, "workspace", PLAN_VRAM, bytes[CUDA_PART_WORKSPACE]);
    (void)snprintf(note, NOTE_BYTES, "%u rows a step, prompts in pieces of %u", plan->max_rows,
                   plan->chunk_tokens);
    note = add_line(plan, "logits", PLAN_VRAM, bytes[CUDA_PART_LOGITS]);
    (void)snprintf(note, NOTE_BYTES, "%u rows of %u", plan->max_outputs, c->n_vocab);
    if (r->draft_vram_bytes > 0) {
        note = add_line(plan, "draft model", PLAN_VRAM, draft_bytes(r));
        if (r->draft_is_block) {
            (void)snprintf(note, NOTE_BYTES, "the MTP block and its pages; up to %u guesses",
                           r->n_guesses);
        } else {
            (void)snprintf(note, NOTE_BYTES,
                           "its head and last %u of %u layers, pages, states; up to %u guesses",
                           r->draft_gpu_layers, r->draft_layers, r->n_guesses);
        }
    }
    note = add_line(plan, "driver", PLAN_DRIVER, driver_bytes(r));
    (void)snprintf(note, NOTE_BYTES, "context, kernels and graphs, %s",
                   r->knows_driver ? "measured" : "an estimate");
    uint64_t rounding = in_steps(l.total_bytes) - l.total_bytes;
    note = add_line(plan, "page tables", PLAN_DRIVER, table_bytes(plan, w, r) + rounding);
    (void)snprintf(note, NOTE_BYTES, "of pinned memory; VRAM comes in steps of %d MiB",
                   VRAM_STEP >> 20);
    for (size_t i = 0; i < plan->n_lines; i++)
        plan->vram_needed_bytes += plan->lines[i].bytes;
}

/* A step's rows on the CPU: what comes from the GPU and goes there is pinned. */
static void add_lane_line(memory_plan *plan, const model_config *c, const plan_request *r) {
    if (!r->has_lane || plan->n_slots >= plan->n_experts_total) return;
    uint64_t rows = plan->max_rows, pairs = rows * c->n_experts_used;
    uint64_t pinned = (rows + pairs) * c->n_embd * sizeof(float) + sizeof(lane_box);
    uint64_t own = rows * 2 * act_row_bytes(ACT_Q8_16_PAIRS, c->n_embd) +
                   pairs * 2 *
                       (c->n_ff_expert * sizeof(float) +
                        act_row_bytes(ACT_Q8_16_PAIRS, (c->n_ff_expert + 255) / 256 * 256));
    char *note = add_line(plan, "CPU lane", PLAN_PINNED, pinned + own);
    (void)snprintf(note, NOTE_BYTES, "rows of a step and its experts' outputs");
}

static void add_cuda_host_lines(memory_plan *plan, const model_config *c,
                                const model_weights *w, const plan_request *r) {
    uint64_t experts = 0, largest = 0;
    expert_bytes(c, w, &experts, &largest);
    char *note = add_line(plan, "embedding", PLAN_MAPPED, matrix_bytes(&w->embedding));
    (void)snprintf(note, NOTE_BYTES, "a token's row travels with its step");
    if (c->moe) {
        note = add_line(plan, "experts", PLAN_MAPPED, experts);
        (void)snprintf(note, NOTE_BYTES, "%" PRIu64 " of up to %" PRIu64 " bytes",
                       plan->n_experts_total, largest);
    }
    add_lane_line(plan, c, r);
    add_draft_line(plan, r, plan->n_pages);
    note = add_line(plan, "staging", PLAN_PINNED, CUDA_STAGING_BYTES);
    (void)snprintf(note, NOTE_BYTES, "weights on their way to VRAM");
    add_hidden_line(plan, c);
    uint64_t logits = (uint64_t)c->n_vocab * (8 * (uint64_t)plan->max_outputs + 4 + 8);
    note = add_line(plan, "logits", PLAN_RAM, logits);
    (void)snprintf(note, NOTE_BYTES, "%u rows, and the sampler", plan->max_outputs);
    uint64_t room = r->ram_bytes / 50;
    note = add_line(plan, "head room", PLAN_RAM, room < HEAD_ROOM_MAX ? room : HEAD_ROOM_MAX);
    (void)snprintf(note, NOTE_BYTES, "requests, code, buffers of the link");
    room = r->ram_bytes / 16;
    uint64_t most = (uint64_t)DRIVER_RAM_MIB << 20;
    note = add_line(plan, "driver", PLAN_RAM, room < most ? room : most);
    (void)snprintf(note, NOTE_BYTES, "its own host memory, an estimate");
}

/* Every record waits ready for its journey, or as many as there is room for. */
static status plan_cuda_records(memory_plan *plan, const model_config *c,
                                const model_weights *w, const plan_request *r, error *err) {
    uint64_t record = cuda_record_bytes(w), all = plan->n_experts_total * record;
    uint64_t needed = needed_bytes(plan);
    uint64_t left = needed < r->ram_bytes ? r->ram_bytes - needed : 0;
    if (!c->moe) return STATUS_OK;
    plan->pins_experts = plan->n_slots < plan->n_experts_total && all <= r->ram_bytes / 2;
    if (!plan->pins_experts) experts_stay_on_disk(plan);
    if (plan->n_slots == plan->n_experts_total) return STATUS_OK;
    return plan_records(plan, c, r, left, record, PLAN_PINNED, err);
}

static status plan_cuda(memory_plan *plan, const model_config *c, const model_weights *w,
                        const plan_request *r, error *err) {
    plan->vram_budget_bytes = r->vram_bytes;
    status rc = plan_cuda_context(plan, c, r, err);
    if (rc != STATUS_OK) return rc;
    if (c->moe && plan->n_slots == 0) choose_cuda_slots(plan, c, w, r);
    add_cuda_lines(plan, c, w, r);
    if (plan->vram_needed_bytes > r->vram_bytes) {
        return error_set(err, STATUS_NO_MEMORY,
                         "VRAM: %.0f MiB are needed with %u expert slots, %.0f MiB may be used "
                         "(fewer slots, sequences, a smaller context or chunk need less%s)",
                         (double)plan->vram_needed_bytes / MIB, plan->n_slots,
                         (double)r->vram_bytes / MIB,
                         c->moe ? "; below one token's experts there is no use" : "");
    }
    add_cuda_host_lines(plan, c, w, r);
    rc = plan_prefixes(plan, c, r, err);
    if (rc != STATUS_OK) return rc;
    uint64_t reserve = c->moe ? plan_least_records(c) * cuda_record_bytes(w) : 0;
    rc = plan_parked(plan, c, r, reserve, err);
    if (rc != STATUS_OK) return rc;
    rc = plan_cuda_records(plan, c, w, r, err);
    if (rc != STATUS_OK) return rc;
    plan->needed_bytes = needed_bytes(plan);
    if (plan->needed_bytes > r->ram_bytes) {
        return error_set(err, STATUS_NO_MEMORY,
                         "memory: %.0f MiB are needed, %.0f MiB may be used",
                         (double)plan->needed_bytes / MIB, (double)r->ram_bytes / MIB);
    }
    return STATUS_OK;
}

static void plan_guesses(memory_plan *out, const plan_request *r) {
    uint32_t n = r->n_sequences;
    bool remembers = r->remembers_guesses && r->n_guesses > 0;
    out->n_guesses = r->n_guesses;
    out->n_step_guesses = r->n_step_guesses > 0 ? r->n_step_guesses : n * r->n_guesses;
    out->n_remembered = remembers ? n + out->n_step_guesses : 0;
    out->states_each = remembers ? 2 : 1 + r->n_guesses;
    out->n_states = n * out->states_each;
}

static status make(memory_plan *out, const model_config *config, const model_weights *weights,
                   const plan_request *request, error *err) {
    memset(out, 0, sizeof *out);
    if (request->n_sequences == 0 || request->n_sequences > 4096) {
        return error_set(err, STATUS_BAD_INPUT, "sequences = %u is not in 1..4096",
                         request->n_sequences);
    }
    out->budget_bytes = request->ram_bytes;
    out->n_sequences = request->n_sequences;
    plan_guesses(out, request);
    out->n_snapshots = request->prefix_ram_mib != 0 ? request->prefix_states : 0;
    /* Pieces of a prompt end at multiples of a chunk, so a step holds at least one. */
    out->chunk_tokens = request->chunk_tokens / MODEL_CHUNK_TOKENS * MODEL_CHUNK_TOKENS;
    if (out->chunk_tokens == 0) out->chunk_tokens = MODEL_CHUNK_TOKENS;
    out->max_outputs = out->n_sequences + out->n_step_guesses;
    out->max_rows = out->chunk_tokens + out->max_outputs;
    status rc = plan_slots(out, config, request, err);
    if (rc != STATUS_OK) return rc;
    if (request->backend == BACKEND_CUDA) return plan_cuda(out, config, weights, request, err);
    add_fixed_lines(out, config, weights, request);
    rc = plan_prefixes(out, config, request, err);
    if (rc != STATUS_OK) return rc;
    rc = plan_context(out, config, weights, request, err);
    uint64_t experts = 0, largest = 0;
    if (config->moe) expert_bytes(config, weights, &experts, &largest);
    uint64_t reserve = config->moe ? plan_least_records(config) * slot_bytes(largest) : 0;
    if (rc == STATUS_OK) rc = plan_parked(out, config, request, reserve, err);
    if (rc == STATUS_OK && config->moe)
        rc = plan_cpu_records(out, config, weights, request, err);
    if (rc != STATUS_OK) return rc;
    out->needed_bytes = needed_bytes(out);
    return STATUS_OK;
}

static status make_with_or_without_prefixes(memory_plan *out, const model_config *config,
                                            const model_weights *weights,
                                            const plan_request *request, error *err) {
    status rc = make(out, config, weights, request, err);
    if (rc != STATUS_NO_MEMORY || request->prefix_ram_mib >= 0) return rc;
    plan_request without = *request; /* a share of RAM is taken only where it is spare */
    without.prefix_ram_mib = 0;
    return make(out, config, weights, &without, err);
}

enum { USUAL_CHUNK = 512, LARGEST_CHUNK = 2048, SLOTS_SHARE = 24 };

/* On a GPU a prompt streams what has no slot once a piece, and products of more rows are more
 * efficient: the largest piece whose workspace fits beside what was asked for and, where slots
 * are ours to choose, takes the place of one in SLOTS_SHARE at most. */
status plan_make(memory_plan *out, const model_config *config, const model_weights *weights,
                 const plan_request *request, error *err) {
    plan_request r = *request;
    if (r.chunk_tokens == 0) r.chunk_tokens = USUAL_CHUNK;
    status rc = make_with_or_without_prefixes(out, config, weights, &r, err);
    if (request->chunk_tokens != 0 || rc != STATUS_OK) return rc;
    if (r.backend != BACKEND_CUDA || !config->moe) return rc;
    for (uint32_t chunk = LARGEST_CHUNK; chunk > USUAL_CHUNK; chunk /= 2) {
        memory_plan larger;
        r.chunk_tokens = chunk;
        if (make_with_or_without_prefixes(&larger, config, weights, &r, NULL) == STATUS_OK &&
            larger.n_slots >= out->n_slots - out->n_slots / SLOTS_SHARE &&
            larger.prefix_bytes >= out->prefix_bytes && larger.n_context >= out->n_context) {
            *out = larger;
            break;
        }
    }
    return STATUS_OK;
}

size_t plan_print(const memory_plan *plan, char *out, size_t cap) {
    static const char *const places[] = {"mapped", "disk", "ram", "pinned", "vram", "vram"};
    size_t n = 0;
    for (size_t i = 0; i <= plan->n_lines; i++) {
        char *at = n < cap ? out + n : NULL;
        size_t left = n < cap ? cap - n : 0;
        const plan_line *line = &plan->lines[i];
        int length = 0;
        if (i < plan->n_lines) {
            length = snprintf(at, left, "%-17s %10.1f MiB  %-6s  %s\n", line->part,
                              (double)line->bytes / MIB, places[line->place], line->note);
        } else {
            length = snprintf(
                at, left, "%-17s %10.1f MiB  of %.1f MiB; context %u tokens, %u sequences\n",
                "needed", (double)plan->needed_bytes / MIB, (double)plan->budget_bytes / MIB,
                plan->n_context, plan->n_sequences);
        }
        if (length > 0) n += (size_t)length;
    }
    if (plan->vram_budget_bytes == 0) return n;
    int length =
        snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0,
                 "%-17s %10.1f MiB  of %.1f MiB\n", "needed of VRAM",
                 (double)plan->vram_needed_bytes / MIB, (double)plan->vram_budget_bytes / MIB);
    return n + (length > 0 ? (size_t)length : 0);
}
