#include "worker/text/chat_template.h"

#include "common/utf8.h"
#include "worker/text/chat_template_text.h"
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char think_open[] = "<think>", think_close[] = "</think>";

typedef struct render {
    const cJSON *messages;
    prompt *out;
    bool numbers_pictures; /* add_vision_id */
    size_t n_images, n_videos;
    error *err;
} render;

/* The text of a message's content, and the part of it that is in use. */
typedef struct content {
    prompt text;
    size_t from, to;
} content;

/* --- which template ------------------------------------------------------ */

chat_style chat_template_recognise(const char *text, size_t length,
                                   char warning[CHAT_WARNING_SIZE]) {
    unsigned char hash[crypto_hash_sha256_BYTES];
    char hex[2 * crypto_hash_sha256_BYTES + 1];
    warning[0] = '\0';
    if (length == 0) {
        (void)snprintf(warning, CHAT_WARNING_SIZE,
                       "tokenizer.chat_template: missing; the Qwen3.5 template that thinks by "
                       "default is used");
        return CHAT_THINK;
    }
    (void)crypto_hash_sha256(hash, (const unsigned char *)text, length);
    (void)sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    if (strcmp(hex, chat_text_think_sha256) == 0) return CHAT_THINK;
    if (strcmp(hex, chat_text_nothink_sha256) == 0) return CHAT_NOTHINK;
    /* The official ones ask for `is false` and for `is true`. */
    static const char mark[] = "enable_thinking is true";
    bool nothink = memmem(text, length, mark, sizeof mark - 1) != NULL;
    (void)snprintf(warning, CHAT_WARNING_SIZE,
                   "tokenizer.chat_template: SHA-256 %.16s... is no official Qwen3.5 template; "
                   "the official one that %s by default is used instead",
                   hex, nothink ? "does not think" : "thinks");
    return nothink ? CHAT_NOTHINK : CHAT_THINK;
}

/* --- content ------------------------------------------------------------- */

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *string_at(const cJSON *object, const char *key) {
    return cJSON_GetStringValue(get(object, key));
}

/* What Python's str.strip() removes: White_Space and the four separators. */
static bool is_blank(uint32_t c) {
    return utf8_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static size_t skip_blank(const char *text, size_t from, size_t to) {
    while (from < to) {
        uint32_t c;
        int n = utf8_decode((const unsigned char *)text + from, to - from, &c);
        if (n <= 0 || !is_blank(c)) break;
        from += (size_t)n;
    }
    return from;
}

static size_t drop_blank(const char *text, size_t from, size_t to) {
    while (from < to) {
        size_t begin = to - 1;
        uint32_t c;
        while (begin > from && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        int n = utf8_decode((const unsigned char *)text + begin, to - begin, &c);
        if (n <= 0 || !is_blank(c)) break;
        to = begin;
    }
    return to;
}

static void trim(content *c) {
    c->from = skip_blank(c->text.text.bytes, c->from, c->to);
    c->to = drop_blank(c->text.text.bytes, c->from, c->to);
}

static void drop_newlines(content *c) {
    while (c->from < c->to && c->text.text.bytes[c->from] == '\n')
        c->from++;
}

static bool begins_with(const content *c, const char *word) {
    size_t n = strlen(word);
    return c->to - c->from >= n && memcmp(c->text.text.bytes + c->from, word, n) == 0;
}

static bool ends_with(const content *c, const char *word) {
    size_t n = strlen(word);
    return c->to - c->from >= n && memcmp(c->text.text.bytes + c->to - n, word, n) == 0;
}

static status refuse(const render *r, size_t message, const char *words) {
    return error_set(r->err, STATUS_BAD_INPUT, "messages[%zu]: %s", message, words);
}

static void add_picture(render *r, content *c, bool video, bool counts) {
    size_t *n = video ? &r->n_videos : &r->n_images;
    if (counts) (*n)++;
    if (r->numbers_pictures) {
        char words[48];
        (void)snprintf(words, sizeof words, "%s %zu: ", video ? "Video" : "Picture", *n);
        prompt_add_literal(&c->text, words);
    }
    prompt_add_literal(&c->text, video ? "<|vision_start|><|video_pad|><|vision_end|>"
                                       : "<|vision_start|><|image_pad|><|vision_end|>");
}

static bool is_type(const cJSON *part, const char *type) {
    const char *own = string_at(part, "type");
    return own != NULL && strcmp(own, type) == 0;
}

static status add_part(render *r, size_t message, const cJSON *part, bool system, bool counts,
                       content *c) {
    if (get(part, "image") != NULL || get(part, "image_url") != NULL ||
        is_type(part, "image")) {
        if (system) return refuse(r, message, "System message cannot contain images.");
        add_picture(r, c, false, counts);
    } else if (get(part, "video") != NULL || is_type(part, "video")) {
        if (system) return refuse(r, message, "System message cannot contain videos.");
        add_picture(r, c, true, counts);
    } else {
        const char *text = string_at(part, "text");
        if (text == NULL) return refuse(r, message, "Unexpected item type in content.");
        prompt_add(&c->text, text, strlen(text), false);
    }
    return STATUS_OK;
}

/* Fill *c, zeroed by the caller and released by it also after an error, with the
 * trimmed content.  counts: pictures met here take a number. */
static status read_content(render *r, size_t index, const cJSON *message, bool system,
                           bool counts, content *c) {
    const cJSON *value = get(message, "content");
    json_text_add(&c->text.text, "", 0); /* an empty content has bytes as well */
    if (cJSON_IsString(value)) {
        prompt_add(&c->text, value->valuestring, strlen(value->valuestring), false);
    } else if (cJSON_IsArray(value)) {
        const cJSON *part;
        cJSON_ArrayForEach(part, value) {
            status rc = add_part(r, index, part, system, counts, c);
            if (rc != STATUS_OK) return rc;
        }
    } else if (value != NULL && !cJSON_IsNull(value)) {
        return refuse(r, index, "Unexpected content type.");
    }
    if (c->text.text.failed)
        return error_set(r->err, STATUS_NO_MEMORY, "no memory for a prompt");
    c->to = c->text.text.length;
    trim(c);
    return STATUS_OK;
}

static void add_content(render *r, const content *c) {
    prompt_add_part(r->out, &c->text, c->from, c->to);
}

static void add_outside(render *r, const char *text) {
    prompt_add(r->out, text, strlen(text), false);
}

/* --- messages ------------------------------------------------------------ */

static bool has_role(const cJSON *message, const char *role) {
    const char *own = string_at(message, "role");
    return own != NULL && strcmp(own, role) == 0;
}

static status add_json(render *r, const cJSON *value) {
    char *text = json_print_python(value);
    if (text == NULL) return error_set(r->err, STATUS_NO_MEMORY, "no memory for a prompt");
    add_outside(r, text);
    free(text);
    return STATUS_OK;
}

static status add_system(render *r, const cJSON *tools) {
    const cJSON *first = r->messages->child;
    bool has_system = has_role(first, "system");
    content c = {0};
    status rc = STATUS_OK;
    bool has_tools = cJSON_IsArray(tools) && tools->child != NULL;
    if (!has_tools && !has_system) return STATUS_OK;
    if (has_system) rc = read_content(r, 0, first, true, false, &c);
    if (rc != STATUS_OK) goto done;
    prompt_add_literal(r->out, "<|im_start|>system\n");
    if (has_tools) {
        prompt_add_literal(r->out, chat_text_tools_head);
        for (const cJSON *tool = tools->child; tool != NULL && rc == STATUS_OK;
             tool = tool->next) {
            prompt_add_literal(r->out, "\n");
            rc = add_json(r, tool);
        }
        prompt_add_literal(r->out, "\n</tools>");
        prompt_add_literal(r->out, chat_text_tools_tail);
        if (c.to > c.from) prompt_add_literal(r->out, "\n\n");
    }
    add_content(r, &c);
    prompt_add_literal(r->out, "<|im_end|>\n");
    r->out->n_messages = has_system ? 1 : 0;
    prompt_add_bound(r->out, PROMPT_BOUND_MESSAGE);
done:
    prompt_release(&c.text);
    return rc;
}

/* The last message in which the user asks, rather than hands over a tool's result. */
static status find_last_query(render *r, size_t *last) {
    const cJSON *message;
    size_t index = 0;
    bool found = false;
    cJSON_ArrayForEach(message, r->messages) {
        if (has_role(message, "user")) {
            content c = {0};
            status rc = read_content(r, index, message, false, false, &c);
            if (rc == STATUS_OK &&
                !(begins_with(&c, "<tool_response>") && ends_with(&c, "</tool_response>"))) {
                *last = index;
                found = true;
            }
            prompt_release(&c.text);
            if (rc != STATUS_OK) return rc;
        }
        index++;
    }
    if (found) return STATUS_OK;
    return error_set(r->err, STATUS_BAD_INPUT, "messages: No user query found in messages.");
}

/* An object or array as JSON, the rest as Python's str(). */
static status add_value(render *r, const cJSON *value) {
    if (cJSON_IsObject(value) || cJSON_IsArray(value)) return add_json(r, value);
    if (cJSON_IsString(value)) {
        add_outside(r, value->valuestring);
    } else if (cJSON_IsNumber(value)) {
        char *text = json_number_python(value);
        if (text == NULL) return error_set(r->err, STATUS_NO_MEMORY, "no memory for a prompt");
        add_outside(r, text);
        free(text);
    } else {
        add_outside(r, cJSON_IsTrue(value) ? "True" : cJSON_IsFalse(value) ? "False" : "None");
    }
    return STATUS_OK;
}

static status add_call(render *r, size_t index, size_t number, const cJSON *call) {
    const cJSON *function = get(call, "function");
    if (function == NULL) function = call;
    const char *name = string_at(function, "name");
    const cJSON *arguments = get(function, "arguments");
    if (name == NULL) {
        return error_set(r->err, STATUS_BAD_INPUT,
                         "messages[%zu].tool_calls[%zu]: a call without a name", index, number);
    }
    if (arguments != NULL && !cJSON_IsObject(arguments)) {
        return error_set(
            r->err, STATUS_BAD_INPUT,
            "messages[%zu].tool_calls[%zu]: Can only get item pairs from a mapping.", index,
            number);
    }
    prompt_add_literal(r->out, "<tool_call>\n<function=");
    add_outside(r, name);
    prompt_add_literal(r->out, ">\n");
    const cJSON *argument;
    cJSON_ArrayForEach(argument, arguments) {
        prompt_add_literal(r->out, "<parameter=");
        add_outside(r, argument->string);
        prompt_add_literal(r->out, ">\n");
        status rc = add_value(r, argument);
        if (rc != STATUS_OK) return rc;
        prompt_add_literal(r->out, "\n</parameter>\n");
    }
    prompt_add_literal(r->out, "</function>\n</tool_call>");
    return STATUS_OK;
}

static status add_calls(render *r, size_t index, const cJSON *calls, bool after_text) {
    size_t number = 0;
    if (!cJSON_IsArray(calls)) return STATUS_OK;
    const cJSON *call;
    cJSON_ArrayForEach(call, calls) {
        if (number > 0 || after_text) prompt_add_literal(r->out, number > 0 ? "\n" : "\n\n");
        status rc = add_call(r, index, number++, call);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static size_t find(const content *c, const char *word, size_t from, size_t to) {
    const char *text = c->text.text.bytes;
    const char *at = memmem(text + from, to - from, word, strlen(word));
    return at == NULL ? to : (size_t)(at - text);
}

/* Behind the last `word` in from..to, or `from` where there is none. */
static size_t find_behind_last(const content *c, const char *word, size_t from, size_t to) {
    size_t n = strlen(word), behind = from;
    for (size_t at = find(c, word, from, to); at < to; at = find(c, word, behind, to)) {
        behind = at + n;
    }
    return behind;
}

/* Divide content with a </think> in it: *reasoning is the range of the reasoning,
 * and c becomes the answer.  False: there is none. */
static bool split_reasoning(content *c, content *reasoning) {
    size_t close = find(c, think_close, c->from, c->to);
    if (close == c->to) return false;
    *reasoning = *c;
    reasoning->to = close;
    while (reasoning->to > reasoning->from && c->text.text.bytes[reasoning->to - 1] == '\n') {
        reasoning->to--;
    }
    reasoning->from = find_behind_last(c, think_open, reasoning->from, reasoning->to);
    trim(reasoning);
    c->from = find_behind_last(c, think_close, c->from, c->to);
    drop_newlines(c);
    return true;
}

static status read_reasoning(render *r, const cJSON *message, content *own) {
    const char *text = string_at(message, "reasoning_content");
    json_text_add(&own->text.text, "", 0);
    if (text != NULL) prompt_add(&own->text, text, strlen(text), false);
    if (own->text.text.failed) {
        return error_set(r->err, STATUS_NO_MEMORY, "no memory for a prompt");
    }
    own->to = own->text.text.length;
    trim(own);
    return STATUS_OK;
}

static status add_assistant(render *r, size_t index, const cJSON *message, content *c,
                            bool shows_reasoning) {
    content own = {0}, split = {0};
    status rc = read_reasoning(r, message, &own);
    if (rc != STATUS_OK) goto done;
    bool inlined =
        string_at(message, "reasoning_content") == NULL && split_reasoning(c, &split);
    prompt_add_literal(r->out, "<|im_start|>assistant\n");
    /* The header is a border between tokens unless white space goes on behind it. */
    const char *text = c->text.text.bytes;
    if (shows_reasoning || skip_blank(text, c->from, c->to) == c->from) {
        prompt_add_bound(r->out, PROMPT_BOUND_ASSISTANT);
    }
    if (shows_reasoning) {
        prompt_add_literal(r->out, "<think>\n");
        add_content(r, inlined ? &split : &own);
        prompt_add_literal(r->out, "\n</think>\n\n");
    }
    add_content(r, c);
    bool blank = skip_blank(text, c->from, c->to) == c->to;
    rc = add_calls(r, index, get(message, "tool_calls"), !blank);
    prompt_add_literal(r->out, "<|im_end|>\n");
    r->out->n_messages = index + 1;
    prompt_add_bound(r->out, PROMPT_BOUND_MESSAGE);
done:
    prompt_release(&own.text);
    return rc;
}

static void add_tool_result(render *r, size_t index, const cJSON *message, const content *c) {
    bool first = message == r->messages->child;
    if (!first && !has_role(message->prev, "tool"))
        prompt_add_literal(r->out, "<|im_start|>user");
    prompt_add_literal(r->out, "\n<tool_response>\n");
    add_content(r, c);
    prompt_add_literal(r->out, "\n</tool_response>");
    if (message->next == NULL || !has_role(message->next, "tool")) {
        prompt_add_literal(r->out, "<|im_end|>\n");
        r->out->n_messages = index + 1;
        prompt_add_bound(r->out, PROMPT_BOUND_MESSAGE);
    }
}

static status add_message(render *r, size_t index, const cJSON *message, size_t last_query) {
    content c = {0};
    status rc = read_content(r, index, message, false, true, &c);
    if (rc != STATUS_OK) goto done;
    if (has_role(message, "system")) {
        if (index > 0) rc = refuse(r, index, "System message must be at the beginning.");
    } else if (has_role(message, "user")) {
        prompt_add_literal(r->out, "<|im_start|>user\n");
        add_content(r, &c);
        prompt_add_literal(r->out, "<|im_end|>\n");
        r->out->n_messages = index + 1;
        prompt_add_bound(r->out, PROMPT_BOUND_MESSAGE);
    } else if (has_role(message, "assistant")) {
        rc = add_assistant(r, index, message, &c, index > last_query);
    } else if (has_role(message, "tool")) {
        add_tool_result(r, index, message, &c);
    } else {
        rc = refuse(r, index, "Unexpected message role.");
    }
done:
    prompt_release(&c.text);
    return rc;
}

static void add_generation_prompt(render *r, const cJSON *thinking, chat_style style) {
    bool thinks = style == CHAT_THINK ? !cJSON_IsFalse(thinking) : cJSON_IsTrue(thinking);
    prompt_add_literal(r->out, "<|im_start|>assistant\n");
    prompt_add_bound(r->out, PROMPT_BOUND_ASSISTANT);
    prompt_add_literal(r->out, thinks ? "<think>\n" : "<think>\n\n</think>\n\n");
    r->out->opens_thinking = thinks;
}

status chat_template_render(const cJSON *request, chat_style style, prompt *out, error *err) {
    const cJSON *kwargs = get(request, "chat_template_kwargs");
    const cJSON *generate = get(request, "add_generation_prompt");
    render r = {.messages = get(request, "messages"),
                .out = out,
                .numbers_pictures = cJSON_IsTrue(get(kwargs, "add_vision_id")),
                .err = err};
    if (!cJSON_IsArray(r.messages) || r.messages->child == NULL) {
        return error_set(err, STATUS_BAD_INPUT, "messages: No messages provided.");
    }
    status rc = add_system(&r, get(request, "tools"));
    if (rc != STATUS_OK) return rc;
    size_t last_query = 0, index = 0;
    rc = find_last_query(&r, &last_query);
    if (rc != STATUS_OK) return rc;
    const cJSON *message;
    cJSON_ArrayForEach(message, r.messages) {
        rc = add_message(&r, index++, message, last_query);
        if (rc != STATUS_OK) return rc;
    }
    if (generate == NULL || cJSON_IsTrue(generate)) {
        add_generation_prompt(&r, get(kwargs, "enable_thinking"), style);
    }
    if (out->text.failed) return error_set(err, STATUS_NO_MEMORY, "no memory for a prompt");
    return STATUS_OK;
}
