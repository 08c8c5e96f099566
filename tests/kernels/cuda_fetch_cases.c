/* cuda_fetch_cases.c - missing experts fetched by the device, followed by a cache on the host. */
#include "kernels/cuda/experts_fetch.h"
#include "tests/kernels/cuda_case.h"
#include "worker/memory/expert_cache.h"

enum { LAYERS = 3, EXPERTS = 12, SLOTS = 9, PAIRS = 6, CAP = 2, SLOT = 256, RECORD = 208 };

typedef struct fetching {
    buffer *places, *turns, *slot_of, *owner, *used, *step, *notes, *told, *source, *slots,
        *staging;
    expert_cache *cache;
    uint32_t n_staging;
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
                  .n_staging = n_staging};
    for (size_t i = 0; i < f.source->bytes; i++) /* a record is told by its bytes */
        ((uint8_t *)f.source->host)[i] = (uint8_t)(i / SLOT * 7 + i % SLOT);
    memset(f.slot_of->host, 0xff, f.slot_of->bytes);
    memset(f.owner->host, 0xff, f.owner->bytes);
    memset(f.used->host, 0, f.used->bytes);
    put(f.source), put(f.slot_of), put(f.owner), put(f.used);
    if (expert_cache_new(&f.cache, LAYERS, EXPERTS, 2, SLOTS, CAP, &err) != STATUS_OK) abort();
    return f;
}

static void begin_step(const fetching *f, uint32_t number) {
    fetch_step *step = f->step->host;
    step->number = number;
    step->next = step->done = 0;
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

/* The records that are marked as coming are brought as experts_up_coming would, in its turns: each
 * missing one once, and every pair once or with the pair that names its expert first. */
static bool bring(const fetching *f, uint32_t layer, const int32_t *chosen, uint64_t *places) {
    const expert_turn *turns = (const void *)get(f->turns);
    bool seen[PAIRS] = {false};
    for (int t = 0; t < PAIRS; t++) {
        const uint32_t pair = turns[t].pair, id = layer * EXPERTS + turns[t].expert;
        if (pair >= PAIRS || seen[pair] || turns[t].expert != (uint32_t)chosen[pair])
            return false;
        seen[pair] = true;
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

/* The cache follows the notes; every slot and address is what it says. */
static bool follow(const fetching *f, uint32_t layer, const int32_t *chosen, bool coming) {
    const fetch_note *notes = (const fetch_note *)(const void *)get(f->notes) + layer * PAIRS;
    uint64_t *places = (void *)get(f->places);
    int32_t distinct[PAIRS], slots[PAIRS];
    size_t n = 0;
    uint32_t n_placed = 0, n_missing = 0;
    if (coming && !bring(f, layer, chosen, places)) return false;
    for (int i = 0; i < PAIRS; i++) {
        if (notes[i].expert != chosen[i]) return false;
        if (notes[i].slot != FETCH_REPEATED) distinct[n++] = chosen[i];
    }
    expert_cache_layer(f->cache, layer, distinct, n, NULL, slots);
    for (int i = 0, d = 0; i < PAIRS; i++) {
        uint32_t id = layer * EXPERTS + (uint32_t)chosen[i];
        if (!holds(f, places[i], id)) return false;
        if (notes[i].slot == FETCH_REPEATED) continue;
        bool hit = slots[d++] != EXPERT_MISS;
        if (hit != (notes[i].slot == FETCH_HIT)) return false;
        n_missing += !hit;
        if (notes[i].slot < 0) continue;
        n_placed++;
        expert_cache_place(f->cache, (uint32_t)chosen[i], (uint32_t)notes[i].slot);
    }
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
    enum { USED = 2, ROWS = PAIRS / USED };
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
    LAUNCH(router_fetch, router_fetch_shape(ROWS), args);
}

static bool fetch_layer(const fetching *f, uint32_t layer, const int32_t *chosen, bool coming) {
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
static double fetch_case(const kernel_device *device, uint32_t n_staging, uint32_t kinds) {
    begin(device);
    fetching f = new_fetching(n_staging);
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
    return right ? 0 : 1;
}

/* The same with staging records for two of the six. */
double case_experts_fetch(const kernel_device *device) {
    double most = worse(fetch_case(device, PAIRS, 0), fetch_case(device, 2, 0));
    return worse(most, fetch_case(device, 2, 5));
}

double case_router_fetch(const kernel_device *device) {
    return worse(fetch_case(device, PAIRS, 7), fetch_case(device, 2, 7));
}
