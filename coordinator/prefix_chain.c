#include "coordinator/prefix_chain.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct mixer {
    uint64_t hash;
    size_t bytes; /* of strings so far */
} mixer;

static void mix(mixer *m, const void *bytes, size_t n) {
    m->hash = XXH3_64bits_withSeed(bytes, n, m->hash);
}

/* A value with everything below it.  Its kind and the end of its items go in, too, so that
 * no two different values give the same bytes. */
static void mix_value(mixer *m, const cJSON *value) {
    const unsigned char kind = (unsigned char)(value->type & 0xff), end = 0xff;
    mix(m, &kind, 1);
    if (value->string != NULL) mix(m, value->string, strlen(value->string) + 1);
    if (value->valuestring != NULL) {
        size_t n = strlen(value->valuestring);
        mix(m, value->valuestring, n + 1);
        m->bytes += cJSON_IsString(value) ? n : 0;
    }
    for (const cJSON *item = value->child; item != NULL; item = item->next)
        mix_value(m, item);
    mix(m, &end, 1);
}

static void mix_field(mixer *m, const cJSON *request, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(request, name);
    if (value != NULL) mix_value(m, value);
}

void prefix_chain_init(prefix_chain *chain, const cJSON *request) {
    memset(chain, 0, sizeof *chain);
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(request, "messages");
    if (!cJSON_IsArray(messages)) return;
    size_t n_messages = (size_t)cJSON_GetArraySize(messages);
    size_t cap = n_messages < PREFIX_CHAIN_MAX ? n_messages : PREFIX_CHAIN_MAX;
    chain->hashes = calloc(cap + 1, sizeof *chain->hashes);
    chain->bytes = calloc(cap + 1, sizeof *chain->bytes);
    if (chain->hashes == NULL || chain->bytes == NULL) {
        prefix_chain_release(chain);
        return;
    }
    mixer m = {0, 0};
    size_t left = n_messages;
    mix_field(&m, request, "tools");
    mix_field(&m, request, "chat_template_kwargs");
    for (const cJSON *message = messages->child; message != NULL; message = message->next) {
        mix_value(&m, message);
        if (left-- > cap) continue; /* an early one of a long conversation */
        chain->hashes[chain->n] = m.hash != 0 ? m.hash : 1;
        chain->bytes[chain->n++] = m.bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)m.bytes;
    }
}

void prefix_chain_release(prefix_chain *chain) {
    free(chain->hashes);
    free(chain->bytes);
    memset(chain, 0, sizeof *chain);
}
