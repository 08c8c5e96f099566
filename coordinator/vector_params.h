/* vector_params.h - reads and checks the bodies of POST /v1/embeddings and /v1/rerank.
 *
 * Embeddings: `input` is a text, a list of texts, a list of token ids, or a list of such
 * lists; encoding_format float or base64; dimensions.  Rerank: `query`, `documents` (texts,
 * or objects with a `text`), `top_n`, `return_documents`, `instruction`.  Both take `model`
 * and `priority`; other fields are ignored.  The worker gets what the model must know, with
 * documents as plain texts and one input as a list of one.
 * Bytes from outside; no state; any thread.
 */
#ifndef SILICEO_COORDINATOR_VECTOR_PARAMS_H
#define SILICEO_COORDINATOR_VECTOR_PARAMS_H

#include "coordinator/chat_params.h"

enum { VECTOR_MAX_INPUTS = 2048 }; /* as OpenAI's API has it */

status vector_params_read_embeddings(chat_params *out, const char *body, size_t length,
                                     char param[CHAT_PARAM_SIZE], error *err);
status vector_params_read_rerank(chat_params *out, const char *body, size_t length,
                                 char param[CHAT_PARAM_SIZE], error *err);

#endif
