/* Tests of worker/text/tokenizer: merging, trust, bounds, time, and what a file must have.
 *
 * The golden texts are in tests/golden/test_tokenizer_golden.c.  Here small
 * vocabularies are written for the purpose. */
#include "worker/text/tokenizer.h"

#include "common/clock.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/files.h"

/* --- small files --------------------------------------------------------- */

typedef struct pair {
    const char *left, *right;
} pair;

/* What a test changes in an otherwise good file. */
typedef struct recipe {
    const char *model, *pre;
    const pair *merges;
    size_t n_merges;
    size_t n_bytes;        /* single-byte tokens written, of 256 */
    const char *bad_merge; /* one more line of merges */
    uint32_t eos;
    int32_t bad_type; /* of the last token */
    size_t missing_types;
} recipe;

static const pair good_merges[] = {{"a", "a"}, {"aa", "a"}, {"a", "b"},  {"ab", "ab"},
                                   {"b", "b"}, {"bb", "a"}, {"aa", "aa"}};
enum { N_GOOD = sizeof good_merges / sizeof good_merges[0], N_ADDED = 4 };
static const char *const added[N_ADDED] = {"<|im_end|>", "<think>", "<think>>", "[PAD266]"};
static const int32_t added_types[N_ADDED] = {3, 4, 4, 1};

static const recipe good = {.model = "gpt2",
                            .pre = "qwen35",
                            .merges = good_merges,
                            .n_merges = N_GOOD,
                            .n_bytes = 256,
                            .eos = 263,
                            .bad_type = 1};

static void put_u32(json_text *out, uint32_t value) {
    json_text_add(out, (const char *)&value, sizeof value);
}

static void put_u64(json_text *out, uint64_t value) {
    json_text_add(out, (const char *)&value, sizeof value);
}

static void put_string(json_text *out, const char *text) {
    put_u64(out, strlen(text));
    json_text_add(out, text, strlen(text));
}

static void put_key(json_text *out, const char *name, gguf_kind kind) {
    put_string(out, name);
    put_u32(out, kind);
}

static void put_array(json_text *out, const char *name, gguf_kind kind, size_t n) {
    put_key(out, name, GGUF_ARRAY);
    put_u32(out, kind);
    put_u64(out, n);
}

/* The letter that stands for a byte: itself, or one from U+0100 on. */
static void put_letter(json_text *out, unsigned byte) {
    static const struct {
        unsigned first, last, base;
    } shifted[] = {{0, 32, 256}, {127, 160, 289}, {173, 173, 323}};
    unsigned letter = byte;
    for (size_t i = 0; i < 3; i++) {
        if (byte >= shifted[i].first && byte <= shifted[i].last) {
            letter = shifted[i].base + byte - shifted[i].first;
        }
    }
    char utf8[3] = {(char)letter, 0, 0};
    if (letter >= 0x80) {
        utf8[0] = (char)(0xC0 | letter >> 6);
        utf8[1] = (char)(0x80 | (letter & 0x3F));
    }
    put_string(out, utf8);
}

static void put_vocabulary(json_text *out, const recipe *r) {
    size_t n_tokens = r->n_bytes + N_GOOD + N_ADDED;
    put_array(out, "tokenizer.ggml.tokens", GGUF_STRING, n_tokens);
    for (unsigned byte = 0; byte < r->n_bytes; byte++)
        put_letter(out, byte);
    for (size_t i = 0; i < N_GOOD; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%s%s", good_merges[i].left, good_merges[i].right);
        put_string(out, text);
    }
    for (size_t i = 0; i < N_ADDED; i++)
        put_string(out, added[i]);
    put_array(out, "tokenizer.ggml.token_type", GGUF_I32, n_tokens - r->missing_types);
    for (size_t i = 0; i + r->missing_types < n_tokens; i++) {
        size_t first_added = n_tokens - N_ADDED;
        int32_t type = i < first_added ? 1 : added_types[i - first_added];
        put_u32(out, (uint32_t)(i + 1 == n_tokens ? r->bad_type : type));
    }
    put_array(out, "tokenizer.ggml.merges", GGUF_STRING, r->n_merges + (r->bad_merge != NULL));
    for (size_t i = 0; i < r->n_merges; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%s %s", r->merges[i].left, r->merges[i].right);
        put_string(out, text);
    }
    if (r->bad_merge != NULL) put_string(out, r->bad_merge);
}

/* Write the file, open its tokenizer, remove the file. */
static status open_recipe(const recipe *r, bool nfc, tokenizer **out, error *err) {
    json_text image = {0};
    json_text_add(&image, "GGUF", 4);
    put_u32(&image, 3);
    put_u64(&image, 0);
    put_u64(&image, 6);
    put_key(&image, "tokenizer.ggml.model", GGUF_STRING);
    put_string(&image, r->model);
    put_key(&image, "tokenizer.ggml.pre", GGUF_STRING);
    put_string(&image, r->pre);
    put_vocabulary(&image, r);
    put_key(&image, "tokenizer.ggml.eos_token_id", GGUF_U32);
    put_u32(&image, r->eos);
    while (image.length % 32 != 0)
        json_text_add(&image, "\0", 1);

    char folder[512], path[600];
    assert_true(make_temporary(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/m.gguf", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(image.bytes, 1, image.length, file), image.length);
    assert_int_equal(fclose(file), 0);
    json_text_release(&image);

    gguf_file *gguf = NULL;
    *out = NULL;
    status rc = gguf_open(&gguf, path, err);
    (void)unlink(path);
    (void)rmdir(folder);
    if (rc == STATUS_OK) rc = tokenizer_open(out, gguf, nfc, err);
    gguf_close(gguf);
    return rc;
}

static tokenizer *open_good(bool nfc) {
    tokenizer *t = NULL;
    error err = {0};
    if (open_recipe(&good, nfc, &t, &err) != STATUS_OK) fail_msg("%s", err.text);
    return t;
}

static tokenizer *open_demo(bool nfc) {
    gguf_file *file = NULL;
    tokenizer *t = NULL;
    error err = {0};
    if (gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK ||
        tokenizer_open(&t, file, nfc, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    gguf_close(file);
    return t;
}

static token_list encode(const tokenizer *t, const char *text, size_t length,
                         tokenizer_added mode) {
    token_list ids = {0};
    error err = {0};
    if (tokenizer_encode(t, text, length, mode, &ids, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    return ids;
}

static void assert_same_ids(const token_list *a, const token_list *b) {
    assert_int_equal(a->length, b->length);
    if (a->length > 0) assert_memory_equal(a->ids, b->ids, a->length * sizeof a->ids[0]);
}

static void assert_decodes_to(const tokenizer *t, const token_list *ids, const char *text,
                              size_t length) {
    size_t at = 0;
    for (size_t i = 0; i < ids->length; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, ids->ids[i], &n);
        assert_true(n <= length - at);
        assert_memory_equal(text + at, bytes, n);
        at += n;
    }
    assert_int_equal(at, length);
}

/* --- merging ------------------------------------------------------------- */

/* The definition, in quadratic time: merge the lowest rank, the leftmost first. */
static size_t reference_merge(const char *text, size_t length, int32_t *ids) {
    char tokens[128][16];
    size_t n = length;
    for (size_t i = 0; i < n; i++) {
        ids[i] = (unsigned char)text[i];
        (void)snprintf(tokens[i], sizeof tokens[i], "%c", text[i]);
    }
    for (;;) {
        size_t best = N_GOOD, at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t m = 0; m < best; m++) {
                if (strcmp(tokens[i], good_merges[m].left) != 0) continue;
                if (strcmp(tokens[i + 1], good_merges[m].right) != 0) continue;
                best = m;
                at = i;
            }
        }
        if (best == N_GOOD) return n;
        ids[at] = (int32_t)(256 + best);
        (void)snprintf(tokens[at], sizeof tokens[at], "%s%s", good_merges[best].left,
                       good_merges[best].right);
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof ids[0]);
        memmove(tokens + at + 1, tokens + at + 2, (n - at - 2) * sizeof tokens[0]);
        n--;
    }
}

static void tokenizer_merges_by_rank_in_short_and_long_words(void **state) {
    (void)state;
    tokenizer *t = open_good(false);
    uint32_t seed = 7;
    for (size_t round = 0; round < 400; round++) {
        char text[128];
        int32_t expected[128];
        size_t length = 1 + round % 100;
        for (size_t i = 0; i < length; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = (char)('a' + ((seed >> 20) % 5) / 3); /* more a than b */
        }
        token_list own = {expected, reference_merge(text, length, expected), 128};
        token_list ids = encode(t, text, length, TOKENIZER_ADDED_NONE);
        assert_same_ids(&ids, &own);
        token_list_release(&ids);
    }
    tokenizer_close(t);
}

static void tokenizer_gives_every_byte_back(void **state) {
    (void)state;
    tokenizer *t = open_demo(false);
    char text[1024];
    uint32_t seed = 3;
    for (size_t i = 0; i < sizeof text; i++) {
        seed = seed * 1664525u + 1013904223u;
        text[i] = (char)(i < 256 ? i : seed >> 24);
    }
    for (int mode = TOKENIZER_ADDED_NONE; mode <= TOKENIZER_ADDED_ALL; mode++) {
        token_list ids = encode(t, text, sizeof text, (tokenizer_added)mode);
        assert_decodes_to(t, &ids, text, sizeof text);
        token_list_release(&ids);
    }
    token_list none = encode(t, "", 0, TOKENIZER_ADDED_ALL);
    assert_int_equal(none.length, 0);
    tokenizer_close(t);
}

static void tokenizer_is_not_slow_on_huge_words(void **state) {
    (void)state;
    enum { BYTES = 1 << 20, LIMIT_MS = 30000 }; /* quadratic time would be hours */
    static const char *const units[] = {"a",      " ",        "\n",   "ab",  "<",
                                        "<think", "\xCC\x81", "\xFF", " \n", "'s"};
    tokenizer *t = open_demo(true);
    char *text = malloc(BYTES);
    assert_non_null(text);
    uint64_t start = clock_monotonic_ms();
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = strlen(units[u]);
        for (size_t i = 0; i < BYTES; i++)
            text[i] = units[u][i % n];
        token_list ids = encode(t, text, BYTES, TOKENIZER_ADDED_ALL);
        assert_decodes_to(t, &ids, text, BYTES);
        token_list_release(&ids);
    }
    assert_in_range(clock_monotonic_ms() - start, 0, LIMIT_MS);
    free(text);
    tokenizer_close(t);
}

/* --- added tokens, trust and bounds -------------------------------------- */

static void tokenizer_matches_the_longest_added_token(void **state) {
    (void)state;
    tokenizer *t = open_good(false);
    token_list ids = encode(t, "<think>>x<think>", 16, TOKENIZER_ADDED_USER_DEFINED);
    assert_int_equal(ids.length, 3);
    assert_int_equal(ids.ids[0], tokenizer_find(t, "<think>>"));
    assert_int_equal(ids.ids[1], 'x');
    assert_int_equal(ids.ids[2], tokenizer_find(t, "<think>"));
    token_list_release(&ids);
    assert_int_equal(tokenizer_find(t, "<think"), -1);
    assert_int_equal(tokenizer_find(t, "a"), -1);
    assert_int_equal(tokenizer_find(t, ""), -1);
    tokenizer_close(t);
}

static void tokenizer_never_finds_a_token_across_trust(void **state) {
    (void)state;
    tokenizer *t = open_demo(false);
    prompt p = {0};
    token_list ids = {0};
    error err = {0};
    prompt_add_literal(&p, "<|im_start|>user\n<|im_");
    prompt_add(&p, "end|> <|im_end|> <think>", 24, false);
    prompt_add_literal(&p, "<|im_end|>\n");
    assert_int_equal(tokenizer_encode_prompt(t, &p, TOKENIZER_ADDED_NONE, &ids, &err),
                     STATUS_OK);
    assert_decodes_to(t, &ids, p.text.bytes, p.text.length);
    size_t n_control = 0;
    for (size_t i = 0; i < ids.length; i++) {
        n_control += tokenizer_kind(t, ids.ids[i]) != TOKEN_NORMAL;
    }
    assert_int_equal(n_control, 2); /* the first and the last but the newline */
    assert_int_equal(ids.ids[0], tokenizer_find(t, "<|im_start|>"));
    assert_int_equal(ids.ids[ids.length - 2], tokenizer_find(t, "<|im_end|>"));
    token_list_release(&ids);
    prompt_release(&p);
    tokenizer_close(t);
}

static void tokenizer_prompt_of_ordinary_text_equals_the_flat_text(void **state) {
    (void)state;
    tokenizer *t = open_demo(false);
    prompt p = {0};
    token_list ids = {0};
    error err = {0};
    /* "}" and the newline after it are one word, though one is ours and one is not. */
    prompt_add_literal(&p, "<|im_start|>system\n<tools>\n");
    prompt_add(&p, "{\"a\": 1}", 8, false);
    prompt_add_literal(&p, "\n</tools><|im_end|>\n");
    prompt_add_bound(&p, PROMPT_BOUND_MESSAGE);
    prompt_add_literal(&p, "<|im_start|>user\n");
    prompt_add(&p, "Hello there", 11, false);
    prompt_add_literal(&p, "<|im_end|>\n");
    prompt_add_bound(&p, PROMPT_BOUND_MESSAGE);
    prompt_add_literal(&p, "<|im_start|>assistant\n");
    prompt_add_bound(&p, PROMPT_BOUND_ASSISTANT);
    prompt_add_literal(&p, "<think>\n");
    assert_int_equal(tokenizer_encode_prompt(t, &p, TOKENIZER_ADDED_NONE, &ids, &err),
                     STATUS_OK);
    token_list flat = encode(t, p.text.bytes, p.text.length, TOKENIZER_ADDED_ALL);
    assert_same_ids(&ids, &flat);
    for (size_t b = 0; b < p.n_bounds; b++) {
        token_list before = encode(t, p.text.bytes, p.bounds[b].at, TOKENIZER_ADDED_ALL);
        assert_int_equal(p.bounds[b].n_tokens, before.length);
        token_list_release(&before);
    }
    token_list_release(&flat);
    token_list_release(&ids);
    prompt_release(&p);
    tokenizer_close(t);
}

static void tokenizer_knows_ends_and_padding(void **state) {
    (void)state;
    tokenizer *t = open_demo(false);
    size_t n_masked;
    const int32_t *masked = tokenizer_masked(t, &n_masked);
    assert_true(tokenizer_is_end(t, tokenizer_find(t, "<|im_end|>")));
    assert_true(tokenizer_is_end(t, tokenizer_find(t, "<|endoftext|>")));
    assert_false(tokenizer_is_end(t, tokenizer_find(t, "</think>")));
    assert_false(tokenizer_is_end(t, -1));
    for (size_t i = 0; i < n_masked; i++) {
        size_t n;
        assert_int_equal(tokenizer_kind(t, masked[i]), TOKEN_UNUSED);
        (void)tokenizer_bytes(t, masked[i], &n);
        assert_int_equal(n, 0);
    }
    assert_int_equal(tokenizer_kind(t, -1), TOKEN_UNUSED);
    assert_int_equal(tokenizer_kind(t, (int32_t)tokenizer_n_tokens(t)), TOKEN_UNUSED);
    tokenizer_close(t);

    t = open_good(false); /* [PAD266] has type 1 and is padding all the same */
    masked = tokenizer_masked(t, &n_masked);
    assert_int_equal(n_masked, 1);
    assert_int_equal(masked[0], 266);
    assert_true(tokenizer_is_end(t, 263));
    tokenizer_close(t);
}

static void tokenizer_normalises_only_when_asked(void **state) {
    (void)state;
    static const char decomposed[] = "Cafe\xCC\x81 <think> \xFF";
    static const char composed[] = "Caf\xC3\xA9 <think> \xFF";
    static const char bad[] = "e\xCC\x81\xFF";
    tokenizer *t = open_demo(true);
    token_list want = encode(t, composed, strlen(composed), TOKENIZER_ADDED_ALL);
    token_list ids = encode(t, decomposed, strlen(decomposed), TOKENIZER_ADDED_ALL);
    assert_same_ids(&ids, &want);
    token_list_release(&ids);
    ids = encode(t, bad, strlen(bad), TOKENIZER_ADDED_ALL); /* invalid text stays as it is */
    assert_decodes_to(t, &ids, bad, strlen(bad));
    token_list_release(&ids);
    tokenizer_close(t);
    t = open_demo(false);
    ids = encode(t, decomposed, strlen(decomposed), TOKENIZER_ADDED_ALL);
    assert_decodes_to(t, &ids, decomposed, strlen(decomposed));
    token_list_release(&ids);
    token_list_release(&want);
    tokenizer_close(t);
}

/* --- bad files ----------------------------------------------------------- */

static void assert_refused(recipe r, const char *problem) {
    tokenizer *t = NULL;
    error err = {0};
    assert_int_equal(open_recipe(&r, false, &t, &err), STATUS_BAD_INPUT);
    assert_null(t);
    if (strstr(err.text, problem) == NULL) fail_msg("'%s' lacks '%s'", err.text, problem);
}

static void tokenizer_refuses_a_file_and_names_the_key(void **state) {
    (void)state;
    recipe r = good;
    r.model = "llama";
    assert_refused(r, "tokenizer.ggml.model = 'llama': only gpt2");
    r = good;
    r.pre = "deepseek-v3";
    assert_refused(r, "tokenizer.ggml.pre = 'deepseek-v3': only qwen35 and qwen2");
    r = good;
    r.n_bytes = 255;
    assert_refused(r, "tokenizer.ggml.tokens: no token for the single byte 0xFF");
    r = good;
    r.bad_merge = "ab c";
    assert_refused(r, "tokenizer.ggml.merges[7]: 'ab c' is not in tokenizer.ggml.tokens");
    r.bad_merge = "abc";
    assert_refused(r, "tokenizer.ggml.merges[7]: not two tokens");
    r.bad_merge = "a ";
    assert_refused(r, "tokenizer.ggml.merges[7]: not two tokens");
    r.bad_merge = "a \xE4\xB8\xAD";
    assert_refused(r, "tokenizer.ggml.merges[7]: a letter that stands for no byte");
    r = good;
    r.eos = 267;
    assert_refused(r, "tokenizer.ggml.eos_token_id: not an id below 267");
    r = good;
    r.bad_type = 7;
    assert_refused(r, "tokenizer.ggml.token_type[266]: not a token type");
    r = good;
    r.missing_types = 1;
    assert_refused(r, "tokenizer.ggml.token_type: not an array of 267 items");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_merges_by_rank_in_short_and_long_words),
        cmocka_unit_test(tokenizer_gives_every_byte_back),
        cmocka_unit_test(tokenizer_is_not_slow_on_huge_words),
        cmocka_unit_test(tokenizer_matches_the_longest_added_token),
        cmocka_unit_test(tokenizer_never_finds_a_token_across_trust),
        cmocka_unit_test(tokenizer_prompt_of_ordinary_text_equals_the_flat_text),
        cmocka_unit_test(tokenizer_knows_ends_and_padding),
        cmocka_unit_test(tokenizer_normalises_only_when_asked),
        cmocka_unit_test(tokenizer_refuses_a_file_and_names_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
