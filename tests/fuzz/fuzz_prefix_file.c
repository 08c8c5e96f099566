/* fuzz_prefix_file.c - headers and names of files in a folder that anyone may have written to. */
#include "worker/memory/prefix_file.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A header that is taken gives the same bytes again; a name that is taken, the same name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    prefix_file file;
    error err = {0};
    unsigned char again[PREFIX_FILE_HEADER];
    if (prefix_file_read(&file, data, size, &err) == STATUS_OK) {
        prefix_file twice = {0};
        prefix_file_write(&file, again);
        if (prefix_file_read(&twice, again, sizeof again, &err) != STATUS_OK) abort();
        if (twice.part != file.part || twice.depth != file.depth ||
            twice.n_bytes != file.n_bytes || twice.bytes_hash != file.bytes_hash ||
            memcmp(twice.tokens, file.tokens, sizeof file.tokens) != 0)
            abort();
    }
    char name[PREFIX_FILE_NAME] = {0}, written[PREFIX_FILE_NAME];
    memcpy(name, data, size < sizeof name - 1 ? size : sizeof name - 1);
    prefix_key key;
    prefix_part part;
    if (!prefix_file_parse_name(name, &key, &part)) return 0;
    prefix_file_name(key, part, written);
    if (strcmp(name, written) != 0) abort();
    return 0;
}
