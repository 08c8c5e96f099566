#include "common/utf8.h"

/* Of a lead byte: how many bytes follow, and the legal range of the first of them. */
typedef struct lead {
    int n_follow;
    unsigned char low, high;
} lead;

static lead lead_of(unsigned char byte) {
    if (byte < 0xC2) return (lead){-1, 0, 0};
    if (byte < 0xE0) return (lead){1, 0x80, 0xBF};
    if (byte == 0xE0) return (lead){2, 0xA0, 0xBF};
    if (byte == 0xED) return (lead){2, 0x80, 0x9F};
    if (byte < 0xF0) return (lead){2, 0x80, 0xBF};
    if (byte == 0xF0) return (lead){3, 0x90, 0xBF};
    if (byte < 0xF4) return (lead){3, 0x80, 0xBF};
    if (byte == 0xF4) return (lead){3, 0x80, 0x8F};
    return (lead){-1, 0, 0};
}

int utf8_decode(const unsigned char *bytes, size_t length, uint32_t *code_point) {
    unsigned char first = bytes[0];
    *code_point = first;
    if (first < 0x80) return 1;
    lead want = lead_of(first);
    if (want.n_follow < 0) return -1;
    uint32_t value = first & (0x3Fu >> want.n_follow);
    for (int i = 1; i <= want.n_follow; i++) {
        if ((size_t)i >= length) return 0;
        unsigned char low = i == 1 ? want.low : 0x80, high = i == 1 ? want.high : 0xBF;
        if (bytes[i] < low || bytes[i] > high) return -i;
        value = value << 6 | (bytes[i] & 0x3Fu);
    }
    *code_point = value;
    return want.n_follow + 1;
}

size_t utf8_encode(uint32_t code_point, unsigned char out[4]) {
    if (code_point < 0x80) {
        out[0] = (unsigned char)code_point;
        return 1;
    }
    size_t n = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code_point >>= 6) {
        out[i] = (unsigned char)(0x80u | (code_point & 0x3Fu));
    }
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (unsigned char)(marks[n] | code_point);
    return n;
}

bool utf8_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
