/* fuzz_tool_grammar.c - any bytes as a request with tools, and the rest as bytes of a call.
 *
 * Input: a request, a line end that stands in no string, then bytes.  From each state the
 * shortest way ends the call in as many bytes as it says, and what is written then is a whole
 * call for the parser: of one of the tools, its arguments an object. */
#include "common/chat_request.h"
#include "tests/fuzz/automaton_walk.h"
#include "worker/text/tool_call.h"
#include "worker/text/tool_grammar.h"
#include "worker/text/tool_schema.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_call(const cJSON *tools, const json_text *text) {
    tool_call t;
    json_text name = {0}, arguments = {0};
    const cJSON *parameters;
    cJSON *value = NULL;
    error err = {0};
    tool_call_init(&t, tools, true);
    tool_call_push(&t, text->bytes, text->length);
    tool_call_finish(&t, true);
    for (size_t i = 0; i < t.n_pieces; i++) {
        const tool_piece *p = &t.pieces[i];
        json_text *into = p->kind == TOOL_BEGIN ? &name : &arguments;
        if (p->kind == TOOL_TEXT || p->call != 0) continue;
        json_text_add(into, t.out.bytes + p->at, p->length);
    }
    if (t.n_calls == 0 || t.cut || name.length == 0) abort();
    if (!tool_schema_find(tools, name.bytes, name.length, &parameters)) abort();
    status rc = json_parse(&value, arguments.bytes, arguments.length, "arguments", &err);
    if (rc == STATUS_BAD_INPUT && strstr(err.text, "nested deeper") == NULL) abort();
    if (rc == STATUS_OK && !cJSON_IsObject(value)) abort();
    cJSON_Delete(value);
    json_text_release(&name);
    json_text_release(&arguments);
    tool_call_release(&t);
}

static void walk(const json_grammar *g, const cJSON *tools, const uint8_t *bytes, size_t n) {
    json_text text = {0};
    json_text_add(&text, "<tool_call>", 11);
    if (automaton_walk(g, bytes, n, &text)) check_call(tools, &text);
    json_text_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *line = memchr(data, '\n', size);
    size_t n = line == NULL ? size : (size_t)(line - data);
    char param[CHAT_PARAM_SIZE] = "";
    cJSON *request = NULL;
    json_grammar *g = NULL;
    error err = {0};
    if (json_parse(&request, (const char *)data, n, "request", &err) != STATUS_OK) return 0;
    if (chat_normalise(request, param, &err) == STATUS_OK) {
        const cJSON *tools = cJSON_GetObjectItemCaseSensitive(request, "tools");
        status rc = !cJSON_IsArray(tools) ? STATUS_BAD_INPUT
                                          : tool_grammar_compile(&g, tools, NULL, &err);
        if (rc == STATUS_OK)
            walk(g, tools, data + n, size - n);
        else if (g != NULL)
            abort();
    }
    json_grammar_free(g);
    cJSON_Delete(request);
    return 0;
}
