/* job_fields.h - fields of a request's body, for those who read one kind or another.
 *
 * Pure functions; any thread.
 */
#ifndef SILICEO_WORKER_JOB_FIELDS_H
#define SILICEO_WORKER_JOB_FIELDS_H

#include "common/chat_request.h"
#include "common/error.h"
#include "common/json.h"

/* What the readers of single fields share. */
typedef struct job_reader {
    const cJSON *body;
    char *param; /* [CHAT_PARAM_SIZE] */
    error *err;
} job_reader;

/* STATUS_BAD_INPUT: the field at fault goes into param, and its name in front of the text. */
status job_refuse(const job_reader *r, const char *name, const char *what);
/* A present field that is not null; else NULL. */
const cJSON *job_find(const job_reader *r, const char *name);

#endif
