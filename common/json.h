/* json.h - bounded JSON in and out, over cJSON.
 *
 * Input from outside is parsed with limits, must be UTF-8, and keeps what cJSON
 * alone would lose: the source text of every number (a cJSON_Number here has
 * its text in valuestring, so 2.0, 2 and 12345678901234567890 stay what they
 * were) and the order of keys.  A string or key with U+0000 is refused; a byte order
 * mark in front is passed over.
 * A tree belongs to the caller: cJSON_Delete().  No state; any thread.
 */
#ifndef SILICEO_COMMON_JSON_H
#define SILICEO_COMMON_JSON_H

#include "common/error.h"
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values bound the time and memory of a parse better than bytes do: at 0.2 to 0.4 us and
 * about 80 bytes each, this is a tenth of a second and 24 MB.  It is above the longest
 * prompt of token ids, 262144. */
enum { JSON_MAX_DEPTH = 64, JSON_MAX_VALUES = 300000 };

/* Parse length bytes; trailing white space is allowed, anything else after the
 * value is an error.  what names the text in errors ("request body").  The
 * error gives the byte offset. */
status json_parse(cJSON **out, const char *text, size_t length, const char *what, error *err);

/* Compact text, numbers as they were read.  The caller frees; NULL without memory. */
char *json_print(const cJSON *value);
/* As Python's json.dumps(ensure_ascii=False): ", " and ": ", numbers as Python
 * prints what it reads (2.0 stays 2.0, 1e3 becomes 1000.0, big integers stay). */
char *json_print_python(const cJSON *value);
/* Python's str() of a JSON number, as the chat template needs it; the caller frees. */
char *json_number_python(const cJSON *number);

/* A growable text for building JSON lines by hand where a tree is too slow.
 * After a failed allocation `failed` is set and later calls do nothing. */
typedef struct json_text {
    char *bytes; /* terminated */
    size_t length;
    size_t capacity;
    bool failed;
} json_text;
void json_text_release(json_text *text);
void json_text_clear(json_text *text); /* keeps the memory */
void json_text_add(json_text *text, const char *bytes, size_t length);
void json_text_format(json_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* bytes as a JSON string with quotes; an invalid UTF-8 byte becomes U+FFFD. */
void json_text_string(json_text *text, const char *bytes, size_t length);

/* Are these bytes valid UTF-8 (no surrogates, no overlong forms)?  On false
 * *bad_at is the offset of the first bad byte. */
bool json_utf8_valid(const char *bytes, size_t length, size_t *bad_at);

#endif
