/* ram_slots.h - many pieces of RAM of one size, mapped once and resident only where used.
 *
 * A slot's pages come into being with its first use and stay for its next one; ram_slots_trim()
 * gives those of free slots back to the system.  Slots begin on pages of the system.
 * Allocates only in its constructor.  Thread: engine.
 */
#ifndef SILICEO_WORKER_MEMORY_RAM_SLOTS_H
#define SILICEO_WORKER_MEMORY_RAM_SLOTS_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ram_slots ram_slots;

enum { RAM_SLOT_ALIGN = 4096 };

status ram_slots_new(ram_slots **out, size_t slot_bytes, uint32_t n_slots, error *err);
void ram_slots_free(ram_slots *s); /* accepts NULL */

/* False when none is free. */
bool ram_slots_take(ram_slots *s, uint32_t *slot);
void ram_slots_give(ram_slots *s, uint32_t slot);
void *ram_slots_at(const ram_slots *s, uint32_t slot);

size_t ram_slots_stride(const ram_slots *s); /* bytes that a slot takes */
uint32_t ram_slots_in_use(const ram_slots *s);
/* Of slots in use, and of free ones that were used. */
uint64_t ram_slots_resident_bytes(const ram_slots *s);
void ram_slots_trim(ram_slots *s);

#endif
