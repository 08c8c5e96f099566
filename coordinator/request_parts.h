/* request_parts.h - private to request*.c and failover.c: the steps a request's life is made of.
 *
 * `io` thread.  After request_fail(), request_forget() and request_fail_over() the request
 * may be gone.
 */
#ifndef SILICEO_COORDINATOR_REQUEST_PARTS_H
#define SILICEO_COORDINATOR_REQUEST_PARTS_H

#include "coordinator/dispatch.h"
#include "coordinator/request.h"

/* The request that a node's message is about, if that node still works on that epoch. */
request *request_find(struct coordinator *c, const node *n, uint64_t id, uint64_t epoch);
void request_table_remove(struct coordinator *c, request *r);
/* Give back its place on the node, if it has one. */
void request_detach(struct coordinator *c, request *r);
void request_send_cancel(struct coordinator *c, const request *r);
/* Take it out of everything and free it; the sink hears nothing. */
void request_forget(struct coordinator *c, request *r);
/* The same, and the sink is told why. */
void request_fail(struct coordinator *c, request *r, const request_failure *failure);
/* Its node cannot go on with it: another one, or the end (failover.c). */
void request_fail_over(struct coordinator *c, request *r, const request_failure *why);

void failure_set(request_failure *f, unsigned http_status, const char *code, const char *param,
                 unsigned retry_after_s, const char *message);
void request_describe_outlook(const struct coordinator *c, const request *r,
                              dispatch_outlook outlook, request_failure *failure);

#endif
