/* fuzz_expert_list.c - lists of experts in a folder that anyone may have written to. */
#include "worker/memory/expert_list.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A list that is taken has no more rows than are counted, and is written with the same bytes but
 * those that mean nothing. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { LAYERS = 3, EXPERTS = 5, N = LAYERS * EXPERTS };
    const expert_list list = {"0123456789abcdef0123456789abcdef", LAYERS, EXPERTS};
    uint32_t uses[N], twice[N];
    unsigned char again[EXPERT_LIST_HEADER + N * sizeof(uint32_t)];
    error err = {0};
    if (expert_list_read(&list, data, size, uses, &err) != STATUS_OK) return 0;
    for (size_t i = 0; i < N; i++)
        if (uses[i] > EXPERT_LIST_ROWS) abort();
    if (size != sizeof again) abort();
    expert_list_write(&list, uses, again);
    if (expert_list_read(&list, again, sizeof again, twice, &err) != STATUS_OK) abort();
    if (memcmp(uses, twice, sizeof uses) != 0) abort();
    return 0;
}
