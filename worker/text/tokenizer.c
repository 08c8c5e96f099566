#include "worker/text/tokenizer.h"

#include "worker/text/bpe.h"
#include "worker/text/pretokenize.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Ordering marks takes quadratic time in utf8proc, and no language stacks this many. */
enum { NFC_MAX_MARKS_IN_A_ROW = 256, N_END_TEXTS = 5 };

struct tokenizer {
    vocabulary *tokens;
    bpe *merges;
    pretokenizer pre;
    bool nfc;
    int32_t ends[N_END_TEXTS + 1];
    size_t n_ends;
    int32_t *masked;
    size_t n_masked;
};

/* One call of encode: its scratch and where the ids go. */
typedef struct encoding {
    const tokenizer *t;
    bpe_scratch scratch;
    token_list *out;
    error *err;
} encoding;

/* --- opening ------------------------------------------------------------- */

static status read_word(const gguf_file *file, const char *name, gguf_string *out, error *err) {
    const gguf_key *key = gguf_find_key(file, name);
    if (key == NULL || !gguf_read_string(key, out)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: %s", name,
                         key == NULL ? "missing" : "not a string");
    }
    return STATUS_OK;
}

static bool is_word(gguf_string text, const char *word) {
    return text.length == strlen(word) && memcmp(text.bytes, word, text.length) == 0;
}

static int shown_length(gguf_string text) {
    return (int)(text.length < 64 ? text.length : 64);
}

static status read_kind(tokenizer *t, const gguf_file *file, error *err) {
    gguf_string model, pre;
    status rc = read_word(file, "tokenizer.ggml.model", &model, err);
    if (rc != STATUS_OK) return rc;
    if (!is_word(model, "gpt2")) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.model = '%.*s': only gpt2 (byte-level BPE) is known",
                         shown_length(model), model.bytes);
    }
    rc = read_word(file, "tokenizer.ggml.pre", &pre, err);
    if (rc != STATUS_OK) return rc;
    if (is_word(pre, "qwen35")) {
        t->pre = PRETOKENIZER_QWEN35;
    } else if (is_word(pre, "qwen2")) {
        t->pre = PRETOKENIZER_QWEN2;
    } else {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.pre = '%.*s': only qwen35 and qwen2 are known",
                         shown_length(pre), pre.bytes);
    }
    return STATUS_OK;
}

static void add_end(tokenizer *t, int32_t id) {
    if (id >= 0 && !tokenizer_is_end(t, id)) t->ends[t->n_ends++] = id;
}

static status read_ends(tokenizer *t, const gguf_file *file, error *err) {
    static const char *const texts[N_END_TEXTS] = {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>",
                                                   "<|repo_name|>", "<|file_sep|>"};
    for (size_t i = 0; i < N_END_TEXTS; i++)
        add_end(t, tokenizer_find(t, texts[i]));
    const gguf_key *key = gguf_find_key(file, "tokenizer.ggml.eos_token_id");
    if (key == NULL) return STATUS_OK;
    uint64_t id;
    if (!gguf_read_u64(key, &id) || id >= vocabulary_size(t->tokens)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "tokenizer.ggml.eos_token_id: not an id below %zu",
                         vocabulary_size(t->tokens));
    }
    add_end(t, (int32_t)id);
    return STATUS_OK;
}

static status list_masked(tokenizer *t, error *err) {
    size_t n = vocabulary_size(t->tokens);
    for (size_t i = 0; i < n; i++) {
        t->n_masked += vocabulary_kind(t->tokens, (int32_t)i) == TOKEN_UNUSED;
    }
    t->masked = malloc((t->n_masked + 1) * sizeof *t->masked);
    if (t->masked == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a tokenizer");
    size_t filled = 0;
    for (size_t i = 0; i < n; i++) {
        if (vocabulary_kind(t->tokens, (int32_t)i) == TOKEN_UNUSED) {
            t->masked[filled++] = (int32_t)i;
        }
    }
    return STATUS_OK;
}

status tokenizer_open(tokenizer **out, const gguf_file *file, bool nfc, error *err) {
    *out = NULL;
    tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a tokenizer");
    t->nfc = nfc;
    status rc = read_kind(t, file, err);
    if (rc != STATUS_OK) goto fail;
    rc = vocabulary_open(&t->tokens, file, err);
    if (rc != STATUS_OK) goto fail;
    rc = bpe_open(&t->merges, file, t->tokens, err);
    if (rc != STATUS_OK) goto fail;
    rc = read_ends(t, file, err);
    if (rc != STATUS_OK) goto fail;
    rc = list_masked(t, err);
    if (rc != STATUS_OK) goto fail;
    *out = t;
    return STATUS_OK;
fail:
    tokenizer_close(t);
    return rc;
}

void tokenizer_close(tokenizer *t) {
    if (t == NULL) return;
    free(t->masked);
    bpe_close(t->merges);
    vocabulary_close(t->tokens);
    free(t);
}

/* --- encoding ------------------------------------------------------------ */

static status encode_pieces(encoding *e, const char *text, size_t length) {
    for (size_t at = 0; at < length;) {
        size_t n = pretokenize_next(e->t->pre, text + at, length - at);
        status rc = bpe_encode(e->t->merges, &e->scratch, text + at, n, e->out, e->err);
        if (rc != STATUS_OK) return rc;
        at += n;
    }
    return STATUS_OK;
}

/* Could NFC change this text, and is it cheap to find out?  Below U+0300 nothing changes. */
static bool wants_nfc(const char *text, size_t length) {
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    size_t n_marks = 0;
    bool wide = false;
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t code_point;
        utf8proc_ssize_t n =
            utf8proc_iterate(p + at, (utf8proc_ssize_t)(length - at), &code_point);
        if (n <= 0) return false;
        wide = wide || code_point >= 0x300;
        bool mark =
            code_point >= 0x300 && utf8proc_get_property(code_point)->combining_class != 0;
        n_marks = mark ? n_marks + 1 : 0;
        if (n_marks > NFC_MAX_MARKS_IN_A_ROW) return false;
        at += (size_t)n;
    }
    return wide;
}

/* Text between two added tokens. */
static status encode_segment(encoding *e, const char *text, size_t length) {
    if (!e->t->nfc || !wants_nfc(text, length)) return encode_pieces(e, text, length);
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length,
                                      &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) {
        return error_set(e->err, STATUS_NO_MEMORY, "NFC: %s", utf8proc_errmsg(n));
    }
    status rc = encode_pieces(e, (const char *)normal, (size_t)n);
    free(normal);
    return rc;
}

/* Added tokens are found within a span, segments run across spans and end at bounds. */
static status encode_all(encoding *e, prompt *p, tokenizer_added content) {
    const vocabulary *tokens = e->t->tokens;
    const char *text = p->text.bytes != NULL ? p->text.bytes : "";
    size_t at = 0, segment = 0, bound = 0, n_before = e->out->length;
    status rc = STATUS_OK;
    for (size_t s = 0; s < p->n_spans; s++) {
        tokenizer_added mode = p->spans[s].trusted ? TOKENIZER_ADDED_ALL : content;
        while (at < p->spans[s].end) {
            for (; bound < p->n_bounds && p->bounds[bound].at <= at; bound++) {
                rc = encode_segment(e, text + segment, at - segment);
                if (rc != STATUS_OK) return rc;
                segment = at;
                p->bounds[bound].n_tokens = e->out->length - n_before;
            }
            int32_t id = -1;
            if (mode != TOKENIZER_ADDED_NONE &&
                vocabulary_added_begins(tokens, (unsigned char)text[at])) {
                id = vocabulary_match_added(tokens, text + at, p->spans[s].end - at,
                                            mode == TOKENIZER_ADDED_ALL);
            }
            if (id < 0) {
                at++;
                continue;
            }
            rc = encode_segment(e, text + segment, at - segment);
            if (rc == STATUS_OK) rc = token_list_add(e->out, id, e->err);
            if (rc != STATUS_OK) return rc;
            size_t n;
            (void)vocabulary_bytes(tokens, id, &n);
            at += n;
            segment = at;
        }
    }
    rc = encode_segment(e, text + segment, at - segment);
    for (; bound < p->n_bounds; bound++)
        p->bounds[bound].n_tokens = e->out->length - n_before;
    return rc;
}

status tokenizer_encode_prompt(const tokenizer *t, prompt *p, tokenizer_added content,
                               token_list *out, error *err) {
    if (p->text.failed) return error_set(err, STATUS_NO_MEMORY, "no memory for the prompt");
    encoding e = {.t = t, .out = out, .err = err};
    status rc = encode_all(&e, p, content);
    bpe_scratch_release(&e.scratch);
    return rc;
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t length,
                        tokenizer_added added, token_list *out, error *err) {
    prompt p = {0};
    prompt_add(&p, text, length, false);
    status rc = tokenizer_encode_prompt(t, &p, added, out, err);
    prompt_release(&p);
    return rc;
}

/* --- tokens -------------------------------------------------------------- */

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *length) {
    return vocabulary_bytes(t->tokens, id, length);
}

token_kind tokenizer_kind(const tokenizer *t, int32_t id) {
    return vocabulary_kind(t->tokens, id);
}

int32_t tokenizer_find(const tokenizer *t, const char *text) {
    return vocabulary_find_added(t->tokens, text, strlen(text));
}

size_t tokenizer_n_tokens(const tokenizer *t) {
    return vocabulary_size(t->tokens);
}

bool tokenizer_is_end(const tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->n_ends; i++) {
        if (t->ends[i] == id) return true;
    }
    return false;
}

const int32_t *tokenizer_masked(const tokenizer *t, size_t *n) {
    *n = t->n_masked;
    return t->masked;
}
