#include "coordinator/auth.h"

#include "common/error.h"
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_LINE = 1000 };

void tenant_ref(tenant *t) {
    t->refs++;
}

void tenant_unref(tenant *t) {
    if (t == NULL) return;
    CHECK(t->refs > 0);
    if (--t->refs == 0) free(t);
}

/* ------------------------------------------------------------ one line of the file */

static status take_number(double *out, const char *option, const char *value, error *err) {
    char *end = NULL;
    errno = 0;
    *out = strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !(*out >= 0 && *out <= 1e12)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: '%.60s' is not a number from 0 to 1e12",
                         option, value);
    }
    return STATUS_OK;
}

static status take_count(uint32_t *out, const char *option, const char *value, error *err) {
    double number = 0;
    status rc = take_number(&number, option, value, err);
    if (rc != STATUS_OK) return rc;
    if (number > 1e6 || number > floor(number)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: '%.60s' is not a whole number from 0 to 1000000", option, value);
    }
    *out = (uint32_t)number;
    return STATUS_OK;
}

static status take_word(bool *out, const char *option, const char *value, const char *yes,
                        const char *no, error *err) {
    *out = strcmp(value, yes) == 0;
    if (*out || strcmp(value, no) == 0) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "%s: '%.60s' is neither %s nor %s", option, value,
                     yes, no);
}

static status take_option(tenant_limits *limits, char *word, error *err) {
    char *value = strchr(word, '=');
    if (value == NULL) {
        return error_set(err, STATUS_BAD_INPUT, "'%.60s' is not option=value", word);
    }
    *value++ = '\0';
    bool flag = false;
    status rc;
    if (strcmp(word, "requests_per_min") == 0)
        return take_number(&limits->requests_per_min, word, value, err);
    if (strcmp(word, "tokens_per_min") == 0)
        return take_number(&limits->tokens_per_min, word, value, err);
    if (strcmp(word, "concurrent") == 0)
        return take_count(&limits->concurrent, word, value, err);
    if (strcmp(word, "waiting") == 0) return take_count(&limits->waiting, word, value, err);
    if (strcmp(word, "priority") == 0) {
        rc = take_word(&flag, word, value, "background", "interactive", err);
        limits->priority = flag;
        return rc;
    }
    if (strcmp(word, "admin") == 0)
        return take_word(&limits->admin, word, value, "true", "false", err);
    return error_set(err, STATUS_BAD_INPUT, "'%.60s' is no option of a key", word);
}

static status take_name(char name[AUTH_NAME_SIZE], const char *word, error *err) {
    size_t n = 0;
    for (; word[n] != '\0'; n++) {
        char c = word[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  strchr("-_.@", c) != NULL;
        if (!ok || n + 1 >= AUTH_NAME_SIZE) {
            return error_set(
                err, STATUS_BAD_INPUT,
                "'%.70s': a name is up to 63 letters, digits, '-', '_', '.' and '@'", word);
        }
    }
    memcpy(name, word, n + 1);
    return STATUS_OK;
}

status auth_parse_line(char *line, char name[AUTH_NAME_SIZE],
                       unsigned char hash[AUTH_HASH_BYTES], tenant_limits *limits, error *err) {
    memset(limits, 0, sizeof *limits);
    char *rest = NULL;
    const char *first = strtok_r(line, " \t", &rest);
    const char *hex = first == NULL ? NULL : strtok_r(NULL, " \t", &rest);
    if (hex == NULL)
        return error_set(err, STATUS_BAD_INPUT, "expected NAME HASH [option=value]...");
    status rc = take_name(name, first, err);
    if (rc != STATUS_OK) return rc;
    size_t n = 0;
    const char *end = NULL;
    if (strlen(hex) != 2 * AUTH_HASH_BYTES ||
        sodium_hex2bin(hash, AUTH_HASH_BYTES, hex, strlen(hex), NULL, &n, &end) != 0 ||
        n != AUTH_HASH_BYTES || *end != '\0') {
        /* Not shown: it may be a key that was pasted in place of its hash. */
        return error_set(err, STATUS_BAD_INPUT, "%s: the hash is not 64 hex digits", name);
    }
    for (char *word; (word = strtok_r(NULL, " \t", &rest)) != NULL;) {
        rc = take_option(limits, word, err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------ the list */

static tenant *find_by_name(tenant *first, const char *name) {
    for (tenant *t = first; t != NULL; t = t->next) {
        if (strcmp(t->name, name) == 0) return t;
    }
    return NULL;
}

static void list_free(tenant *first) {
    while (first != NULL) {
        tenant *next = first->next;
        first->next = NULL;
        first->listed = false;
        tenant_unref(first);
        first = next;
    }
}

static tenant *tenant_new(const char *name) {
    tenant *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->refs = 1;
    t->listed = true;
    return t;
}

static status add_line(auth *a, tenant ***tail, char *line, error *err) {
    char name[AUTH_NAME_SIZE];
    unsigned char hash[AUTH_HASH_BYTES];
    tenant_limits limits;
    status rc = auth_parse_line(line, name, hash, &limits, err);
    if (rc != STATUS_OK) return rc;
    if (find_by_name(a->first, name) != NULL)
        return error_set(err, STATUS_BAD_INPUT, "'%s' is there twice", name);
    if (a->n_keys == AUTH_MAX_KEYS)
        return error_set(err, STATUS_BAD_INPUT, "more than %d keys", (int)AUTH_MAX_KEYS);
    tenant *t = tenant_new(name);
    if (t == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a key");
    memcpy(t->hash, hash, sizeof t->hash);
    t->limits = limits;
    t->requests_left = limits.requests_per_min;
    t->tokens_left = limits.tokens_per_min;
    **tail = t;
    *tail = &t->next;
    a->n_keys++;
    return STATUS_OK;
}

static bool is_key_line(char *line) {
    line[strcspn(line, "\r\n")] = '\0';
    return line[strspn(line, " \t")] != '\0' && line[0] != '#';
}

static status read_file(auth *a, tenant ***tail, const char *path, error *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    char line[MAX_LINE];
    status rc = STATUS_OK;
    for (int number = 1; rc == STATUS_OK && fgets(line, sizeof line, file) != NULL; number++) {
        error what = {0};
        bool cut = strchr(line, '\n') == NULL && strlen(line) + 1 == sizeof line;
        if (!is_key_line(line)) continue;
        rc = cut ? error_set(&what, STATUS_BAD_INPUT, "the line is too long")
                 : add_line(a, tail, line, &what);
        if (rc != STATUS_OK) (void)error_set(err, rc, "%s:%d: %s", path, number, what.text);
    }
    explicit_bzero(line, sizeof line);
    if (rc == STATUS_OK && ferror(file) != 0)
        rc = error_set(err, STATUS_IO, "%s: cannot be read", path);
    (void)fclose(file);
    return rc;
}

static status read_lines(auth *a, tenant ***tail, const char *lines, error *err) {
    status rc = STATUS_OK;
    while (*lines != '\0' && rc == STATUS_OK) {
        char line[MAX_LINE];
        error what = {0};
        size_t n = strcspn(lines, "\n");
        (void)snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1),
                       lines);
        lines += n + (lines[n] == '\n');
        if (!is_key_line(line)) continue;
        rc = add_line(a, tail, line, &what);
        if (rc != STATUS_OK) (void)error_set(err, rc, "the ledger's keys: %s", what.text);
    }
    return rc;
}

static status read_keys(auth *a, const char *path, const char *lines, error *err) {
    memset(a, 0, sizeof *a);
    if (sodium_init() < 0) return error_set(err, STATUS_IO, "libsodium does not start");
    status rc = STATUS_OK;
    tenant **tail = &a->first;
    if (path[0] == '\0' && lines == NULL) {
        a->open = tenant_new("open");
        if (a->open == NULL)
            rc = error_set(err, STATUS_NO_MEMORY, "no memory for a key");
        else
            a->open->limits.admin = true;
    }
    if (path[0] != '\0') rc = read_file(a, &tail, path, err);
    if (rc == STATUS_OK && lines != NULL) rc = read_lines(a, &tail, lines, err);
    if (rc != STATUS_OK) auth_close(a);
    return rc;
}

status auth_open(auth *a, const char *path, const char *lines, error *err) {
    return read_keys(a, path, lines, err);
}

/* What was used of the old allowance is used of the new one. */
static void move_allowance(double *left, double before, double after) {
    *left = before > 0 ? *left + after - before : after;
}

/* A known name keeps its standing: what it runs, and what it has used of its minute. */
static void keep_standing(auth *a, tenant *old_first) {
    for (tenant **at = &a->first; *at != NULL; at = &(*at)->next) {
        tenant *fresh = *at, *old = find_by_name(old_first, fresh->name);
        if (old == NULL) continue;
        for (tenant **in = &old_first; *in != NULL; in = &(*in)->next) {
            if (*in != old) continue;
            *in = old->next;
            break;
        }
        memcpy(old->hash, fresh->hash, sizeof old->hash);
        move_allowance(&old->requests_left, old->limits.requests_per_min,
                       fresh->limits.requests_per_min);
        move_allowance(&old->tokens_left, old->limits.tokens_per_min,
                       fresh->limits.tokens_per_min);
        old->limits = fresh->limits;
        old->next = fresh->next;
        *at = old;
        fresh->next = NULL;
        tenant_unref(fresh);
    }
    list_free(old_first);
}

status auth_reload(auth *a, const char *path, const char *lines, error *err) {
    if (a->open != NULL) return STATUS_OK;
    auth fresh;
    status rc = read_keys(&fresh, path, lines, err);
    if (rc != STATUS_OK) return rc;
    keep_standing(&fresh, a->first);
    *a = fresh;
    return STATUS_OK;
}

void auth_close(auth *a) {
    list_free(a->first);
    tenant_unref(a->open);
    memset(a, 0, sizeof *a);
}

/* ------------------------------------------------------------ asking */

void auth_hash(unsigned char hash[AUTH_HASH_BYTES], const char *key) {
    (void)crypto_generichash(hash, AUTH_HASH_BYTES, (const unsigned char *)key, strlen(key),
                             NULL, 0);
}

tenant *auth_find(const auth *a, const char *key) {
    if (a->open != NULL) return a->open;
    if (key == NULL || key[0] == '\0') return NULL;
    unsigned char hash[AUTH_HASH_BYTES];
    auth_hash(hash, key);
    tenant *found = NULL;
    /* All of them, found or not: the time tells nothing. */
    for (tenant *t = a->first; t != NULL; t = t->next) {
        if (sodium_memcmp(t->hash, hash, sizeof hash) == 0) found = t;
    }
    return found;
}

const char *auth_bearer(const char *authorization) {
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0) return NULL;
    const char *key = authorization + 7;
    return key + strspn(key, " ");
}

void auth_make_key(char key[AUTH_KEY_SIZE], char hash_hex[2 * AUTH_HASH_BYTES + 1]) {
    unsigned char random[32], hash[AUTH_HASH_BYTES];
    randombytes_buf(random, sizeof random);
    int n = snprintf(key, AUTH_KEY_SIZE, "sk-siliceo-");
    (void)sodium_bin2base64(key + n, AUTH_KEY_SIZE - (size_t)n, random, sizeof random,
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    auth_hash(hash, key);
    (void)sodium_bin2hex(hash_hex, 2 * AUTH_HASH_BYTES + 1, hash, sizeof hash);
    sodium_memzero(random, sizeof random);
}

/* ------------------------------------------------------------ using */

static void refill_one(double *left, double per_min, double seconds) {
    *left += per_min / 60 * seconds;
    if (*left > per_min || per_min <= 0) *left = per_min;
}

static void refill(tenant *t, uint64_t now_ms) {
    double seconds = t->refilled_ms == 0 ? 0 : (double)(now_ms - t->refilled_ms) / 1000;
    t->refilled_ms = now_ms;
    refill_one(&t->requests_left, t->limits.requests_per_min, seconds);
    refill_one(&t->tokens_left, t->limits.tokens_per_min, seconds);
}

const char *tenant_begin(tenant *t, uint64_t now_ms, double *retry_after_s) {
    refill(t, now_ms);
    double per_min = t->limits.requests_per_min;
    if (per_min > 0 && t->requests_left < 1) {
        *retry_after_s = (1 - t->requests_left) / (per_min / 60);
        return "requests_per_min";
    }
    per_min = t->limits.tokens_per_min;
    if (per_min > 0 && t->tokens_left <= 0) {
        *retry_after_s = (1 - t->tokens_left) / (per_min / 60);
        return "tokens_per_min";
    }
    t->requests_left -= 1;
    t->requests++;
    return NULL;
}

void tenant_used_elsewhere(tenant *t, uint64_t requests, uint64_t tokens, uint64_t now_ms) {
    refill(t, now_ms);
    /* The first time it is history; fewer than before: old rows were cleared away. */
    if (t->heard_others && requests > t->others_requests)
        t->requests_left -= (double)(requests - t->others_requests);
    if (t->heard_others && tokens > t->others_tokens)
        t->tokens_left -= (double)(tokens - t->others_tokens);
    t->heard_others = true;
    t->others_requests = requests;
    t->others_tokens = tokens;
}

void tenant_take_back(tenant *t) {
    t->requests_left += 1;
    t->requests--;
}

void tenant_spend(tenant *t, uint64_t tokens, uint64_t now_ms) {
    refill(t, now_ms);
    t->tokens_left -= (double)tokens;
    t->tokens += tokens;
}
