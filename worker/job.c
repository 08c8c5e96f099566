#include "worker/job.h"

#include "common/body_reader.h"
#include "worker/text/tool_schema.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *number_text(const cJSON *item) {
    return item->valuestring != NULL ? item->valuestring : "";
}

/* --- scalars --- */

static status read_float(const body_reader *r, const char *name, double min, double max,
                         float *out) {
    const cJSON *item = body_find(r, name);
    char what[160];
    if (item == NULL) return STATUS_OK;
    if (!cJSON_IsNumber(item)) return body_refuse(r, name, "must be a number");
    double value = item->valuedouble;
    if (!(value >= min && value <= max)) {
        (void)snprintf(what, sizeof what, "is %.40s, it must be from %g to %g",
                       number_text(item), min, max);
        return body_refuse(r, name, what);
    }
    *out = (float)value;
    return STATUS_OK;
}

/* The exact integer of a JSON number; 2.0 and 2e3 are integers too. */
static bool exact_integer(const cJSON *item, int64_t *out) {
    const char *text = number_text(item);
    if (text[0] != '\0' && strpbrk(text, ".eE") == NULL) {
        char *end = NULL;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        *out = value;
        return errno == 0 && *end == '\0';
    }
    double value = item->valuedouble;
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

static status read_integer(const body_reader *r, const char *name, int64_t min, int64_t max,
                           int64_t *out, bool *present) {
    const cJSON *item = body_find(r, name);
    char what[160];
    if (present != NULL) *present = item != NULL;
    if (item == NULL) return STATUS_OK;
    int64_t value = 0;
    if (!cJSON_IsNumber(item)) return body_refuse(r, name, "must be an integer");
    if (!exact_integer(item, &value) || value < min || value > max) {
        (void)snprintf(what, sizeof what, "is %.40s, it must be an integer from %lld to %lld",
                       number_text(item), (long long)min, (long long)max);
        return body_refuse(r, name, what);
    }
    *out = value;
    return STATUS_OK;
}

static status read_bool(const body_reader *r, const char *name, bool *out) {
    const cJSON *item = body_find(r, name);
    if (item == NULL) return STATUS_OK;
    if (!cJSON_IsBool(item)) return body_refuse(r, name, "must be true or false");
    *out = cJSON_IsTrue(item);
    return STATUS_OK;
}

/* --- lists --- */

static status add_stop(job *j, const body_reader *r, const char *name, const cJSON *item) {
    if (!cJSON_IsString(item)) return body_refuse(r, name, "must be a string");
    size_t length = strlen(item->valuestring);
    if (length == 0) return body_refuse(r, name, "must not be empty");
    if (length > STOP_MATCH_MAX_BYTES) return body_refuse(r, name, "is longer than 4096 bytes");
    j->stops[j->n_stops++] = (stop_string){item->valuestring, length};
    return STATUS_OK;
}

static status read_stops(job *j, const body_reader *r) {
    const cJSON *stop = body_find(r, "stop");
    if (stop == NULL) return STATUS_OK;
    if (cJSON_IsString(stop)) return add_stop(j, r, "stop", stop);
    if (!cJSON_IsArray(stop))
        return body_refuse(r, "stop", "must be a string or an array of strings");
    if (cJSON_GetArraySize(stop) > STOP_MATCH_MAX_STRINGS) {
        return body_refuse(r, "stop", "has more than 32 strings");
    }
    status rc = STATUS_OK;
    for (const cJSON *item = stop->child; item != NULL && rc == STATUS_OK; item = item->next) {
        char name[32];
        (void)snprintf(name, sizeof name, "stop[%zu]", j->n_stops);
        rc = add_stop(j, r, name, item);
    }
    return rc;
}

static status read_bias(const body_reader *r, const cJSON *item, uint32_t n_vocab,
                        sampler_bias *out) {
    char name[64], *end = NULL;
    (void)snprintf(name, sizeof name, "logit_bias.%.40s", item->string);
    errno = 0;
    long id = strtol(item->string, &end, 10);
    if (errno != 0 || end == item->string || *end != '\0' || id < 0 || id >= (long)n_vocab) {
        return body_refuse(r, name, "is not the id of a token of this model");
    }
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 100)) {
        return body_refuse(r, name, "must be a number from -100 to 100");
    }
    *out = (sampler_bias){(int32_t)id, (float)item->valuedouble};
    return STATUS_OK;
}

static status read_biases(job *j, const body_reader *r, uint32_t n_vocab) {
    const cJSON *list = body_find(r, "logit_bias");
    if (list == NULL) return STATUS_OK;
    if (!cJSON_IsObject(list)) {
        return body_refuse(r, "logit_bias", "must be an object of token ids to numbers");
    }
    int n = cJSON_GetArraySize(list);
    if (n > SAMPLER_MAX_BIASES)
        return body_refuse(r, "logit_bias", "has more than 1024 entries");
    if (n == 0) return STATUS_OK;
    j->biases = calloc((size_t)n, sizeof *j->biases);
    if (j->biases == NULL) return error_set(r->err, STATUS_NO_MEMORY, "logit_bias: no memory");
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        status rc = read_bias(r, item, n_vocab, &j->biases[j->sampling.n_biases]);
        if (rc != STATUS_OK) return rc;
        j->sampling.n_biases++;
    }
    j->sampling.biases = j->biases;
    return STATUS_OK;
}

static status check_ids(const body_reader *r, const char *name, const cJSON *list,
                        uint32_t n_vocab) {
    size_t i = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next, i++) {
        int64_t id = 0;
        if (cJSON_IsNumber(item) && exact_integer(item, &id) && id >= 0 &&
            id < (int64_t)n_vocab) {
            continue;
        }
        char path[64];
        (void)snprintf(path, sizeof path, "%.32s[%zu]", name, i);
        return body_refuse(r, path,
                           cJSON_IsString(item) ? "is a string: one prompt a request, please"
                                                : "is not the id of a token of this model");
    }
    return STATUS_OK;
}

static status read_prompt(job *j, const body_reader *r, const char *name, uint32_t n_vocab) {
    const cJSON *prompt = body_find(r, name);
    if (prompt == NULL) return body_refuse(r, name, "is missing");
    j->prompt = prompt;
    if (cJSON_IsString(prompt)) return STATUS_OK;
    if (!cJSON_IsArray(prompt)) {
        return body_refuse(r, name, "must be a string or an array of token ids");
    }
    return check_ids(r, name, prompt, n_vocab);
}

static status read_text(job *j, const body_reader *r, uint32_t n_vocab) {
    bool parses = true;
    status rc = read_bool(r, "parse_special", &parses);
    if (rc != STATUS_OK) return rc;
    j->as_text = !parses;
    return read_prompt(j, r, body_find(r, "prompt") == NULL ? "content" : "prompt", n_vocab);
}

/* --- groups --- */

static status read_sampling(job *j, const body_reader *r) {
    sampler_params *p = &j->sampling;
    int64_t top_k = p->top_k, seed = 0;
    status rc = read_float(r, "temperature", 0, 2, &p->temperature);
    if (rc == STATUS_OK) rc = read_float(r, "top_p", 0, 1, &p->top_p);
    if (rc == STATUS_OK) rc = read_float(r, "min_p", 0, 1, &p->min_p);
    if (rc == STATUS_OK) rc = read_integer(r, "top_k", -1, INT32_MAX, &top_k, NULL);
    if (rc == STATUS_OK) {
        rc = read_float(r, "repetition_penalty", 0.01, 10, &p->repetition_penalty);
    }
    if (rc == STATUS_OK) rc = read_float(r, "presence_penalty", -2, 2, &p->presence_penalty);
    if (rc == STATUS_OK) rc = read_float(r, "frequency_penalty", -2, 2, &p->frequency_penalty);
    if (rc == STATUS_OK)
        rc = read_integer(r, "seed", INT64_MIN, INT64_MAX, &seed, &j->has_seed);
    p->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    p->seed = (uint64_t)seed;
    return rc;
}

static status read_limits(job *j, const body_reader *r) {
    int64_t n = 1, max_tokens = 0;
    status rc = read_integer(r, "n", 1, WIRE_MAX_CHOICES, &n, NULL);
    if (rc == STATUS_OK) rc = read_integer(r, "max_tokens", 1, INT32_MAX, &max_tokens, NULL);
    if (rc == STATUS_OK) {
        rc = read_integer(r, "max_completion_tokens", 1, INT32_MAX, &max_tokens, NULL);
    }
    if (rc == STATUS_OK) rc = read_bool(r, "ignore_eos", &j->ignore_end);
    j->says_completion_tokens = body_find(r, "max_completion_tokens") != NULL;
    j->n_choices = (uint32_t)n;
    j->max_tokens = (uint32_t)max_tokens;
    return rc;
}

/* --- deliberation --- */

/* Below it no thought and answer fit. */
enum { LEAST_TOTAL_TO_THINK = 4 };

static void bound(job *j, int64_t limit) {
    if (limit >= 0 && (j->max_thinking_tokens < 0 || limit < j->max_thinking_tokens))
        j->max_thinking_tokens = limit;
}

static status read_effort(job *j, const body_reader *r) {
    static const struct {
        const char *name;
        int64_t tokens;
    } efforts[] = {{"none", 0},      {"minimal", 64}, {"low", 256},
                   {"medium", 1024}, {"high", 4096},  {"xhigh", 16384}};
    const cJSON *effort = body_find(r, "reasoning_effort");
    if (effort == NULL) return STATUS_OK;
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++) {
        if (!cJSON_IsString(effort) || strcmp(effort->valuestring, efforts[i].name) != 0)
            continue;
        bound(j, efforts[i].tokens);
        return STATUS_OK;
    }
    return body_refuse(r, "reasoning_effort",
                       "must be one of none, minimal, low, medium, high and xhigh");
}

/* thinking: {"type": "enabled" | "disabled" | "adaptive", "budget_tokens": N}.  *asks: it
 * wants some, whatever the model does by itself. */
static status read_thinking(job *j, const body_reader *r, bool *asks) {
    const cJSON *thinking = body_find(r, "thinking");
    if (thinking == NULL) return STATUS_OK;
    if (!cJSON_IsObject(thinking)) return body_refuse(r, "thinking", "must be an object");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(thinking, "type");
    const char *word = cJSON_GetStringValue(type);
    if (type != NULL && word == NULL)
        return body_refuse(r, "thinking.type", "must be a string");
    if (word != NULL && strcmp(word, "disabled") == 0) {
        bound(j, 0);
    } else if (word != NULL && strcmp(word, "enabled") == 0) {
        *asks = true;
    } else if (word != NULL && strcmp(word, "adaptive") != 0) {
        return body_refuse(r, "thinking.type", "must be enabled, disabled or adaptive");
    }
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(thinking, "budget_tokens");
    if (tokens == NULL || cJSON_IsNull(tokens)) return STATUS_OK;
    int64_t n = 0;
    if (!cJSON_IsNumber(tokens) || !exact_integer(tokens, &n) || n < 0 || n > INT32_MAX)
        return body_refuse(r, "thinking.budget_tokens",
                           "must be an integer from 0 to 2147483647");
    bound(j, n);
    return STATUS_OK;
}

/* Tell the template; a request's own word against thinking stays. */
static status set_switch(cJSON *body, const body_reader *r, bool on) {
    cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(body, "chat_template_kwargs");
    if (cJSON_IsNull(kwargs)) {
        cJSON_DeleteItemFromObjectCaseSensitive(body, "chat_template_kwargs");
        kwargs = NULL;
    }
    if (kwargs == NULL) kwargs = cJSON_AddObjectToObject(body, "chat_template_kwargs");
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(kwargs, "enable_thinking");
    if (on && cJSON_IsBool(own)) return STATUS_OK;
    if (own != NULL) cJSON_DeleteItemFromObjectCaseSensitive(kwargs, "enable_thinking");
    if (kwargs == NULL || cJSON_AddBoolToObject(kwargs, "enable_thinking", on) == NULL)
        return error_set(r->err, STATUS_NO_MEMORY, "no memory for a chat request");
    return STATUS_OK;
}

static status read_budgets(job *j, const body_reader *r) {
    int64_t own = -1, answer = 0;
    bool asks = false;
    j->max_thinking_tokens = -1;
    if (j->prompt != NULL) return STATUS_OK;
    status rc = read_integer(r, "max_thinking_tokens", 0, INT32_MAX, &own, NULL);
    if (rc == STATUS_OK) rc = read_integer(r, "max_answer_tokens", 1, INT32_MAX, &answer, NULL);
    bound(j, own);
    if (rc == STATUS_OK) rc = read_thinking(j, r, &asks);
    if (rc == STATUS_OK) rc = read_effort(j, r);
    if (rc != STATUS_OK) return rc;
    j->max_answer_tokens = (uint32_t)answer;
    if (j->max_tokens != 0 && j->max_tokens < LEAST_TOTAL_TO_THINK) bound(j, 0);
    if (j->max_thinking_tokens == 0) return set_switch(j->body, r, false);
    return asks ? set_switch(j->body, r, true) : STATUS_OK;
}

/* A chat says logprobs: true and top_logprobs: N; a completion says logprobs: N. */
static status read_logprobs(job *j, const body_reader *r) {
    int64_t top = 0;
    bool has_top = false;
    status rc = STATUS_OK;
    if (j->kind == WIRE_COMPLETION) {
        rc = read_integer(r, "logprobs", 0, SAMPLER_MAX_TOP, &top, &j->logprobs);
    } else {
        rc = read_bool(r, "logprobs", &j->logprobs);
        if (rc == STATUS_OK) {
            rc = read_integer(r, "top_logprobs", 0, SAMPLER_MAX_TOP, &top, &has_top);
        }
        if (rc == STATUS_OK && has_top && top > 0 && !j->logprobs) {
            return body_refuse(r, "top_logprobs", "needs logprobs to be true");
        }
    }
    j->n_top_logprobs = (uint32_t)top;
    return rc;
}

static status name_tool(job *j, const body_reader *r, const cJSON *choice) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(choice, "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name"), *ignored;
    if (!cJSON_IsString(name)) {
        return body_refuse(r, "tool_choice",
                           "must be none, auto, required, or name a function");
    }
    const char *text = name->valuestring;
    if (!tool_schema_find(j->tools, text, strlen(text), &ignored)) {
        return body_refuse(r, "tool_choice", "names a function that is not in tools");
    }
    j->forced_tool = text;
    j->single_call = true;
    return STATUS_OK;
}

/* tool_choice none has taken the tools away before. */
static status read_tools(job *j, const body_reader *r) {
    const cJSON *tools = body_find(r, "tools"), *choice = body_find(r, "tool_choice");
    bool parallel = true;
    if (j->kind != WIRE_CHAT) return STATUS_OK;
    if (cJSON_IsArray(tools) && tools->child != NULL) j->tools = tools;
    status rc = read_bool(r, "parallel_tool_calls", &parallel);
    if (rc != STATUS_OK) return rc;
    j->single_call = !parallel;
    if (choice == NULL) return STATUS_OK;
    if (!cJSON_IsString(choice)) return name_tool(j, r, choice);
    const char *word = choice->valuestring;
    if (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0) return STATUS_OK;
    if (strcmp(word, "required") != 0) return name_tool(j, r, choice);
    if (j->tools == NULL)
        return body_refuse(r, "tool_choice", "is required, but there are no tools");
    const cJSON *only = cJSON_GetObjectItemCaseSensitive(j->tools->child, "function");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(only, "name"));
    j->forced_tool = j->tools->child->next == NULL && name != NULL ? name : "";
    return STATUS_OK;
}

static status read_format(job *j, const body_reader *r) {
    const cJSON *format = body_find(r, "response_format");
    j->is_prose = j->prompt == NULL;
    if (format == NULL || j->forced_tool != NULL) return STATUS_OK; /* the call is the answer */
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(format, "type");
    if (!cJSON_IsString(type))
        return body_refuse(r, "response_format.type", "must be a string");
    if (strcmp(type->valuestring, "text") == 0) return STATUS_OK;
    j->has_format = true;
    j->is_prose = false;
    if (strcmp(type->valuestring, "json_object") == 0) return STATUS_OK;
    if (strcmp(type->valuestring, "json_schema") != 0) {
        return body_refuse(r, "response_format.type",
                           "must be text, json_object or json_schema");
    }
    const cJSON *named = cJSON_GetObjectItemCaseSensitive(format, "json_schema");
    j->schema = cJSON_GetObjectItemCaseSensitive(named, "schema");
    if (!cJSON_IsObject(j->schema))
        return body_refuse(r, JOB_SCHEMA_NAME, "must be a JSON schema");
    return STATUS_OK;
}

/* Fields whose silent neglect would give a wrong answer. */
static status refuse_unsupported(const job *j, const body_reader *r) {
    if (j->kind != WIRE_COMPLETION) return STATUS_OK;
    bool echo = false;
    status rc = read_bool(r, "echo", &echo);
    if (rc != STATUS_OK) return rc;
    if (echo) return body_refuse(r, "echo", "is not supported");
    const cJSON *suffix = body_find(r, "suffix");
    if (suffix != NULL && !(cJSON_IsString(suffix) && suffix->valuestring[0] == '\0')) {
        return body_refuse(r, "suffix", "is not supported");
    }
    int64_t best_of = j->n_choices;
    rc = read_integer(r, "best_of", 1, WIRE_MAX_CHOICES, &best_of, NULL);
    if (rc == STATUS_OK && best_of != j->n_choices) {
        return body_refuse(r, "best_of", "can only be equal to n");
    }
    return rc;
}

static status read_input(job *j, const body_reader *r, uint32_t n_vocab) {
    switch (j->kind) {
    case WIRE_COMPLETION:
        return read_prompt(j, r, "prompt", n_vocab);
    case WIRE_TOKENIZE:
        if (body_find(r, "messages") != NULL) break;
        return read_text(j, r, n_vocab);
    case WIRE_DETOKENIZE:
        if (!cJSON_IsArray(body_find(r, "tokens")))
            return body_refuse(r, "tokens", "must be an array of token ids");
        return read_prompt(j, r, "tokens", n_vocab);
    case WIRE_CHAT:
        break;
    case WIRE_COUNT:
        if (body_find(r, "messages") == NULL && body_find(r, "prompt") != NULL) {
            return read_prompt(j, r, "prompt", n_vocab);
        }
        break;
    case WIRE_EMBED:
    case WIRE_RERANK:
        return error_set(r->err, STATUS_BAD_INPUT, "inputs of vectors are no prompt");
    }
    const cJSON *messages = body_find(r, "messages");
    if (messages == NULL) return body_refuse(r, "messages", "is missing");
    if (!cJSON_IsArray(messages)) return body_refuse(r, "messages", "must be an array");
    if (messages->child == NULL) return body_refuse(r, "messages", "is empty");
    return chat_normalise(j->body, r->param, r->err);
}

status job_parse(job *out, wire_kind kind, const char *body, size_t length, uint32_t n_vocab,
                 const sampler_params *defaults, char param[CHAT_PARAM_SIZE], error *err) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    out->sampling = *defaults;
    out->sampling.biases = NULL;
    out->sampling.n_biases = 0;
    body_reader r;
    status rc = body_open(&r, body, length, param, err);
    if (rc != STATUS_OK) goto fail;
    out->body = r.body;
    rc = read_input(out, &r, n_vocab);
    if (rc == STATUS_OK) rc = read_limits(out, &r);
    if (rc == STATUS_OK) rc = read_budgets(out, &r);
    if (rc == STATUS_OK) rc = read_sampling(out, &r);
    if (rc == STATUS_OK) rc = read_logprobs(out, &r);
    if (rc == STATUS_OK) rc = read_stops(out, &r);
    if (rc == STATUS_OK) rc = read_tools(out, &r);
    if (rc == STATUS_OK) rc = read_biases(out, &r, n_vocab);
    if (rc == STATUS_OK) rc = read_format(out, &r);
    if (rc == STATUS_OK) rc = refuse_unsupported(out, &r);
    if (rc != STATUS_OK) goto fail;
    return STATUS_OK;
fail:
    job_release(out);
    return rc;
}

void job_release(job *j) {
    free(j->biases);
    cJSON_Delete(j->body);
    memset(j, 0, sizeof *j);
}

/* --- defaults of the file --- */

static void read_default(const gguf_file *file, const char *name, double min, double max,
                         float *out) {
    const gguf_key *key = gguf_find_key(file, name);
    double value = 0;
    if (key != NULL && gguf_read_f64(key, &value) && value >= min && value <= max) {
        *out = (float)value;
    }
}

void job_default_sampling(sampler_params *out, const gguf_file *file) {
    *out = (sampler_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    read_default(file, "general.sampling.temp", 0, 2, &out->temperature);
    read_default(file, "general.sampling.top_p", 0, 1, &out->top_p);
    read_default(file, "general.sampling.min_p", 0, 1, &out->min_p);
    read_default(file, "general.sampling.penalty_repeat", 0.01, 10, &out->repetition_penalty);
    const gguf_key *key = gguf_find_key(file, "general.sampling.top_k");
    int64_t top_k = 0;
    if (key != NULL && gguf_read_i64(key, &top_k) && top_k >= 0 && top_k <= INT32_MAX) {
        out->top_k = (uint32_t)top_k;
    }
}
