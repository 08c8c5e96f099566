/* The tokenizer of the demo model against 504 texts and 68 streams of ids.
 *
 * How the values were made stands in tests/golden/data/README.md. */
#include "common/gguf.h"
#include "common/json.h"
#include "worker/text/tokenizer.h"
#include "worker/text/utf8_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

typedef struct fixture {
    tokenizer *t;
    cJSON *golden;
} fixture;

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s: run from the root of the project", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 0);
    rewind(file);
    char *bytes = malloc((size_t)size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
    bytes[size] = '\0';
    *length = (size_t)size;
    (void)fclose(file);
    return bytes;
}

/* json_parse() refuses U+0000, which some texts have: it travels as U+E000,
 * which none has, and is put back by show_zeros(). */
static void hide_zeros(char *text) {
    assert_null(strstr(text, "\xEE\x80\x80"));
    for (char *p = text; (p = strstr(p, "\\u0000")) != NULL; p += 6)
        p[2] = 'e';
}

static size_t show_zeros(const char *hidden, char *out) {
    size_t n = 0;
    while (*hidden != '\0') {
        bool zero = strncmp(hidden, "\xEE\x80\x80", 3) == 0;
        out[n++] = zero ? '\0' : *hidden;
        hidden += zero ? 3 : 1;
    }
    return n;
}

static int open_fixture(void **state) {
    static fixture f;
    error err = {0};
    gguf_file *file = NULL;
    size_t length;
    char *text = read_file("tests/golden/data/tokenizer.json", &length);
    hide_zeros(text);
    if (json_parse(&f.golden, text, length, "tokenizer.json", &err) != STATUS_OK ||
        gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK ||
        tokenizer_open(&f.t, file, false, &err) != STATUS_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    free(text);
    gguf_close(file); /* the tokenizer has copied what it needs */
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    tokenizer_close(f->t);
    cJSON_Delete(f->golden);
    return 0;
}

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* The bytes of an entry's text, freed by the caller. */
static char *text_of(const cJSON *entry, size_t *length) {
    const cJSON *encoded = get(entry, "b64");
    const char *source = cJSON_GetStringValue(encoded != NULL ? encoded : get(entry, "text"));
    assert_non_null(source);
    size_t n = strlen(source);
    char *out = malloc(n + 1);
    assert_non_null(out);
    if (encoded != NULL) {
        assert_int_equal(sodium_base642bin((unsigned char *)out, n, source, n, NULL, length,
                                           NULL, sodium_base64_VARIANT_ORIGINAL),
                         0);
        return out;
    }
    *length = show_zeros(source, out);
    return out;
}

static bool equal_ids(const token_list *ids, const cJSON *expected) {
    if ((int)ids->length != cJSON_GetArraySize(expected)) return false;
    size_t i = 0;
    for (const cJSON *id = expected->child; id != NULL; id = id->next) {
        if (ids->ids[i++] != id->valueint) return false;
    }
    return true;
}

static void check_mode(const fixture *f, tokenizer_added added, const char *const keys[3]) {
    int n_checked = 0;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, get(f->golden, "encode")) {
        const cJSON *expected = NULL;
        for (size_t i = 0; i < 3 && expected == NULL; i++) {
            if (keys[i] != NULL) expected = get(entry, keys[i]);
        }
        size_t length;
        char *text = text_of(entry, &length);
        token_list ids = {0};
        error err = {0};
        assert_int_equal(tokenizer_encode(f->t, text, length, added, &ids, &err), STATUS_OK);
        if (!equal_ids(&ids, expected)) {
            char *shown = cJSON_PrintUnformatted(entry);
            fail_msg("entry %d, %zu ids: %s", n_checked, ids.length, shown);
        }
        token_list_release(&ids);
        free(text);
        n_checked++;
    }
    assert_int_equal(n_checked, 504);
}

static void tokenizer_encodes_with_all_added_tokens(void **state) {
    check_mode(*state, TOKENIZER_ADDED_ALL, (const char *const[3]){"ids", NULL, NULL});
}

static void tokenizer_encodes_with_user_defined_tokens(void **state) {
    check_mode(*state, TOKENIZER_ADDED_USER_DEFINED, (const char *const[3]){"ids_user", "ids"});
}

static void tokenizer_encodes_without_added_tokens(void **state) {
    check_mode(*state, TOKENIZER_ADDED_NONE,
               (const char *const[3]){"ids_plain", "ids_user", "ids"});
}

static void assert_hex(const json_text *bytes, const char *hex) {
    char *own = malloc(2 * bytes->length + 1);
    assert_non_null(own);
    sodium_bin2hex(own, 2 * bytes->length + 1, (const unsigned char *)bytes->bytes,
                   bytes->length);
    assert_string_equal(own, hex);
    free(own);
}

static void assert_shown(const json_text *shown, const cJSON *hidden) {
    char *expected = malloc(strlen(hidden->valuestring) + 1);
    assert_non_null(expected);
    assert_int_equal(show_zeros(hidden->valuestring, expected), shown->length);
    if (shown->length > 0) assert_memory_equal(shown->bytes, expected, shown->length);
    free(expected);
}

static void check_stream(const fixture *f, const cJSON *entry) {
    json_text all = {0}, visible = {0}, shown = {0};
    utf8_stream stream = {0};
    const cJSON *piece = get(entry, "pieces")->child, *emitted = get(entry, "stream")->child,
                *id;
    json_text_add(&all, "", 0);
    json_text_add(&visible, "", 0);
    json_text_add(&shown, "", 0);
    cJSON_ArrayForEach(id, get(entry, "ids")) {
        size_t n;
        const char *bytes = tokenizer_bytes(f->t, id->valueint, &n);
        json_text one = {0};
        json_text_add(&one, bytes, n);
        assert_hex(&one, piece->valuestring);
        json_text_release(&one);
        json_text_add(&all, bytes, n);
        bool control = tokenizer_kind(f->t, id->valueint) == TOKEN_CONTROL;
        if (!control) json_text_add(&visible, bytes, n);
        json_text_clear(&shown);
        utf8_stream_push(&stream, bytes, n, &shown);
        assert_shown(&shown, emitted);
        piece = piece->next;
        emitted = emitted->next;
    }
    json_text_clear(&shown);
    utf8_stream_finish(&stream, &shown);
    assert_shown(&shown, emitted);
    assert_hex(&all, get(entry, "bytes")->valuestring);
    const cJSON *without = get(entry, "bytes_without_special");
    assert_hex(&visible, (without != NULL ? without : get(entry, "bytes"))->valuestring);
    json_text_release(&all);
    json_text_release(&visible);
    json_text_release(&shown);
}

static void tokenizer_decodes_and_streams_whole_characters(void **state) {
    const fixture *f = *state;
    int n_checked = 0;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, get(f->golden, "decode_cases")) {
        check_stream(f, entry);
        n_checked++;
    }
    assert_int_equal(n_checked, 68);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_encodes_with_all_added_tokens),
        cmocka_unit_test(tokenizer_encodes_with_user_defined_tokens),
        cmocka_unit_test(tokenizer_encodes_without_added_tokens),
        cmocka_unit_test(tokenizer_decodes_and_streams_whole_characters),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
