/* routing_trace.h - a recorded choice of experts, which `bench --routing` replays.
 *
 * A text file of integers: a first line `siliceo-routing 1 TOKENS LAYERS EXPERTS USED`,
 * then a line of USED distinct ids for each layer of each token, layers fastest, in
 * the router's order.  The row at position p of a sequence takes token p % TOKENS.
 * Only the ids are replaced: the router runs and its weights, largest first, stay.
 *
 * Errors name the file, the line and the value.  Read once, then only read, any thread.
 */
#ifndef SILICEO_WORKER_ROUTING_TRACE_H
#define SILICEO_WORKER_ROUTING_TRACE_H

#include "common/error.h"
#include <stddef.h>
#include <stdint.h>

typedef struct routing_trace {
    uint32_t n_tokens;
    uint32_t n_layers;
    uint32_t n_experts;
    uint32_t n_used;
    uint16_t *ids; /* [n_tokens][n_layers][n_used] */
} routing_trace;

status routing_trace_read(routing_trace *out, const char *path, error *err);
/* The same from memory; name stands in errors. */
status routing_trace_parse(routing_trace *out, const char *name, const char *text, size_t n,
                           error *err);
void routing_trace_release(routing_trace *t); /* accepts a zeroed one */

/* The n_used ids of a layer at a position. */
static inline const uint16_t *routing_trace_at(const routing_trace *t, uint32_t position,
                                               uint32_t layer) {
    return t->ids + ((size_t)(position % t->n_tokens) * t->n_layers + layer) * t->n_used;
}

#endif
