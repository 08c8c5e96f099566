/* prefix_chain.h - hashes of a conversation's beginnings, one for each end of a message.
 *
 * Hash i covers the tools, the template's settings and messages 0 to i, so two requests
 * have the same hash i exactly when the beginnings of their prompts are the same text (up
 * to collisions of 64 bits).  Affinity by the system message alone would pin all users of
 * it to one node; a chain does not.
 * Pure functions; any thread.
 */
#ifndef SILICEO_COORDINATOR_PREFIX_CHAIN_H
#define SILICEO_COORDINATOR_PREFIX_CHAIN_H

#include "common/json.h"
#include <stddef.h>
#include <stdint.h>

enum { PREFIX_CHAIN_MAX = 256 }; /* messages; of longer conversations the last ones */

typedef struct prefix_chain {
    uint64_t *hashes; /* none is 0 */
    uint32_t *bytes;  /* of text that each beginning has */
    size_t n;
} prefix_chain;

/* Of a checked chat request; without memory the chain is empty. */
void prefix_chain_init(prefix_chain *chain, const cJSON *request);
void prefix_chain_release(prefix_chain *chain); /* accepts a zeroed one */

#endif
