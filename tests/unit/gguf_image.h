/* gguf_image.h - a small GGUF file for tests, with marks where its fields stand.
 *
 * A test patches a field and opens what comes of it.  Files lie in a folder of the program's own.
 * Needs cmocka.h before it.
 */
#ifndef SILICEO_TESTS_UNIT_GGUF_IMAGE_H
#define SILICEO_TESTS_UNIT_GGUF_IMAGE_H

#include "common/gguf.h"
#include <stddef.h>
#include <stdint.h>

typedef enum mark {
    AT_MAGIC,
    AT_VERSION,
    AT_N_TENSORS,
    AT_N_KEYS,
    AT_KEY_LENGTH,
    AT_KEY_NAME,
    AT_KEY_KIND,
    AT_TEXT_LENGTH,
    AT_ALIGN_KIND,
    AT_ALIGN,
    AT_BOOL,
    AT_BOOLS,
    AT_LIST_KIND,
    AT_LIST_COUNT,
    AT_WORDS_COUNT,
    AT_WORD_LENGTH,
    AT_FIRST,
    AT_SECOND,
    AT_T0_LENGTH,
    AT_T0_NAME,
    AT_T0_DIMS,
    AT_T0_NE0,
    AT_T0_NE1,
    AT_T0_TYPE,
    AT_T0_OFFSET,
    AT_T1_NAME,
    AT_T1_NE1,
    AT_T1_TYPE,
    AT_T1_OFFSET,
    AT_DATA,
    N_MARKS
} mark;

typedef struct image {
    uint8_t bytes[4096];
    size_t length;
    size_t at[N_MARKS];
} image;

/* The next bytes of the file. */
void image_put(image *m, const void *bytes, size_t n);
void image_put_u32(image *m, uint32_t value);
void image_put_u64(image *m, uint64_t value);
void image_put_text(image *m, const char *text);
void image_put_key(image *m, const char *name, gguf_kind kind);

/* Two tensors and eight keys of all kinds. */
image image_build(uint32_t version);

/* Of the group of tests: the folder of its files. */
int make_folder(void **state);
int remove_folder(void **state);
extern char folder[128];
void path_of(char path[256], const char *name);
void write_file(const char *name, const uint8_t *bytes, size_t n);
void remove_file(const char *name);
/* Through a file that is gone again; what is mapped stays. */
status open_bytes(gguf_file **out, const uint8_t *bytes, size_t n, error *err);

#endif
