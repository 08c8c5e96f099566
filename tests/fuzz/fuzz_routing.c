/* fuzz_routing.c - a routing trace from anywhere: refused, or every id is in range. */
#include "worker/routing_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    routing_trace t;
    error err = {0};
    if (routing_trace_parse(&t, "fuzz", (const char *)data, size, &err) == STATUS_OK) {
        size_t n = (size_t)t.n_tokens * t.n_layers * t.n_used;
        for (size_t i = 0; i < n; i++)
            CHECK(t.ids[i] < t.n_experts);
    }
    routing_trace_release(&t);
    return 0;
}
