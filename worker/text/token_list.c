#include "worker/text/token_list.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 256 };

void token_list_release(token_list *list) {
    free(list->ids);
    *list = (token_list){0};
}

status token_list_add(token_list *list, int32_t id, error *err) {
    if (list->length == list->capacity) {
        size_t capacity = list->capacity == 0 ? FIRST_CAPACITY : 2 * list->capacity;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (ids == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for token ids");
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->length++] = id;
    return STATUS_OK;
}
