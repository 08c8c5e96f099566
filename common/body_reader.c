#include "common/body_reader.h"

#include <math.h>
#include <stdio.h>

status body_open(body_reader *r, const char *bytes, size_t length, char param[CHAT_PARAM_SIZE],
                 error *err) {
    *r = (body_reader){.param = param, .err = err};
    param[0] = '\0';
    status rc = json_parse(&r->body, bytes, length, "request body", err);
    if (rc != STATUS_OK || cJSON_IsObject(r->body)) return rc;
    cJSON_Delete(r->body);
    r->body = NULL;
    return error_set(err, STATUS_BAD_INPUT, "request body: is not a JSON object");
}

const cJSON *body_find(const body_reader *r, const char *name) {
    return body_field(r->body, name);
}

status body_refuse(const body_reader *r, const char *path, const char *what) {
    (void)snprintf(r->param, CHAT_PARAM_SIZE, "%s", path);
    return error_set(r->err, STATUS_BAD_INPUT, "%s: %s", path, what);
}

status body_no_memory(const body_reader *r) {
    return error_set(r->err, STATUS_NO_MEMORY, "no memory for the request");
}

const cJSON *body_field(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(item) ? NULL : item;
}

bool body_is_whole(const cJSON *item, double min, double max) {
    double v = item->valuedouble;
    return cJSON_IsNumber(item) && v >= min && v <= max && !(v > floor(v));
}

bool body_is_ids(const cJSON *list) {
    if (!cJSON_IsArray(list) || list->child == NULL) return false;
    for (const cJSON *id = list->child; id != NULL; id = id->next) {
        if (!body_is_whole(id, 0, INT32_MAX)) return false;
    }
    return true;
}
