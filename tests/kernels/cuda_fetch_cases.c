/* cuda_fetch_cases.c - missing experts fetched by the device or left to the CPU lane, followed by a
 * cache on the host. */
#include "kernels/cuda/experts_fetch.h"
#include "tests/kernels/cuda_case.h"
#include "worker/memory/expert_cache.h"

enum { LAYERS = 3, EXPERTS = 12, SLOTS = 9, PAIRS = 6, CAP = 2, SLOT = 256, RECORD = 208 };
enum { USED = 2, ROWS = PAIRS / USED, HIDDEN = ROWS * 32 };

typedef struct fetching {
    buffer *places, *turns, *slot_of, *owner, *used, *step, *notes, *told, *source, *slots,
        *staging;
    buffer *box, *hidden, *lane_rows; /* of the CPU lane */
    expert_cache *cache;
    uint32_t n_staging;
    bool has_lane;
    uint32_t n_filled; /* slots, since the beginning */
} fetching;

static fetching new_fetching(uint32_t n_staging) {
    error err = {0};
    fetching f = {.places = make(PAIRS * 8),
                  .turns = make(PAIRS * sizeof(expert_turn)),
                  .slot_of = make(LAYERS * EXPERTS * 4),
                  .owner = make(SLOTS * 4),
                  .used = make(SLOTS * 4),
                  .step = make(sizeof(fetch_step)),
                  .notes = make(LAYERS * PAIRS * sizeof(fetch_note)),
                  .told = make(LAYERS * PAIRS * sizeof(fetch_note)),
                  .source = make(LAYERS * EXPERTS * SLOT),
                  .slots = make(SLOTS * SLOT),
                  .staging = make(n_staging * SLOT),
                  .box = make(sizeof(lane_box)),
                  .hidden = floats(HIDDEN, -1, 1),
                  .lane_rows = make(HIDDEN * sizeof(float)),
                  .n_staging = n_staging};
    memset(f.box->host, 0, f.box->bytes);
    put(f.box);
    for (size_t i = 0; i < f.source->bytes; i++) /* a record is told by its bytes */
        ((uint8_t *)f.source->host)[i] = (uint8_t)(i / SLOT * 7 + i % SLOT);
    memset(f.slot_of->host, 0xff, f.slot_of->bytes);
    memset(f.owner->host, 0xff, f.owner->bytes);
    memset(f.used->host, 0, f.used->bytes);
    put(f.source), put(f.slot_of), put(f.owner), put(f.used);
    if (expert_cache_new(&f.cache, LAYERS, EXPERTS, 2, SLOTS, CAP, &err) != STATUS_OK) abort();
    return f;
}

/* Of n missing experts the lane gets a half, rounded down, and sometimes all; of three layers one
 * has its first filled, or each. */
static void begin_step(const fetching *f, uint32_t number) {
    fetch_step *step = f->step->host;
    step->number = number;
    step->next = step->done = step->late = 0;
    step->fills = number % 3 == 0 ? FETCH_FILLS_OF : 5;
    for (uint32_t n = 1; n <= FETCH_MAX_PAIRS; n++)
        step->on_lane[n - 1] = (uint8_t)(number % 5 == 0 ? n : n / 2);
    step->n_victims =
        (uint32_t)expert_cache_victims(f->cache, step->victims, FETCH_MAX_VICTIMS);
    put(f->step);
}

/* Whether a record of the device is that of this expert. */
static bool holds(const fetching *f, uint64_t address, uint32_t id) {
    uint8_t record[RECORD];
    gpu->read(record, (const void *)(uintptr_t)address, RECORD);
    return memcmp(record, (const uint8_t *)f->source->host + (size_t)id * SLOT, RECORD) == 0;
}

/* Whether the pair's expert is the lane's: the pair that names it first says so. */
static bool is_on_lane(const fetch_note *notes, uint32_t pair) {
    uint32_t first = 0;
    while (notes[first].expert != notes[pair].expert)
        first++;
    return notes[first].slot <= FETCH_ON_LANE;
}

/* The records that are marked as coming are brought as experts_up_coming would, in its turns: each
 * missing one once, and every pair once or with the pair that names its expert first. */
static bool bring(const fetching *f, uint32_t layer, const int32_t *chosen,
                  const fetch_note *notes, uint64_t *places) {
    const expert_turn *turns = (const void *)get(f->turns);
    bool seen[PAIRS] = {false};
    for (int t = 0; t < PAIRS; t++) {
        const uint32_t pair = turns[t].pair, id = layer * EXPERTS + turns[t].expert;
        if (pair >= PAIRS || seen[pair] || turns[t].expert != (uint32_t)chosen[pair])
            return false;
        seen[pair] = true;
        if (is_on_lane(notes, pair) != (turns[t].place == EXPERT_ON_LANE)) return false;
        if (turns[t].place == EXPERT_ON_LANE && places[pair] == 0) continue;
        if (turns[t].place != 0 && turns[t].place != places[pair]) return false;
        if (turns[t].place & EXPERT_COMING)
            gpu->write((void *)(uintptr_t)(places[pair] - EXPERT_COMING),
                       (const uint8_t *)f->source->host + (size_t)id * SLOT, RECORD);
        for (int i = 0; i < PAIRS && turns[t].place == 0; i++) { /* another does it */
            if (i != (int)pair && chosen[i] == chosen[pair]) break;
            if (i + 1 == PAIRS) return false;
        }
    }
    for (int i = 0; i < PAIRS; i++)
        places[i] &= ~EXPERT_COMING;
    return true;
}

/* As the host does while the step goes on: the record comes to the slot. */
static uint32_t fill(fetching *f, uint32_t id, int32_t note) {
    const uint32_t slot = (uint32_t)FETCH_FILLS(note);
    gpu->write((uint8_t *)f->slots->device + (size_t)slot * SLOT,
               (const uint8_t *)f->source->host + (size_t)id * SLOT, RECORD);
    f->n_filled++;
    return slot;
}

/* The lane has its share of what is missing, and hears of it; of the last layer in any case. */
static bool tells_lane(const fetching *f, uint32_t layer, const fetch_note *notes,
                       uint32_t n_missing, uint32_t n_on_lane) {
    const fetch_step *step = f->step->host;
    const lane_box *box = (const void *)get(f->box);
    const uint64_t now = LANE_WORD(step->number, layer + 1);
    if (!f->has_lane) return n_on_lane == 0;
    if (n_on_lane != (n_missing > 0 ? step->on_lane[n_missing - 1] : 0)) return false;
    if (n_on_lane == 0) return (box->post == now) == (layer + 1 == LAYERS);
    const fetch_note *told = (const fetch_note *)(const void *)get(f->told) + layer * PAIRS;
    return box->post == now && memcmp(told, notes, PAIRS * sizeof *told) == 0 &&
           memcmp(get(f->lane_rows), f->hidden->host, f->hidden->bytes) == 0;
}

static uint32_t victim_of(const fetching *f, uint32_t slot) {
    const fetch_step *step = f->step->host;
    uint32_t i = 0;
    while (i < step->n_victims && step->victims[i] != slot)
        i++;
    return i;
}

/* What is filled takes a victim behind those of the layer's others, so that the cache is told of it
 * last: its clock's hand never has to go back. */
static bool follow_fill(fetching *f, uint32_t layer, const fetch_note *notes, int pair) {
    const uint32_t expert = (uint32_t)notes[pair].expert;
    const uint32_t slot = fill(f, layer * EXPERTS + expert, notes[pair].slot);
    for (int i = 0; i < PAIRS; i++) {
        if (notes[i].slot < 0) continue;
        if (victim_of(f, (uint32_t)notes[i].slot) >= victim_of(f, slot)) return false;
    }
    expert_cache_place(f->cache, expert, slot);
    return true;
}

/* The cache follows the notes; every slot and address is what it says. */
static bool follow(fetching *f, uint32_t layer, const int32_t *chosen, bool coming) {
    const fetch_note *notes = (const fetch_note *)(const void *)get(f->notes) + layer * PAIRS;
    uint64_t *places = (void *)get(f->places);
    int32_t distinct[PAIRS], slots[PAIRS];
    size_t n = 0;
    uint32_t n_placed = 0, n_missing = 0, n_on_lane = 0;
    int filled = -1; /* a pair */
    if (coming && !bring(f, layer, chosen, notes, places)) return false;
    for (int i = 0; i < PAIRS; i++) {
        if (notes[i].expert != chosen[i]) return false;
        if (notes[i].slot != FETCH_REPEATED) distinct[n++] = chosen[i];
    }
    expert_cache_layer(f->cache, layer, distinct, n, NULL, slots);
    for (int i = 0, d = 0; i < PAIRS; i++) {
        uint32_t id = layer * EXPERTS + (uint32_t)chosen[i];
        if (is_on_lane(notes, (uint32_t)i) ? places[i] != 0 : !holds(f, places[i], id))
            return false;
        if (notes[i].slot == FETCH_REPEATED) continue;
        bool hit = slots[d++] != EXPERT_MISS;
        if (hit != (notes[i].slot == FETCH_HIT)) return false;
        n_missing += !hit;
        n_on_lane += notes[i].slot <= FETCH_ON_LANE;
        if (notes[i].slot < FETCH_ON_LANE) filled = i;
        if (notes[i].slot < 0) continue;
        n_placed++;
        expert_cache_place(f->cache, (uint32_t)chosen[i], (uint32_t)notes[i].slot);
    }
    if (filled >= 0 && !follow_fill(f, layer, notes, filled)) return false;
    if (!tells_lane(f, layer, notes, n_missing, n_on_lane)) return false;
    n_missing -= n_on_lane;
    if (n_placed > CAP && n_placed != n_missing - f->n_staging) return false;
    const int32_t *slot_of = (const void *)get(f->slot_of);
    const uint32_t *owner = (const void *)get(f->owner);
    for (uint32_t id = 0; id < LAYERS * EXPERTS; id++) {
        int32_t at = expert_cache_find(f->cache, id / EXPERTS, id % EXPERTS);
        if (slot_of[id] != at && (slot_of[id] >= 0 || at != EXPERT_MISS)) return false;
        if (at == EXPERT_MISS) continue;
        uint64_t address = (uint64_t)(uintptr_t)f->slots->device + (uint64_t)at * SLOT;
        if (owner[at] != id || !holds(f, address, id)) return false;
    }
    return true;
}

/* What the last layer tells the host is what all layers noted. */
static bool tells(const fetching *f) {
    return memcmp(get(f->told), get(f->notes), f->notes->bytes) == 0;
}

/* Rows of two pairs, whose choice the router is told. */
static void route(const fetching *f, const experts_fetch_args *fetch, const buffer *chosen) {
    router_fetch_args args = {
        .router = {.base = {.logits = floats(ROWS * EXPERTS, -1, 1)->device,
                            .experts = make(PAIRS * 4)->device,
                            .weights = make(PAIRS * 4)->device,
                            .logits_stride = EXPERTS,
                            .n_experts = EXPERTS,
                            .n_used = USED},
                   .routed = chosen->device},
        .fetch = *fetch};
    args.fetch.turns = f->turns->device;
    if (f->has_lane) {
        args.fetch.box = f->box->device;
        args.fetch.hidden = f->hidden->device;
        args.fetch.lane_rows = f->lane_rows->device;
        args.fetch.lane_notes = (fetch_note *)f->told->device + fetch->layer * PAIRS;
        args.fetch.n_hidden = HIDDEN;
    }
    LAUNCH(router_fetch, router_fetch_shape(ROWS), args);
}

static bool fetch_layer(fetching *f, uint32_t layer, const int32_t *chosen, bool coming) {
    const buffer *experts = copy_of(chosen, PAIRS * sizeof *chosen);
    const experts_fetch_args args = {.experts = experts->device,
                                     .places = f->places->device,
                                     .slot_of = f->slot_of->device,
                                     .slot_owner = f->owner->device,
                                     .slot_step = f->used->device,
                                     .step = f->step->device,
                                     .notes = f->notes->device,
                                     .told = layer + 1 == LAYERS ? f->told->device : NULL,
                                     .source = (const uint8_t *)f->source->device +
                                               (size_t)layer * EXPERTS * SLOT,
                                     .slots = f->slots->device,
                                     .staging = f->staging->device,
                                     .slot_bytes = SLOT,
                                     .record_bytes = RECORD,
                                     .layer = layer,
                                     .n_experts = EXPERTS,
                                     .n_pairs = PAIRS,
                                     .most_inserts = CAP,
                                     .n_staging = f->n_staging};
    if (coming)
        route(f, &args, experts);
    else
        LAUNCH(experts_fetch, experts_fetch_shape(), args);
    return follow(f, layer, chosen, coming) && (args.told == NULL || tells(f));
}

/* Six pairs a layer, some of them twice, so few slots that a step uses all of them: every rule
 * for victims is needed.  Launches of both kinds take turns, by layer. */
static double fetch_case(const kernel_device *device, uint32_t n_staging, uint32_t kinds,
                         bool has_lane) {
    begin(device);
    fetching f = new_fetching(n_staging);
    f.has_lane = has_lane;
    size_t n_kept = n_buffers;
    bool right = true;
    for (uint32_t step = 1; step <= 12 && right; step++) {
        begin_step(&f, step);
        for (uint32_t layer = 0; layer < LAYERS && right; layer++) {
            int32_t chosen[PAIRS];
            for (int i = 0; i < PAIRS; i++)
                chosen[i] = (int32_t)(case_random() % (step % 4 == 0 ? 3 : EXPERTS));
            right = fetch_layer(&f, layer, chosen, kinds >> layer & 1);
            end_after(n_kept);
        }
    }
    expert_cache_free(f.cache);
    end();
    return right && (f.n_filled > 0) == has_lane ? 0 : 1;
}

/* The same with staging records for two of the six. */
double case_experts_fetch(const kernel_device *device) {
    double most = worse(fetch_case(device, PAIRS, 0, false), fetch_case(device, 2, 0, false));
    return worse(most, fetch_case(device, 2, 5, false));
}

double case_router_fetch(const kernel_device *device) {
    return worse(fetch_case(device, PAIRS, 7, false), fetch_case(device, 2, 7, false));
}

double case_router_lane(const kernel_device *device) {
    return worse(fetch_case(device, PAIRS, 7, true), fetch_case(device, 2, 7, true));
}

/* ---- outputs of the lane ---- */

enum { COLS = 256, TURNS = 3 }; /* of three pairs two are on the lane */

typedef struct waiting {
    buffer *turns, *box, *outputs, *foreign, *step, *experts;
} waiting;

static waiting new_waiting(uint64_t answer, uint32_t late) {
    waiting w = {.turns = make(TURNS * sizeof(expert_turn)),
                 .box = make(sizeof(lane_box)),
                 .outputs = floats(TURNS * COLS, -1, 1),
                 .foreign = make(TURNS * COLS * sizeof(float)),
                 .step = make(sizeof(fetch_step)),
                 .experts = make(TURNS * sizeof(int32_t))};
    expert_turn *turns = w.turns->host;
    fetch_step *step = w.step->host;
    memset(w.box->host, 0, w.box->bytes);
    for (uint32_t i = 0; i < TURNS; i++)
        turns[i] = (expert_turn){.place = i == 1 ? 0 : EXPERT_ON_LANE, .pair = TURNS - 1 - i};
    ((lane_box *)w.box->host)->answer = answer;
    step->number = 7;
    step->late = late;
    put(w.turns), put(w.box), put(w.step);
    return w;
}

/* Layer 4 of step 7; true: its two pairs came, as the third did not, and `late` is what it says. */
static bool takes(const kernel_device *device, uint64_t answer, bool was_late,
                  uint64_t limit_ns, bool late) {
    begin(device);
    const waiting w = new_waiting(answer, was_late);
    const activations x = acts(1, COLS);
    const experts_up_args args = {.experts = w.experts->device,
                                  .act = x.act->device,
                                  .act_stride = x.stride,
                                  .gate = {.type = QUANT_Q4_K},
                                  .up = {.type = QUANT_Q4_K},
                                  .n_rows = 1,
                                  .n_used = TURNS,
                                  .n_cols = COLS,
                                  .n_ff = 32,
                                  .layer = 4,
                                  .turns = w.turns->device,
                                  .source = w.outputs->device,
                                  .box = w.box->device,
                                  .outputs = w.outputs->device,
                                  .foreign = w.foreign->device,
                                  .step = w.step->device,
                                  .limit_ns = limit_ns};
    cuda_shape shape;
    const cuda_kernel kernel = experts_up_choose(&args, &shape);
    gpu->launch(kernel, shape, &args, sizeof args);
    const float *foreign = get(w.foreign);
    bool right = kernel == CUDA_KERNEL_experts_up_coming;
    for (uint32_t pair = 0; pair < TURNS; pair++) {
        const bool same = memcmp(foreign + pair * COLS, (float *)w.outputs->host + pair * COLS,
                                 COLS * sizeof(float)) == 0;
        right = right && same == (pair != 1);
    }
    const lane_box *box = (const void *)get(w.box);
    const fetch_step *step = (const void *)get(w.step);
    right = right && (box->late == 7) == late && (step->late == 1) == (late || was_late);
    end();
    return right;
}

/* An answer of the layer, of a later one, of the host that gave up; of a layer before or a step
 * before there is none yet, and the wait ends at its limit, or at once where one ended before. */
double case_lane_outputs(const kernel_device *device) {
    const uint64_t hour = 3600000000000u, soon = 1000000;
    const bool right = takes(device, LANE_WORD(7, 5), false, hour, false) &&
                       takes(device, LANE_WORD(7, LANE_GIVEN_UP), false, hour, false) &&
                       takes(device, LANE_WORD(8, 0), false, hour, false) &&
                       takes(device, LANE_WORD(7, 4), false, soon, true) &&
                       takes(device, LANE_WORD(6, LANE_GIVEN_UP), false, soon, true) &&
                       takes(device, LANE_WORD(7, 4), true, hour, true);
    return right ? 0 : 1;
}
