/* loading_line.h - how far a model is loaded, for people, on stderr.
 *
 * On a terminal one line that is rewritten; elsewhere a line every few seconds.  A model that
 * loads at once leaves no line.  Thread: the one that loads.
 */
#ifndef SILICEO_WORKER_LOADING_LINE_H
#define SILICEO_WORKER_LOADING_LINE_H

#include "worker/engine.h"
#include <stddef.h>
#include <stdint.h>

/* As engine_params.on_progress; the context is not used: a process loads one model. */
void loading_line_show(void *context, const engine_progress *p);

/* "loading the model  3.2 of 19.7 GiB, 12 s left".  Returns as snprintf does. */
int loading_line_write(char *out, size_t cap, const engine_progress *p);

#endif
