/* result.h - the answers of kinds that give no tokens, as the JSON that a DONE carries.
 *
 *   count       {"tokens":N}
 *   tokenize    {"tokens":[id...],"count":N,"max_model_len":N}, and with `with_pieces` each
 *               token as {"id":id,"piece":text or bytes}, with `return_token_strs` the texts
 *               in "token_strs"
 *   detokenize  {"content":text,"prompt":text}: the one as llama.cpp's server names it, the
 *               other as vLLM's does.  Bytes that are no UTF-8 become U+FFFD.
 *
 * Thread: engine.
 */
#ifndef SILICEO_WORKER_RESULT_H
#define SILICEO_WORKER_RESULT_H

#include "worker/job.h"
#include "worker/text/tokenizer.h"

/* The caller frees; NULL without memory. */
char *result_write(const job *j, const tokenizer *vocab, uint32_t n_context,
                   const token_list *ids);

#endif
