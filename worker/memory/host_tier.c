/* host_tier.c - least recently used records over an arena, read by three jobs each. */
#include "worker/memory/host_tier.h"

#include "common/clock.h"
#include "common/quant_type.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PARTS = 3, FILL_BATCHES = 4, BATCH_RECORDS = 16 };

static const uint32_t NONE = UINT32_MAX;

typedef struct record {
    uint32_t key;   /* layer * n_experts + expert, or NONE */
    uint32_t pins;  /* fetched and not released */
    bool wanted;    /* of the list of prefetches, not fetched yet */
    uint32_t newer; /* towards the most recently used */
    uint32_t older;
    atomic_uint left; /* parts still to be read */
    disk_job jobs[PARTS];
} record;

struct host_tier {
    const model_weights *weights;
    uint32_t n_experts;
    uint32_t n_keys; /* experts of all layers */
    uint32_t n_records;
    size_t slot_bytes;
    host_tier_place place;
    disk_tier *disk;
    unsigned char *arena;
    size_t arena_bytes;
    bool owns_arena;
    record *records;    /* NULL when there is one for each expert */
    uint32_t *place_of; /* [n_keys], NONE: not here */
    uint32_t newest, oldest;
    /* The list of prefetches: keys, of which those before `next_wish` have been looked at. */
    uint32_t *wishes; /* [n_experts] */
    size_t n_wishes, next_wish;
    uint32_t n_wanted;
    error failure; /* of the tier's own; the disk's is the disk's */
    host_tier_counts counts;
};

/* --- a record's bytes --- */

static const weight_experts *part_of(const layer_weights *l, size_t part) {
    const weight_experts *parts[PARTS] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    return parts[part];
}

static size_t part_bytes(const weight_experts *p) {
    return p->first.row_bytes * p->first.n_rows;
}

static const char *part_name(const layer_weights *l, size_t part) {
    static const char *const names[PARTS] = {"gate", "up", "down"};
    const weight_experts *p = part_of(l, part);
    return p->expert_bytes == part_bytes(p) ? names[part] : "gate_up"; /* both in one tensor */
}

static void place_plainly(const weight_matrix *m, const void *data, unsigned char *out) {
    memcpy(out, data, m->row_bytes * m->n_rows);
}

/* What a job of a record needs to know: the key and the part are in `detail`. */
static status take_part(const disk_job *j, const unsigned char *bytes, error *err) {
    const host_tier *t = j->context;
    uint32_t key = j->detail / PARTS, part = j->detail % PARTS;
    uint32_t layer = key / t->n_experts, expert = key % t->n_experts;
    const layer_weights *l = &t->weights->layers[layer];
    const weight_matrix *m = &part_of(l, part)->first;
    uint64_t n_blocks = j->n_bytes / quant_traits_of((uint32_t)m->type)->block_bytes;
    uint64_t bad = gguf_find_bad_block((uint32_t)m->type, bytes, n_blocks);
    if (bad < n_blocks) {
        return error_set(err, STATUS_IO,
                         "tensor blk.%u.ffn_%s_exps.weight: expert %u, block %" PRIu64
                         " of %s: the scale is not a finite number",
                         layer, part_name(l, part), expert, bad,
                         quant_traits_of((uint32_t)m->type)->name);
    }
    t->place(m, bytes, j->out);
    return STATUS_OK;
}

/* The jobs that read a record to `out`. */
static void make_jobs(const host_tier *t, uint32_t key, unsigned char *out, atomic_uint *left,
                      disk_job jobs[PARTS]) {
    const layer_weights *l = &t->weights->layers[key / t->n_experts];
    for (uint32_t part = 0; part < PARTS; part++) {
        const weight_experts *p = part_of(l, part);
        const unsigned char *data = p->first.data;
        disk_job *j = &jobs[part];
        *j = (disk_job){.n_bytes = part_bytes(p),
                        .take = take_part,
                        .context = (void *)(uintptr_t)t,
                        .detail = key * PARTS + part,
                        .out = out,
                        .left = left};
        bool found = gguf_locate(t->weights->file, data + key % t->n_experts * p->expert_bytes,
                                 &j->shard, &j->offset);
        CHECK(found); /* weights.c took the address from the mapping */
        out += j->n_bytes;
    }
    atomic_store_explicit(left, PARTS, memory_order_relaxed);
}

/* --- order of use --- */

static void unlink_record(host_tier *t, uint32_t i) {
    const record *r = &t->records[i];
    if (r->newer != NONE)
        t->records[r->newer].older = r->older;
    else
        t->newest = r->older;
    if (r->older != NONE)
        t->records[r->older].newer = r->newer;
    else
        t->oldest = r->newer;
}

static void make_newest(host_tier *t, uint32_t i) {
    if (t->newest == i) return;
    unlink_record(t, i);
    t->records[i].newer = NONE;
    t->records[i].older = t->newest;
    t->records[t->newest].newer = i;
    t->newest = i;
}

static void make_oldest(host_tier *t, uint32_t i) {
    if (t->oldest == i) return;
    unlink_record(t, i);
    t->records[i].older = NONE;
    t->records[i].newer = t->oldest;
    t->records[t->oldest].older = i;
    t->oldest = i;
}

static bool is_read(const record *r) {
    return atomic_load_explicit(&r->left, memory_order_acquire) == 0;
}

/* The oldest record that nobody holds, awaits or reads, now empty; NONE: there is none. */
static uint32_t take_victim(host_tier *t) {
    for (uint32_t i = t->oldest; i != NONE; i = t->records[i].newer) {
        record *r = &t->records[i];
        if (r->pins > 0 || r->wanted || !is_read(r)) continue;
        if (r->key != NONE) t->place_of[r->key] = NONE;
        r->key = NONE;
        return i;
    }
    return NONE;
}

/* --- reading --- */

/* Begin to read a record that is not here; NONE: no place for it. */
static uint32_t begin_read(host_tier *t, uint32_t key) {
    uint32_t i = take_victim(t);
    if (i == NONE) return NONE;
    record *r = &t->records[i];
    r->key = key;
    t->place_of[key] = i;
    make_newest(t, i);
    make_jobs(t, key, t->arena + i * t->slot_bytes, &r->left, r->jobs);
    disk_tier_submit(t->disk, r->jobs, PARTS);
    t->counts.misses++;
    return i;
}

static void drop_wishes(host_tier *t) {
    for (size_t i = 0; i < t->next_wish; i++) {
        uint32_t at = t->place_of[t->wishes[i]];
        if (at != NONE) t->records[at].wanted = false;
    }
    t->n_wanted = 0;
    t->n_wishes = t->next_wish = 0;
}

/* Records that wait for their fetch take half of the arena at most. */
static void begin_wishes(host_tier *t) {
    while (t->next_wish < t->n_wishes && t->n_wanted < t->n_records / 2) {
        uint32_t key = t->wishes[t->next_wish], i = t->place_of[key];
        if (i == NONE) i = begin_read(t, key);
        if (i == NONE) return;
        t->next_wish++;
        if (t->records[i].wanted) continue;
        t->records[i].wanted = true;
        t->n_wanted++;
    }
}

void host_tier_prefetch(host_tier *t, uint32_t layer, const int32_t *experts, size_t n) {
    if (t->records == NULL) return;
    drop_wishes(t);
    for (size_t i = 0; i < n && i < t->n_experts; i++)
        t->wishes[t->n_wishes++] = layer * t->n_experts + (uint32_t)experts[i];
    begin_wishes(t);
}

/* The record could not be read: nobody will find it. */
static void forget(host_tier *t, uint32_t i) {
    record *r = &t->records[i];
    t->place_of[r->key] = NONE;
    r->key = NONE;
    make_oldest(t, i);
}

static bool wait_for(host_tier *t, uint32_t i) {
    record *r = &t->records[i];
    if (!is_read(r)) {
        uint64_t begun = clock_monotonic_ns();
        disk_tier_wait(t->disk, &r->left);
        t->counts.wait_ns += clock_monotonic_ns() - begun;
    }
    for (size_t part = 0; part < PARTS; part++) {
        if (r->jobs[part].failed) return false;
    }
    return true;
}

const unsigned char *host_tier_fetch(host_tier *t, uint32_t layer, uint32_t expert) {
    uint32_t key = layer * t->n_experts + expert;
    t->counts.fetches++;
    if (t->records == NULL) return t->arena + key * t->slot_bytes;
    uint32_t i = t->place_of[key];
    if (i == NONE) i = begin_read(t, key);
    if (i == NONE) { /* all that is not held was asked for in advance */
        drop_wishes(t);
        i = begin_read(t, key);
    }
    if (i == NONE) {
        if (t->failure.code == STATUS_OK) {
            (void)error_set(&t->failure, STATUS_NO_MEMORY,
                            "host tier: all %u records are in use at once", t->n_records);
        }
        return NULL;
    }
    record *r = &t->records[i];
    if (r->wanted) {
        r->wanted = false;
        t->n_wanted--;
    }
    if (!wait_for(t, i)) {
        forget(t, i);
        return NULL;
    }
    r->pins++;
    make_newest(t, i);
    begin_wishes(t);
    return t->arena + i * t->slot_bytes;
}

void host_tier_release(host_tier *t, uint32_t layer, uint32_t expert) {
    if (t->records == NULL) return;
    uint32_t i = t->place_of[layer * t->n_experts + expert];
    CHECK(i != NONE && t->records[i].pins > 0);
    t->records[i].pins--;
    if (t->next_wish < t->n_wishes) begin_wishes(t);
}

/* --- exclusive of VRAM --- */

void host_tier_demote(host_tier *t, uint32_t layer, uint32_t expert) {
    if (t->records == NULL) return;
    uint32_t i = t->place_of[layer * t->n_experts + expert];
    if (i != NONE) make_oldest(t, i);
}

unsigned char *host_tier_receive(host_tier *t, uint32_t layer, uint32_t expert) {
    uint32_t key = layer * t->n_experts + expert;
    if (t->records == NULL || t->place_of[key] != NONE) return NULL;
    uint32_t i = take_victim(t);
    if (i == NONE) return NULL;
    record *r = &t->records[i];
    r->key = key;
    r->pins = 1;
    for (size_t part = 0; part < PARTS; part++)
        r->jobs[part].failed = false;
    t->place_of[key] = i;
    make_newest(t, i);
    t->counts.received++;
    return t->arena + i * t->slot_bytes;
}

/* --- life --- */

static size_t largest_part(const model_weights *w) {
    size_t most = 0;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        for (size_t part = 0; part < PARTS; part++) {
            size_t n = part_bytes(part_of(&w->layers[i], part));
            if (n > most) most = n;
        }
    }
    return most;
}

static status make_records(host_tier *t, error *err) {
    t->records = calloc(t->n_records, sizeof *t->records);
    t->place_of = malloc(t->n_keys * sizeof *t->place_of);
    t->wishes = malloc(t->n_experts * sizeof *t->wishes);
    if (t->records == NULL || t->place_of == NULL || t->wishes == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "host tier: no memory for %u records",
                         t->n_records);
    }
    memset(t->place_of, 0xff, t->n_keys * sizeof *t->place_of);
    for (uint32_t i = 0; i < t->n_records; i++) {
        t->records[i].key = NONE;
        t->records[i].newer = i > 0 ? i - 1 : NONE;
        t->records[i].older = i + 1 < t->n_records ? i + 1 : NONE;
    }
    t->newest = 0;
    t->oldest = t->n_records - 1;
    return STATUS_OK;
}

static status make_arena(host_tier *t, unsigned char *given, error *err) {
    t->arena_bytes = (size_t)t->n_records * t->slot_bytes;
    t->arena = given;
    t->owns_arena = given == NULL;
    if (given != NULL) return STATUS_OK;
    void *at = mmap(NULL, t->arena_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return error_set(err, STATUS_NO_MEMORY, "host tier: no memory for %u records of %zu",
                         t->n_records, t->slot_bytes);
    }
    (void)madvise(at, t->arena_bytes, MADV_HUGEPAGE); /* only advice */
    t->arena = at;
    return STATUS_OK;
}

status host_tier_new(host_tier **out, const host_tier_params *params, error *err) {
    *out = NULL;
    host_tier *t = calloc(1, sizeof *t);
    if (t == NULL) return error_set(err, STATUS_NO_MEMORY, "host tier: no memory");
    t->weights = params->weights;
    t->n_experts = params->n_experts;
    t->n_keys = params->weights->n_layers * params->n_experts;
    t->n_records = params->n_records < t->n_keys ? params->n_records : t->n_keys;
    t->slot_bytes = params->slot_bytes;
    t->place = params->place != NULL ? params->place : place_plainly;
    status rc = STATUS_OK;
    if (t->n_records < HOST_TIER_LEAST && t->n_records < t->n_keys) {
        rc = error_set(err, STATUS_BAD_INPUT, "host tier: %u records, at least %d",
                       t->n_records, HOST_TIER_LEAST);
    }
    if (rc == STATUS_OK) rc = make_arena(t, params->arena, err);
    if (rc == STATUS_OK && t->n_records < t->n_keys) rc = make_records(t, err);
    if (rc == STATUS_OK) {
        rc = disk_tier_open(&t->disk, t->weights->file,
                            params->n_loaders > 0 ? params->n_loaders : DISK_LOADERS,
                            largest_part(t->weights), err);
    }
    if (rc != STATUS_OK) {
        host_tier_free(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

void host_tier_free(host_tier *t) {
    if (t == NULL) return;
    disk_tier_close(t->disk);
    if (t->owns_arena && t->arena != NULL) (void)munmap(t->arena, t->arena_bytes);
    free(t->wishes);
    free(t->place_of);
    free(t->records);
    free(t);
}

/* Some records of a fill under way. */
typedef struct fill_batch {
    disk_job jobs[BATCH_RECORDS][PARTS];
    atomic_uint left[BATCH_RECORDS];
    size_t n_records;
    uint64_t n_bytes;
} fill_batch;

static void begin_batch(host_tier *t, fill_batch *b, uint32_t *key) {
    b->n_records = 0;
    b->n_bytes = 0;
    for (; b->n_records < BATCH_RECORDS && *key < t->n_keys; b->n_records++, (*key)++) {
        disk_job *jobs = b->jobs[b->n_records];
        make_jobs(t, *key, t->arena + *key * t->slot_bytes, &b->left[b->n_records], jobs);
        for (size_t part = 0; part < PARTS; part++)
            b->n_bytes += jobs[part].n_bytes;
        disk_tier_submit(t->disk, jobs, PARTS);
    }
}

static bool end_batch(host_tier *t, const fill_batch *b) {
    bool whole = true;
    for (size_t i = 0; i < b->n_records; i++) {
        disk_tier_wait(t->disk, &b->left[i]);
        for (size_t part = 0; part < PARTS; part++)
            whole = whole && !b->jobs[i][part].failed;
    }
    return whole;
}

status host_tier_fill(host_tier *t, host_tier_progress progress, void *context, error *err) {
    CHECK(t->records == NULL);
    fill_batch *batches = calloc(FILL_BATCHES, sizeof *batches);
    if (batches == NULL) return error_set(err, STATUS_NO_MEMORY, "host tier: no memory");
    uint32_t key = 0;
    uint64_t n_bytes = 0;
    bool whole = true;
    for (size_t i = 0; i < FILL_BATCHES; i++)
        begin_batch(t, &batches[i], &key);
    for (size_t i = 0; batches[i].n_records > 0; i = (i + 1) % FILL_BATCHES) {
        whole = end_batch(t, &batches[i]) && whole;
        n_bytes += batches[i].n_bytes;
        if (progress != NULL) progress(context, n_bytes);
        uint32_t end = t->n_keys;
        begin_batch(t, &batches[i], whole ? &key : &end);
    }
    free(batches);
    return whole ? STATUS_OK : disk_tier_failure(t->disk, err);
}

/* --- looks --- */

unsigned char *host_tier_arena(const host_tier *t, size_t *n_bytes) {
    *n_bytes = t->arena_bytes;
    return t->arena;
}

disk_tier *host_tier_disk(const host_tier *t) {
    return t->disk;
}

bool host_tier_has_all(const host_tier *t) {
    return t->records == NULL;
}

bool host_tier_has(const host_tier *t, uint32_t layer, uint32_t expert) {
    if (t->records == NULL) return true;
    uint32_t i = t->place_of[layer * t->n_experts + expert];
    return i != NONE && is_read(&t->records[i]);
}

status host_tier_failure(host_tier *t, error *err) {
    if (t->failure.code != STATUS_OK)
        return error_set(err, t->failure.code, "%s", t->failure.text);
    return disk_tier_failure(t->disk, err);
}

void host_tier_count(const host_tier *t, host_tier_counts *out) {
    disk_counts disk;
    disk_tier_count(t->disk, &disk);
    *out = t->counts;
    out->disk_bytes = disk.n_bytes;
    out->direct = disk.direct;
}
