/* experts_fetch.cu - missing experts from host memory to slots; kernels/cuda/experts_fetch.h.
 *
 * Launch  router_fetch: one block, a warp a row and one that finds victims meanwhile: three loads,
 *         each of which waits for the one before.  Tables are in shared memory before the logits
 *         are there.
 *         experts_fetch: grid FETCH_BLOCKS, block FETCH_BLOCK.  Every block finds out by itself
 *         what is missing and where it goes, from tables that nobody writes meanwhile; all copy;
 *         the last one to finish writes the tables.  Where nothing is missing, one block notes it.
 * Cost    all there: a launch, of router_fetch what the router alone would cost.  experts_fetch
 *         else the records' bytes over the bus: FETCH_BLOCKS x FETCH_BLOCK x 64 bytes are on their
 *         way at a time, 2 MB, which covers the latency of any bus.
 * Oracle  the expert cache of the host, worker/memory/expert_cache.c; tests/golden.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/experts_fetch.h"
#include "kernels/cuda/router.cuh"

typedef struct fetch_plan {
    int32_t there[ROUTER_MAX_EXPERTS]; /* slots of the layer's experts */
    uint32_t ahead[WARP];              /* the next victims; NOBODY: of this step, or none */
    int32_t expert[FETCH_MAX_PAIRS];
    int32_t slot[FETCH_MAX_PAIRS]; /* of a hit, or the new one; negative: staged, repeated */
    int32_t note[FETCH_MAX_PAIRS];
    uint64_t address[FETCH_MAX_PAIRS]; /* of the pair that names the expert first */
    uint32_t first[FETCH_MAX_PAIRS];   /* that pair */
    uint32_t missing[FETCH_MAX_PAIRS]; /* pairs */
    uint32_t before[FETCH_MAX_PAIRS];  /* how many of those are before this pair */
    bool misses[FETCH_MAX_PAIRS];
    bool on_lane[FETCH_MAX_PAIRS]; /* of those that named a missing expert first */
    uint32_t candidate[WARP];
    uint32_t shares[FETCH_MAX_PAIRS / 4]; /* the step's on_lane, in words */
    uint32_t number, n_victims, begin, next, fills;
} fetch_plan;

DEVICE uint64_t record_address(const unsigned char *base, const experts_fetch_args &a,
                               int32_t i) {
    return (uint64_t)(uintptr_t)(base + (uint64_t)i * a.slot_bytes);
}

static_assert(FETCH_MAX_PAIRS == 4 * WARP, "a lane a word of the shares");

/* Whether the running step has used the slot. */
DEVICE bool is_used(const experts_fetch_args &a, uint32_t slot, uint32_t number) {
    return (__ldcg(a.slot_step + slot) & ~FETCH_FILLING) == number;
}

/* Before the wait: no launch between this layer's plan and the one before it writes any of this.
 * All threads come here and to what follows, for the barriers; the last warp looks for victims. */
DEVICE void look_ahead(const experts_fetch_args &a, fetch_plan &p) {
    const uint32_t i = threadIdx.x + WARP - blockDim.x;
    const int32_t *there = a.slot_of + (uint64_t)a.layer * a.n_experts;
#pragma unroll 4
    for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x)
        p.there[e] = __ldcg(there + e);
    if (i >= WARP) return;
    const uint32_t number = __ldcg(&a.step->number), n_victims = __ldcg(&a.step->n_victims);
    const uint32_t at = __ldcg(&a.step->next);
    uint32_t slot = FETCH_NOBODY;
    if (at + i < n_victims) slot = __ldcg(a.step->victims + at + i);
    if (slot != FETCH_NOBODY && is_used(a, slot, number)) slot = FETCH_NOBODY;
    p.ahead[i] = slot;
    if (a.box != 0) p.shares[i] = __ldcg((const uint32_t *)a.step->on_lane + i);
    if (i != 0) return;
    p.fills = __ldcg(&a.step->fills);
    p.number = number;
    p.n_victims = n_victims;
    p.begin = p.next = at;
}

/* Every thread learns how many are missing. */
DEVICE uint32_t count_missing(const experts_fetch_args &a, fetch_plan &p) {
    const uint32_t i = threadIdx.x;
    uint32_t n = 0, before = 0;
    __syncthreads();
#pragma unroll 8
    for (uint32_t k = 0; k < a.n_pairs; k++) {
        n += p.misses[k] ? 1 : 0;
        before += k < i && p.misses[k] ? 1 : 0;
    }
    if (i < a.n_pairs) {
        p.before[i] = before;
        if (p.misses[i]) p.missing[before] = i;
    }
    if (n != 0) __syncthreads();
    return n;
}

/* Threads 0 .. n_pairs - 1, one a pair, whose experts are in the plan.  Every thread learns how many
 * are missing. */
DEVICE uint32_t look_up(const experts_fetch_args &a, fetch_plan &p) {
    const uint32_t i = threadIdx.x;
    __syncthreads();
    if (i < a.n_pairs) {
        const int32_t e = p.expert[i];
        uint32_t first = i;
#pragma unroll 8
        for (uint32_t k = i; k > 0; k--)
            if (p.expert[k - 1] == e) first = k - 1;
        const bool names = first == i;
        const int32_t s = names ? p.there[e] : -1;
        p.first[i] = first;
        p.slot[i] = s;
        p.note[i] = names ? FETCH_HIT : FETCH_REPEATED;
        p.address[i] = s >= 0 ? record_address(a.slots, a, s) : 0;
        p.misses[i] = names && s < 0;
        p.on_lane[i] = false;
    }
    return count_missing(a, p);
}

/* Of n missing pairs the lane takes k that follow each other, beginning with another one in every
 * step and layer, so that none is always left to it and never comes into a slot.  Behind the
 * others in `missing` stands the first of the lane's.  Returns how many are left. */
DEVICE uint32_t give_to_lane(const experts_fetch_args &a, fetch_plan &p, uint32_t n) {
    const uint32_t i = threadIdx.x, first = (p.number + a.layer) % n;
    const uint32_t k = p.shares[(n - 1) / 4] >> (n - 1) % 4 * 8 & 0xff;
    const uint32_t leader = p.missing[first];
    if (k == 0) return n;
    if (i < a.n_pairs && p.misses[i]) {
        const uint32_t turn = (p.before[i] + n - first) % n;
        p.on_lane[i] = turn < k;
    }
    __syncthreads();
    if (i < a.n_pairs && p.on_lane[i]) {
        p.misses[i] = false;
        p.note[i] = FETCH_ON_LANE;
    }
    const uint32_t left = count_missing(a, p);
    if (i == 0) p.missing[left] = leader;
    __syncthreads();
    return left;
}

DEVICE bool uses_slot(const fetch_plan &p, uint32_t n_pairs, uint32_t slot) {
    bool used = false;
    for (uint32_t j = 0; j < n_pairs; j++)
        used = used || p.slot[j] == (int32_t)slot;
    return used;
}

/* Victim `at`, or NOBODY where it may not go.  strict: not one that this step used; never one that
 * the host fills. */
DEVICE uint32_t victim_at(const experts_fetch_args &a, const fetch_plan &p, uint32_t at,
                          bool strict) {
    uint32_t slot = FETCH_NOBODY;
    if (strict && at - p.begin < WARP) {
        slot = p.ahead[at - p.begin];
    } else if (at < p.n_victims) {
        slot = __ldcg(a.step->victims + at);
        const uint32_t user = __ldcg(a.slot_step + slot);
        if (user == (p.number | FETCH_FILLING) || (strict && user == p.number))
            slot = FETCH_NOBODY;
    }
    return slot != FETCH_NOBODY && uses_slot(p, a.n_pairs, slot) ? FETCH_NOBODY : slot;
}

/* The victims from `at` on that may go, in their order, to the missing pairs.  Every thread counts
 * and returns how many are placed. */
DEVICE uint32_t place_missing(const experts_fetch_args &a, fetch_plan &p, uint32_t at,
                              uint32_t n_placed, uint32_t want, bool strict) {
    const uint32_t i = threadIdx.x, end = p.n_victims;
    for (; at < end && n_placed < want; at += WARP) {
        if (i < WARP) p.candidate[i] = victim_at(a, p, at + i, strict);
        __syncthreads();
        for (uint32_t k = 0; k < WARP && n_placed < want; k++) {
            if (p.candidate[k] == FETCH_NOBODY) continue;
            if (i == 0) p.slot[p.missing[n_placed]] = (int32_t)p.candidate[k];
            if (i == 0 && strict) p.next = at + k + 1;
            n_placed++;
        }
        __syncthreads();
    }
    return n_placed;
}

DEVICE void plan_missing(const experts_fetch_args &a, fetch_plan &p, uint32_t n_missing) {
    const uint32_t i = threadIdx.x;
    uint32_t want = n_missing < a.most_inserts ? n_missing : a.most_inserts;
    if (n_missing > a.n_staging + want) want = n_missing - a.n_staging;
    uint32_t n_placed = place_missing(a, p, p.begin, 0, want, true);
    n_placed = place_missing(a, p, 0, n_placed, want, false);
    if (i < n_missing) {
        const uint32_t pair = p.missing[i];
        const bool placed = i < n_placed;
        p.note[pair] = placed ? p.slot[pair] : FETCH_STAGED;
        p.address[pair] = placed ? record_address(a.slots, a, p.slot[pair])
                                 : record_address(a.staging, a, (int32_t)(i - n_placed));
    }
    __syncthreads();
}

/* The lane's first expert takes a slot behind those of the n_bus others. */
DEVICE void plan_filled(const experts_fetch_args &a, fetch_plan &p, uint32_t n_bus) {
    const bool fills = (a.layer * 7 + p.number) % FETCH_FILLS_OF < p.fills;
    if (!fills || place_missing(a, p, p.next, n_bus, n_bus + 1, true) == n_bus) return;
    if (threadIdx.x == 0) {
        const uint32_t pair = p.missing[n_bus];
        p.note[pair] = FETCH_FILLS(p.slot[pair]);
    }
    __syncthreads();
}

/* Every thread has four loads on their way before it stores. */
DEVICE void copy_record(const unsigned char *from, unsigned char *to, uint64_t bytes) {
    enum { HELD = 4 };
    const uint32_t n = (uint32_t)((bytes + 15) / 16), stride = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += HELD * stride) {
        uint4 held[HELD];
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (i + k * stride < n) held[k] = load16(from + (uint64_t)(i + k * stride) * 16);
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (i + k * stride < n) ((uint4 *)to)[i + k * stride] = held[k];
    }
}

/* The order in which experts_up_coming takes the pairs: as many missing ones as fill the bus, what
 * is there, the other missing ones. */
DEVICE void store_turn(const experts_fetch_args &a, const fetch_plan &p, uint32_t n_missing,
                       uint32_t pair, uint64_t place) {
    const bool misses = p.misses[pair];
    const uint32_t most = EXPERTS_COMING_FIRST, before = p.before[pair];
    const uint32_t early = n_missing < most ? n_missing : most;
    uint32_t turn = early + pair - before;
    if (misses) turn = before < early ? before : a.n_pairs - n_missing + before;
    if (p.misses[p.first[pair]] && !misses) place = 0; /* done where it is named first */
    ((uint4 *)a.turns)[turn] =
        make_uint4((uint32_t)place, (uint32_t)(place >> 32), pair, (uint32_t)p.expert[pair]);
}

DEVICE void tell_host(const experts_fetch_args &a) {
    const uint2 *notes = (const uint2 *)a.notes;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < (a.layer + 1) * a.n_pairs; i += blockDim.x)
        ((uint2 *)a.told)[i] = __ldcg(notes + i);
}

/* The lane gets what it computes with, and hears of it when all of that is there. */
DEVICE void post_lane(const experts_fetch_args &a, const fetch_plan &p, bool has_work) {
    if (has_work) {
        const float4 *rows = (const float4 *)a.hidden;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < a.n_hidden / 4; i += blockDim.x)
            ((float4 *)a.lane_rows)[i] = __ldcg(rows + i);
        for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
            const fetch_note note = {p.expert[i], p.note[i]};
            a.lane_notes[i] = note;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) store_released(&a.box->post, LANE_WORD(p.number, a.layer + 1));
}

/* A thread a pair: the tables and the host learn what the plan did. */
DEVICE void commit(const experts_fetch_args &a, const fetch_plan &p, uint32_t n_missing) {
    const uint32_t pair = threadIdx.x;
    if (pair < a.n_pairs) {
        const int32_t e = p.expert[pair], s = p.slot[pair], note = p.note[pair];
        const uint32_t id = a.layer * a.n_experts + (uint32_t)e, first = p.first[pair];
        const bool coming = a.turns != 0 && p.misses[first], fills = note < FETCH_ON_LANE;
        const uint64_t place = p.address[first] | (coming ? EXPERT_COMING : 0ull);
        a.places[pair] = place;
        if (a.turns != 0)
            store_turn(a, p, n_missing, pair, p.on_lane[first] ? EXPERT_ON_LANE : place);
        if (note >= 0 || fills) {
            const uint32_t former = __ldcg(a.slot_owner + s);
            if (former != FETCH_NOBODY) a.slot_of[former] = -1;
            a.slot_owner[s] = id;
            a.slot_of[id] = s;
        }
        if (s >= 0) a.slot_step[s] = p.number | (fills ? FETCH_FILLING : 0u);
        const fetch_note told = {e, note};
        a.notes[a.layer * a.n_pairs + pair] = told;
    }
    if (a.told != 0) tell_host(a);
}

/* True for one block, when all have copied. */
DEVICE bool is_last(fetch_step *step) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&step->done, 1u) == gridDim.x - 1;
    __syncthreads();
    return last;
}

KERNEL(experts_fetch, experts_fetch_args, FETCH_BLOCK) {
    __shared__ fetch_plan p;
    look_ahead(a, p);
    launch_begin();
    if (threadIdx.x < a.n_pairs) p.expert[threadIdx.x] = __ldcg(a.experts + threadIdx.x);
    const uint32_t n_missing = look_up(a, p);
    if (n_missing != 0) {
        plan_missing(a, p, n_missing);
        for (uint32_t i = 0; i < n_missing; i++) {
            const uint32_t pair = p.missing[i];
            copy_record(a.source + (uint64_t)p.expert[pair] * a.slot_bytes,
                        (unsigned char *)(uintptr_t)p.address[pair], a.record_bytes);
        }
        if (!is_last(a.step)) return;
        if (threadIdx.x == 0) {
            a.step->done = 0;
            a.step->next = p.next;
        }
    } else if (blockIdx.x != 0) {
        return;
    }
    commit(a, p, n_missing);
}

KERNEL(router_fetch, router_fetch_args, (FETCH_MAX_ROWS + 1) * WARP) {
    __shared__ fetch_plan p;
    const uint32_t row = threadIdx.x / WARP, lane = lane_index(), n_used = a.router.base.n_used;
    const bool chooses = row + 1 < blockDim.x / WARP;
    const int32_t told = chooses ? router_told(a.router, row) : 0;
    look_ahead(a.fetch, p);
    launch_begin();
    if (chooses) {
        const int32_t e = router_choose(a.router, row, told);
        if (lane < n_used) p.expert[row * n_used + lane] = e;
    }
    const uint32_t n_missing = look_up(a.fetch, p);
    uint32_t n_bus = n_missing;
    if (n_missing != 0) {
        if (a.fetch.box != 0) n_bus = give_to_lane(a.fetch, p, n_missing);
        plan_missing(a.fetch, p, n_bus);
        if (n_bus != n_missing) plan_filled(a.fetch, p, n_bus);
        if (threadIdx.x == 0) a.fetch.step->next = p.next;
    }
    if (n_bus != n_missing) post_lane(a.fetch, p, true);
    commit(a.fetch, p, n_bus);
    if (a.fetch.box != 0 && a.fetch.told != 0 && n_bus == n_missing)
        post_lane(a.fetch, p, false);
}
