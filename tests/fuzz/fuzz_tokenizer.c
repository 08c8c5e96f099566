/* fuzz_tokenizer.c - any bytes as text: the ids must give the same bytes back.
 *
 * The first byte chooses which added tokens are found, whether NFC is applied
 * (then only the run counts) and where trust changes in the rest.
 */
#include "common/gguf.h"
#include "worker/text/tokenizer.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tokenizer *open_demo(bool nfc) {
    gguf_file *file;
    tokenizer *t;
    error err;
    if (gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK) abort();
    if (tokenizer_open(&t, file, nfc, &err) != STATUS_OK) abort();
    gguf_close(file);
    return t;
}

static void check_bytes(const tokenizer *t, const token_list *ids, const char *text,
                        size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < ids->length; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, ids->ids[i], &n);
        if (n > size - at || memcmp(text + at, bytes, n) != 0) abort();
        at += n;
    }
    if (at != size) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tokenizer *plain, *normal;
    if (plain == NULL) plain = open_demo(false);
    if (normal == NULL) normal = open_demo(true);
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1, split = length > 0 ? data[0] / 6u % length : 0;
    prompt p = {0};
    token_list ids = {0};
    error err;
    prompt_add(&p, text, split, true);
    prompt_add_bound(&p, PROMPT_BOUND_MESSAGE);
    prompt_add(&p, text + split, length - split, false);
    const tokenizer *t = data[0] % 6 < 3 ? plain : normal;
    tokenizer_added mode = (tokenizer_added)(data[0] % 3);
    if (tokenizer_encode_prompt(t, &p, mode, &ids, &err) != STATUS_OK) abort();
    if (t == plain) check_bytes(t, &ids, text, length);
    if (p.bounds[0].n_tokens > ids.length) abort();
    token_list_release(&ids);
    prompt_release(&p);
    return 0;
}
