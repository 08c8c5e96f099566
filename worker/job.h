/* job.h - what a SUBMIT asks for: its JSON body as checked parameters.
 *
 * Every field that is known is checked for type and range; a wrong one is
 * STATUS_BAD_INPUT with the field's path in param.  Unknown fields are ignored, null is
 * absent.  A field that asks for what this build cannot do is refused, not ignored.
 *
 *   chat        messages, tools, chat_template_kwargs (see chat_template.h); what may be
 *               spent: max_thinking_tokens, thinking {type, budget_tokens},
 *               reasoning_effort, of which the smallest counts, and max_answer_tokens;
 *               tool_choice, parallel_tool_calls
 *   completion  prompt: a string, or an array of token ids
 *   count       as chat, or as completion
 *   tokenize    prompt (or content, as llama.cpp names it), or as chat; parse_special false:
 *               what spells a control token is text; for the others see result.h
 *   detokenize  tokens: an array of ids
 *   both of the first take max_completion_tokens or max_tokens, temperature, top_p, top_k,
 *   min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed, n,
 *   stop, logprobs, top_logprobs, ignore_eos, response_format (text, json_object, or
 *   json_schema; the schema itself is read by json_schema.h)
 *
 * A request that is silent about sampling gets the file's general.sampling.* values, and
 * without those OpenAI's: temperature 1, top_p 1.  No state; any thread.
 */
#ifndef SILICEO_WORKER_JOB_H
#define SILICEO_WORKER_JOB_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/wire.h"
#include "worker/sampler.h"
#include "worker/text/stop_match.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a schema stands in a request, as errors name it. */
#define JOB_SCHEMA_NAME "response_format.json_schema.schema"

typedef struct job {
    wire_kind kind;
    cJSON *body;         /* owned; messages of a chat are in it, normalised */
    const cJSON *prompt; /* in body: a string or an array of checked ids; NULL for messages */
    uint32_t n_choices;
    uint32_t max_tokens;         /* 0: what fits the context */
    uint32_t max_answer_tokens;  /* 0: no limit of its own */
    int64_t max_thinking_tokens; /* -1: the request says nothing */
    bool is_prose;               /* free text: may be repaired, and ended at a sentence */
    bool ignore_end;
    bool has_format;             /* the answer is one JSON document */
    const cJSON *schema;         /* in body: what it is valid by; NULL: any object */
    bool says_completion_tokens; /* max_tokens is said as max_completion_tokens */
    bool as_text;                /* a prompt cannot spell control tokens */
    bool logprobs;
    uint32_t n_top_logprobs;
    sampler_params sampling; /* biases point to `biases` */
    bool has_seed;
    sampler_bias *biases;                      /* owned */
    stop_string stops[STOP_MATCH_MAX_STRINGS]; /* in body */
    size_t n_stops;
    const cJSON *tools;      /* in body: the array, if a chat may call any */
    const char *forced_tool; /* in body: the one to call; "": some one; NULL: as it likes */
    bool single_call;        /* no more than one */
} job;

/* Sampling of a request that is silent: the file's keys over OpenAI's defaults. */
void job_default_sampling(sampler_params *out, const gguf_file *file);

/* n_vocab bounds ids.  param gets the field at fault, or "".  On failure *out needs no release. */
status job_parse(job *out, wire_kind kind, const char *body, size_t length, uint32_t n_vocab,
                 const sampler_params *defaults, char param[CHAT_PARAM_SIZE], error *err);
void job_release(job *j); /* accepts a zeroed one */

#endif
