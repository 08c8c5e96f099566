/* embedding.h - a request for vectors or relevances: its inputs, one sequence each.
 *
 * The engine takes the inputs one after the other as it has room for them (a batch never
 * holds up the others, nor is all of its text encoded at once), runs them as prompts like any
 * other, and gives back what the model says of them:
 *
 *   embed   rows after the final norm: of the last token, or of all where vectors are means;
 *           a vector's first n_dimensions numbers, divided by their length
 *   rerank  the logits of the last token of a prompt that asks whether the document fits the
 *           query: the relevance is the softmax of "yes" over "yes" and "no"
 *
 * DONE's result is the list of the API's answer as it goes to the client: of
 * {"object":"embedding","index":I,"embedding":[..] or "base64"}, little-endian floats; or of
 * {"index":I,"relevance_score":S,"document":{"text":..}}, the largest first.
 * All prompts of a ranking begin alike, down to the document: where the engine remembers
 * prompts, the first one runs alone and the others go on behind that.
 * Source of the prompt: the model card of Qwen3-Reranker, in this model's chat template.
 *
 * A vector depends on its input alone, bit for bit (model.h).  Thread: engine.
 */
#ifndef SILICEO_WORKER_EMBEDDING_H
#define SILICEO_WORKER_EMBEDDING_H

#include "worker/embedding_job.h"
#include "worker/request.h"

typedef struct embedding_input {
    sequence timeline; /* timeline.owner is the request, .choice the number of the input */
    double *sum;       /* [n_embd] of the rows so far, where vectors are means */
    json_text vector;  /* as the answer has it */
    double relevance;
} embedding_input;

typedef struct embedding {
    embedding_job job;
    embedding_input *inputs;
    const cJSON *next; /* the first that has not begun */
    size_t n_begun, n_over;
    uint32_t n_common; /* tokens, whole blocks, with which all prompts of a ranking begin */
} embedding;

/* Set r->vectors from the body.  On failure it needs no release. */
status embedding_make(request *r, const wire_submit *submit, request_fault *fault);
void embedding_free(embedding *v); /* its sequences must be idle; accepts NULL */

/* Whether the next input may begin; n_places: how many can run at once. */
bool embedding_may_begin(const embedding *v, size_t n_places);
/* Make it ready to run.  *out belongs to r. */
status embedding_begin(request *r, sequence **out, request_fault *fault);

/* What a piece of an input wants of the model: rows after the final norm of its last tokens,
 * and logits of the last one. */
uint32_t embedding_wants_rows(const request *r, uint32_t n_tokens, bool is_last);
bool embedding_wants_logits(const request *r, bool is_last);

/* Rows [n][n_embd] of a piece that began at `position`, of the last piece where is_last. */
status embedding_take_rows(request *r, const sequence *who, uint32_t position,
                           const float *rows, uint32_t n, bool is_last, request_fault *fault);
status embedding_take_logits(request *r, const sequence *who, const float *logits,
                             request_fault *fault);
/* The input that was taken is over, out of the scheduler: give its memory back. */
void embedding_end(request *r, sequence *who);

/* All are over: set r->result. */
status embedding_write(request *r, request_fault *fault);

#endif
