/* ram_slots.c - a stack of free slots, those with pages on top. */
#include "worker/memory/ram_slots.h"

#include <stdlib.h>
#include <sys/mman.h>

struct ram_slots {
    unsigned char *base;
    size_t stride;
    size_t mapped_bytes;
    uint32_t n_slots;
    uint32_t *free_slots;
    uint32_t n_free;
    uint32_t n_warm; /* of the free ones, the last so many have pages */
};

status ram_slots_new(ram_slots **out, size_t slot_bytes, uint32_t n_slots, error *err) {
    *out = NULL;
    CHECK(slot_bytes > 0 && n_slots > 0);
    ram_slots *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "ram slots: no memory");
    s->stride = (slot_bytes + RAM_SLOT_ALIGN - 1) / RAM_SLOT_ALIGN * RAM_SLOT_ALIGN;
    s->mapped_bytes = s->stride * n_slots;
    s->base = mmap(NULL, s->mapped_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    s->free_slots = malloc(n_slots * sizeof *s->free_slots);
    if (s->base == MAP_FAILED || s->free_slots == NULL) {
        if (s->base == MAP_FAILED) s->base = NULL;
        ram_slots_free(s);
        return error_set(err, STATUS_NO_MEMORY, "ram slots: no room for %u of %zu bytes",
                         n_slots, slot_bytes);
    }
    s->n_slots = s->n_free = n_slots;
    for (uint32_t i = 0; i < n_slots; i++)
        s->free_slots[i] = n_slots - 1 - i;
    *out = s;
    return STATUS_OK;
}

void ram_slots_free(ram_slots *s) {
    if (s == NULL) return;
    if (s->base != NULL) (void)munmap(s->base, s->mapped_bytes);
    free(s->free_slots);
    free(s);
}

bool ram_slots_take(ram_slots *s, uint32_t *slot) {
    if (s->n_free == 0) return false;
    *slot = s->free_slots[--s->n_free];
    if (s->n_warm > 0) s->n_warm--;
    return true;
}

void ram_slots_give(ram_slots *s, uint32_t slot) {
    CHECK(slot < s->n_slots && s->n_free < s->n_slots);
    s->free_slots[s->n_free++] = slot;
    s->n_warm++;
}

void *ram_slots_at(const ram_slots *s, uint32_t slot) {
    CHECK(slot < s->n_slots);
    return s->base + slot * s->stride;
}

size_t ram_slots_stride(const ram_slots *s) {
    return s->stride;
}

uint32_t ram_slots_in_use(const ram_slots *s) {
    return s->n_slots - s->n_free;
}

uint64_t ram_slots_resident_bytes(const ram_slots *s) {
    return (uint64_t)(s->n_slots - s->n_free + s->n_warm) * s->stride;
}

void ram_slots_trim(ram_slots *s) {
    for (; s->n_warm > 0; s->n_warm--) {
        uint32_t slot = s->free_slots[s->n_free - s->n_warm];
        (void)madvise(s->base + slot * s->stride, s->stride, MADV_DONTNEED);
    }
}
