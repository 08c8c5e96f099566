/* sse_reader.h - server-sent events out of a stream of bytes, however it is cut.
 *
 * Only the data of events counts here: the lines after "data:" of one event joined by
 * newlines.  Comments and other fields are passed over; lines end with LF, CR LF or CR.  An
 * event longer than the bound is an error.  No state beyond the struct; any thread.
 */
#ifndef SILICEO_COORDINATOR_SSE_READER_H
#define SILICEO_COORDINATOR_SSE_READER_H

#include "common/error.h"
#include "common/json.h"
#include <stdbool.h>
#include <stddef.h>

enum { SSE_MAX_EVENT = 4 * 1024 * 1024 };

typedef struct sse_reader {
    json_text line; /* the one that is incomplete */
    json_text data; /* of the event that is incomplete */
    bool has_data;
    bool after_cr; /* a LF that comes first belongs to the line before */
} sse_reader;

void sse_reader_release(sse_reader *r); /* accepts a zeroed one */
/* on_event is called for each complete event; its failure ends the reading. */
status sse_reader_add(sse_reader *r, const char *bytes, size_t n, void *context,
                      status (*on_event)(void *context, const char *data, size_t n, error *err),
                      error *err);

#endif
