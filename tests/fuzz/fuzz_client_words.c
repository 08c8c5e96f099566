/* fuzz_client_words.c - what clients and the config say in few words: deadlines, aliases, and the
 * beginnings of prompts.  First byte: which; the rest: the text. */
#include "common/json.h"
#include "common/wire.h"
#include "coordinator/aliases.h"
#include "coordinator/client_deadline.h"
#include "coordinator/prefix_chain.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_deadline(const char *text) {
    client_deadline d;
    error err;
    if (client_deadline_read(&d, text, text, false, &err) == STATUS_OK &&
        (d.answer_ms == 0 || d.answer_ms > 604800000u))
        abort();
    (void)client_deadline_read(&d, NULL, text, true, &err);
    if (d.answer_ms != 0) abort();
}

/* A list that is well gives each of its lines, and each of its aliases resolves. */
static void try_aliases(const char *list) {
    char alias[WIRE_MAX_NAME + 1], model[WIRE_MAX_NAME + 1];
    error err;
    bool well = aliases_check(list, &err) == STATUS_OK;
    for (const char *at = list; aliases_next(&at, alias, model);) {
        if (well && !aliases_resolve(list, alias)) abort();
    }
}

static void try_chain(const char *text) {
    cJSON *request;
    error err;
    if (json_parse(&request, text, strlen(text), "fuzz", &err) != STATUS_OK) return;
    prefix_chain once, again;
    prefix_chain_init(&once, request);
    prefix_chain_init(&again, request);
    if (once.n != again.n || once.n > PREFIX_CHAIN_MAX) abort();
    for (size_t i = 0; i < once.n; i++) {
        if (once.hashes[i] != again.hashes[i] || once.hashes[i] == 0) abort();
    }
    prefix_chain_release(&once);
    prefix_chain_release(&again);
    cJSON_Delete(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    char *text = malloc(size);
    if (text == NULL) return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 3 == 0) try_deadline(text);
    if (data[0] % 3 == 1) try_aliases(text);
    if (data[0] % 3 == 2) try_chain(text);
    free(text);
    return 0;
}
