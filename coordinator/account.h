/* account.h - a request ended: write it into the ledger and onto its key's account.
 *
 * What was computed counts, whether or not anybody waited for its end: the prompt's length comes
 * with a request's first tokens, and each token is counted as it comes.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_ACCOUNT_H
#define SILICEO_COORDINATOR_ACCOUNT_H

#include "coordinator/coordinator.h"

/* It ended well; r->node may be set still or not, node is where it ran. */
void account_done(coordinator *c, const request *r, const node *n, const wire_done *done);
/* Its client left or cancelled it ("client_closed"). */
void account_cancelled(coordinator *c, const request *r, const char *why);
/* It failed, or was refused before it began. */
void account_failed(coordinator *c, const request *r, const request_failure *failure);
/* How the ledger stands, as a member of /status: `"ledger":{...}`. */
void account_status(const coordinator *c, json_text *out);

#endif
