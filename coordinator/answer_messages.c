/* answer_messages.c - the styles of Anthropic's POST /v1/messages and count_tokens.
 *
 * Streams are message_start, then for each block content_block_start, deltas and
 * content_block_stop, then message_delta with the reason and message_stop; the keep-alive is
 * a ping event.  Deliberation comes as thinking blocks, whose signature is the message's id
 * and means nothing: it is not looked at when it comes back.
 */
#include "coordinator/answer.h"

#include "coordinator/answer_blocks.h"
#include "coordinator/http_server.h"
#include "coordinator/messages_params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADD_LITERAL(out, literal) json_text_add((out), (literal), sizeof(literal) - 1)

typedef struct messages {
    answer_blocks blocks;
    char id[40]; /* without prefix */
    char model[WIRE_MAX_NAME + 1];
    cJSON *stops; /* the texts, to be told which came */
    bool streaming, begun;
} messages;

/* ------------------------------------------------------------ events */

static void begin_event(const char *name, json_text *out) {
    json_text_format(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void add_text(json_text *out, const char *bytes, size_t length) {
    json_text_string(out, length > 0 ? bytes : "", length);
}

/* A call up to its input. */
static void open_call(const messages *m, size_t index, const block *b, json_text *out) {
    json_text_format(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s_%zu\",\"name\":", m->id,
                     index);
    add_text(out, b->name, strlen(b->name));
    ADD_LITERAL(out, ",\"input\":");
}

static void on_begin(void *context, size_t index, const block *b, json_text *out) {
    const messages *m = context;
    begin_event("content_block_start", out);
    json_text_format(out, ",\"index\":%zu,\"content_block\":", index);
    switch (b->kind) {
    case BLOCK_THINKING:
        ADD_LITERAL(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
        break;
    case BLOCK_TEXT:
        ADD_LITERAL(out, "{\"type\":\"text\",\"text\":\"\"}");
        break;
    case BLOCK_CALL:
        open_call(m, index, b, out);
        ADD_LITERAL(out, "{}}");
        break;
    }
    ADD_LITERAL(out, "}\n\n");
}

static void on_more(void *context, size_t index, const block *b, wire_bytes text,
                    json_text *out) {
    static const char *const names[][2] = {{"thinking_delta", "thinking"},
                                           {"text_delta", "text"},
                                           {"input_json_delta", "partial_json"}};
    (void)context;
    begin_event("content_block_delta", out);
    json_text_format(out, ",\"index\":%zu,\"delta\":{\"type\":\"%s\",\"%s\":", index,
                     names[b->kind][0], names[b->kind][1]);
    add_text(out, text.bytes, text.length);
    ADD_LITERAL(out, "}}\n\n");
}

static void on_end(void *context, size_t index, const block *b, json_text *out) {
    const messages *m = context;
    if (b->kind == BLOCK_THINKING) {
        begin_event("content_block_delta", out);
        json_text_format(
            out,
            ",\"index\":%zu,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"%s\"}}",
            index, m->id);
        ADD_LITERAL(out, "\n\n");
    }
    begin_event("content_block_stop", out);
    json_text_format(out, ",\"index\":%zu}\n\n", index);
}

/* ------------------------------------------------------------ life */

static void release_messages(void *answer) {
    messages *m = answer;
    answer_blocks_release(&m->blocks);
    cJSON_Delete(m->stops);
    free(m);
}

static void *open_messages(const answer_params *p) {
    messages *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    (void)snprintf(m->id, sizeof m->id, "%s", p->id);
    memcpy(m->model, p->request->model, sizeof m->model);
    m->streaming = p->request->stream;
    m->stops = p->request->told;
    p->request->told = NULL;
    if (m->streaming) m->blocks.on = (block_events){m, on_begin, on_more, on_end};
    return m;
}

static void restart_messages(void *answer, size_t first, size_t n, bool resumes) {
    messages *m = answer;
    (void)first;
    (void)n;
    answer_blocks_restart(&m->blocks, resumes);
}

static void add_head(const messages *m, json_text *out) {
    json_text_format(
        out,
        "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", m->id);
    add_text(out, m->model, strlen(m->model));
}

static void add_usage(uint64_t prompt, uint64_t cached, uint64_t completion, json_text *out) {
    json_text_format(out,
                     "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                     "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu}",
                     (unsigned long long)(prompt > cached ? prompt - cached : 0),
                     (unsigned long long)cached, (unsigned long long)completion);
}

static status add_messages(void *answer, const wire_tokens *tokens, json_text *out,
                           error *err) {
    messages *m = answer;
    if (m->streaming && !m->begun) {
        m->begun = true;
        begin_event("message_start", out);
        ADD_LITERAL(out, ",\"message\":");
        add_head(m, out);
        ADD_LITERAL(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
        add_usage(tokens->prompt_tokens, tokens->cached_tokens, 1, out);
        ADD_LITERAL(out, "}}\n\n");
    }
    return answer_blocks_add(&m->blocks, tokens, out, err);
}

/* ------------------------------------------------------------ the end */

static void add_reason(const messages *m, json_text *out) {
    const char *stop =
        m->blocks.stop == 0
            ? NULL
            : cJSON_GetStringValue(cJSON_GetArrayItem(m->stops, (int)m->blocks.stop - 1));
    const char *reason = "end_turn";
    if (m->blocks.finish == WIRE_FINISH_LENGTH || m->blocks.call_cut)
        reason = "max_tokens";
    else if (m->blocks.finish == WIRE_FINISH_TOOL_CALLS)
        reason = "tool_use";
    else if (stop != NULL)
        reason = "stop_sequence";
    json_text_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (stop != NULL)
        add_text(out, stop, strlen(stop));
    else
        ADD_LITERAL(out, "null");
}

/* Arguments of a whole call are a JSON object; what is not cannot stand in the reply. */
static void add_input(const block *b, json_text *out) {
    cJSON *parsed = NULL;
    bool fits = json_parse(&parsed, b->text.length > 0 ? b->text.bytes : "", b->text.length,
                           "arguments", NULL) == STATUS_OK &&
                cJSON_IsObject(parsed);
    if (fits)
        json_text_add(out, b->text.bytes, b->text.length);
    else
        ADD_LITERAL(out, "{}");
    cJSON_Delete(parsed);
}

static void add_block(const messages *m, size_t index, json_text *out) {
    const block *b = &m->blocks.list[index];
    out->failed |= b->text.failed;
    if (index > 0) ADD_LITERAL(out, ",");
    switch (b->kind) {
    case BLOCK_THINKING:
        ADD_LITERAL(out, "{\"type\":\"thinking\",\"thinking\":");
        add_text(out, b->text.bytes, b->text.length);
        json_text_format(out, ",\"signature\":\"%s\"}", m->id);
        break;
    case BLOCK_TEXT:
        ADD_LITERAL(out, "{\"type\":\"text\",\"text\":");
        add_text(out, b->text.bytes, b->text.length);
        ADD_LITERAL(out, "}");
        break;
    case BLOCK_CALL:
        open_call(m, index, b, out);
        add_input(b, out);
        ADD_LITERAL(out, "}");
        break;
    }
}

static void finish_stream(const messages *m, const wire_done *done,
                          const token_stream_facts *facts, json_text *out) {
    begin_event("message_delta", out);
    ADD_LITERAL(out, ",\"delta\":{");
    add_reason(m, out);
    ADD_LITERAL(out, "},");
    add_usage(done->prompt_tokens, done->cached_tokens, done->completion_tokens, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, answer_blocks_thinking(&m->blocks), out);
    ADD_LITERAL(out, "}\n\n");
    begin_event("message_stop", out);
    ADD_LITERAL(out, "}\n\n");
}

static void finish_messages(void *answer, const wire_done *done,
                            const token_stream_facts *facts, json_text *out) {
    messages *m = answer;
    answer_blocks_finish(&m->blocks, out);
    if (m->streaming) {
        finish_stream(m, done, facts, out);
        return;
    }
    add_head(m, out);
    ADD_LITERAL(out, ",\"content\":[");
    for (size_t i = 0; i < m->blocks.n; i++)
        add_block(m, i, out);
    ADD_LITERAL(out, "],");
    add_reason(m, out);
    ADD_LITERAL(out, ",");
    add_usage(done->prompt_tokens, done->cached_tokens, done->completion_tokens, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, answer_blocks_thinking(&m->blocks), out);
    ADD_LITERAL(out, "}");
}

static const char *thinking_of(const void *answer, const wire_done *done) {
    const messages *m = answer;
    (void)done;
    return answer_blocks_thinking(&m->blocks);
}

static void fail_messages(void *answer, const answer_failure *f, json_text *out) {
    (void)answer;
    ADD_LITERAL(out, "event: error\ndata: ");
    http_error_body_anthropic(out, f->http_status, f->code, f->param, NULL, f->message);
    ADD_LITERAL(out, "\n\n");
}

static void keep_messages(void *answer, json_text *out) {
    (void)answer;
    ADD_LITERAL(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

const answer_style answer_messages = {
    .kind = WIRE_CHAT,
    .names = field_names_messages,
    .read = messages_params_read,
    .open = open_messages,
    .release = release_messages,
    .restart = restart_messages,
    .add = add_messages,
    .finish = finish_messages,
    .thinking = thinking_of,
    .break_off = fail_messages,
    .keepalive = keep_messages,
};

static void finish_count(void *answer, const wire_done *done, const token_stream_facts *facts,
                         json_text *out) {
    (void)answer;
    (void)facts;
    cJSON *result = NULL;
    const cJSON *n = NULL;
    if (json_parse(&result, done->result.bytes, done->result.length, "result", NULL) ==
        STATUS_OK)
        n = cJSON_GetObjectItemCaseSensitive(result, "tokens");
    if (n != NULL && cJSON_IsNumber(n))
        json_text_format(out, "{\"input_tokens\":%.0f}", n->valuedouble);
    else
        out->failed = true;
    cJSON_Delete(result);
}

const answer_style answer_count = {
    .kind = WIRE_COUNT,
    .names = field_names_messages,
    .read = messages_params_count,
    .open = open_messages,
    .release = release_messages,
    .restart = restart_messages,
    .add = add_messages,
    .finish = finish_count,
    .break_off = fail_messages,
    .keepalive = keep_messages,
};
