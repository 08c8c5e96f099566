/* repair.c - closes the open fences of texts: NUL-separated documents from stdin to stdout.
 *
 *     repair [BYTES]
 *
 * Each goes through worker/text/markdown in pieces of BYTES (default 7) and comes out with
 * what markdown_finish() appends.  For test_markdown.mjs.
 */
#include "worker/text/markdown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(size_t *length) {
    json_text text = {0};
    char piece[65536];
    size_t n = 0;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        json_text_add(&text, piece, n);
    *length = text.length;
    return text.bytes;
}

static void repair(const char *bytes, size_t length, size_t step) {
    markdown m;
    json_text end = {0};
    markdown_init(&m);
    for (size_t at = 0; at < length; at += step)
        markdown_push(&m, bytes + at, length - at < step ? length - at : step);
    markdown_finish(&m, false, &end);
    (void)fwrite(bytes, 1, length, stdout);
    if (end.length > 0) (void)fwrite(end.bytes, 1, end.length, stdout);
    (void)fputc(0, stdout);
    json_text_release(&end);
}

int main(int argc, char **argv) {
    size_t step = argc > 1 ? strtoul(argv[1], NULL, 10) : 7;
    size_t length = 0;
    char *text = read_all(&length);
    if (text == NULL || step == 0) return 2;
    for (size_t at = 0; at < length;) {
        const char *end = memchr(text + at, 0, length - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : length - at;
        repair(text + at, n, step);
        at += n + 1;
    }
    free(text);
    return 0;
}
