/* fuzz_wire.c - any bytes: decode; what decodes must encode and decode to the same again. */
#include "common/wire.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wire_message first, second;
    wire_frame frame = {0}, again = {0};
    error err;
    if (wire_decode(&first, data, size, &err) != STATUS_OK) return 0;
    if (wire_encode(&frame, &first, &err) != STATUS_OK) abort();
    if (wire_decode(&second, frame.bytes, frame.length, &err) != STATUS_OK) abort();
    if (wire_encode(&again, &second, &err) != STATUS_OK) abort();
    if (frame.length != again.length || memcmp(frame.bytes, again.bytes, frame.length) != 0)
        abort();
    wire_release(&first);
    wire_release(&second);
    wire_frame_release(&frame);
    wire_frame_release(&again);
    return 0;
}
