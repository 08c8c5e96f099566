#include "worker/job_fields.h"

#include <stdio.h>

status job_refuse(const job_reader *r, const char *name, const char *what) {
    (void)snprintf(r->param, CHAT_PARAM_SIZE, "%s", name);
    return error_set(r->err, STATUS_BAD_INPUT, "%s %s", name, what);
}

const cJSON *job_find(const job_reader *r, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->body, name);
    return cJSON_IsNull(item) ? NULL : item;
}
