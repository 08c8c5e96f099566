#include "coordinator/token_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADD_LITERAL(out, literal) json_text_add((out), (literal), sizeof(literal) - 1)

status token_stream_init(token_stream *ts, const token_stream_params *params, error *err) {
    memset(ts, 0, sizeof *ts);
    json_text head = {0};
    json_text_format(
        &head, "{\"id\":\"%s\",\"object\":\"chat.completion%s\",\"created\":%llu,\"model\":",
        params->id, params->streaming ? ".chunk" : "", (unsigned long long)params->created_s);
    json_text_string(&head, params->model, strlen(params->model));
    if (head.failed || head.length >= sizeof ts->head) {
        json_text_release(&head);
        return error_set(err, STATUS_NO_MEMORY, "no memory for a stream");
    }
    const char *unique = strchr(params->id, '-');
    (void)snprintf(ts->call_id, sizeof ts->call_id, "call_%.30s",
                   unique != NULL ? unique + 1 : params->id);
    memcpy(ts->head, head.bytes, head.length);
    ts->n_head = head.length;
    json_text_release(&head);
    ts->choices = calloc(params->n_choices, sizeof *ts->choices);
    if (ts->choices == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a stream");
    ts->n_choices = params->n_choices;
    ts->streaming = params->streaming;
    ts->include_usage = params->include_usage;
    return STATUS_OK;
}

static void clear_tools(token_choice *choice) {
    for (size_t i = 0; i < choice->cap_tools; i++) {
        json_text_clear(&choice->tools[i].name);
        json_text_clear(&choice->tools[i].arguments);
    }
    choice->n_tools = 0;
    choice->call_cut = false;
}

static void release_tools(token_choice *choice) {
    for (size_t i = 0; i < choice->cap_tools; i++) {
        json_text_release(&choice->tools[i].name);
        json_text_release(&choice->tools[i].arguments);
    }
    free(choice->tools);
}

void token_stream_release(token_stream *ts) {
    for (size_t i = 0; i < ts->n_choices; i++) {
        release_tools(&ts->choices[i]);
        json_text_release(&ts->choices[i].content);
        json_text_release(&ts->choices[i].reasoning);
        json_text_release(&ts->choices[i].logprobs);
    }
    free(ts->choices);
    memset(ts, 0, sizeof *ts);
}

void token_stream_restart(token_stream *ts) {
    for (size_t i = 0; i < ts->n_choices; i++) {
        json_text_clear(&ts->choices[i].content);
        json_text_clear(&ts->choices[i].reasoning);
        json_text_clear(&ts->choices[i].logprobs);
        clear_tools(&ts->choices[i]);
        ts->choices[i].finish = WIRE_FINISH_NONE;
        ts->choices[i].thinking_cut = false;
    }
}

void token_stream_resume(token_stream *ts) {
    for (size_t i = 0; i < ts->n_choices; i++) {
        ts->choices[i].ends_again = ts->choices[i].finish != WIRE_FINISH_NONE;
        ts->choices[i].finish = WIRE_FINISH_NONE;
    }
}

const char *token_stream_finish_name(wire_finish finish) {
    switch (finish) {
    case WIRE_FINISH_LENGTH:
        return "length";
    case WIRE_FINISH_TOOL_CALLS:
        return "tool_calls";
    case WIRE_FINISH_NONE:
    case WIRE_FINISH_STOP:
        break;
    }
    return "stop";
}

/* ------------------------------------------------------------ streaming */

static void begin_chunk(const token_stream *ts, uint64_t choice, json_text *out) {
    ADD_LITERAL(out, "data: ");
    json_text_add(out, ts->head, ts->n_head);
    json_text_format(out, ",\"choices\":[{\"index\":%llu,\"delta\":{",
                     (unsigned long long)choice);
}

static void add_role(const token_stream *ts, uint64_t choice, json_text *out) {
    begin_chunk(ts, choice, out);
    ADD_LITERAL(out, "\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n");
}

static void add_call_id(const token_stream *ts, uint64_t choice, uint64_t call,
                        json_text *out) {
    json_text_format(out, "\"id\":\"%s_%llu_%llu\",\"type\":\"function\"", ts->call_id,
                     (unsigned long long)choice, (unsigned long long)call);
}

/* The first delta of a call, or more of its arguments. */
static void add_call(const token_stream *ts, const wire_tokens *tokens, json_text *out) {
    json_text_format(out, "\"tool_calls\":[{\"index\":%llu", (unsigned long long)tokens->call);
    if (tokens->call_name.length > 0) {
        ADD_LITERAL(out, ",");
        add_call_id(ts, tokens->choice, tokens->call, out);
    }
    ADD_LITERAL(out, ",\"function\":{");
    if (tokens->call_name.length > 0) {
        ADD_LITERAL(out, "\"name\":");
        json_text_string(out, tokens->call_name.bytes, tokens->call_name.length);
        ADD_LITERAL(out, ",");
    }
    ADD_LITERAL(out, "\"arguments\":");
    json_text_string(out, tokens->text.bytes, tokens->text.length);
    ADD_LITERAL(out, "}}]");
}

static bool is_of_call(const wire_tokens *tokens) {
    return tokens->channel == WIRE_TOOL_CALL &&
           (tokens->text.length > 0 || tokens->call_name.length > 0);
}

static void add_text(const token_stream *ts, const wire_tokens *tokens, json_text *out) {
    begin_chunk(ts, tokens->choice, out);
    if (is_of_call(tokens)) {
        add_call(ts, tokens, out);
    } else {
        if (tokens->channel == WIRE_REASONING)
            ADD_LITERAL(out, "\"reasoning_content\":");
        else
            ADD_LITERAL(out, "\"content\":");
        json_text_string(out, tokens->text.bytes, tokens->text.length);
    }
    ADD_LITERAL(out, "},");
    if (tokens->logprobs.length > 0) {
        ADD_LITERAL(out, "\"logprobs\":{\"content\":");
        json_text_add(out, tokens->logprobs.bytes, tokens->logprobs.length);
        ADD_LITERAL(out, "},");
    }
    ADD_LITERAL(out, "\"finish_reason\":null}]}\n\n");
}

/* What a client must know of a call that it cannot make. */
static void add_cut_call(const token_choice *choice, json_text *out) {
    if (!choice->call_cut) return;
    json_text_format(out,
                     ",\"error\":{\"type\":\"incomplete_tool_call\",\"code\":\"tool_call_cut\","
                     "\"message\":\"a tool call is not complete: %s\",\"index\":%llu}",
                     choice->finish == WIRE_FINISH_LENGTH
                         ? "the limit of tokens came first"
                         : "the text ended within its arguments",
                     (unsigned long long)choice->cut_call);
}

static void begin_finish(const token_stream *ts, uint64_t choice, json_text *out) {
    begin_chunk(ts, choice, out);
    json_text_format(out, "},\"finish_reason\":\"%s\"",
                     token_stream_finish_name(ts->choices[choice].finish));
    add_cut_call(&ts->choices[choice], out);
    ADD_LITERAL(out, "}]");
}

static bool all_finished(const token_stream *ts) {
    for (size_t i = 0; i < ts->n_choices; i++) {
        if (ts->choices[i].finish == WIRE_FINISH_NONE) return false;
    }
    return true;
}

static void stream_tokens(token_stream *ts, const wire_tokens *tokens, json_text *out) {
    token_choice *choice = &ts->choices[tokens->choice];
    if (!choice->begun) {
        choice->begun = true;
        add_role(ts, tokens->choice, out);
    }
    if (tokens->text.length > 0 || tokens->call_name.length > 0 || tokens->logprobs.length > 0)
        add_text(ts, tokens, out);
    if (tokens->finish == WIRE_FINISH_NONE) return;
    if (all_finished(ts)) {
        ts->last_choice =
            tokens->choice; /* its end waits for the figures, see finish_stream() */
    } else {
        begin_finish(ts, tokens->choice, out);
        ADD_LITERAL(out, "}\n\n");
    }
}

/* ------------------------------------------------------------ gathering */

/* Room for the next call; false without memory. */
static bool grow_tools(token_choice *choice) {
    if (choice->n_tools < choice->cap_tools) return true;
    size_t cap = choice->cap_tools == 0 ? 4 : 2 * choice->cap_tools;
    token_tool *grown = realloc(choice->tools, cap * sizeof *grown);
    if (grown == NULL) return false;
    memset(grown + choice->cap_tools, 0, (cap - choice->cap_tools) * sizeof *grown);
    choice->tools = grown;
    choice->cap_tools = cap;
    return true;
}

static void gather(token_choice *choice, const wire_tokens *tokens) {
    json_text *into = tokens->channel == WIRE_REASONING ? &choice->reasoning : &choice->content;
    if (is_of_call(tokens)) {
        token_tool *tool = &choice->tools[tokens->call];
        if (tokens->call_name.length > 0)
            json_text_add(&tool->name, tokens->call_name.bytes, tokens->call_name.length);
        into = &tool->arguments;
    }
    if (tokens->text.length > 0) json_text_add(into, tokens->text.bytes, tokens->text.length);
    if (tokens->logprobs.length > 0) {
        if (choice->logprobs.length > 0) ADD_LITERAL(&choice->logprobs, ",");
        json_text_add(&choice->logprobs, tokens->logprobs.bytes + 1,
                      tokens->logprobs.length - 2);
    }
}

/* Calls come one after the other, from 0. */
static status take_call(token_stream *ts, token_choice *choice, const wire_tokens *tokens,
                        error *err) {
    bool begins = tokens->call_name.length > 0;
    size_t expected = begins ? choice->n_tools : choice->n_tools - 1;
    if (!is_of_call(tokens)) return STATUS_OK;
    if ((choice->n_tools == 0 && !begins) || tokens->call != expected) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.call: %llu where %zu have begun",
                         (unsigned long long)tokens->call, choice->n_tools);
    }
    if (!begins) return STATUS_OK;
    if (!ts->streaming && !grow_tools(choice))
        return error_set(err, STATUS_NO_MEMORY, "no memory for a tool call");
    choice->n_tools++;
    return STATUS_OK;
}

status token_stream_add(token_stream *ts, const wire_tokens *tokens, json_text *out,
                        error *err) {
    if (tokens->choice >= ts->n_choices) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu of %zu",
                         (unsigned long long)tokens->choice, ts->n_choices);
    }
    const wire_bytes *logprobs = &tokens->logprobs;
    if (logprobs->length > 0 && (logprobs->length < 2 || logprobs->bytes[0] != '[' ||
                                 logprobs->bytes[logprobs->length - 1] != ']')) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.logprobs: is no JSON array");
    }
    token_choice *choice = &ts->choices[tokens->choice];
    if (choice->finish != WIRE_FINISH_NONE) {
        return error_set(err, STATUS_BAD_INPUT, "tokens.choice: %llu goes on after its end",
                         (unsigned long long)tokens->choice);
    }
    wire_tokens fresh = *tokens;
    if (choice->ends_again) fresh.text = fresh.logprobs = fresh.call_name = wire_text(NULL, 0);
    status rc = take_call(ts, choice, &fresh, err);
    if (rc != STATUS_OK) return rc;
    choice->finish = tokens->finish;
    choice->call_cut = (tokens->flags & WIRE_FLAG_CALL_CUT) != 0;
    choice->cut_call = tokens->call;
    choice->thinking_cut |= (tokens->flags & WIRE_FLAG_THINKING_CUT) != 0;
    if (ts->streaming)
        stream_tokens(ts, &fresh, out);
    else
        gather(choice, &fresh);
    return STATUS_OK;
}

/* ------------------------------------------------------------ the end */

void token_stream_usage(const wire_done *done, json_text *out) {
    json_text_format(
        out,
        "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%llu},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
        (unsigned long long)done->prompt_tokens, (unsigned long long)done->completion_tokens,
        (unsigned long long)done->prompt_tokens + (unsigned long long)done->completion_tokens,
        (unsigned long long)done->cached_tokens, (unsigned long long)done->reasoning_tokens);
}

static double per_second(double tokens, double ms) {
    return ms > 0 ? tokens * 1000.0 / ms : 0.0;
}

const char *token_stream_thinking(const token_stream *ts, const wire_done *done) {
    bool cut = false;
    for (size_t i = 0; i < ts->n_choices; i++)
        cut |= ts->choices[i].thinking_cut;
    if (cut) return "cut";
    return done->reasoning_tokens > 0 ? "complete" : NULL;
}

/* `timings` as llama.cpp's server names them, and what only this system knows. */
void token_stream_timings(const wire_done *done, const token_stream_facts *facts,
                          const char *thinking, json_text *out) {
    double prompt_n = (double)(done->prompt_tokens - (done->cached_tokens < done->prompt_tokens
                                                          ? done->cached_tokens
                                                          : done->prompt_tokens));
    double predicted_n = (double)done->completion_tokens;
    json_text_format(out,
                     "\"timings\":{\"cache_n\":%llu,\"prompt_n\":%.0f,\"prompt_ms\":%.3f,"
                     "\"prompt_per_second\":%.3f,\"predicted_n\":%.0f,\"predicted_ms\":%.3f,"
                     "\"predicted_per_second\":%.3f},",
                     (unsigned long long)done->cached_tokens, prompt_n, done->prefill_ms,
                     per_second(prompt_n, done->prefill_ms), predicted_n, done->decode_ms,
                     per_second(predicted_n, done->decode_ms));
    ADD_LITERAL(out, "\"siliceo\":{\"node\":");
    json_text_string(out, facts->node, strlen(facts->node));
    json_text_format(out,
                     ",\"queue_ms\":%.3f,\"node_queue_ms\":%.3f,\"first_token_ms\":%.3f,"
                     "\"attempts\":%u",
                     facts->queue_ms, done->queue_ms, facts->first_token_ms, facts->attempts);
    if (thinking != NULL) json_text_format(out, ",\"thinking\":\"%s\"", thinking);
    if (facts->resumed != NULL) json_text_format(out, ",\"resumed\":\"%s\"", facts->resumed);
    if (done->hit_rate >= 0) {
        json_text_format(out, ",\"hit_rate\":%.4f,\"misses_per_token\":%.3f", done->hit_rate,
                         done->misses_per_token);
    } else {
        ADD_LITERAL(out, ",\"hit_rate\":null,\"misses_per_token\":null");
    }
    ADD_LITERAL(out, "}");
}

/* The end of the last choice carries the timings, because a chunk without
 * choices may only come when usage was asked for. */
static void finish_stream(token_stream *ts, const wire_done *done,
                          const token_stream_facts *facts, json_text *out) {
    begin_finish(ts, ts->last_choice, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, token_stream_thinking(ts, done), out);
    ADD_LITERAL(out, "}\n\n");
    if (ts->include_usage) {
        ADD_LITERAL(out, "data: ");
        json_text_add(out, ts->head, ts->n_head);
        ADD_LITERAL(out, ",\"choices\":[],");
        token_stream_usage(done, out);
        ADD_LITERAL(out, "}\n\n");
    }
    ADD_LITERAL(out, "data: [DONE]\n\n");
}

/* Complete calls only: a half one must not look like a whole one. */
static size_t count_whole_calls(const token_stream *ts, const token_choice *choice) {
    if (ts->streaming || choice->n_tools == 0) return 0;
    bool cut = choice->call_cut && choice->cut_call < choice->n_tools;
    return cut ? (size_t)choice->cut_call : choice->n_tools;
}

static void add_calls(const token_stream *ts, size_t index, size_t n_calls, json_text *out) {
    const token_choice *choice = &ts->choices[index];
    for (size_t i = 0; i < n_calls; i++) {
        const token_tool *tool = &choice->tools[i];
        out->failed |= tool->name.failed || tool->arguments.failed;
        json_text_format(out, "%s{", i > 0 ? "," : ",\"tool_calls\":[");
        add_call_id(ts, index, i, out);
        ADD_LITERAL(out, ",\"function\":{\"name\":");
        json_text_string(out, tool->name.bytes, tool->name.length);
        ADD_LITERAL(out, ",\"arguments\":");
        json_text_string(out, tool->arguments.bytes, tool->arguments.length);
        ADD_LITERAL(out, "}}");
    }
    if (n_calls > 0) ADD_LITERAL(out, "]");
}

static void add_message(const token_stream *ts, size_t index, json_text *out) {
    const token_choice *choice = &ts->choices[index];
    size_t n_calls = count_whole_calls(ts, choice);
    json_text_format(out, "%s{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":",
                     index > 0 ? "," : "", index);
    if (choice->content.length == 0 && n_calls > 0) {
        ADD_LITERAL(out, "null");
    } else {
        json_text_string(out, choice->content.length > 0 ? choice->content.bytes : "",
                         choice->content.length);
    }
    if (choice->reasoning.length > 0) {
        ADD_LITERAL(out, ",\"reasoning_content\":");
        json_text_string(out, choice->reasoning.bytes, choice->reasoning.length);
    }
    add_calls(ts, index, n_calls, out);
    ADD_LITERAL(out, "},");
    if (choice->logprobs.length > 0) {
        ADD_LITERAL(out, "\"logprobs\":{\"content\":[");
        json_text_add(out, choice->logprobs.bytes, choice->logprobs.length);
        ADD_LITERAL(out, "]},");
    }
    json_text_format(out, "\"finish_reason\":\"%s\"", token_stream_finish_name(choice->finish));
    add_cut_call(choice, out);
    ADD_LITERAL(out, "}");
}

static void finish_whole(token_stream *ts, const wire_done *done,
                         const token_stream_facts *facts, json_text *out) {
    json_text_add(out, ts->head, ts->n_head);
    ADD_LITERAL(out, ",\"choices\":[");
    for (size_t i = 0; i < ts->n_choices; i++) {
        const token_choice *choice = &ts->choices[i];
        if (choice->content.failed || choice->reasoning.failed || choice->logprobs.failed) {
            out->failed = true; /* the reply would lack a part */
        }
        add_message(ts, i, out);
    }
    ADD_LITERAL(out, "],");
    token_stream_usage(done, out);
    ADD_LITERAL(out, ",");
    token_stream_timings(done, facts, token_stream_thinking(ts, done), out);
    ADD_LITERAL(out, "}");
}

void token_stream_finish(token_stream *ts, const wire_done *done,
                         const token_stream_facts *facts, json_text *out) {
    if (ts->streaming)
        finish_stream(ts, done, facts, out);
    else
        finish_whole(ts, done, facts, out);
}

void token_stream_fail(const char *error_json, json_text *out) {
    ADD_LITERAL(out, "data: ");
    json_text_add(out, error_json, strlen(error_json));
    ADD_LITERAL(out, "\n\n");
}

void token_stream_keepalive(json_text *out) {
    ADD_LITERAL(out, ": keepalive\n\n");
}
