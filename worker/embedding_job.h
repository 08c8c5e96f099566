/* embedding_job.h - what a SUBMIT for vectors or relevances asks for, as checked parameters.
 *
 *   embed   input: a list of texts and lists of token ids; encoding_format float (as if
 *           silent) or base64; dimensions: the vectors' first numbers, renormalised
 *   rerank  query, documents: a list of texts; instruction; top_n; return_documents
 *
 * A field that is wrong is STATUS_BAD_INPUT with its path in param.  What the answer could
 * need beyond one message of the wire is refused, too.  No state; any thread.
 */
#ifndef SILICEO_WORKER_EMBEDDING_JOB_H
#define SILICEO_WORKER_EMBEDDING_JOB_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/json.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EMBEDDING_MAX_INPUTS = 2048 };

typedef struct embedding_job {
    wire_kind kind;
    cJSON *body;         /* owned */
    const cJSON *inputs; /* in body: texts, or arrays of checked ids */
    size_t n_inputs;
    uint32_t n_dimensions;
    bool base64;
    const char *query, *instruction; /* in body */
    size_t n_top;                    /* relevances wanted, the largest */
    bool returns_documents;
} embedding_job;

/* n_vocab bounds ids, n_embd dimensions.  On failure *out needs no release. */
status embedding_job_parse(embedding_job *out, wire_kind kind, const char *body, size_t length,
                           uint32_t n_vocab, uint32_t n_embd, char param[CHAT_PARAM_SIZE],
                           error *err);
void embedding_job_release(embedding_job *j); /* accepts a zeroed one */

/* The name of an input, as errors say it: "input", "input[3]", "documents[0]". */
void embedding_job_input_name(const embedding_job *j, size_t index, char out[CHAT_PARAM_SIZE]);

#endif
