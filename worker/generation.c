#include "worker/generation.h"

#include <string.h>

enum { FIRST_BYTES = 1024 }; /* longer than a token's text and what is held back, mostly */

/* Grow a buffer now, so that the token loop need not; false without memory. */
static bool reserve(json_text *text) {
    static const char zeros[FIRST_BYTES];
    json_text_add(text, zeros, sizeof zeros);
    bool grown = !text->failed;
    json_text_clear(text);
    return grown;
}

status generation_init(generation *g, const tokenizer *vocab, bool splits, bool starts_inside,
                       const stop_string *stops, size_t n_stops, error *err) {
    memset(g, 0, sizeof *g);
    g->vocab = vocab;
    g->splits = splits;
    g->channel = splits && starts_inside ? WIRE_REASONING : WIRE_CONTENT;
    thinking_init(&g->split, splits && starts_inside, tokenizer_find(vocab, "<think>"),
                  tokenizer_find(vocab, "</think>"));
    markdown_init(&g->marks);
    status rc = stop_match_open(&g->stop, stops, n_stops, err);
    if (rc != STATUS_OK) return rc;
    json_text *texts[] = {&g->reasoning, &g->content, &g->raw_reasoning, &g->raw_content,
                          &g->unstopped};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (reserve(texts[i])) continue;
        generation_release(g);
        return error_set(err, STATUS_NO_MEMORY, "generation: no memory for its text");
    }
    return STATUS_OK;
}

void generation_release(generation *g) {
    json_text_release(&g->reasoning);
    json_text_release(&g->content);
    json_text_release(&g->raw_reasoning);
    json_text_release(&g->raw_content);
    json_text_release(&g->unstopped);
    stop_match_close(g->stop);
    tool_call_release(&g->calls);
    memset(g, 0, sizeof *g);
}

static void note_failures(generation *g) {
    g->failed |= g->reasoning.failed || g->content.failed || g->raw_reasoning.failed ||
                 g->raw_content.failed || g->unstopped.failed || g->calls.failed;
}

/* Content from `from` on is divided: text stays, calls are in g->calls. */
static void take_calls(generation *g, size_t from, bool ends, bool cut) {
    tool_call *t = &g->calls;
    if (!g->divides || g->content.failed) return;
    size_t first = t->n_pieces;
    tool_call_push(t, g->content.bytes + from, g->content.length - from);
    if (ends) tool_call_finish(t, !cut);
    g->content.length = from;
    g->content.bytes[from] = '\0';
    for (size_t i = first; i < t->n_pieces; i++) {
        const tool_piece *p = &t->pieces[i];
        if (p->kind == TOOL_TEXT) json_text_add(&g->content, t->out.bytes + p->at, p->length);
    }
}

void generation_divide(generation *g, const cJSON *tools, bool single) {
    tool_call_init(&g->calls, tools, single);
    g->divides = true;
}

/* The raw texts of this push go on to the reader. */
static void show(generation *g) {
    utf8_stream_push(&g->reasoning_stream, g->raw_reasoning.bytes, g->raw_reasoning.length,
                     &g->reasoning);
    if (!g->splits || !g->split.inside) {
        utf8_stream_finish(&g->reasoning_stream, &g->reasoning);
    }
    json_text_clear(&g->unstopped);
    int stop =
        stop_match_push(g->stop, g->raw_content.bytes, g->raw_content.length, &g->unstopped);
    if (stop >= 0) {
        g->stopped = true;
        g->stop_number = (uint32_t)stop;
    }
    utf8_stream_push(&g->content_stream, g->unstopped.bytes, g->unstopped.length, &g->content);
    take_calls(g, 0, false, false);
    if (g->calls.over && !g->stopped) {
        g->stopped = true;
        g->stop_number = UINT32_MAX;
    }
    note_failures(g);
}

void generation_push(generation *g, int32_t id) {
    json_text_clear(&g->reasoning);
    json_text_clear(&g->content);
    json_text_clear(&g->raw_reasoning);
    json_text_clear(&g->raw_content);
    tool_call_clear(&g->calls);
    size_t length = 0;
    const char *bytes = tokenizer_bytes(g->vocab, id, &length);
    if (tokenizer_kind(g->vocab, id) == TOKEN_CONTROL) length = 0;
    g->channel = g->splits && g->split.inside ? WIRE_REASONING : WIRE_CONTENT;
    g->n_tokens++;
    g->n_reasoning += g->channel == WIRE_REASONING;
    if (g->splits) {
        thinking_push(&g->split, id, bytes, length, &g->raw_reasoning, &g->raw_content);
    } else {
        json_text_add(&g->raw_content, bytes, length);
    }
    show(g);
    if (g->repairs) markdown_push(&g->marks, g->content.bytes, g->content.length);
    if (g->calls.open) g->channel = WIRE_TOOL_CALL;
}

void generation_finish(generation *g, bool cut) {
    size_t n_followed = g->content.length;
    json_text_clear(&g->raw_reasoning);
    json_text_clear(&g->unstopped);
    if (g->splits) thinking_finish(&g->split, &g->raw_reasoning);
    utf8_stream_push(&g->reasoning_stream, g->raw_reasoning.bytes, g->raw_reasoning.length,
                     &g->reasoning);
    utf8_stream_finish(&g->reasoning_stream, &g->reasoning);
    stop_match_finish(g->stop, &g->unstopped);
    utf8_stream_push(&g->content_stream, g->unstopped.bytes, g->unstopped.length, &g->content);
    utf8_stream_finish(&g->content_stream, &g->content);
    take_calls(g, n_followed, true, cut || (g->stopped && !g->calls.over));
    if (g->repairs && !g->stopped && g->channel != WIRE_TOOL_CALL && !g->content.failed) {
        markdown_push(&g->marks, g->content.bytes + n_followed, g->content.length - n_followed);
        markdown_finish(&g->marks, cut, &g->content);
    }
    note_failures(g);
}

bool generation_is_inside(const generation *g) {
    return g->splits && g->split.inside;
}
