/* fuzz_markdown.c - any text through markdown and sentence_grace: the same however it is cut,
 * and a text that was closed is closed.
 *
 * The first byte says into what pieces the rest is cut.
 */
#include "worker/text/markdown.h"
#include "worker/text/sentence_grace.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool close_text(const char *text, size_t length, size_t step, json_text *out) {
    markdown m;
    sentence_grace g;
    markdown_init(&m);
    sentence_grace_init(&g);
    for (size_t at = 0; at < length; at += step) {
        size_t n = length - at < step ? length - at : step;
        markdown_push(&m, text + at, n);
        sentence_grace_push(&g, text + at, n);
    }
    bool in_fence = markdown_in_fence(&m), may_end = sentence_grace_may_end(&g, in_fence);
    markdown_finish(&m, true, out);
    return may_end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1;
    json_text whole = {0}, cut = {0};
    json_text_add(&whole, "", 0);
    json_text_add(&cut, "", 0);
    bool may_end = close_text(text, length, length + 1, &whole);
    if (close_text(text, length, 1 + data[0] % 16, &cut) != may_end) abort();
    if (strcmp(whole.bytes, cut.bytes) != 0) abort();
    if (strchr("`~", whole.bytes[whole.length > 0 ? whole.length - 1 : 0]) == NULL) abort();
    json_text closed = {0};
    json_text_add(&closed, text, length);
    json_text_add(&closed, whole.bytes, whole.length);
    markdown m;
    markdown_init(&m);
    markdown_push(&m, closed.bytes, closed.length);
    if (markdown_in_fence(&m)) abort();
    json_text_release(&whole);
    json_text_release(&cut);
    json_text_release(&closed);
    return 0;
}
