#include "coordinator/learning.h"

enum { STRETCH_TOKENS = 32, LEAST_TOKENS = 8 };

/* End the stretch of decoding and learn from it when it was long enough to tell. */
static void end_stretch(request *r, uint64_t now_ns) {
    node_model *m = node_find_model(r->node, r->model);
    double seconds = (double)(now_ns - r->stretch_ns) * 1e-9;
    if (m != NULL && r->stretch_tokens >= LEAST_TOKENS && seconds > 0.02) {
        rates_learn_decode(&m->speed, r->stretch_occupancy, (double)r->stretch_tokens, seconds);
    }
    r->stretch_ns = now_ns;
    r->stretch_tokens = 0;
    r->stretch_occupancy = r->node->in_flight;
}

void learning_tokens(request *r, uint64_t n_ids, bool is_first, uint64_t now_ns) {
    if (is_first) {
        r->stretch_tokens = 0;
        end_stretch(r, now_ns);
        return;
    }
    r->stretch_tokens += n_ids;
    if (r->stretch_tokens >= STRETCH_TOKENS || r->stretch_occupancy != r->node->in_flight) {
        end_stretch(r, now_ns);
    }
}

/* Of the request's beginnings those are held that the worker names, and no others. */
static void learn_held(const request *r, node_model *m, const wire_done *done) {
    size_t named = 0;
    for (size_t i = 0; i < r->chain.n; i++) {
        if (named < done->n_boundaries && done->boundaries[named] == r->chain.hashes[i]) {
            named++;
        } else {
            prefix_set_remove(&m->held, r->chain.hashes[i]);
        }
    }
    for (size_t i = 0; i < done->n_boundaries; i++)
        prefix_set_add(&m->held, done->boundaries[i]);
}

/* Whichever of the node's models they were of. */
static void learn_lost(node *n, const wire_done *done) {
    for (size_t m = 0; m < n->n_models; m++) {
        for (size_t i = 0; i < done->n_lost; i++)
            prefix_set_remove(&n->models[m].held, done->lost[i]);
    }
}

void learning_done(request *r, const wire_done *done, uint64_t now_ns) {
    node_model *m = node_find_model(r->node, r->model);
    learn_lost(r->node, done);
    if (m == NULL || r->kind >= WIRE_EMBED) return; /* no kind without tokens tells speeds */
    learn_held(r, m, done);
    end_stretch(r, now_ns);
    rates_learn_prompt(&m->speed, r->prompt_bytes, (double)done->prompt_tokens);
    /* An answer that its limit cut short says nothing of how long answers are. */
    bool was_cut = r->max_output > 0 && (double)done->completion_tokens >= r->max_output;
    if (!was_cut && r->no_replay == NULL)
        lengths_learn(m->answers, (double)done->completion_tokens);
    if (r->given.resumed > 0) return; /* its prefill had tokens of the answer in it */
    if (done->prompt_tokens > done->cached_tokens) {
        rates_learn_prefill(&m->speed, (double)(done->prompt_tokens - done->cached_tokens),
                            done->prefill_ms * 1e-3);
    }
}
