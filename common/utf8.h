/* utf8.h - one code point of UTF-8 at a time, strict: no overlong forms, no surrogates.
 *
 * Source: the Unicode Standard, table 3-7 (well-formed byte sequences) and the
 * practice of "maximal subparts" for what one replacement character stands for.
 * No state; any thread.
 */
#ifndef SILICEO_COMMON_UTF8_H
#define SILICEO_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT      "\xEF\xBF\xBD" /* U+FFFD */
#define UTF8_REPLACEMENT_SIZE 3u

/* Decode the first code point of bytes (length > 0) into *code_point.
 * > 0: a character of that many bytes.
 *   0: the bytes are a proper beginning of a character and end too early.
 * < 0: invalid; the negated number of bytes is the maximal subpart, for which
 *      one U+FFFD stands.  *code_point is then the first byte. */
int utf8_decode(const unsigned char *bytes, size_t length, uint32_t *code_point);

/* Write code_point (below U+110000, no surrogate) as 1..4 bytes; the count is returned. */
size_t utf8_encode(uint32_t code_point, unsigned char out[4]);

/* Unicode White_Space.  Zero-width spaces and U+FEFF are not in it. */
bool utf8_is_space(uint32_t code_point);

#endif
