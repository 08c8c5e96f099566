/* fuzz_json_schema.c - any bytes as a schema, and the rest as bytes of an answer to it.
 *
 * Input: a schema, a line end that stands in no string, then bytes.  A schema is compiled or
 * refused with words; from each state the shortest way leads to a whole document in as many
 * bytes as it says, and a document that is whole parses. */
#include "tests/fuzz/automaton_walk.h"
#include "worker/text/json_schema.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const json_grammar *g, const uint8_t *bytes, size_t n) {
    json_text text = {0};
    cJSON *value = NULL;
    error err = {0};
    if (automaton_walk(g, bytes, n, &text)) {
        status rc = json_parse(&value, text.bytes, text.length, "answer", &err);
        /* A constant may hold what only our own reader refuses: depth is its limit. */
        if (rc == STATUS_BAD_INPUT && strstr(err.text, "nested deeper") == NULL) abort();
    }
    cJSON_Delete(value);
    json_text_release(&text);
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
