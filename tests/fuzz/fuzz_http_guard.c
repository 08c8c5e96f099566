/* fuzz_http_guard.c - lines `name: value` as headers.  Whatever passes the guard has one
 * length, or is chunked, or has no body; echoed texts hold nothing that ends a line. */
#include "coordinator/http_guard.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[4096];
    if (size == 0 || size >= sizeof text) return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (http_guard_request_id_is_sane(text) && strpbrk(text, "\r\n\" ") != NULL) abort();
    if (http_guard_header_list_is_sane(text) && strpbrk(text, "\r\n:\"") != NULL) abort();
    (void)http_guard_same_origin(text, "host:1");
    http_guard g;
    http_guard_init(&g, data[0] & 1);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *colon = strchr(line, ':');
        if (colon == NULL) continue;
        *colon = '\0';
        http_guard_header(&g, line, colon[1] == ' ' ? colon + 2 : colon + 1);
    }
    if (http_guard_verdict(&g) != NULL) return 0;
    if (g.n_content_length + g.n_transfer_encoding > 1 || g.n_host > 1) abort();
    return 0;
}
