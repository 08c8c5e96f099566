#include "common/json.h"

#include "common/utf8.h"
#include <stdlib.h>
#include <string.h>

/* cJSON turns a number into a double at once, and 12345678901234567890 or 2.0
 * would be lost.  So each number is handed to it as a string that begins with
 * the byte 0xFF, which no string of valid UTF-8 can hold, and becomes a number
 * with its text when the tree stands.  The same pass checks the whole grammar, UTF-8,
 * depth, control characters and U+0000; so when cJSON then gives no tree, it had
 * no memory, which it does not say. */
enum {
    NUMBER_MARK = 0xFF,
    MARK_EXTRA_BYTES = 3, /* two quotes and the mark */
    MAX_NUMBER_CHARS = 1024
};

typedef enum scan_want { /* what may come next */
                         WANT_VALUE,
                         WANT_VALUE_OR_END, /* after '[' */
                         WANT_KEY,
                         WANT_KEY_OR_END, /* after '{' */
                         WANT_COLON,
                         WANT_COMMA_OR_END,
                         WANT_NOTHING
} scan_want;

typedef struct scan {
    const char *text;
    size_t length;
    size_t at;
    size_t depth;
    size_t n_values;
    scan_want want;
    bool in_object[JSON_MAX_DEPTH + 1]; /* by depth */
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

/* A value begins here, if one may. */
static status begin_value(scan *s) {
    if (s->want == WANT_KEY || s->want == WANT_KEY_OR_END)
        return scan_fail(s, s->at, "not valid JSON: a key that is no string");
    if (s->want != WANT_VALUE && s->want != WANT_VALUE_OR_END)
        return scan_fail(s, s->at, "not valid JSON");
    if (++s->n_values > JSON_MAX_VALUES) return scan_fail(s, s->at, "more than 300000 values");
    return STATUS_OK;
}

static void end_value(scan *s) {
    s->want = s->depth == 0 ? WANT_NOTHING : WANT_COMMA_OR_END;
}

static status scan_number(scan *s) {
    static const char open[] = {'"', (char)NUMBER_MARK, '\0'};
    status rc = begin_value(s);
    if (rc != STATUS_OK) return rc;
    size_t n = number_length(s);
    if (n == 0) return scan_fail(s, s->at, "not a JSON number");
    if (n > MAX_NUMBER_CHARS)
        return scan_fail(s, s->at, "a number of more than 1024 characters");
    json_text_add(&s->out, open, 2);
    json_text_add(&s->out, s->text + s->at, n);
    json_text_add(&s->out, "\"", 1);
    s->at += n;
    end_value(s);
    return STATUS_OK;
}

/* The four digits after a \u; -1: they are none. */
static int32_t hex4(const scan *s, size_t at) {
    int32_t value = 0;
    for (size_t i = 0; i < 4; i++) {
        char c = byte_at(s, at + i);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The cursor is on a backslash; afterwards behind the escape. */
static status scan_escape(scan *s) {
    char kind = byte_at(s, s->at + 1);
    if (kind != 'u') {
        if (kind == '\0' || strchr("\"\\/bfnrt", kind) == NULL)
            return scan_fail(s, s->at, "not an escape of JSON");
        s->at += 2;
        return STATUS_OK;
    }
    int32_t unit = hex4(s, s->at + 2);
    if (unit < 0) return scan_fail(s, s->at, "not an escape of JSON");
    if (unit == 0) return scan_fail(s, s->at, "U+0000 in a string");
    bool high = unit >= 0xD800 && unit < 0xDC00;
    int32_t low = 0;
    if (high && byte_at(s, s->at + 6) == '\\' && byte_at(s, s->at + 7) == 'u')
        low = hex4(s, s->at + 8);
    if ((unit >= 0xDC00 && unit < 0xE000) || (high && (low < 0xDC00 || low >= 0xE000)))
        return scan_fail(s, s->at, "half of a surrogate pair");
    s->at += high ? 12 : 6;
    return STATUS_OK;
}

/* Copy a string, a value or a key; the cursor is on its opening quote. */
static status scan_string(scan *s) {
    size_t start = s->at;
    bool key = s->want == WANT_KEY || s->want == WANT_KEY_OR_END;
    status rc = key ? STATUS_OK : begin_value(s);
    if (rc != STATUS_OK) return rc;
    s->at++;
    while (s->at < s->length && s->text[s->at] != '"') {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c < 0x20) return scan_fail(s, s->at, "a raw control character in a string");
        if (c == '\\' && s->at + 1 < s->length) {
            rc = scan_escape(s);
            if (rc != STATUS_OK) return rc;
        } else {
            s->at++;
        }
    }
    if (s->at >= s->length) return scan_fail(s, start, "a string without an end");
    s->at++;
    json_text_add(&s->out, s->text + start, s->at - start);
    if (key)
        s->want = WANT_COLON;
    else
        end_value(s);
    return STATUS_OK;
}

static status scan_open(scan *s, bool object) {
    status rc = begin_value(s);
    if (rc != STATUS_OK) return rc;
    if (s->depth == JSON_MAX_DEPTH) return scan_fail(s, s->at, "nested deeper than 64");
    s->in_object[++s->depth] = object;
    s->want = object ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
    return STATUS_OK;
}

static status scan_close(scan *s, bool object) {
    bool empty = s->want == (object ? WANT_KEY_OR_END : WANT_VALUE_OR_END);
    if (s->depth == 0 || s->in_object[s->depth] != object ||
        (!empty && s->want != WANT_COMMA_OR_END)) {
        return scan_fail(s, s->at, "not valid JSON");
    }
    s->depth--;
    end_value(s);
    return STATUS_OK;
}

static status scan_word(scan *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (s->length - s->at < n || memcmp(s->text + s->at, words[i], n) != 0) continue;
        status rc = begin_value(s);
        if (rc != STATUS_OK) return rc;
        json_text_add(&s->out, words[i], n);
        s->at += n;
        end_value(s);
        return STATUS_OK;
    }
    return scan_fail(s, s->at, "not valid JSON");
}

/* One byte that is a token of its own, or white space. */
static status scan_mark(scan *s, char c) {
    status rc = STATUS_OK;
    if (c == '{' || c == '[') {
        rc = scan_open(s, c == '{');
    } else if (c == '}' || c == ']') {
        rc = scan_close(s, c == '}');
    } else if (c == ',' && s->want == WANT_COMMA_OR_END) {
        s->want = s->in_object[s->depth] ? WANT_KEY : WANT_VALUE;
    } else if (c == ':' && s->want == WANT_COLON) {
        s->want = WANT_VALUE;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
        return scan_fail(s, s->at,
                         (unsigned char)c < 0x20 ? "a control character" : "not valid JSON");
    }
    if (rc != STATUS_OK) return rc;
    json_text_add(&s->out, &c, 1);
    s->at++;
    return STATUS_OK;
}

static status scan_token(scan *s) {
    char c = s->text[s->at];
    if (c == '"') return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    if (c == 't' || c == 'f' || c == 'n') return scan_word(s);
    return scan_mark(s, c);
}

static status scan_all(scan *s) {
    size_t bad_at;
    if (!json_utf8_valid(s->text, s->length, &bad_at)) {
        return scan_fail(s, bad_at, "not UTF-8");
    }
    if (s->length >= 3 && memcmp(s->text, "\xEF\xBB\xBF", 3) == 0) s->at = 3; /* a BOM */
    while (s->at < s->length) {
        status rc = scan_token(s);
        if (rc != STATUS_OK) return rc;
    }
    if (s->want == WANT_VALUE && s->depth == 0) return scan_fail(s, 0, "empty, JSON expected");
    if (s->want != WANT_NOTHING) return scan_fail(s, s->at, "JSON without an end");
    json_text_add(&s->out, "", 0);
    if (s->out.failed) return error_set(s->err, STATUS_NO_MEMORY, "%s: no memory", s->what);
    return STATUS_OK;
}

static bool marked(const char *text) {
    return text != NULL && (unsigned char)text[0] == NUMBER_MARK;
}

static int clamped_int(double value) {
    if (value >= 2147483647.0) return 2147483647;
    if (value <= -2147483648.0) return -2147483647 - 1;
    return (int)value;
}

/* Marked strings become numbers.  The depth is that of the text, which scan_open bounds. */
static void restore_numbers(cJSON *item) {
    for (; item != NULL; item = item->next) {
        if (cJSON_IsString(item) && marked(item->valuestring)) {
            memmove(item->valuestring, item->valuestring + 1, strlen(item->valuestring));
            item->type = cJSON_Number;
            item->valuedouble = strtod(item->valuestring, NULL);
            item->valueint = clamped_int(item->valuedouble);
        }
        if (item->child != NULL) restore_numbers(item->child);
    }
}

status json_parse(cJSON **out, const char *text, size_t length, const char *what, error *err) {
    scan s = {.text = text, .length = length, .what = what, .err = err};
    *out = NULL;
    status rc = scan_all(&s);
    if (rc == STATUS_OK) {
        /* The terminator counts: cJSON looks for it after the value. */
        *out = cJSON_ParseWithLengthOpts(s.out.bytes, s.out.length + 1, NULL, true);
        if (*out == NULL) rc = error_set(err, STATUS_NO_MEMORY, "%s: no memory", what);
    }
    if (rc == STATUS_OK) restore_numbers(*out);
    json_text_release(&s.out);
    return rc;
}
