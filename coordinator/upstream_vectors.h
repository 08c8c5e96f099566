/* upstream_vectors.h - embeddings and rerank of an OpenAI-compatible server: one request, one whole reply.
 *
 * The reply's list is checked against what was asked for (each input once, numbers or base64,
 * relevances that are numbers) and becomes what a worker's DONE would bring.
 * Bytes from outside: bounded by json.h, errors name the field.  No state; any thread.
 */
#ifndef SILICEO_COORDINATOR_UPSTREAM_VECTORS_H
#define SILICEO_COORDINATOR_UPSTREAM_VECTORS_H

#include "common/error.h"
#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is it one of these two kinds? */
bool upstream_vectors_kind(wire_kind kind);
/* Under the server's /v1. */
const char *upstream_vectors_path(wire_kind kind);

/* The request for the server: our normalised one with its model.  n_inputs: texts or documents that
 * it has.  The caller frees *out. */
status upstream_vectors_body(char **out, size_t *n_inputs, wire_kind kind, const char *body,
                             size_t n, const char *model, error *err);

/* The list of a reply as JSON, and how long the prompts were.  The caller frees *out. */
status upstream_vectors_read(char **out, uint64_t *prompt_tokens, wire_kind kind,
                             size_t n_inputs, const char *body, size_t n, error *err);

#endif
