/* api.h - the routes: what each path of the HTTP interface does. */
#ifndef SILICEO_COORDINATOR_API_H
#define SILICEO_COORDINATOR_API_H

#include "coordinator/answer.h"
#include "coordinator/coordinator.h"

/* Every request comes in here (http_params.on_request; context is the coordinator). */
void api_dispatch(void *context, http_exchange *x);

/* What the endpoints that ask the model share; the others each name their style. */
void api_ask(coordinator *c, http_exchange *x, const answer_style *style);
void api_chat(coordinator *c, http_exchange *x);
/* Keep-alives and held headers of the replies under way. */
void api_chat_tick(coordinator *c, uint64_t now_ms);
/* Free the replies that everybody has left; before the coordinator closes, too. */
void api_chat_reap(coordinator *c);

/* 0 interactive or 1 background, by what the body says (-1: nothing), the header
 * X-Siliceo-Priority, the text that asks (a chat client's own chores), or the key. */
uint64_t api_priority(const coordinator *c, const http_exchange *x, int said, const char *task);

void api_models(coordinator *c, http_exchange *x, const char *id); /* id NULL: all */
/* The name of the one model that the nodes have; model stays as it is if there are more. */
void api_only_model(const coordinator *c, char model[WIRE_MAX_NAME + 1]);

void api_dashboard(coordinator *c, http_exchange *x);
void api_health(coordinator *c, http_exchange *x);
void api_ready(coordinator *c, http_exchange *x);
void api_status(coordinator *c, http_exchange *x);
void api_metrics(coordinator *c, http_exchange *x);
void api_admin(coordinator *c, http_exchange *x, const char *rest); /* after /admin/nodes/ */

/* Create all metric families.  Without memory some count nothing. */
void api_metrics_open(coordinator *c);
void api_count_reply(coordinator *c, unsigned http_status);

#endif
