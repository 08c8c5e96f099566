/* inspect.h - what is in a GGUF file, for people and as JSON.
 *
 * Both write to out and report a failed write.  No state; one thread.
 */
#ifndef SILICEO_WORKER_INSPECT_H
#define SILICEO_WORKER_INSPECT_H

#include "common/error.h"
#include "common/gguf.h"
#include <stdbool.h>
#include <stdio.h>

/* One line of JSON:
 *   {"version": 3, "alignment": 32, "hash": "32 hex digits",
 *    "shards": [{"path", "bytes", "data_start"}],
 *    "keys": {NAME: {"type": "u32", "value": 1},
 *             NAME: {"type": "array", "item_type": "string", "count": 2, "value": [...]}},
 *    "tensors": [{"name", "type", "type_id", "shape": [ne0, ne1, ...], "offset",
 *                 "file_offset", "bytes", "shard"}]}
 * Keys are in the order of the file, integers exact; a NaN or infinite float is
 * the string "nan", "inf" or "-inf".  Without arrays, "value" of arrays is left out. */
status inspect_json(const gguf_file *file, bool arrays, FILE *out, error *err);

/* Keys, tensors, sizes by type and by role, and what running the model needs. */
status inspect_table(const gguf_file *file, FILE *out, error *err);

#endif
