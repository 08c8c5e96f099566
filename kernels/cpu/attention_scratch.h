/* attention_scratch.h - the working arrays of one call of attention_items(), for all tiers. */
#ifndef SILICEO_KERNELS_CPU_ATTENTION_SCRATCH_H
#define SILICEO_KERNELS_CPU_ATTENTION_SCRATCH_H

#include "kernels/attention.h"

/* Queries that share one load of keys and values; columns of values held at a time. */
enum { ATTENTION_QUERIES = 64, ATTENTION_KEYS = 4, ATTENTION_COLUMNS = 64 };

typedef struct attention_scratch {
    /* Then weights.  Tiles that start before the last query may end ATTENTION_KEYS past it. */
    float scores[(ATTENTION_QUERIES + ATTENTION_KEYS) * KV_PAGE_TOKENS];
    float values[KV_PAGE_TOKENS * ATTENTION_COLUMNS];
    float keys[]; /* [ATTENTION_KEYS][head_dim] */
} attention_scratch;

#endif
