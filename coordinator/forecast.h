/* forecast.h - what a request will take on a node: tokens and seconds, from what was learned.
 *
 * Pure functions of what is known; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_FORECAST_H
#define SILICEO_COORDINATOR_FORECAST_H

#include "coordinator/node_table.h"
#include "coordinator/request.h"
#include "coordinator/router.h"

/* Tokens of the prompt, by its bytes. */
double forecast_prompt_tokens(const request *r, const node_model *m);
/* Of them, those that the node has confirmed to hold. */
double forecast_held_tokens(const request *r, const node_model *m);
/* Tokens of the answer that are still to be decoded. */
double forecast_output_tokens(const request *r, const node_model *m);
router_job forecast_job(const request *r, const node_model *m);
/* Seconds that a request on a node still takes. */
double forecast_left_s(const request *r, node *n, uint64_t now_ns);

#endif
