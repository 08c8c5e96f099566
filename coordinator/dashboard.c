#include "coordinator/dashboard.h"

#include "common/error.h"
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* page.S */
extern const char dashboard_page[];
extern const uint64_t dashboard_page_size;

const char *dashboard_page_text(size_t *length) {
    *length = (size_t)dashboard_page_size;
    return dashboard_page;
}

enum {
    HASH_TEXT =
        sodium_base64_ENCODED_LEN(crypto_hash_sha256_BYTES, sodium_base64_VARIANT_ORIGINAL)
};

/* What stands between the only <tag> and its end, hashed as browsers do. */
static void hash_element(char hash[HASH_TEXT], const char *open, const char *close) {
    size_t length = 0;
    const char *page = dashboard_page_text(&length);
    const char *from = memmem(page, length, open, strlen(open));
    CHECK(from != NULL);
    from += strlen(open);
    const char *to = memmem(from, length - (size_t)(from - page), close, strlen(close));
    CHECK(to != NULL);
    unsigned char bytes[crypto_hash_sha256_BYTES];
    (void)crypto_hash_sha256(bytes, (const unsigned char *)from,
                             (unsigned long long)(to - from));
    (void)sodium_bin2base64(hash, HASH_TEXT, bytes, sizeof bytes,
                            sodium_base64_VARIANT_ORIGINAL);
}

void dashboard_policy(char policy[DASHBOARD_POLICY_SIZE]) {
    char script[HASH_TEXT], style[HASH_TEXT];
    hash_element(script, "<script>", "</script>");
    hash_element(style, "<style>", "</style>");
    (void)snprintf(policy, DASHBOARD_POLICY_SIZE,
                   "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; "
                   "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'",
                   script, style);
}
