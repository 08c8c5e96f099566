#include "common/json.h"

#include "common/utf8.h"
#include <stdlib.h>
#include <string.h>

/* cJSON turns a number into a double at once, and 12345678901234567890 or 2.0
 * would be lost.  So each number is handed to it as a string that begins with
 * the byte 0xFF, which no string of valid UTF-8 can hold, and becomes a number
 * with its text when the tree stands.  The same pass checks what cJSON does not:
 * UTF-8, depth, the grammar of numbers, control characters and U+0000. */
enum {
    NUMBER_MARK = 0xFF,
    MARK_EXTRA_BYTES = 3, /* two quotes and the mark */
    MAX_NUMBER_CHARS = 1024,
    MAX_VALUES = 4000000 /* of one text: a tree is about 80 bytes a value */
};

typedef struct scan {
    const char *text;
    size_t length;
    size_t at;
    size_t depth;
    size_t n_values;
    const char *what;
    json_text out;
    error *err;
} scan;

bool json_utf8_valid(const char *bytes, size_t length, size_t *bad_at) {
    const unsigned char *p = (const unsigned char *)bytes;
    size_t at = 0;
    while (at < length) {
        if (p[at] < 0x80) {
            at++;
            continue;
        }
        uint32_t code_point;
        int n = utf8_decode(p + at, length - at, &code_point);
        if (n <= 0) {
            *bad_at = at;
            return false;
        }
        at += (size_t)n;
    }
    return true;
}

static status scan_fail(const scan *s, size_t at, const char *problem) {
    return error_set(s->err, STATUS_BAD_INPUT, "%s: %s at byte %zu", s->what, problem, at);
}

static size_t count_digits(const scan *s, size_t at) {
    size_t n = 0;
    while (at + n < s->length && s->text[at + n] >= '0' && s->text[at + n] <= '9')
        n++;
    return n;
}

static char byte_at(const scan *s, size_t at) {
    return at < s->length ? s->text[at] : '\0';
}

/* Length of the number at the cursor by the grammar of JSON; 0: it is none. */
static size_t number_length(const scan *s) {
    size_t at = s->at;
    if (byte_at(s, at) == '-') at++;
    size_t n = count_digits(s, at);
    if (n == 0 || (n > 1 && s->text[at] == '0')) return 0;
    at += n;
    if (byte_at(s, at) == '.') {
        n = count_digits(s, at + 1);
        if (n == 0) return 0;
        at += 1 + n;
    }
    if (byte_at(s, at) == 'e' || byte_at(s, at) == 'E') {
        at++;
        if (byte_at(s, at) == '+' || byte_at(s, at) == '-') at++;
        n = count_digits(s, at);
        if (n == 0) return 0;
        at += n;
    }
    return at - s->at;
}

static status scan_number(scan *s) {
    static const char open[] = {'"', (char)NUMBER_MARK, '\0'};
    size_t n = number_length(s);
    if (n == 0) return scan_fail(s, s->at, "not a JSON number");
    if (n > MAX_NUMBER_CHARS)
        return scan_fail(s, s->at, "a number of more than 1024 characters");
    json_text_add(&s->out, open, 2);
    json_text_add(&s->out, s->text + s->at, n);
    json_text_add(&s->out, "\"", 1);
    s->at += n;
    return STATUS_OK;
}

/* Copy a string; the cursor is on its opening quote. */
static status scan_string(scan *s) {
    size_t start = s->at++;
    while (s->at < s->length && s->text[s->at] != '"') {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c < 0x20) return scan_fail(s, s->at, "a raw control character in a string");
        if (c == '\\') {
            if (s->length - s->at >= 6 && memcmp(s->text + s->at, "\\u0000", 6) == 0) {
                return scan_fail(s, s->at, "U+0000 in a string");
            }
            s->at++;
        }
        s->at++;
    }
    if (s->at >= s->length) return scan_fail(s, start, "a string without an end");
    s->at++;
    json_text_add(&s->out, s->text + start, s->at - start);
    return STATUS_OK;
}

static status scan_other(scan *s, char c) {
    if ((unsigned char)c < 0x20 && c != '\t' && c != '\n' && c != '\r') {
        return scan_fail(s, s->at, "a control character"); /* white space to cJSON */
    }
    if (c == '{' || c == '[') s->depth++;
    if (s->depth > JSON_MAX_DEPTH) return scan_fail(s, s->at, "nested deeper than 64");
    if ((c == '}' || c == ']') && s->depth > 0) s->depth--;
    if (c == ',' || c == '{' || c == '[') s->n_values++;
    if (s->n_values > MAX_VALUES) return scan_fail(s, s->at, "more than 4000000 values");
    json_text_add(&s->out, &c, 1);
    s->at++;
    return STATUS_OK;
}

static status scan_all(scan *s) {
    size_t bad_at;
    if (!json_utf8_valid(s->text, s->length, &bad_at)) {
        return scan_fail(s, bad_at, "not UTF-8");
    }
    while (s->at < s->length) {
        char c = s->text[s->at];
        status rc;
        if (c == '"') {
            rc = scan_string(s);
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            rc = scan_number(s);
        } else {
            rc = scan_other(s, c);
        }
        if (rc != STATUS_OK) return rc;
    }
    json_text_add(&s->out, "", 0);
    if (s->out.failed) return error_set(s->err, STATUS_NO_MEMORY, "%s: no memory", s->what);
    return STATUS_OK;
}

/* Offset in the source of an offset in the rewritten text. */
static size_t source_offset(const scan *s, size_t at) {
    size_t marks = 0;
    for (size_t i = 0; i < at; i++)
        marks += (unsigned char)s->out.bytes[i] == NUMBER_MARK;
    size_t extra = marks * MARK_EXTRA_BYTES;
    return at > extra ? at - extra : 0;
}

static bool marked(const char *text) {
    return text != NULL && (unsigned char)text[0] == NUMBER_MARK;
}

static int clamped_int(double value) {
    if (value >= 2147483647.0) return 2147483647;
    if (value <= -2147483648.0) return -2147483647 - 1;
    return (int)value;
}

/* Marked strings become numbers.  False: a number stands where a key belongs.
 * The depth is that of the text, which scan_other has bounded. */
static bool restore_numbers(cJSON *item) {
    for (; item != NULL; item = item->next) {
        if (marked(item->string)) return false;
        if (cJSON_IsString(item) && marked(item->valuestring)) {
            memmove(item->valuestring, item->valuestring + 1, strlen(item->valuestring));
            item->type = cJSON_Number;
            item->valuedouble = strtod(item->valuestring, NULL);
            item->valueint = clamped_int(item->valuedouble);
        }
        if (item->child != NULL && !restore_numbers(item->child)) return false;
    }
    return true;
}

status json_parse(cJSON **out, const char *text, size_t length, const char *what, error *err) {
    scan s = {.text = text, .length = length, .what = what, .err = err};
    cJSON *tree = NULL;
    const char *end = NULL;
    *out = NULL;
    status rc = scan_all(&s);
    if (rc != STATUS_OK) goto fail;
    if (s.length == 0) {
        rc = scan_fail(&s, 0, "empty, JSON expected");
        goto fail;
    }
    /* The terminator counts: cJSON looks for it after the value. */
    tree = cJSON_ParseWithLengthOpts(s.out.bytes, s.out.length + 1, &end, true);
    if (tree == NULL) {
        size_t at = end != NULL ? (size_t)(end - s.out.bytes) : 0;
        rc = scan_fail(&s, source_offset(&s, at), "not valid JSON");
        goto fail;
    }
    if (!restore_numbers(tree)) {
        rc = error_set(err, STATUS_BAD_INPUT, "%s: not valid JSON: a number as a key", what);
        goto fail;
    }
    *out = tree;
    tree = NULL;
fail:
    cJSON_Delete(tree);
    json_text_release(&s.out);
    return rc;
}
