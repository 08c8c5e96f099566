/* make_model_tokens.c - byte tokens, ten merges, fillers, and the added tokens. */
#include "tests/benchmark/make_model_tokens.h"

#include <stdio.h>

enum {
    N_BYTE_TOKENS = 256,
    FULL_VOCAB = 248320,
    FULL_FIRST_ADDED = 248044,
    TOKEN_NORMAL = 1,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5
};

const char *const made_merges[MADE_MERGES][2] = {
    {"\xC4\xA0", "\xC4\xA0"},
    {"\xC4\xA0", "t"},
    {"i", "n"},
    {"h", "e"},
    {"\xC4\xA0", "a"},
    {"r", "e"},
    {"o", "n"},
    {"\xC4\xA0t", "he"},
    {"e", "r"},
    {"a", "t"},
};

typedef struct added_token {
    const char *text;
    uint32_t type;
} added_token;

static const added_token full_added[] = {
    {"<|endoftext|>", TOKEN_CONTROL},
    {"<|im_start|>", TOKEN_CONTROL},
    {"<|im_end|>", TOKEN_CONTROL},
    {"<|object_ref_start|>", TOKEN_CONTROL},
    {"<|object_ref_end|>", TOKEN_CONTROL},
    {"<|box_start|>", TOKEN_CONTROL},
    {"<|box_end|>", TOKEN_CONTROL},
    {"<|quad_start|>", TOKEN_CONTROL},
    {"<|quad_end|>", TOKEN_CONTROL},
    {"<|vision_start|>", TOKEN_CONTROL},
    {"<|vision_end|>", TOKEN_CONTROL},
    {"<|vision_pad|>", TOKEN_CONTROL},
    {"<|image_pad|>", TOKEN_CONTROL},
    {"<|video_pad|>", TOKEN_CONTROL},
    {"<tool_call>", TOKEN_USER},
    {"</tool_call>", TOKEN_USER},
    {"<|fim_prefix|>", TOKEN_CONTROL},
    {"<|fim_middle|>", TOKEN_CONTROL},
    {"<|fim_suffix|>", TOKEN_CONTROL},
    {"<|fim_pad|>", TOKEN_CONTROL},
    {"<|repo_name|>", TOKEN_CONTROL},
    {"<|file_sep|>", TOKEN_CONTROL},
    {"<tool_response>", TOKEN_USER},
    {"</tool_response>", TOKEN_USER},
    {"<think>", TOKEN_USER},
    {"</think>", TOKEN_USER},
    {"<|audio_start|>", TOKEN_CONTROL},
    {"<|audio_end|>", TOKEN_CONTROL},
    {"<tts_pad>", TOKEN_CONTROL},
    {"<tts_text_bos>", TOKEN_CONTROL},
    {"<tts_text_eod>", TOKEN_CONTROL},
    {"<tts_text_bos_single>", TOKEN_CONTROL},
    {"<|audio_pad|>", TOKEN_CONTROL},
};
enum { N_FULL_ADDED = sizeof full_added / sizeof full_added[0] };

static const added_token small_added[] = {
    {"<|endoftext|>", TOKEN_CONTROL}, {"<|im_start|>", TOKEN_CONTROL},
    {"<|im_end|>", TOKEN_CONTROL},    {"<think>", TOKEN_USER},
    {"</think>", TOKEN_USER},
};
enum { N_SMALL_ADDED = sizeof small_added / sizeof small_added[0] };

int64_t made_first_added(int64_t vocab) {
    return vocab == FULL_VOCAB ? FULL_FIRST_ADDED : vocab - N_SMALL_ADDED;
}

/* The code point of byte token id: the printable bytes as themselves, then the
 * other 68 from 256 on. */
static uint32_t byte_code_point(uint32_t id) {
    static const struct {
        uint32_t first, last;
    } printable[] = {{33, 126}, {161, 172}, {174, 255}};
    uint32_t at = 0;
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = printable[i].last - printable[i].first + 1;
        if (id < at + n) return printable[i].first + (id - at);
        at += n;
    }
    return 256 + (id - at);
}

/* All code points here are below U+0800. */
static void write_utf8(char out[3], uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        out[1] = 0;
        return;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    out[2] = 0;
}

uint32_t made_token(int64_t vocab, int64_t id, char text[64]) {
    int64_t added = id - made_first_added(vocab);
    if (id < N_BYTE_TOKENS) {
        write_utf8(text, byte_code_point((uint32_t)id));
    } else if (id < N_BYTE_TOKENS + MADE_MERGES) {
        const char *const *pair = made_merges[id - N_BYTE_TOKENS];
        (void)snprintf(text, 64, "%s%s", pair[0], pair[1]);
    } else if (added < 0) {
        (void)snprintf(text, 64, "<t%lld>", (long long)id);
    } else if (vocab != FULL_VOCAB) {
        (void)snprintf(text, 64, "%s", small_added[added].text);
        return small_added[added].type;
    } else if (added < N_FULL_ADDED) {
        (void)snprintf(text, 64, "%s", full_added[added].text);
        return full_added[added].type;
    } else {
        (void)snprintf(text, 64, "[PAD%lld]", (long long)id);
        return TOKEN_UNUSED;
    }
    return TOKEN_NORMAL;
}
