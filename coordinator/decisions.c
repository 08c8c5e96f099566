#include "coordinator/decisions.h"

#include "common/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void decisions_init(decisions *d, size_t size) {
    *d = (decisions){0};
    if (size > 0) d->ring = calloc(size, sizeof *d->ring);
    if (d->ring != NULL) d->size = size;
}

void decisions_release(decisions *d) {
    free(d->ring);
    *d = (decisions){0};
}

decision *decisions_begin(decisions *d, const request *r, const char *chosen, uint64_t now_ns) {
    if (d->size == 0) return NULL;
    decision *at = &d->ring[d->next];
    d->next = (d->next + 1) % d->size;
    memset(at, 0, sizeof *at);
    (void)snprintf(at->request_id, sizeof at->request_id, "%s", r->request_id);
    (void)snprintf(at->model, sizeof at->model, "%s", r->model);
    (void)snprintf(at->chosen, sizeof at->chosen, "%s", chosen);
    at->wall_ms = clock_wall_ms();
    at->attempt = r->attempts + 1;
    at->waited_s = (double)(now_ns - r->queued_ns) * 1e-9;
    return at;
}

static bool comes_before(const decision_node *a, const decision_node *b) {
    if ((a->left_out == NULL) != (b->left_out == NULL)) return a->left_out == NULL;
    return a->left_out == NULL && a->cost.total_s < b->cost.total_s;
}

void decision_add(decision *d, const decision_node *n) {
    size_t at = d->n_nodes;
    while (at > 0 && comes_before(n, &d->nodes[at - 1]))
        at--;
    if (d->n_nodes == DECISION_NODES) d->n_more++;
    if (at == DECISION_NODES) return;
    size_t last = d->n_nodes < DECISION_NODES ? d->n_nodes++ : DECISION_NODES - 1;
    memmove(&d->nodes[at + 1], &d->nodes[at], (last - at) * sizeof d->nodes[0]);
    d->nodes[at] = *n;
}

static void print_text(json_text *out, const char *name, const char *text) {
    json_text_format(out, "\"%s\":", name);
    json_text_string(out, text, strlen(text));
    json_text_add(out, ",", 1);
}

static void print_node(const decision_node *n, json_text *out) {
    json_text_format(out, "{");
    print_text(out, "node", n->name);
    json_text_format(out, "\"in_flight\":%u,\"places\":%u", n->in_flight, n->places);
    if (n->left_out != NULL) {
        json_text_format(out, ",\"left_out\":");
        json_text_string(out, n->left_out, strlen(n->left_out));
    } else {
        json_text_format(
            out,
            ",\"prompt_tokens\":%.0f,\"held_tokens\":%.0f,\"output_tokens\":%.0f,"
            "\"occupancy\":%u,\"prefill_tok_per_s\":%.6g,\"decode_tok_per_s\":%.6g,"
            "\"wait_s\":%.6g,\"prefill_s\":%.6g,\"decode_s\":%.6g,\"round_trip_s\":%.6g,"
            "\"path_s\":%.6g,\"load_s\":%.6g,\"total_s\":%.6g",
            n->job.prompt_tokens, n->job.held_tokens, n->job.output_tokens, n->cost.occupancy,
            n->cost.prefill_tok_per_s, n->cost.decode_tok_per_s, n->cost.wait_s,
            n->cost.prefill_s, n->cost.decode_s, n->cost.round_trip_s, n->cost.path_s,
            n->cost.load_s, n->cost.total_s);
    }
    json_text_format(out, "}");
}

static void print_decision(const decision *d, json_text *out) {
    json_text_format(out, "{");
    print_text(out, "request", d->request_id);
    print_text(out, "model", d->model);
    print_text(out, "chosen", d->chosen);
    json_text_format(out, "\"at_ms\":%llu,\"attempt\":%u,\"waited_s\":%.6g,\"nodes\":[",
                     (unsigned long long)d->wall_ms, d->attempt, d->waited_s);
    for (size_t i = 0; i < d->n_nodes; i++) {
        if (i > 0) json_text_add(out, ",", 1);
        print_node(&d->nodes[i], out);
    }
    json_text_format(out, "],\"more_nodes\":%zu}", d->n_more);
}

bool decisions_print(const decisions *d, const char *request_id, json_text *out) {
    bool found = false;
    json_text_format(out, "[");
    for (size_t i = 0; i < d->size; i++) {
        const decision *at = &d->ring[(d->next + i) % d->size];
        if (at->request_id[0] == '\0' || strcmp(at->request_id, request_id) != 0) continue;
        if (found) json_text_add(out, ",", 1);
        print_decision(at, out);
        found = true;
    }
    json_text_format(out, "]");
    return found;
}
