/* body_reader.h - fields of a request's body, and how a wrong one is refused.
 *
 * Whoever reads requests names the field at fault in the same way: its path goes into param, and
 * in front of the text of the error.  Bytes from outside; pure functions, any thread.
 */
#ifndef SILICEO_COMMON_BODY_READER_H
#define SILICEO_COMMON_BODY_READER_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/json.h"

typedef struct body_reader {
    cJSON *body;
    char *param; /* [CHAT_PARAM_SIZE] */
    error *err;
} body_reader;

/* Parse bytes that must be an object.  The caller deletes r->body, which is NULL on failure. */
status body_open(body_reader *r, const char *bytes, size_t length, char param[CHAT_PARAM_SIZE],
                 error *err);
/* A field that is there and not null; else NULL. */
const cJSON *body_find(const body_reader *r, const char *name);
/* STATUS_BAD_INPUT, "PATH: WHAT", and param is the path. */
status body_refuse(const body_reader *r, const char *path, const char *what);
status body_no_memory(const body_reader *r);

/* The same of any object. */
const cJSON *body_field(const cJSON *object, const char *name);
/* A whole number from min to max. */
bool body_is_whole(const cJSON *item, double min, double max);
/* A list of token ids, one at least. */
bool body_is_ids(const cJSON *list);

#endif
