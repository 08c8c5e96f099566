/* field_names.h - what an API's own fields are called, where an error names chat's.
 *
 * Messages and responses become chat requests (chat_build.h), which are checked as such, here and
 * by the workers.  What those checks find is told by the name that the client used.  Places in
 * the built list of messages are not places in the client's: only the list is named.
 * Pure functions; any thread.
 */
#ifndef SILICEO_COORDINATOR_FIELD_NAMES_H
#define SILICEO_COORDINATOR_FIELD_NAMES_H

#include "common/chat_request.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct field_name {
    const char *chat; /* a field, or the beginning of a path up to '.' or '[' */
    const char *own;
    bool alone; /* what follows in the path is left out */
} field_name;

/* Lists end with a zeroed entry; the first that fits counts. */
extern const field_name field_names_messages[], field_names_responses[];

/* Change param, and message (capacity cap) where it begins with param. */
void field_names_apply(const field_name *names, char param[CHAT_PARAM_SIZE], char *message,
                       size_t cap);

#endif
