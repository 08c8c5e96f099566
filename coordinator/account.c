#include "coordinator/account.h"

#include "common/clock.h"
#include <stdio.h>

static double ms_between(uint64_t from_ns, uint64_t to_ns) {
    return from_ns != 0 && to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0;
}

/* What is the same however it ended. */
static ledger_row row_of(const request *r, const node *n, const char *ended,
                         unsigned http_status) {
    uint64_t now_ns = clock_monotonic_ns();
    double total_ms = ms_between(r->received_ns, now_ns);
    ledger_row row = {
        .received_ms = clock_wall_ms() - (uint64_t)total_ms,
        .priority = r->priority,
        .http_status = http_status,
        .attempts = r->attempts,
        .prompt_tokens = r->prompt_tokens,
        .cached_tokens = r->cached_tokens,
        .completion_tokens = r->tokens,
        .reasoning_tokens = r->reasoning_tokens,
        .queued_ms =
            ms_between(r->received_ns, r->first_sent_ns != 0 ? r->first_sent_ns : now_ns),
        .first_token_ms =
            r->first_token_ns != 0 ? ms_between(r->received_ns, r->first_token_ns) : -1,
        .total_ms = total_ms};
    (void)snprintf(row.request_id, sizeof row.request_id, "%s", r->request_id);
    (void)snprintf(row.key_name, sizeof row.key_name, "%s", r->tenant->name);
    (void)snprintf(row.model, sizeof row.model, "%s", r->model);
    (void)snprintf(row.node, sizeof row.node, "%s", n != NULL ? n->name : "");
    (void)snprintf(row.ended, sizeof row.ended, "%s", ended);
    return row;
}

static void post(coordinator *c, const request *r, const ledger_row *row) {
    tenant_spend(r->tenant, row->prompt_tokens + row->completion_tokens, clock_monotonic_ms());
    ledger_write(c->ledger, row);
}

void account_done(coordinator *c, const request *r, const node *n, const wire_done *done) {
    static const char *const names[] = {"stop", "stop", "length", "tool_calls"};
    size_t finish = (size_t)r->finish;
    ledger_row row = row_of(r, n, names[finish < 4 ? finish : 1], 200);
    row.prompt_tokens = done->prompt_tokens;
    row.cached_tokens = done->cached_tokens;
    if (done->completion_tokens > row.completion_tokens)
        row.completion_tokens = done->completion_tokens;
    if (done->reasoning_tokens > row.reasoning_tokens)
        row.reasoning_tokens = done->reasoning_tokens;
    post(c, r, &row);
}

void account_cancelled(coordinator *c, const request *r, const char *why) {
    ledger_row row = row_of(r, r->node, why, 499);
    post(c, r, &row);
}

void account_failed(coordinator *c, const request *r, const request_failure *failure) {
    const char *code = failure->code[0] != '\0' ? failure->code : "error";
    ledger_row row = row_of(r, r->node, code, failure->http_status);
    post(c, r, &row);
}

void account_status(const coordinator *c, json_text *out) {
    if (c->ledger == NULL) {
        json_text_format(out, "\"ledger\":null");
        return;
    }
    ledger_stats s = ledger_get_stats(c->ledger);
    json_text_format(
        out, "\"ledger\":{\"waiting\":%llu,\"written\":%llu,\"lost\":%llu,\"failing\":%s}",
        (unsigned long long)s.waiting, (unsigned long long)s.written,
        (unsigned long long)s.lost, s.failing ? "true" : "false");
}
