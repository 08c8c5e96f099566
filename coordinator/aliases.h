/* aliases.h - other names of models, from the config's list of ALIAS=MODEL.
 *
 * The list is read where it is asked, as it is short and only read.  An alias may stand
 * again with another model: the first counts.  Aliases do not chain.  Any thread.
 */
#ifndef SILICEO_COORDINATOR_ALIASES_H
#define SILICEO_COORDINATOR_ALIASES_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>

/* Is each line ALIAS=MODEL with two names that fit? */
status aliases_check(const char *list, error *err);
/* Replace name (in a buffer of WIRE_MAX_NAME + 1) by what it stands for; false: by nothing. */
bool aliases_resolve(const char *list, char *name);
/* Line by line: *at begins as the list and is moved on; false at the end. */
bool aliases_next(const char **at, char *alias, char *model);

#endif
