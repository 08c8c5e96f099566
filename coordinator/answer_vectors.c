/* answer_vectors.c - the styles of POST /v1/embeddings and /v1/rerank.
 *
 * The worker writes the list itself (see its embedding.h), so that a thousand vectors pass
 * through here as one text; the reply puts model and usage around it.
 */
#include "coordinator/answer.h"

#include "coordinator/vector_params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct vectors {
    char id[32];
    char model[WIRE_MAX_NAME + 1];
} vectors;

static void *open_vectors(const answer_params *p) {
    vectors *v = calloc(1, sizeof *v);
    if (v == NULL) return NULL;
    (void)snprintf(v->id, sizeof v->id, "%s", p->id);
    (void)snprintf(v->model, sizeof v->model, "%s", p->request->model);
    return v;
}

static void add_rest(const vectors *v, const wire_done *done, json_text *out) {
    json_text_add(out, done->result.bytes, done->result.length);
    json_text_format(out, ",\"model\":");
    json_text_string(out, v->model, strlen(v->model));
    json_text_format(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}",
                     (unsigned long long)done->prompt_tokens,
                     (unsigned long long)done->prompt_tokens);
    if (done->result.length == 0) out->failed = true;
}

static void finish_embeddings(void *answer, const wire_done *done,
                              const token_stream_facts *facts, json_text *out) {
    (void)facts;
    json_text_format(out, "{\"object\":\"list\",\"data\":");
    add_rest(answer, done, out);
}

static void finish_rerank(void *answer, const wire_done *done, const token_stream_facts *facts,
                          json_text *out) {
    const vectors *v = answer;
    (void)facts;
    json_text_format(out, "{\"id\":\"rerank-%s\",\"object\":\"list\",\"results\":", v->id);
    add_rest(v, done, out);
}

const answer_style answer_embeddings = {
    .kind = WIRE_EMBED,
    .read = vector_params_read_embeddings,
    .open = open_vectors,
    .finish = finish_embeddings,
    ANSWER_WHOLE,
};

const answer_style answer_rerank = {
    .kind = WIRE_RERANK,
    .read = vector_params_read_rerank,
    .open = open_vectors,
    .finish = finish_rerank,
    ANSWER_WHOLE,
};
