/* fuzz_json.c - any bytes: parse; what parses must print and parse to the same text again. */
#include "common/json.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *print_again(const char *text, char *(*print)(const cJSON *)) {
    cJSON *tree;
    error err;
    if (json_parse(&tree, text, strlen(text), "printed", &err) != STATUS_OK) abort();
    char *again = print(tree);
    cJSON_Delete(tree);
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cJSON *tree;
    error err;
    if (json_parse(&tree, (const char *)data, size, "fuzz", &err) != STATUS_OK) return 0;
    char *compact = json_print(tree);
    char *python = json_print_python(tree);
    if (compact == NULL || python == NULL) abort();
    char *again = print_again(compact, json_print);
    if (again == NULL || strcmp(compact, again) != 0) abort();
    free(again);
    /* Python's Infinity is not JSON; the rest must be. */
    if (strstr(python, "Infinity") == NULL) {
        again = print_again(python, json_print_python);
        if (again == NULL || strcmp(python, again) != 0) abort();
        free(again);
    }
    free(python);
    free(compact);
    cJSON_Delete(tree);
    return 0;
}
