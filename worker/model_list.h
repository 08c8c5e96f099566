/* model_list.h - the models that a worker is told to serve, each with settings of its own.
 *
 * An entry of the setting `model` is a path and, after it, settings that hold for this
 * model alone, in the words of the settings' keys:
 *
 *     /models/embed.gguf name=embed ctx=2048 sequences=2 vram_mib=700
 *
 * Built once at start, then only read; the fields point into it.
 */
#ifndef SILICEO_WORKER_MODEL_LIST_H
#define SILICEO_WORKER_MODEL_LIST_H

#include "worker/engine_loop.h"
#include "worker/options.h"

typedef struct model_entry {
    model_options options; /* the common ones, and what the entry says otherwise */
    const char *name;      /* NULL: the file's */
    config config;
    char *text; /* the entry, cut into words */
} model_entry;

typedef struct model_list {
    model_entry entries[ENGINE_LOOP_MAX_MODELS];
    loop_model models[ENGINE_LOOP_MAX_MODELS]; /* the same, for the engine's loop */
    size_t n;
} model_list;

/* Read `text`, the entries joined by newlines.  The list must not move afterwards.  A
 * wrong entry names its key and value. */
status model_list_read(model_list *list, const char *text, const model_options *common,
                       error *err);
void model_list_release(model_list *list); /* accepts a zeroed and a half-built one */

#endif
