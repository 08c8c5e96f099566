/* token_list.h - a growable list of token ids.  Starts as {0}; one thread. */
#ifndef SILICEO_WORKER_TEXT_TOKEN_LIST_H
#define SILICEO_WORKER_TEXT_TOKEN_LIST_H

#include "common/error.h"
#include <stddef.h>
#include <stdint.h>

typedef struct token_list {
    int32_t *ids;
    size_t length;
    size_t capacity;
} token_list;

void token_list_release(token_list *list);
status token_list_add(token_list *list, int32_t id, error *err);

#endif
