/* upstream_config.h - one configured upstream: `NAME URL [option=value]...`. */
#ifndef SILICEO_COORDINATOR_UPSTREAM_CONFIG_H
#define SILICEO_COORDINATOR_UPSTREAM_CONFIG_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/upstream_reply.h"
#include <stddef.h>
#include <stdint.h>

typedef struct upstream_config {
    char name[WIRE_MAX_NAME + 1];
    char url[512];       /* up to and with /v1, no slash at its end */
    char *authorization; /* the header line, or NULL; secret */
    char models[UPSTREAM_MAX_MODELS][WIRE_MAX_NAME + 1]; /* offered; none: all */
    size_t n_models;
    uint64_t concurrent;
    uint64_t context_tokens; /* 0: as the server says */
} upstream_config;

/* line is changed.  On failure *out needs no release. */
status upstream_config_parse(upstream_config *out, char *line, error *err);
void upstream_config_release(upstream_config *c); /* wipes the key; accepts a zeroed one */

#endif
