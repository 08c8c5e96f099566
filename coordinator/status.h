/* status.h - the coordinator's state for scripts, probes and the dashboard: /status.
 *
 * Both forms append to *out, which tells of lacking memory.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_STATUS_H
#define SILICEO_COORDINATOR_STATUS_H

#include "coordinator/coordinator.h"

enum { STATUS_MAX_REQUESTS = 100 }; /* listed one by one; the totals count all */

/* asks: who wants to know, which decides what `admin` says. */
void status_json(const coordinator *c, const tenant *asks, bool with_history, json_text *out);
/* A head, then a line a node whose columns hold no blanks but the last, the reason. */
void status_text(const coordinator *c, json_text *out);

/* A node's requests that it works on now; the others that it holds wait there. */
uint32_t status_running(const node *n);
uint32_t status_waiting(const node *n);
/* Rates learned from requests; a node's first model stands for it.  0: unknown. */
double status_prefill(const node *n);
double status_decode(const node *n);
/* Of the tokens of all prompts, the share that did not have to run; negative: unknown. */
double status_prefix_share(const node *n);

#endif
