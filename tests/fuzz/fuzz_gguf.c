/* fuzz_gguf.c - any bytes as a model file: open, and read everything that was believed.
 *
 * The file is an anonymous one in memory.  Every key, item and tensor byte of a
 * file that opens is touched, so a bound that was not checked is a fault here.
 */
#include "common/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch(const void *bytes, size_t n) {
    const uint8_t *b = bytes;
    if (n > 0) sink = (uint8_t)(b[0] ^ b[n - 1]);
}

static void read_key(const gguf_key *key) {
    uint64_t natural;
    int64_t whole;
    double real;
    bool on;
    gguf_string text;
    gguf_cursor cursor = {0};
    touch(key->name.bytes, key->name.length);
    if (gguf_read_string(key, &text)) touch(text.bytes, text.length);
    (void)gguf_read_u64(key, &natural);
    (void)gguf_read_i64(key, &whole);
    (void)gguf_read_f64(key, &real);
    (void)gguf_read_bool(key, &on);
    while (gguf_next_string(key, &cursor, &text))
        touch(text.bytes, text.length);
    if (key->n_items == 0) return;
    (void)gguf_item_i64(key, key->n_items - 1, &whole);
    (void)gguf_item_f64(key, key->n_items - 1, &real);
}

static void read_file(const gguf_file *file) {
    char hash[33];
    error err;
    for (size_t i = 0; i < gguf_n_keys(file); i++)
        read_key(gguf_key_at(file, i));
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        char name[64];
        (void)snprintf(name, sizeof name, "%.*s", (int)t->name.length, t->name.bytes);
        if (gguf_find_tensor(file, name) != t) abort();
        touch(t->data, (size_t)t->n_bytes);
        (void)gguf_check_values(t, &err);
    }
    gguf_hash(file, hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf_file *file = NULL;
    error err = {STATUS_OK, ""};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) abort();
    if (write(fd, data, size) != (ssize_t)size) abort();
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status rc = gguf_open(&file, path, &err);
    if ((rc == STATUS_OK) != (file != NULL)) abort();
    if (rc != STATUS_OK && (err.code != rc || err.text[0] == 0)) abort();
    if (file != NULL) read_file(file);
    gguf_close(file);
    (void)close(fd);
    return 0;
}
