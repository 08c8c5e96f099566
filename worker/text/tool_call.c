/* tool_call.c - a machine that eats from a short buffer of undecided bytes: each step looks
 * at what is held, takes a part of it and perhaps changes the state, or waits for more. */
#include "worker/text/tool_call.h"

#include "worker/text/tool_call_parts.h"
#include "worker/text/tool_schema.h"
#include <stdlib.h>
#include <string.h>

#define ADD_LITERAL(t, literal) tool_call_arguments((t), (literal), sizeof(literal) - 1)

static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>";
static const char function_open[] = "<function=", function_close[] = "</function>";
static const char parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

enum { MAX_BLANKS = 256 }; /* between two tags */

/* --- words --- */

typedef enum match { NO, PARTIAL, YES } match;

static match match_word(const char *text, size_t n, const char *word) {
    size_t length = strlen(word);
    if (memcmp(text, word, n < length ? n : length) != 0) return NO;
    return n < length ? PARTIAL : YES;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t count_blanks(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && is_blank(text[i]))
        i++;
    return i;
}

/* Blanks and then one of the words. */
static match match_after_blanks(const char *text, size_t n, const char *const *words,
                                size_t n_words) {
    size_t blanks = count_blanks(text, n);
    if (blanks > MAX_BLANKS) return NO;
    match best = NO;
    for (size_t i = 0; i < n_words; i++) {
        match m = match_word(text + blanks, n - blanks, words[i]);
        if (m > best) best = m;
    }
    return best;
}

/* --- life --- */

void tool_call_init(tool_call *t, const cJSON *tools, bool single) {
    *t = (tool_call){.tools = tools, .single = single, .line_begins = true};
}

void tool_call_release(tool_call *t) {
    free(t->pieces);
    json_text *texts[] = {&t->out, &t->held, &t->name,   &t->value,
                          &t->key, &t->keys, &t->scratch};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        json_text_release(texts[i]);
    memset(t, 0, sizeof *t);
}

void tool_call_clear(tool_call *t) {
    t->n_pieces = 0;
    json_text_clear(&t->out);
}

/* --- what goes out --- */

static tool_piece *add_piece(tool_call *t, tool_piece_kind kind) {
    if (t->pieces == NULL || t->n_pieces == t->cap_pieces) {
        size_t cap = t->cap_pieces == 0 ? 8 : 2 * t->cap_pieces;
        tool_piece *grown = realloc(t->pieces, cap * sizeof *grown);
        if (grown == NULL) return NULL;
        t->pieces = grown;
        t->cap_pieces = cap;
    }
    tool_piece *p = &t->pieces[t->n_pieces++];
    *p = (tool_piece){.kind = kind, .call = t->n_calls, .at = t->out.length};
    return p;
}

static void emit(tool_call *t, tool_piece_kind kind, const char *bytes, size_t length) {
    if (length == 0) return;
    tool_piece *last = t->n_pieces > 0 ? &t->pieces[t->n_pieces - 1] : NULL;
    bool joins = last != NULL && last->kind == kind && last->call == t->n_calls;
    if (!joins) last = add_piece(t, kind);
    if (last == NULL) {
        t->failed = true;
        return;
    }
    json_text_add(&t->out, bytes, length);
    last->length += length;
    t->failed |= t->out.failed;
}

void tool_call_arguments(tool_call *t, const char *bytes, size_t length) {
    emit(t, TOOL_ARGUMENTS, bytes, length);
}

static void add_text(tool_call *t, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '\n')
            t->line_begins = true;
        else if (!is_blank(bytes[i]))
            t->line_begins = false;
    }
    emit(t, TOOL_TEXT, bytes, length);
}

void tool_call_begin(tool_call *t) {
    (void)tool_schema_find(t->tools, t->name.bytes, t->name.length, &t->parameters);
    t->open = true;
    t->n_keys = 0;
    json_text_clear(&t->keys);
    emit(t, TOOL_BEGIN, t->name.bytes, t->name.length);
}

/* The last brace makes the arguments parse: it comes only here. */
static void end_call(tool_call *t) {
    if (t->n_keys == 0) ADD_LITERAL(t, "{");
    ADD_LITERAL(t, "}");
    t->open = false;
    t->n_calls++;
    t->state = TOOL_AFTER;
    t->over = t->single || t->n_calls == TOOL_CALL_MAX_CALLS;
}

/* --- the values of parameters --- */

enum { VALUE_TEXT, VALUE_GATHERED, VALUE_DROPPED };

static bool key_is_new(const tool_call *t, const char *key, size_t n) {
    const char *at = t->keys.bytes;
    for (size_t left = t->keys.length; left > 0;) {
        size_t length = strnlen(at, left);
        if (length == n && memcmp(at, key, n) == 0) return false;
        at += length + 1;
        left -= length + 1;
    }
    return t->n_keys < TOOL_CALL_MAX_PARAMETERS;
}

/* A string's bytes, escaped, without the quotes. */
static void add_escaped(tool_call *t, const char *bytes, size_t length) {
    if (length == 0) return;
    json_text_clear(&t->scratch);
    json_text_string(&t->scratch, bytes, length);
    t->failed |= t->scratch.failed;
    if (!t->scratch.failed) tool_call_arguments(t, t->scratch.bytes + 1, t->scratch.length - 2);
}

static void begin_value(tool_call *t) {
    const char *key = t->key.bytes;
    size_t n = t->key.length;
    t->state = TOOL_IN_VALUE;
    t->value_begins = true;
    t->value_mode = VALUE_DROPPED;
    json_text_clear(&t->value);
    if (n == 0 || !key_is_new(t, key, n)) return;
    json_text_add(&t->keys, key, n);
    json_text_add(&t->keys, "", 1);
    tool_call_arguments(t, t->n_keys++ == 0 ? "{\"" : ",\"", 2);
    add_escaped(t, key, n);
    ADD_LITERAL(t, "\":");
    t->types = tool_schema_types(t->parameters, key, n);
    t->value_mode = t->types == TOOL_STRING ? VALUE_TEXT : VALUE_GATHERED;
    if (t->value_mode == VALUE_TEXT) ADD_LITERAL(t, "\"");
}

static void add_value(tool_call *t, const char *bytes, size_t length) {
    if (length == 0) return;
    t->value_begins = false;
    if (t->value_mode == VALUE_TEXT) add_escaped(t, bytes, length);
    if (t->value_mode != VALUE_GATHERED) return;
    json_text_add(&t->value, bytes, length);
    if (t->value.length <= TOOL_CALL_MAX_VALUE) return;
    ADD_LITERAL(t, "\"");
    add_escaped(t, t->value.bytes, t->value.length);
    json_text_clear(&t->value);
    t->value_mode = VALUE_TEXT;
}

static void end_value(tool_call *t) {
    if (t->value_mode == VALUE_TEXT) ADD_LITERAL(t, "\"");
    if (t->value_mode == VALUE_GATHERED) {
        json_text_clear(&t->scratch);
        tool_schema_value(&t->scratch, t->types, t->value.length > 0 ? t->value.bytes : "",
                          t->value.length);
        t->failed |= t->value.failed || t->scratch.failed;
        tool_call_arguments(t, t->scratch.bytes, t->scratch.length);
    }
    t->state = TOOL_IN_BODY;
}

/* --- the end of a value --- */

/* Another parameter of the schema begins: the closing tag before it was forgotten. */
static match match_next_parameter(const tool_call *t, const char *text, size_t n) {
    static const size_t begin = sizeof parameter_open - 1;
    match m = match_word(text, n, parameter_open);
    if (m != YES) return m;
    size_t most = n - begin < TOOL_CALL_MAX_NAME ? n - begin : TOOL_CALL_MAX_NAME;
    const char *end = memchr(text + begin, '>', most);
    if (end == NULL) return n - begin > TOOL_CALL_MAX_NAME ? NO : PARTIAL;
    size_t n_key = (size_t)(end - text) - begin;
    return tool_schema_has(t->parameters, text + begin, n_key) &&
                   key_is_new(t, text + begin, n_key)
               ? YES
               : NO;
}

/* Does the value end here, at a '<' or the line feed before it?  *length is what belongs to
 * the end.  final: no more comes, so that nothing has to follow. */
static match match_end(const tool_call *t, const char *text, size_t n, bool final,
                       size_t *length) {
    static const char *const follows_parameter[] = {
        parameter_open, function_close, call_close, parameter_close, call_open, function_open};
    static const char *const follows_function[] = {call_close, call_open, function_close};
    static const char *const follows_call[] = {call_open, call_close};
    size_t lf = text[0] == '\n' ? 1 : 0;
    const char *at = text + lf;
    size_t left = n - lf;
    match wait = final ? NO : PARTIAL;
    if (left == 0) return wait;
    if (at[0] != '<') return NO;
    *length = lf;
    const struct {
        const char *word;
        const char *const *follows;
        size_t n_follows;
        size_t takes;
    } ends[] = {{parameter_close, follows_parameter, 6, sizeof parameter_close - 1},
                {function_close, follows_function, 3, 0},
                {call_close, follows_call, 2, 0}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        match m = match_word(at, left, ends[i].word);
        if (m == PARTIAL) return wait;
        if (m == NO) continue;
        size_t word = strlen(ends[i].word);
        *length += ends[i].takes;
        m = match_after_blanks(at + word, left - word, ends[i].follows, ends[i].n_follows);
        return m == PARTIAL && final ? YES : m;
    }
    match m = lf > 0 ? match_next_parameter(t, at, left) : NO;
    return m == PARTIAL ? wait : m;
}

/* --- steps: how many bytes of the held ones are done; 0: wait for more --- */

/* A tag that opens a call: the blanks before it belong to it. */
static match match_opening(tool_call *t, const char *text, size_t n, bool line_begins,
                           size_t *length) {
    static const size_t begin = sizeof function_open - 1;
    match m = match_word(text, n, call_open);
    *length = sizeof call_open - 1;
    if (m != NO || !line_begins) return m;
    m = match_word(text, n, function_open);
    if (m != YES) return m;
    size_t most = n - begin < TOOL_CALL_MAX_NAME ? n - begin : TOOL_CALL_MAX_NAME;
    const char *end = memchr(text + begin, '>', most);
    if (end == NULL) return n - begin > TOOL_CALL_MAX_NAME ? NO : PARTIAL;
    *length = 0;
    const cJSON *parameters;
    return tool_schema_find(t->tools, text + begin, (size_t)(end - text) - begin, &parameters)
               ? YES
               : NO;
}

static size_t step_text(tool_call *t, const char *text, size_t n) {
    size_t plain = 0;
    while (plain < n && text[plain] != '<' && !is_blank(text[plain]))
        plain++;
    if (plain > 0) {
        add_text(t, text, plain);
        return plain;
    }
    size_t blanks = count_blanks(text, n), tag = 0;
    bool line_begins = t->line_begins || memchr(text, '\n', blanks) != NULL;
    match m = blanks > MAX_BLANKS ? NO
              : blanks == n       ? PARTIAL
              : text[blanks] != '<'
                  ? NO
                  : match_opening(t, text + blanks, n - blanks, line_begins, &tag);
    if (m == PARTIAL) return 0;
    if (m == YES) {
        t->tagged = tag > 0;
        t->state = TOOL_OPENED;
        /* What is found to be no call is shown with the blanks before it. */
        json_text_clear(&t->value);
        json_text_add(&t->value, text, blanks + tag);
        return blanks + tag > 0 ? blanks + tag : SIZE_MAX;
    }
    /* Of very many blanks the last MAX_BLANKS may yet belong to a tag. */
    size_t shown = blanks == 0 || blanks > MAX_BLANKS ? 1 : blanks;
    add_text(t, text, shown);
    return shown;
}

/* What looked like a call is shown as it was written. */
static void give_up(tool_call *t) {
    t->failed |= t->value.failed;
    add_text(t, t->value.bytes, t->value.length);
    json_text_clear(&t->value);
    t->state = TOOL_IN_TEXT;
}

static size_t step_opened(tool_call *t, const char *text, size_t n) {
    size_t blanks = count_blanks(text, n);
    const char *at = text + blanks;
    size_t left = n - blanks;
    if (blanks > MAX_BLANKS) {
        give_up(t);
        return SIZE_MAX;
    }
    if (left == 0) return 0;
    match function = match_word(at, left, function_open);
    match again = match_word(at, left, call_open);
    if (function == PARTIAL || again == PARTIAL) return 0;
    size_t taken = 0;
    if (function == YES) {
        taken = blanks + sizeof function_open - 1;
        t->state = TOOL_IN_NAME;
    } else if (again == YES) {
        taken = blanks + sizeof call_open - 1;
    } else if (at[0] == '{') {
        taken = blanks;
        t->state = TOOL_IN_JSON;
        tool_call_json_begin(t);
    } else {
        give_up(t);
        return SIZE_MAX;
    }
    json_text_add(&t->value, text, taken);
    if (t->value.length > TOOL_CALL_MAX_VALUE) give_up(t);
    return taken > 0 ? taken : SIZE_MAX;
}

static void trim_name(json_text *out, const char *text, size_t n) {
    while (n > 0 && (is_blank(text[0]) || text[0] == '"' || text[0] == '\'')) {
        text++;
        n--;
    }
    while (n > 0 && (is_blank(text[n - 1]) || text[n - 1] == '"' || text[n - 1] == '\''))
        n--;
    json_text_clear(out);
    json_text_add(out, text, n);
}

/* NAME> with few bytes and none that a name cannot have; *length is that of NAME. */
static match match_name(const char *text, size_t n, size_t *length) {
    size_t i = 0;
    while (i < n && i <= TOOL_CALL_MAX_NAME && text[i] != '>' && text[i] != '<' &&
           text[i] != '\n') {
        i++;
    }
    *length = i;
    if (i > TOOL_CALL_MAX_NAME) return NO;
    if (i == n) return PARTIAL;
    return text[i] == '>' ? YES : NO;
}

static size_t step_name(tool_call *t, const char *text, size_t n) {
    size_t length = 0;
    match m = match_name(text, n, &length);
    if (m == PARTIAL) return 0;
    if (m == YES) trim_name(&t->name, text, length);
    if (m == NO || t->name.length == 0) {
        give_up(t);
        return SIZE_MAX;
    }
    tool_call_begin(t);
    json_text_clear(&t->value);
    t->state = TOOL_IN_BODY;
    return length + 1;
}

static size_t step_body(tool_call *t, const char *text, size_t n) {
    size_t blanks = count_blanks(text, n);
    if (blanks > 0) return blanks;
    if (text[0] == '{' && t->n_keys == 0) {
        t->state = TOOL_IN_JSON;
        json_text_clear(&t->value);
        tool_call_json_begin(t);
        return SIZE_MAX;
    }
    if (text[0] != '<') return 1; /* nothing that a call has between its parameters */
    static const char *const tags[] = {parameter_open, function_close, call_close,
                                       call_open,      function_open,  parameter_close};
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        match m = match_word(text, n, tags[i]);
        if (m == PARTIAL) return 0;
        if (m == NO) continue;
        if (tags[i] == parameter_close) return sizeof parameter_close - 1;
        if (tags[i] == parameter_open) {
            t->state = TOOL_IN_KEY;
            return sizeof parameter_open - 1;
        }
        end_call(t);
        return tags[i] == function_close ? sizeof function_close - 1 : SIZE_MAX;
    }
    return 1;
}

static size_t step_key(tool_call *t, const char *text, size_t n) {
    size_t length = 0;
    match m = match_name(text, n, &length);
    if (m == PARTIAL) return 0;
    if (m == NO) {
        t->state = TOOL_IN_BODY;
        return SIZE_MAX;
    }
    trim_name(&t->key, text, length);
    begin_value(t);
    return length + 1;
}

static size_t step_value(tool_call *t, const char *text, size_t n, bool final) {
    size_t plain = 0, length = 0;
    while (plain < n && text[plain] != '<' && text[plain] != '\n')
        plain++;
    if (plain > 0) {
        add_value(t, text, plain);
        return plain;
    }
    if (t->value_begins && text[0] == '\n') {
        t->value_begins = false;
        return 1;
    }
    match m = match_end(t, text, n, final, &length);
    if (m == PARTIAL) return 0;
    if (m == YES) {
        end_value(t);
        return length > 0 ? length : SIZE_MAX;
    }
    add_value(t, text, 1);
    return 1;
}

/* Arguments that do not parse: the call cannot be completed, and stays open. */
static void fail_json(tool_call *t) {
    if (t->open)
        t->over = t->cut = true;
    else
        give_up(t);
}

static void end_json(tool_call *t) {
    if (tool_call_json_end(t))
        end_call(t);
    else
        fail_json(t);
}

static size_t step_json(tool_call *t, const char *text, size_t n) {
    size_t i = 0;
    bool closed = false;
    match m = NO;
    while (i < n && !closed) {
        if (!t->in_string && text[i] == '<') m = match_word(text + i, n - i, call_close);
        if (!t->in_string && text[i] == '<' && m != NO) break;
        closed = tool_call_json_byte(t, text[i++]);
    }
    json_text_add(&t->value, text, i);
    if (!closed && i < n && m == YES) closed = true; /* its own brackets were forgotten */
    if (closed)
        end_json(t);
    else if (t->value.length > TOOL_CALL_MAX_VALUE)
        fail_json(t);
    else
        return i;
    return i > 0 ? i : SIZE_MAX;
}

static size_t step_after(tool_call *t, const char *text, size_t n) {
    static const char *const closings[] = {call_close, function_close, parameter_close};
    size_t blanks = count_blanks(text, n);
    if (blanks > 0) return blanks;
    for (size_t i = 0; i < sizeof closings / sizeof closings[0]; i++) {
        match m = match_word(text, n, closings[i]);
        if (m == PARTIAL) return 0;
        if (m == YES) return strlen(closings[i]);
    }
    t->line_begins = true;
    t->state = TOOL_IN_TEXT;
    return SIZE_MAX;
}

/* SIZE_MAX: the state has changed, and no byte is done yet. */
static size_t step(tool_call *t, const char *text, size_t n, bool final) {
    switch (t->state) {
    case TOOL_IN_TEXT:
        return step_text(t, text, n);
    case TOOL_OPENED:
        return step_opened(t, text, n);
    case TOOL_IN_NAME:
        return step_name(t, text, n);
    case TOOL_IN_BODY:
        return step_body(t, text, n);
    case TOOL_IN_KEY:
        return step_key(t, text, n);
    case TOOL_IN_VALUE:
        return step_value(t, text, n, final);
    case TOOL_IN_JSON:
        return step_json(t, text, n);
    case TOOL_AFTER:
        break;
    }
    return step_after(t, text, n);
}

static void run(tool_call *t, bool final) {
    while (!t->over && !t->held.failed && t->done < t->held.length) {
        size_t taken = step(t, t->held.bytes + t->done, t->held.length - t->done, final);
        if (taken == 0) break;
        if (taken != SIZE_MAX) t->done += taken;
    }
    t->failed |= t->held.failed || t->name.failed || t->key.failed || t->keys.failed;
}

void tool_call_push(tool_call *t, const char *text, size_t length) {
    if (t->over) return;
    if (t->done > 0) { /* what is left is short */
        size_t left = t->held.length - t->done;
        memmove(t->held.bytes, t->held.bytes + t->done, left);
        t->held.length = left;
        t->done = 0;
    }
    json_text_add(&t->held, text, length);
    run(t, false);
}

/* --- the end --- */

static void show_rest(tool_call *t) {
    size_t left = t->held.length - t->done;
    if (left > 0) add_text(t, t->held.bytes + t->done, left);
    t->done = t->held.length;
}

void tool_call_finish(tool_call *t, bool natural) {
    if (t->over) return;
    t->over = true;
    if (!natural && t->state != TOOL_IN_TEXT && t->state != TOOL_AFTER) {
        t->cut = true;
        return;
    }
    t->over = false;
    run(t, true);
    if (t->state == TOOL_IN_VALUE) {
        add_value(t, t->held.bytes + t->done, t->held.length - t->done);
        end_value(t);
    }
    if (t->state == TOOL_IN_JSON) {
        json_text_add(&t->value, t->held.bytes + t->done, t->held.length - t->done);
        t->done = t->held.length;
        end_json(t);
    }
    if (t->state == TOOL_OPENED || t->state == TOOL_IN_NAME) give_up(t);
    if (t->state == TOOL_IN_TEXT) show_rest(t);
    if (t->state == TOOL_IN_BODY) end_call(t);
    t->cut = t->open; /* it ended in a tag or in JSON that is none */
    t->over = true;
}
