/* experts_fetch.cu - missing experts from host memory to slots; kernels/cuda/experts_fetch.h.
 *
 * Launch  grid FETCH_BLOCKS, block FETCH_BLOCK.  Every block finds out by itself what is missing
 *         and where it goes, from tables that nobody writes meanwhile; all copy; the last one to
 *         finish writes the tables.  Where nothing is missing, one block notes it.
 * Cost    all there: a launch and two dependent loads.  Else the records' bytes over the bus:
 *         FETCH_BLOCKS x FETCH_BLOCK x 64 bytes are on their way at a time, 2 MB, which covers
 *         the latency of any bus.
 * Oracle  the expert cache of the host, worker/memory/expert_cache.c; tests/golden.
 */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/experts_fetch.h"

typedef struct fetch_plan {
    int32_t expert[FETCH_MAX_PAIRS];
    int32_t slot[FETCH_MAX_PAIRS]; /* of a hit, or the new one; negative: staged, repeated */
    int32_t note[FETCH_MAX_PAIRS];
    uint64_t address[FETCH_MAX_PAIRS]; /* 0: of a repeated pair */
    uint32_t missing[FETCH_MAX_PAIRS]; /* pairs */
    bool misses[FETCH_MAX_PAIRS];
    uint32_t candidate[WARP];
    uint32_t n_missing, next;
} fetch_plan;

DEVICE uint64_t record_address(const unsigned char *base, const experts_fetch_args &a,
                               int32_t i) {
    return (uint64_t)(uintptr_t)(base + (uint64_t)i * a.slot_bytes);
}

/* Threads 0 .. n_pairs - 1, one a pair.  All threads come here and to what follows, for the barriers. */
DEVICE bool look_up(const experts_fetch_args &a, fetch_plan &p) {
    const uint32_t i = threadIdx.x;
    const bool mine = i < a.n_pairs;
    const int32_t e = mine ? __ldcg(a.experts + i) : -1;
    if (i < FETCH_MAX_PAIRS) p.expert[i] = e;
    if (i == 0) p.n_missing = 0;
    __syncthreads();
    bool first = mine;
    for (uint32_t j = 0; j < i && j < a.n_pairs; j++)
        if (p.expert[j] == e) first = false;
    if (i < FETCH_MAX_PAIRS) {
        const int32_t s = first ? __ldcg(a.slot_of + (uint64_t)a.layer * a.n_experts + e) : -1;
        p.slot[i] = s;
        p.note[i] = first ? FETCH_HIT : FETCH_REPEATED;
        p.address[i] = s >= 0 ? record_address(a.slots, a, s) : 0;
        p.misses[i] = first && s < 0;
    }
    __syncthreads();
    if (i == 0) {
        for (uint32_t k = 0; k < a.n_pairs; k++)
            if (p.misses[k]) p.missing[p.n_missing++] = k;
    }
    __syncthreads();
    return p.n_missing != 0;
}

DEVICE bool uses_slot(const fetch_plan &p, uint32_t n_pairs, uint32_t slot) {
    bool used = false;
    for (uint32_t j = 0; j < n_pairs; j++)
        used = used || p.slot[j] == (int32_t)slot;
    return used;
}

/* The victims from `at` to `end` that may go, in their order, to the missing pairs.  strict: not
 * those that this step used.  Every thread counts and returns how many are placed. */
DEVICE uint32_t place_missing(const experts_fetch_args &a, fetch_plan &p, uint32_t at,
                              uint32_t end, uint32_t n_placed, uint32_t want, bool strict) {
    const uint32_t i = threadIdx.x, number = __ldcg(&a.step->number);
    for (; at < end && n_placed < want; at += WARP) {
        if (i < WARP) {
            uint32_t slot = FETCH_NOBODY;
            if (at + i < end) {
                slot = __ldcg(a.step->victims + at + i);
                if (uses_slot(p, a.n_pairs, slot) ||
                    (strict && __ldcg(a.slot_step + slot) == number))
                    slot = FETCH_NOBODY;
            }
            p.candidate[i] = slot;
        }
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

DEVICE void plan_missing(const experts_fetch_args &a, fetch_plan &p) {
    const uint32_t i = threadIdx.x;
    const uint32_t next = __ldcg(&a.step->next), n_victims = __ldcg(&a.step->n_victims);
    uint32_t want = p.n_missing < a.most_inserts ? p.n_missing : a.most_inserts;
    if (p.n_missing > a.n_staging + want) want = p.n_missing - a.n_staging;
    if (i == 0) p.next = next;
    uint32_t n_placed = place_missing(a, p, next, n_victims, 0, want, true);
    n_placed = place_missing(a, p, 0, n_victims, n_placed, want, false);
    if (i < p.n_missing) {
        const uint32_t pair = p.missing[i];
        const bool placed = i < n_placed;
        p.note[pair] = placed ? p.slot[pair] : FETCH_STAGED;
        p.address[pair] = placed ? record_address(a.slots, a, p.slot[pair])
                                 : record_address(a.staging, a, (int32_t)(i - n_placed));
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

/* A thread a pair: the tables and the host learn what the plan did. */
DEVICE void commit(const experts_fetch_args &a, const fetch_plan &p) {
    const uint32_t pair = threadIdx.x;
    if (pair >= a.n_pairs) return;
    const int32_t e = p.expert[pair], s = p.slot[pair], note = p.note[pair];
    const uint32_t id = a.layer * a.n_experts + (uint32_t)e;
    if (note >= 0) {
        const uint32_t former = __ldcg(a.slot_owner + s);
        if (former != FETCH_NOBODY) a.slot_of[former] = -1;
        a.slot_owner[s] = id;
        a.slot_of[id] = s;
    }
    if (s >= 0) a.slot_step[s] = __ldcg(&a.step->number);
    if (p.address[pair] != 0) a.records[e] = p.address[pair];
    fetch_note told = {e, note};
    a.notes[pair] = told;
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
    launch_begin();
    if (look_up(a, p)) {
        plan_missing(a, p);
        for (uint32_t i = 0; i < p.n_missing; i++) {
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
    commit(a, p);
}
