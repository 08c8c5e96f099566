/* answer_responses.c - the style of OpenAI's POST /v1/responses.
 *
 * Streams are response.created and response.in_progress, then for each item its added, deltas
 * and done events, then response.completed or response.incomplete.  Events are numbered.
 */
#include "coordinator/answer.h"

#include "coordinator/answer_blocks.h"
#include "coordinator/responses_params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADD_LITERAL(out, literal) json_text_add((out), (literal), sizeof(literal) - 1)

typedef struct response {
    answer_blocks blocks;
    char id[40]; /* without prefix */
    char model[WIRE_MAX_NAME + 1];
    uint64_t created_s;
    char *told; /* members that the response repeats, `"name":value,...` */
    uint64_t number;
    bool streaming, begun;
} response;

static void add_text(json_text *out, const char *bytes, size_t length) {
    json_text_string(out, length > 0 ? bytes : "", length);
}

/* ------------------------------------------------------------ items */

static const char *const prefixes[] = {"rs", "msg", "fc"}; /* by block_kind */

/* Whole, or empty as it begins. */
static void add_item(const response *r, size_t index, const block *b, const char *state,
                     json_text *out) {
    bool begins = strcmp(state, "in_progress") == 0;
    size_t n = begins ? 0 : b->text.length;
    json_text_format(out, "{\"id\":\"%s_%s_%zu\",\"status\":\"%s\",", prefixes[b->kind], r->id,
                     index, state);
    switch (b->kind) {
    case BLOCK_THINKING:
        ADD_LITERAL(out, "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (!begins) {
            ADD_LITERAL(out, "{\"type\":\"reasoning_text\",\"text\":");
            add_text(out, b->text.bytes, n);
            ADD_LITERAL(out, "}");
        }
        ADD_LITERAL(out, "]}");
        break;
    case BLOCK_TEXT:
        ADD_LITERAL(out, "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (!begins) {
            ADD_LITERAL(
                out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
            add_text(out, b->text.bytes, n);
            ADD_LITERAL(out, "}");
        }
        ADD_LITERAL(out, "]}");
        break;
    case BLOCK_CALL:
        json_text_format(
            out, "\"type\":\"function_call\",\"call_id\":\"call_%s_%zu\",\"name\":", r->id,
            index);
        add_text(out, b->name, strlen(b->name));
        ADD_LITERAL(out, ",\"arguments\":");
        add_text(out, b->text.bytes, n);
        ADD_LITERAL(out, "}");
        break;
    }
}

/* ------------------------------------------------------------ events */

static void begin_event(response *r, const char *name, json_text *out) {
    json_text_format(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu", name,
                     name, (unsigned long long)r->number++);
}

static void begin_of_item(response *r, const char *name, size_t index, const block *b,
                          json_text *out) {
    begin_event(r, name, out);
    json_text_format(out, ",\"item_id\":\"%s_%s_%zu\",\"output_index\":%zu", prefixes[b->kind],
                     r->id, index, index);
    if (b->kind != BLOCK_CALL) ADD_LITERAL(out, ",\"content_index\":0");
}

static void add_part(const block *b, bool begins, json_text *out) {
    if (b->kind == BLOCK_THINKING)
        ADD_LITERAL(out, ",\"part\":{\"type\":\"reasoning_text\",\"text\":");
    else
        ADD_LITERAL(out, ",\"part\":{\"type\":\"output_text\",\"annotations\":[],"
                         "\"logprobs\":[],\"text\":");
    add_text(out, b->text.bytes, begins ? 0 : b->text.length);
    ADD_LITERAL(out, "}}\n\n");
}

static void on_begin(void *context, size_t index, const block *b, json_text *out) {
    response *r = context;
    begin_event(r, "response.output_item.added", out);
    json_text_format(out, ",\"output_index\":%zu,\"item\":", index);
    add_item(r, index, b, "in_progress", out);
    ADD_LITERAL(out, "}\n\n");
    if (b->kind == BLOCK_CALL) return;
    begin_of_item(r, "response.content_part.added", index, b, out);
    add_part(b, true, out);
}

static void on_more(void *context, size_t index, const block *b, wire_bytes text,
                    json_text *out) {
    static const char *const names[] = {"response.reasoning_text.delta",
                                        "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    begin_of_item(context, names[b->kind], index, b, out);
    if (b->kind == BLOCK_TEXT) ADD_LITERAL(out, ",\"logprobs\":[]");
    ADD_LITERAL(out, ",\"delta\":");
    add_text(out, text.bytes, text.length);
    ADD_LITERAL(out, "}\n\n");
}

/* A call that was left in its middle: it has begun, and no event says that it is done, because
 * clients take what is done for something to run. */
static bool is_half_call(const response *r, size_t index) {
    return r->blocks.call_cut && index + 1 == r->blocks.n &&
           r->blocks.list[index].kind == BLOCK_CALL;
}

/* The last item of what a limit cut is not complete either, but for a call that is whole. */
static const char *state_of(const response *r, size_t index) {
    bool cut = r->blocks.finish == WIRE_FINISH_LENGTH && index + 1 == r->blocks.n &&
               r->blocks.list[index].kind != BLOCK_CALL;
    return cut ? "incomplete" : "completed";
}

static void on_end(void *context, size_t index, const block *b, json_text *out) {
    static const char *const names[][2] = {
        {"response.reasoning_text.done", "text"},
        {"response.output_text.done", "text"},
        {"response.function_call_arguments.done", "arguments"}};
    response *r = context;
    if (is_half_call(r, index)) return;
    begin_of_item(r, names[b->kind][0], index, b, out);
    if (b->kind == BLOCK_TEXT) ADD_LITERAL(out, ",\"logprobs\":[]");
    if (b->kind == BLOCK_CALL) {
        ADD_LITERAL(out, ",\"name\":");
        add_text(out, b->name, strlen(b->name));
    }
    json_text_format(out, ",\"%s\":", names[b->kind][1]);
    add_text(out, b->text.bytes, b->text.length);
    ADD_LITERAL(out, "}\n\n");
    if (b->kind != BLOCK_CALL) {
        begin_of_item(r, "response.content_part.done", index, b, out);
        add_part(b, false, out);
    }
    begin_event(r, "response.output_item.done", out);
    json_text_format(out, ",\"output_index\":%zu,\"item\":", index);
    add_item(r, index, b, state_of(r, index), out);
    ADD_LITERAL(out, "}\n\n");
}

/* ------------------------------------------------------------ the response */

static void add_usage(const wire_done *done, json_text *out) {
    json_text_format(
        out,
        "\"usage\":{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},"
        "\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":%llu},"
        "\"total_tokens\":%llu}",
        (unsigned long long)done->prompt_tokens, (unsigned long long)done->cached_tokens,
        (unsigned long long)done->completion_tokens, (unsigned long long)done->reasoning_tokens,
        (unsigned long long)done->prompt_tokens + (unsigned long long)done->completion_tokens);
}

static void add_failure(const answer_failure *f, json_text *out) {
    const char *code = f->code != NULL && f->code[0] != '\0' ? f->code : "server_error";
    ADD_LITERAL(out, "{\"code\":");
    add_text(out, code, strlen(code));
    ADD_LITERAL(out, ",\"message\":");
    add_text(out, f->message, strlen(f->message));
    ADD_LITERAL(out, "}");
}

/* done NULL: it is not over; f NULL: it has not failed. */
static void add_response(const response *r, const char *state, const wire_done *done,
                         const answer_failure *f, json_text *out) {
    json_text_format(out,
                     "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%llu,"
                     "\"status\":\"%s\",\"background\":false,\"store\":false,"
                     "\"previous_response_id\":null,\"truncation\":\"disabled\",\"error\":",
                     r->id, (unsigned long long)r->created_s, state);
    if (f != NULL)
        add_failure(f, out);
    else
        ADD_LITERAL(out, "null");
    ADD_LITERAL(out, ",\"incomplete_details\":");
    if (strcmp(state, "incomplete") == 0)
        ADD_LITERAL(out, "{\"reason\":\"max_output_tokens\"}");
    else
        ADD_LITERAL(out, "null");
    ADD_LITERAL(out, ",\"model\":");
    add_text(out, r->model, strlen(r->model));
    ADD_LITERAL(out, ",");
    json_text_add(out, r->told + 1, strlen(r->told) - 2); /* without its braces */
    ADD_LITERAL(out, ",\"output\":[");
    for (size_t i = 0; i < r->blocks.n && !is_half_call(r, i); i++) {
        out->failed |= r->blocks.list[i].text.failed;
        if (i > 0) ADD_LITERAL(out, ",");
        add_item(r, i, &r->blocks.list[i], state_of(r, i), out);
    }
    ADD_LITERAL(out, "],");
    if (done != NULL)
        add_usage(done, out);
    else
        ADD_LITERAL(out, "\"usage\":null");
}

static void release_response(void *answer) {
    response *r = answer;
    answer_blocks_release(&r->blocks);
    cJSON_free(r->told);
    free(r);
}

static void *open_response(const answer_params *p) {
    response *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    (void)snprintf(r->id, sizeof r->id, "%s", p->id);
    memcpy(r->model, p->request->model, sizeof r->model);
    r->created_s = p->created_s;
    r->streaming = p->request->stream;
    r->told = json_print(p->request->told);
    if (r->told == NULL) {
        free(r);
        return NULL;
    }
    if (r->streaming) r->blocks.on = (block_events){r, on_begin, on_more, on_end};
    return r;
}

static void restart_response(void *answer, size_t first, size_t n, bool resumes) {
    response *r = answer;
    (void)first;
    (void)n;
    answer_blocks_restart(&r->blocks, resumes);
}

static void tell_response(response *r, const char *event, const char *state, json_text *out) {
    begin_event(r, event, out);
    ADD_LITERAL(out, ",\"response\":");
    add_response(r, state, NULL, NULL, out);
    ADD_LITERAL(out, "}}\n\n");
}

static void begin(response *r, json_text *out) {
    if (!r->streaming || r->begun) return;
    r->begun = true;
    tell_response(r, "response.created", "in_progress", out);
    tell_response(r, "response.in_progress", "in_progress", out);
}

static status add_response_tokens(void *answer, const wire_tokens *tokens, json_text *out,
                                  error *err) {
    response *r = answer;
    begin(r, out);
    return answer_blocks_add(&r->blocks, tokens, out, err);
}

static void finish_response(void *answer, const wire_done *done,
                            const token_stream_facts *facts, json_text *out) {
    response *r = answer;
    bool cut = r->blocks.finish == WIRE_FINISH_LENGTH || r->blocks.call_cut;
    const char *state = cut ? "incomplete" : "completed";
    begin(r, out);
    answer_blocks_finish(&r->blocks, out);
    if (r->streaming) {
        begin_event(r, cut ? "response.incomplete" : "response.completed", out);
        ADD_LITERAL(out, ",\"response\":");
    }
    add_response(r, state, done, NULL, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, answer_blocks_thinking(&r->blocks), out);
    ADD_LITERAL(out, "}");
    if (r->streaming) ADD_LITERAL(out, "}\n\n");
}

static const char *thinking_of(const void *answer, const wire_done *done) {
    const response *r = answer;
    (void)done;
    return answer_blocks_thinking(&r->blocks);
}

/* The response that failed, and the event that makes clients raise an error. */
static void fail_response(void *answer, const answer_failure *f, json_text *out) {
    response *r = answer;
    begin(r, out);
    begin_event(r, "response.failed", out);
    ADD_LITERAL(out, ",\"response\":");
    add_response(r, "failed", NULL, f, out);
    ADD_LITERAL(out, "}}\n\n");
    begin_event(r, "error", out);
    ADD_LITERAL(out, ",\"error\":");
    add_failure(f, out);
    ADD_LITERAL(out, ",\"param\":null,\"message\":");
    add_text(out, f->message, strlen(f->message));
    ADD_LITERAL(out, "}\n\n");
}

const answer_style answer_responses = {
    .kind = WIRE_CHAT,
    .names = field_names_responses,
    .read = responses_params_read,
    .open = open_response,
    .release = release_response,
    .restart = restart_response,
    .add = add_response_tokens,
    .finish = finish_response,
    .thinking = thinking_of,
    .break_off = fail_response,
    .keepalive = answer_comment,
};
