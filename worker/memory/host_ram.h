/* host_ram.h - how much memory this process may still take, and how much it has.
 *
 * Available is the smaller of MemAvailable and what the process's cgroup (v2 or v1) leaves;
 * page cache counts as available, as it does in MemAvailable.  Reads /proc and /sys; any
 * thread, not in the token loop.
 */
#ifndef SILICEO_WORKER_MEMORY_HOST_RAM_H
#define SILICEO_WORKER_MEMORY_HOST_RAM_H

#include <stddef.h>
#include <stdint.h>

/* UINT64_MAX when nothing can be read. */
uint64_t host_ram_available_bytes(void);
/* Resident memory of this process that is not file mapping, in bytes; 0 when unknown. */
uint64_t host_ram_used_bytes(void);

/* For tests: the value of "NAME:   123 kB" in a text like /proc/meminfo, in bytes, or
 * UINT64_MAX; and of "NAME 123" in one like memory.stat, or 0. */
uint64_t host_ram_parse_kb(const char *text, const char *name);
uint64_t host_ram_parse_stat(const char *text, const char *name);

#endif
