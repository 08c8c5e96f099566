/* json_print.c - the writing half of json.h: growable text, and trees as text. */
#include "common/json.h"

#include "common/utf8.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 256, PRINT_MAX_DEPTH = 4 * JSON_MAX_DEPTH };

typedef enum dialect { COMPACT, PYTHON } dialect;

void json_text_release(json_text *text) {
    free(text->bytes);
    *text = (json_text){0};
}

void json_text_clear(json_text *text) {
    text->length = 0;
    text->failed = false;
    if (text->bytes != NULL) text->bytes[0] = '\0';
}

/* Room for more bytes and the terminator. */
static bool reserve(json_text *text, size_t more) {
    if (text->failed) return false;
    if (more > SIZE_MAX / 2 - text->length - 1) {
        text->failed = true;
        return false;
    }
    size_t need = text->length + more + 1;
    if (need <= text->capacity) return true;
    size_t capacity = text->capacity == 0 ? FIRST_CAPACITY : text->capacity;
    while (capacity < need)
        capacity *= 2;
    char *bytes = realloc(text->bytes, capacity);
    if (bytes == NULL) {
        text->failed = true;
        return false;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

void json_text_add(json_text *text, const char *bytes, size_t length) {
    if (!reserve(text, length)) return;
    if (length > 0) memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

static void add_word(json_text *text, const char *word) {
    json_text_add(text, word, strlen(word));
}

void json_text_format(json_text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)n)) {
        (void)vsnprintf(text->bytes + text->length, (size_t)n + 1, format, again);
        text->length += (size_t)n;
    }
    va_end(again);
}

static void add_escape(json_text *text, unsigned char c) {
    static const char letters[] = "btnvfr"; /* of 8..13; \v has no short form */
    if (c == '"' || c == '\\') {
        char pair[2] = {'\\', (char)c};
        json_text_add(text, pair, 2);
    } else if (c >= 8 && c <= 13 && c != 11) {
        char pair[2] = {'\\', letters[c - 8]};
        json_text_add(text, pair, 2);
    } else {
        json_text_format(text, "\\u%04x", c);
    }
}

void json_text_string(json_text *text, const char *bytes, size_t length) {
    const unsigned char *p = (const unsigned char *)bytes;
    size_t plain = 0; /* where the run of bytes begins that goes out as it is */
    size_t at = 0;
    json_text_add(text, "\"", 1);
    while (at < length) {
        uint32_t code_point;
        int n = utf8_decode(p + at, length - at, &code_point);
        if (n > 0 && code_point >= 0x20 && code_point != '"' && code_point != '\\') {
            at += (size_t)n;
            continue;
        }
        if (at > plain) json_text_add(text, bytes + plain, at - plain);
        if (n > 0) {
            add_escape(text, p[at]);
        } else {
            json_text_add(text, UTF8_REPLACEMENT, UTF8_REPLACEMENT_SIZE);
        }
        at++;
        plain = at;
    }
    if (at > plain) json_text_add(text, bytes + plain, at - plain);
    json_text_add(text, "\"", 1);
}

/* --- numbers ------------------------------------------------------------- */

/* Does the source text say an integer, as Python's json reads it? */
static bool is_integer_text(const char *text) {
    return text[strcspn(text, ".eE")] == '\0';
}

/* The fewest digits that read back as value, as d.ddde+XX in buffer. */
static void shortest_digits(double value, char buffer[40]) {
    for (int precision = 0; precision <= 16; precision++) {
        (void)snprintf(buffer, 40, "%.*e", precision, value);
        if (strtod(buffer, NULL) == value) return;
    }
}

/* Python's repr(float): exponents from -4 to 15 are written out. */
static void add_python_float(json_text *text, double value, bool as_json) {
    if (isnan(value) || isinf(value)) {
        const char *word = isnan(value) ? (as_json ? "NaN" : "nan")
                           : as_json    ? (value > 0 ? "Infinity" : "-Infinity")
                                        : (value > 0 ? "inf" : "-inf");
        add_word(text, word);
        return;
    }
    char scientific[40], digits[24];
    shortest_digits(value, scientific);
    size_t n = 0;
    const char *p = scientific + (scientific[0] == '-');
    for (; *p != 'e'; p++) {
        if (*p != '.' && n < sizeof digits - 1) digits[n++] = *p;
    }
    digits[n] = '\0';
    int exponent = (int)strtol(p + 1, NULL, 10);
    if (scientific[0] == '-') json_text_add(text, "-", 1);
    if (exponent < -4 || exponent >= 16) {
        json_text_format(text, "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                         exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        json_text_format(text, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if ((size_t)exponent + 1 >= n) {
        json_text_format(text, "%s%.*s.0", digits, exponent + 1 - (int)n, "0000000000000000");
    } else {
        json_text_format(text, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

static bool is_whole(double value) {
    return value == floor(value) && fabs(value) < 9007199254740992.0;
}

static void add_python_number(json_text *text, const cJSON *number, bool as_json) {
    const char *source = number->valuestring;
    if (source == NULL) {
        if (is_whole(number->valuedouble)) {
            json_text_format(text, "%.0f", number->valuedouble);
        } else {
            add_python_float(text, number->valuedouble, as_json);
        }
    } else if (is_integer_text(source)) {
        add_word(text, strcmp(source, "-0") == 0 ? "0" : source);
    } else {
        add_python_float(text, strtod(source, NULL), as_json);
    }
}

static void add_compact_number(json_text *text, const cJSON *number) {
    double value = number->valuedouble;
    char buffer[40];
    if (number->valuestring != NULL) {
        add_word(text, number->valuestring);
    } else if (isnan(value) || isinf(value)) {
        add_word(text, "null"); /* JSON has no such number */
    } else if (is_whole(value)) {
        json_text_format(text, "%.0f", value);
    } else {
        int precision = 15;
        do {
            (void)snprintf(buffer, sizeof buffer, "%.*g", precision++, value);
        } while (precision <= 17 && strtod(buffer, NULL) != value);
        add_word(text, buffer);
    }
}

/* --- trees --------------------------------------------------------------- */

static void add_value(json_text *text, const cJSON *value, dialect d, int depth);

static void add_items(json_text *text, const cJSON *value, dialect d, int depth) {
    bool object = cJSON_IsObject(value);
    json_text_add(text, object ? "{" : "[", 1);
    for (const cJSON *item = value->child; item != NULL; item = item->next) {
        if (item != value->child) add_word(text, d == PYTHON ? ", " : ",");
        if (object) {
            const char *key = item->string != NULL ? item->string : "";
            json_text_string(text, key, strlen(key));
            add_word(text, d == PYTHON ? ": " : ":");
        }
        add_value(text, item, d, depth + 1);
    }
    json_text_add(text, object ? "}" : "]", 1);
}

/* A parsed tree is at most JSON_MAX_DEPTH deep; the bound here is for ours. */
static void add_value(json_text *text, const cJSON *value, dialect d, int depth) {
    if (depth > PRINT_MAX_DEPTH) {
        text->failed = true;
        return;
    }
    switch (value->type & 0xFF) {
    case cJSON_False:
        add_word(text, "false");
        break;
    case cJSON_True:
        add_word(text, "true");
        break;
    case cJSON_Number:
        if (d == PYTHON) {
            add_python_number(text, value, true);
        } else {
            add_compact_number(text, value);
        }
        break;
    case cJSON_String:
        json_text_string(text, value->valuestring, strlen(value->valuestring));
        break;
    case cJSON_Raw:
        add_word(text, value->valuestring);
        break;
    case cJSON_Array:
    case cJSON_Object:
        add_items(text, value, d, depth);
        break;
    default:
        add_word(text, "null");
        break;
    }
}

/* Hand the text over; NULL after a failure. */
static char *take(json_text *text) {
    if (text->failed) json_text_release(text);
    return text->bytes;
}

char *json_print(const cJSON *value) {
    json_text text = {0};
    add_value(&text, value, COMPACT, 0);
    return take(&text);
}

char *json_print_python(const cJSON *value) {
    json_text text = {0};
    add_value(&text, value, PYTHON, 0);
    return take(&text);
}

char *json_number_python(const cJSON *number) {
    json_text text = {0};
    add_python_number(&text, number, false);
    return take(&text);
}
