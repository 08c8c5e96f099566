/* backend_cuda_tiers.c - where experts' records lie: pinned memory, slots, the tier in RAM. */
#include "worker/backend_cuda_experts.h"

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cuda/router.h"
#include <stdlib.h>
#include <string.h>

enum { LOADING_RECORDS = 128 };

static status init_events(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    const cuda_driver *d = b->driver;
    status rc = CUDA_CALL(d, err, cuEventCreate, &x->departed, 0); /* these two are timed */
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventCreate, &x->arrived, 0);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->filled, CUDA_EVENT_NO_TIMING);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventCreate, &x->sent, CUDA_EVENT_NO_TIMING);
    if (rc == STATUS_OK)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->ahead_here, CUDA_EVENT_NO_TIMING);
    if (rc == STATUS_OK) rc = CUDA_CALL(d, err, cuEventCreate, &x->routed, 0); /* timed, too */
    for (size_t i = 0; i < 2 && rc == STATUS_OK; i++)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->wave_done[i], CUDA_EVENT_NO_TIMING);
    for (size_t i = 0; i < CUDA_RECORD_BUFFERS && rc == STATUS_OK; i++)
        rc = CUDA_CALL(d, err, cuEventCreate, &x->staging.used[i], CUDA_EVENT_NO_TIMING);
    return rc;
}

status cuda_pin(backend_cuda *b, void *out, size_t bytes, error *err) {
    void *at = NULL;
    status rc = CUDA_CALL(b->driver, err, cuMemHostAlloc, &at, bytes, 0);
    memcpy(out, &at, sizeof at);
    if (rc == STATUS_OK) b->pinned_bytes += bytes;
    return rc;
}

static status init_pinned(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = c->n_experts;
    status rc = cuda_pin(b, &x->records, c->n_layers * n * sizeof *x->records, err);
    if (rc == STATUS_OK) {
        rc = cuda_pin(b, &x->wave_records, CUDA_MOST_WAVES * n * sizeof *x->wave_records, err);
    }
    if (rc == STATUS_OK) {
        rc = cuda_pin(b, &x->chosen,
                      (size_t)b->params.max_rows * c->n_experts_used * sizeof *x->chosen, err);
    }
    return rc;
}

/* How long a record's journey takes, once warm. */
static status measure_journey(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    size_t n = b->layout.slot_bytes, n_bytes = 0;
    const unsigned char *records = host_tier_arena(x->host, &n_bytes);
    status rc = STATUS_OK;
    for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
        uint64_t begun = clock_monotonic_ns();
        rc = CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_part_at(b, CUDA_PART_STAGING),
                       records, CUDA_RECORD_BUFFERS * n);
        x->ship_ns = (double)(clock_monotonic_ns() - begun) / CUDA_RECORD_BUFFERS;
    }
    return rc;
}

static status init_lane(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    if (b->params.lane == CPU_LANE_OFF) return STATUS_OK;
    if (b->params.lane != CPU_LANE_ALL && !cuda_lane_is_exact(b)) {
        log_info("cpu-lane", "prompts=no reason=\"sums of this model's types differ\"");
        return STATUS_OK;
    }
    size_t hidden = (size_t)b->params.max_rows * b->config->n_embd * sizeof(float);
    status rc = cuda_pin(b, &x->hidden, hidden, err);
    if (rc == STATUS_OK) rc = measure_journey(b, err);
    if (rc == STATUS_OK) rc = cuda_lane_open(&x->lane, b, err);
    return rc;
}

static void tell_filled(void *context, uint64_t n_bytes) {
    backend_cuda *b = context;
    uint64_t before = b->loaded_bytes - b->filled_bytes;
    b->filled_bytes = n_bytes;
    cuda_tell_progress(b, before + n_bytes - b->loaded_bytes);
}

/* Memory of the tier's own counts as resident; the driver pins it where it lies. */
static status pin_arena(backend_cuda *b, error *err) {
    size_t n_bytes = 0;
    unsigned char *arena = host_tier_arena(b->experts.host, &n_bytes);
    status rc =
        CUDA_CALL(b->driver, err, cuMemHostRegister, arena, n_bytes, CUDA_REGISTER_MAPPED);
    if (rc == STATUS_OK) b->experts.registered = arena;
    return rc;
}

/* All records, or n_records of them above the disk.  Memory that the readers' threads have touched
 * is pinned sooner than the driver makes as much, which it does on one thread. */
static status open_host_tier(backend_cuda *b, uint32_t n_records, error *err) {
    cuda_experts *x = &b->experts;
    size_t n_all = (size_t)b->config->n_layers * b->config->n_experts;
    bool whole = n_records >= n_all;
    status rc = STATUS_OK;
    error why = {0};
    if (whole && !b->card.reads_registered)
        rc = cuda_pin(b, &x->all, n_all * b->layout.slot_bytes, err);
    const host_tier_params params = {.weights = b->weights,
                                     .n_experts = b->config->n_experts,
                                     .n_records = n_records,
                                     .slot_bytes = b->layout.slot_bytes,
                                     .n_loaders = b->params.n_loaders,
                                     .place = cuda_copy_matrix,
                                     .arena = x->all};
    if (rc == STATUS_OK) rc = host_tier_new(&x->host, &params, err);
    if (rc != STATUS_OK) return rc;
    if (whole) rc = host_tier_fill(x->host, tell_filled, b, err);
    if (rc != STATUS_OK || x->all != NULL) return rc;
    rc = pin_arena(b, &why);
    if (whole && rc == STATUS_OK) x->all = x->registered;
    if (whole && rc != STATUS_OK) return error_set(err, rc, "%s", why.text);
    if (rc != STATUS_OK)
        log_warn("host-tier", "%s: records are not pinned, copies are slower", why.text);
    return STATUS_OK;
}

static void close_host_tier(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    if (x->registered != NULL) (void)b->driver->cuMemHostUnregister(x->registered);
    if (x->all == x->registered) x->all = NULL; /* the tier's */
    x->registered = NULL;
    host_tier_free(x->host);
    x->host = NULL;
}

/* Every expert has a slot: records pass through a small tier on their way. */
static status fill_all_slots(backend_cuda *b, error *err) {
    status rc = open_host_tier(b, LOADING_RECORDS, err);
    if (rc == STATUS_OK) rc = cuda_upload_experts(b, err);
    memset(b->experts.staging.held, 0, sizeof b->experts.staging.held);
    model_stats loaded = {0};
    model_stats_add_host(&loaded, b->experts.host);
    b->load_disk_bytes += loaded.disk_bytes;
    close_host_tier(b);
    return rc;
}

/* Slots from `first` on whose records lie one behind the other in pinned memory, too. */
static uint32_t count_neighbours(const expert_cache *cache, uint32_t first) {
    uint32_t n = 1, owner = expert_cache_owner(cache, first);
    while (first + n < expert_cache_n_slots(cache) &&
           expert_cache_owner(cache, first + n) == owner + n)
        n++;
    return n;
}

/* No first prompt meets empty slots: what it would stream is here by the share of the slots. */
static status fill_from_ram(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    const size_t slot_bytes = b->layout.slot_bytes;
    status rc = STATUS_OK;
    x->n_by_use = expert_cache_fill(x->cache, false);
    x->n_filled = b->layout.n_slots;
    for (uint32_t i = 0, n = 0; i < x->n_filled && rc == STATUS_OK; i += n) {
        n = count_neighbours(x->cache, i);
        rc = CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_slot_at(b, i),
                       x->all + expert_cache_owner(x->cache, i) * slot_bytes, n * slot_bytes);
        x->bytes_moved += n * slot_bytes;
    }
    return rc;
}

/* A layer's slots, from `first` on, through the small tier; returns the first of the next layer. */
static uint32_t fill_layer(backend_cuda *b, uint32_t layer, uint32_t first) {
    cuda_experts *x = &b->experts;
    uint32_t end = first, n_experts = b->config->n_experts;
    for (; end < x->n_filled && expert_cache_owner(x->cache, end) / n_experts == layer; end++)
        x->missing[end - first] = (int32_t)(expert_cache_owner(x->cache, end) % n_experts);
    host_tier_prefetch(x->host, layer, x->missing, end - first);
    for (uint32_t i = first; i < end; i++) {
        uint32_t expert = (uint32_t)x->missing[i - first];
        cuda_ship(b, layer, expert, cuda_slot_at(b, i));
        host_tier_demote(x->host, layer, expert);
    }
    cuda_tell_progress(b, layer_expert_bytes(&b->weights->layers[layer]) * (end - first));
    return end;
}

/* What answers would fetch one by one from the disk is read at once. */
static status fill_from_disk(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    x->n_by_use = x->n_filled = expert_cache_fill(x->cache, true);
    for (uint32_t layer = 0, first = 0; layer < b->config->n_layers; layer++) {
        first = fill_layer(b, layer, first);
        if (b->failed != STATUS_OK) return error_set(err, b->failed, "%s", b->failure.text);
    }
    x->n_shipped = 0;
    return CUDA_CALL(b->driver, err, cuStreamSynchronize, b->h2d);
}

uint32_t cuda_count_listed(const backend_cuda *b) {
    const size_t n = (size_t)b->config->n_layers * b->config->n_experts;
    uint32_t n_used = 0;
    if (b->params.expert_uses == NULL) return 0;
    for (size_t i = 0; i < n; i++)
        n_used += b->params.expert_uses[i] > 0;
    return n_used < b->layout.n_slots ? n_used : b->layout.n_slots;
}

static status fill_slots(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    const size_t n = (size_t)b->config->n_layers * b->config->n_experts;
    if (b->params.expert_uses != NULL)
        memcpy(expert_cache_uses(x->cache), b->params.expert_uses, n * sizeof(uint32_t));
    cuda_ahead_init(b);
    return x->all != NULL ? fill_from_ram(b, err) : fill_from_disk(b, err);
}

status cuda_experts_init(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = c->n_experts;
    if (n > ROUTER_MAX_EXPERTS || c->n_experts_used > ROUTER_MAX_CHOSEN) {
        return error_set(err, STATUS_BAD_INPUT,
                         "cuda backend: %u of %zu experts a layer, at most %d of %d",
                         c->n_experts_used, n, ROUTER_MAX_CHOSEN, ROUTER_MAX_EXPERTS);
    }
    x->active = calloc(n, sizeof *x->active);
    x->counts = calloc(n, sizeof *x->counts);
    x->late = calloc(n, sizeof *x->late);
    x->first = calloc(n + 1, sizeof *x->first);
    x->slots = calloc(n, sizeof *x->slots);
    x->inserts = calloc(n, sizeof *x->inserts);
    x->on_cpu = calloc(n, sizeof *x->on_cpu);
    x->missing = calloc(n, sizeof *x->missing);
    x->last_use = calloc(c->n_layers * n, sizeof *x->last_use);
    x->ahead = calloc(CUDA_STAGING_SLOTS, sizeof *x->ahead);
    x->is_ahead = calloc(n, sizeof *x->is_ahead);
    if (x->last_use == NULL || x->ahead == NULL || x->is_ahead == NULL || x->missing == NULL ||
        x->active == NULL || x->counts == NULL || x->late == NULL || x->first == NULL ||
        x->slots == NULL || x->inserts == NULL || x->on_cpu == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "cuda backend: no memory for %zu experts", n);
    }
    status rc = init_events(b, err);
    if (rc == STATUS_OK) rc = init_pinned(b, err);
    if (rc != STATUS_OK) return rc;
    size_t n_all = (size_t)c->n_layers * n;
    if (b->layout.n_slots == n_all) return fill_all_slots(b, err);
    uint32_t least = c->n_experts + CUDA_RECORD_BUFFERS, wish = b->params.host_records;
    if (cuda_pins_all(b)) wish = (uint32_t)n_all;
    rc = open_host_tier(b, wish > least ? wish : least, err);
    if (rc == STATUS_OK) rc = init_lane(b, err);
    if (rc == STATUS_OK) rc = cuda_fetch_init(b, err);
    if (rc != STATUS_OK) return rc;
    rc = expert_cache_new(&x->cache, c->n_layers, c->n_experts, c->n_experts_used,
                          b->layout.n_slots, b->params.inserts_per_layer, err);
    return rc == STATUS_OK ? fill_slots(b, err) : rc;
}

void cuda_experts_release(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    const cuda_driver *d = b->driver;
    cuda_lane_close(x->lane, d);
    close_host_tier(b);
    void *pinned[] = {x->box, x->notes,  x->tables,       x->hidden,
                      x->all, x->chosen, x->wave_records, x->records};
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++) {
        if (pinned[i] != NULL) (void)d->cuMemFreeHost(pinned[i]);
    }
    for (size_t i = 0; i < CUDA_RECORD_BUFFERS; i++) {
        if (x->staging.used[i] != NULL) (void)d->cuEventDestroy(x->staging.used[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        if (x->wave_done[i] != NULL) (void)d->cuEventDestroy(x->wave_done[i]);
    }
    if (x->arrived != NULL) (void)d->cuEventDestroy(x->arrived);
    if (x->routed != NULL) (void)d->cuEventDestroy(x->routed);
    if (x->ahead_here != NULL) (void)d->cuEventDestroy(x->ahead_here);
    if (x->sent != NULL) (void)d->cuEventDestroy(x->sent);
    if (x->filled != NULL) (void)d->cuEventDestroy(x->filled);
    if (x->departed != NULL) (void)d->cuEventDestroy(x->departed);
    expert_cache_free(x->cache);
    free(x->is_ahead);
    free(x->ahead);
    free(x->last_use);
    free(x->missing);
    free(x->on_cpu);
    free(x->inserts);
    free(x->slots);
    free(x->first);
    free(x->late);
    free(x->counts);
    free(x->active);
}
