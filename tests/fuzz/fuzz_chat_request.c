/* fuzz_chat_request.c - any bytes as the body of a chat request; an accepted one's
 * normalised body must be accepted again and stay what it is. */
#include "coordinator/chat_params.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    chat_params first, second;
    char param[CHAT_PARAM_SIZE];
    error err = {0};
    status rc = chat_params_read(&first, (const char *)data, size, param, &err);
    if (rc != STATUS_OK) {
        if (err.text[0] == '\0' || first.body != NULL) abort();
        return 0;
    }
    if (first.n_choices < 1 || first.n_choices > WIRE_MAX_CHOICES || first.model[0] == '\0')
        abort();
    if (chat_params_read(&second, first.body, first.n_body, param, &err) != STATUS_OK) abort();
    if (first.n_body != second.n_body || memcmp(first.body, second.body, first.n_body) != 0)
        abort();
    chat_params_release(&first);
    chat_params_release(&second);
    return 0;
}
