/* engine_vectors.c - inputs of vector requests: into the scheduler, and out of a step. */
#include "worker/engine_parts.h"

#include "common/clock.h"
#include "worker/embedding.h"

/* As many of one request at once as a step can run: what comes later finds its turn between
 * them. */
static bool may_begin(const engine *e, const request *r) {
    return embedding_may_begin(r->vectors, e->params.n_sequences) &&
           scheduler_has_room(e->scheduler, 1);
}

void engine_begin_vectors(engine *e) {
    for (request *r = e->requests; r != NULL; r = r->next) {
        while (!r->over && r->vectors != NULL && may_begin(e, r)) {
            sequence *who = NULL;
            request_fault f;
            if (embedding_begin(r, &who, &f) != STATUS_OK) {
                engine_end_request(e, r, &f);
                break;
            }
            bool taken = scheduler_submit(e->scheduler, who);
            CHECK(taken);
        }
    }
    engine_sweep(e);
}

float *engine_ask_vectors(const scheduler_piece *piece, model_segment *s, float *place) {
    const request *r = piece->who->owner;
    if (r->vectors == NULL) return place;
    bool is_last = piece->wants_logits;
    s->n_outputs = embedding_wants_logits(r, is_last) ? 1 : 0;
    s->n_hidden = embedding_wants_rows(r, s->n_tokens, is_last);
    s->hidden = place;
    return place + (size_t)s->n_hidden * r->context->n_embd;
}

void engine_take_vectors(engine *e, const scheduler_piece *piece, const model_segment *s,
                         const float *logits) {
    request *r = piece->who->owner;
    bool is_last = piece->wants_logits;
    request_fault f;
    status rc = STATUS_OK;
    if (s->n_hidden > 0) {
        rc = embedding_take_rows(r, piece->who, s->position, s->hidden, s->n_hidden, is_last,
                                 &f);
    } else if (s->n_outputs > 0) {
        rc = embedding_take_logits(r, piece->who, logits, &f);
    }
    if (rc == STATUS_OK && is_last) {
        scheduler_remove(e->scheduler, piece->who);
        embedding_end(r, piece->who);
        r->first_token_ns = clock_monotonic_ns(); /* of all inputs: the prefill's end */
        if (r->n_open > 0) return;
        rc = embedding_write(r, &f);
        if (rc == STATUS_OK) engine_end_request(e, r, NULL);
    }
    if (rc != STATUS_OK) engine_end_request(e, r, &f);
}
