/* fuzz_json_schema.c - any bytes as a schema, and the rest as bytes of an answer to it.
 *
 * Input: a schema, a line end that stands in no string, then bytes.  A schema is compiled or
 * refused with words; from each state the shortest way leads to a whole document in as many
 * bytes as it says, and a document that is whole parses. */
#include "common/json.h"
#include "worker/text/json_automaton.h"
#include "worker/text/json_schema.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_CLOSE = 4096, MAX_WALK = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_close(json_automaton *a, uint32_t state, json_text *text) {
    uint32_t left = json_automaton_close_bytes(a, state);
    if (left > MAX_CLOSE) return;
    for (; left > 0; left--) {
        char byte = (char)json_automaton_close_byte(a, state);
        json_text_add(text, &byte, 1);
        state = json_automaton_step(a, state, (unsigned char)byte);
        if (json_automaton_close_bytes(a, state) != left - 1) abort();
    }
    if (!json_automaton_is_complete(a, state)) abort();
    cJSON *value = NULL;
    error err = {0};
    status rc = json_parse(&value, text->bytes, text->length, "answer", &err);
    /* A constant may hold what only our own reader refuses: depth is its limit. */
    if (rc == STATUS_BAD_INPUT && strstr(err.text, "nested deeper") == NULL) abort();
    cJSON_Delete(value);
}

static void walk(const json_grammar *g, const uint8_t *bytes, size_t n) {
    json_automaton *a = NULL;
    json_text text = {0};
    error err = {0};
    if (json_automaton_new(&a, g, &err) != STATUS_OK) return;
    uint32_t state = json_automaton_start(a);
    json_text_add(&text, "", 0);
    for (size_t i = 0; i < n && i < MAX_WALK; i++) {
        uint32_t next = json_automaton_step(a, state, bytes[i]);
        if (next == JSON_DEAD) continue;
        if (json_automaton_close_bytes(a, next) + 1 < json_automaton_close_bytes(a, state))
            abort();
        state = next;
        json_text_add(&text, (const char *)&bytes[i], 1);
        (void)json_automaton_tidy(a, &state);
    }
    check_close(a, state, &text);
    json_text_release(&text);
    json_automaton_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *line = memchr(data, '\n', size);
    size_t n = line == NULL ? size : (size_t)(line - data);
    char param[CHAT_PARAM_SIZE] = "";
    cJSON *schema = NULL;
    json_grammar *g = NULL;
    error err = {0};
    if (json_parse(&schema, (const char *)data, n, "schema", &err) != STATUS_OK) return 0;
    status rc = json_schema_compile(&g, schema, "schema", param, &err);
    if (rc == STATUS_OK)
        walk(g, data + n, size - n);
    else if (g != NULL || err.text[0] == '\0' || param[0] == '\0')
        abort();
    json_grammar_free(g);
    cJSON_Delete(schema);
    return 0;
}
