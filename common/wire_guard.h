/* wire_guard.h - refuses a frame that msgpack-c should not see.
 *
 * msgpack-c allocates 24 bytes for every item that an array head claims before it
 * has read one of them.  The guard allocates nothing: it checks that the frame is
 * one array [version, type, ...] of our version, that every length and count fits
 * into the bytes that are there, and that neither depth nor number of items is over
 * what a message can have.  Maps and extensions, which no message has, are refused.
 */
#ifndef SILICEO_COMMON_WIRE_GUARD_H
#define SILICEO_COMMON_WIRE_GUARD_H

#include "common/error.h"
#include <stddef.h>

/* STATUS_BAD_INPUT with the byte offset, or with both versions.  Any thread. */
status wire_guard(const void *bytes, size_t length, error *err);

#endif
