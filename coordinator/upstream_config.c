#include "coordinator/upstream_config.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SIZE = 1024 };

upstream_config *upstream_config_use(upstream_config *c) {
    (void)atomic_fetch_add(&c->n_users, 1);
    return c;
}

void upstream_config_leave(upstream_config *c) {
    if (c == NULL || atomic_fetch_sub(&c->n_users, 1) > 1) return;
    if (c->authorization != NULL) explicit_bzero(c->authorization, strlen(c->authorization));
    free(c->authorization);
    free(c);
}

static bool same_text(const char *a, const char *b) {
    return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

bool upstream_config_same(const upstream_config *a, const upstream_config *b) {
    return strcmp(a->name, b->name) == 0 && strcmp(a->url, b->url) == 0 &&
           same_text(a->authorization, b->authorization) && a->concurrent == b->concurrent &&
           a->context_tokens == b->context_tokens && a->n_models == b->n_models &&
           memcmp(a->models, b->models, sizeof a->models) == 0;
}

static status take_url(upstream_config *c, const char *url, error *err) {
    bool tls = strncmp(url, "https://", 8) == 0;
    const char *host = url + (tls ? 8 : 7);
    if ((!tls && strncmp(url, "http://", 7) != 0) || host[0] == '\0' || host[0] == '/' ||
        strpbrk(host, "@?#") != NULL) {
        return error_set(
            err, STATUS_BAD_INPUT,
            "'%.100s' is not http://HOST[:PORT][/PATH] (a key goes into key_env or "
            "key_file)",
            strchr(host, '@') != NULL ? "(hidden)" : url);
    }
    size_t n = strlen(url);
    while (url[n - 1] == '/')
        n--;
    bool has_path = memchr(host, '/', n - (size_t)(host - url)) != NULL;
    int written = snprintf(c->url, sizeof c->url, "%.*s%s", (int)n, url, has_path ? "" : "/v1");
    if (written < 0 || (size_t)written >= sizeof c->url)
        return error_set(err, STATUS_BAD_INPUT, "the url is too long");
    return STATUS_OK;
}

static status take_key(upstream_config *c, const char *key, const char *where, error *err) {
    size_t n = strcspn(key, "\r\n");
    if (n == 0 || n >= KEY_SIZE)
        return error_set(err, STATUS_BAD_INPUT, "%s: holds no key of up to %d bytes", where,
                         KEY_SIZE);
    size_t size = n + sizeof "Authorization: Bearer ";
    char *line = malloc(size);
    if (line == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for a key");
    (void)snprintf(line, size, "Authorization: Bearer %.*s", (int)n, key);
    if (c->authorization != NULL) explicit_bzero(c->authorization, strlen(c->authorization));
    free(c->authorization);
    c->authorization = line;
    return STATUS_OK;
}

static status take_key_file(upstream_config *c, const char *path, error *err) {
    char key[KEY_SIZE] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL) return error_set_errno(err, STATUS_IO, errno, "key_file: %s", path);
    if (fgets(key, sizeof key, file) == NULL) key[0] = '\0';
    (void)fclose(file);
    status rc = take_key(c, key, path, err);
    explicit_bzero(key, sizeof key);
    return rc;
}

static status take_count(uint64_t *out, const char *option, const char *value, uint64_t max,
                         error *err) {
    char *end = NULL;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || value[0] == '-' || n < 1 || n > max) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: '%.60s' is not a whole number from 1 to %llu", option, value,
                         (unsigned long long)max);
    }
    *out = n;
    return STATUS_OK;
}

static status take_models(upstream_config *c, char *list, error *err) {
    char *rest = NULL;
    for (char *name = strtok_r(list, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        if (strlen(name) > WIRE_MAX_NAME || c->n_models == UPSTREAM_MAX_MODELS) {
            return error_set(err, STATUS_BAD_INPUT,
                             "models: more than %d, or a name over %d bytes",
                             UPSTREAM_MAX_MODELS, WIRE_MAX_NAME);
        }
        (void)snprintf(c->models[c->n_models++], WIRE_MAX_NAME + 1, "%s", name);
    }
    return STATUS_OK;
}

static status take_option(upstream_config *c, char *word, error *err) {
    char *value = strchr(word, '=');
    if (value == NULL)
        return error_set(err, STATUS_BAD_INPUT, "'%.60s' is not option=value", word);
    *value++ = '\0';
    if (strcmp(word, "concurrent") == 0)
        return take_count(&c->concurrent, word, value, 10000, err);
    if (strcmp(word, "context") == 0)
        return take_count(&c->context_tokens, word, value, 100000000, err);
    if (strcmp(word, "models") == 0) return take_models(c, value, err);
    if (strcmp(word, "key_file") == 0) return take_key_file(c, value, err);
    if (strcmp(word, "key_env") == 0) {
        const char *key = getenv(value);
        if (key == NULL)
            return error_set(err, STATUS_BAD_INPUT, "key_env: '%.60s' is not set", value);
        return take_key(c, key, value, err);
    }
    return error_set(err, STATUS_BAD_INPUT, "'%.60s' is no option of an upstream", word);
}

static status parse(upstream_config *c, char *line, error *err) {
    char *rest = NULL;
    const char *name = strtok_r(line, " \t", &rest);
    const char *url = name == NULL ? NULL : strtok_r(NULL, " \t", &rest);
    if (url == NULL || strlen(name) > WIRE_MAX_NAME)
        return error_set(err, STATUS_BAD_INPUT, "expected NAME URL [option=value]...");
    (void)snprintf(c->name, sizeof c->name, "%s", name);
    status rc = take_url(c, url, err);
    for (char *word; rc == STATUS_OK && (word = strtok_r(NULL, " \t", &rest)) != NULL;)
        rc = take_option(c, word, err);
    return rc;
}

status upstream_config_parse(upstream_config **out, char *line, error *err) {
    *out = NULL;
    upstream_config *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(err, STATUS_NO_MEMORY, "no memory for an upstream");
    atomic_init(&c->n_users, 1);
    c->concurrent = 4;
    status rc = parse(c, line, err);
    if (rc != STATUS_OK) {
        upstream_config_leave(c);
        return rc;
    }
    *out = c;
    return STATUS_OK;
}
