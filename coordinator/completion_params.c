#include "coordinator/completion_params.h"

#include "common/body_reader.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the worker gets beside the prompt. */
static const char *const sampling[] = {"model",
                                       "max_tokens",
                                       "max_completion_tokens",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "seed",
                                       "stop",
                                       "n",
                                       "logit_bias",
                                       NULL};
static const char *const others[] = {"stream", "stream_options", NULL};

/* One prompt, or a list of them: *n counts. */
static status check_prompt(const body_reader *r, size_t *n) {
    const cJSON *prompt = body_find(r, "prompt");
    char name[40];
    *n = 1;
    if (prompt == NULL) return body_refuse(r, "prompt", "is missing");
    if (cJSON_IsString(prompt) || body_is_ids(prompt)) return STATUS_OK;
    if (!cJSON_IsArray(prompt) || prompt->child == NULL)
        return body_refuse(r, "prompt",
                           "is not a text, a list of texts or a list of token ids");
    *n = 0;
    for (const cJSON *item = prompt->child; item != NULL; item = item->next) {
        (void)snprintf(name, sizeof name, "prompt[%zu]", (*n)++);
        if (!cJSON_IsString(item) && !body_is_ids(item))
            return body_refuse(r, name, "is neither a text nor a list of token ids");
    }
    return STATUS_OK;
}

static status check_limits(const body_reader *r, chat_params *p, size_t n_prompts) {
    const cJSON *n = body_find(r, "n"), *best_of = body_find(r, "best_of");
    const cJSON *logprobs = body_find(r, "logprobs"),
                *limit = body_find(r, "max_completion_tokens");
    p->n_choices = n == NULL ? 1 : (uint32_t)n->valuedouble;
    if (best_of != NULL && !body_is_whole(best_of, p->n_choices, p->n_choices))
        return body_refuse(r, "best_of", "can only be equal to n");
    if (n_prompts * p->n_choices > WIRE_MAX_CHOICES) {
        return body_refuse(r, "prompt", "has more than 128 prompts, each counted n times");
    }
    if (logprobs != NULL && !body_is_whole(logprobs, 0, 20))
        return body_refuse(r, "logprobs", "is not a whole number from 0 to 20");
    if (limit == NULL) limit = body_find(r, "max_tokens");
    p->max_tokens = limit == NULL ? COMPLETION_DEFAULT_TOKENS : (uint64_t)limit->valuedouble;
    return STATUS_OK;
}

/* The texts that the reply begins with; only texts that came as such are known here. */
static status take_echo(const body_reader *r, chat_params *p) {
    const cJSON *echo = body_find(r, "echo"), *prompt = body_find(r, "prompt");
    if (echo == NULL) return STATUS_OK;
    if (!cJSON_IsBool(echo)) return body_refuse(r, "echo", "is not true or false");
    if (!cJSON_IsTrue(echo)) return STATUS_OK;
    if (body_find(r, "logprobs") != NULL)
        return body_refuse(r, "echo", "cannot go with logprobs: a prompt's are not computed");
    p->told = cJSON_CreateObject();
    cJSON *texts = cJSON_AddArrayToObject(p->told, "echo");
    const cJSON *item = cJSON_IsArray(prompt) ? prompt->child : prompt;
    for (; item != NULL; item = item == prompt ? NULL : item->next) {
        if (!cJSON_IsString(item))
            return body_refuse(r, "echo", "needs the prompt as text, not as token ids");
        if (!cJSON_AddItemToArray(texts, cJSON_CreateString(item->valuestring)))
            return body_no_memory(r);
    }
    return STATUS_OK;
}

static status take_options(const body_reader *r, chat_params *p) {
    const cJSON *suffix = body_find(r, "suffix"), *options = body_find(r, "stream_options");
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(options, "include_usage");
    const cJSON *model = body_find(r, "model");
    if (suffix != NULL && !(cJSON_IsString(suffix) && suffix->valuestring[0] == '\0'))
        return body_refuse(r, "suffix", "is not supported: text is only written at the end");
    if (usage != NULL && !cJSON_IsNull(usage) && !cJSON_IsBool(usage))
        return body_refuse(r, "stream_options.include_usage", "is not true or false");
    if (model == NULL || model->valuestring[0] == '\0' ||
        strlen(model->valuestring) > WIRE_MAX_NAME)
        return body_refuse(r, "model", "is missing, empty or longer than 128 bytes");
    p->include_usage = cJSON_IsTrue(usage);
    p->stream = cJSON_IsTrue(body_find(r, "stream"));
    (void)snprintf(p->model, sizeof p->model, "%s", model->valuestring);
    p->priority = chat_params_priority(body_find(r, "priority"));
    return STATUS_OK;
}

/* All but the prompt. */
static cJSON *common_body(const body_reader *r, const chat_params *p) {
    cJSON *body = cJSON_CreateObject();
    for (const char *const *name = sampling; *name != NULL; name++) {
        const cJSON *value = body_find(r, *name);
        if (value != NULL)
            (void)cJSON_AddItemToObject(body, *name, cJSON_Duplicate(value, true));
    }
    if (body_find(r, "max_tokens") == NULL && body_find(r, "max_completion_tokens") == NULL)
        (void)cJSON_AddNumberToObject(body, "max_tokens", (double)p->max_tokens);
    const cJSON *logprobs = body_find(r, "logprobs");
    if (logprobs != NULL)
        (void)cJSON_AddItemToObject(body, "logprobs", cJSON_Duplicate(logprobs, true));
    return body;
}

static size_t bytes_of(const cJSON *prompt) {
    return cJSON_IsString(prompt) ? strlen(prompt->valuestring)
                                  : 4 * (size_t)cJSON_GetArraySize(prompt);
}

static char *print_with(cJSON *body, const cJSON *prompt) {
    cJSON_DeleteItemFromObjectCaseSensitive(body, "prompt");
    cJSON *copy = cJSON_Duplicate(prompt, true);
    if (!cJSON_AddItemToObject(body, "prompt", copy)) {
        cJSON_Delete(copy);
        return NULL;
    }
    return json_print(body);
}

static status make_bodies(const body_reader *r, chat_params *p, size_t n_prompts) {
    const cJSON *prompt = body_find(r, "prompt");
    bool is_list = cJSON_IsArray(prompt) && !cJSON_IsNumber(prompt->child);
    cJSON *body = common_body(r, p);
    const cJSON *item = is_list ? prompt->child : prompt;
    p->more = n_prompts > 1 ? calloc(n_prompts - 1, sizeof *p->more) : NULL;
    bool made = body != NULL && (n_prompts == 1 || p->more != NULL);
    for (size_t i = 0; i < n_prompts && made; i++, item = item->next) {
        char *text = print_with(body, item);
        made = text != NULL;
        p->prompt_bytes += bytes_of(item);
        if (i == 0)
            p->body = text;
        else if (made)
            p->more[p->n_more++] = text;
    }
    cJSON_Delete(body);
    if (!made) return body_no_memory(r);
    p->n_body = strlen(p->body);
    return STATUS_OK;
}

status completion_params_read(chat_params *out, const char *body, size_t length,
                              char param[CHAT_PARAM_SIZE], error *err) {
    body_reader r;
    size_t n_prompts = 0;
    memset(out, 0, sizeof *out);
    status rc = body_open(&r, body, length, param, err);
    if (rc != STATUS_OK) return rc;
    if ((rc = chat_params_check(r.body, sampling, param, err)) != STATUS_OK) goto done;
    if ((rc = chat_params_check(r.body, others, param, err)) != STATUS_OK) goto done;
    if ((rc = check_prompt(&r, &n_prompts)) != STATUS_OK) goto done;
    if ((rc = check_limits(&r, out, n_prompts)) != STATUS_OK) goto done;
    if ((rc = take_options(&r, out)) != STATUS_OK) goto done;
    if ((rc = take_echo(&r, out)) != STATUS_OK) goto done;
    rc = make_bodies(&r, out, n_prompts);
done:
    cJSON_Delete(r.body);
    if (rc != STATUS_OK) chat_params_release(out);
    return rc;
}
