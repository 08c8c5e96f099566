/* auth.h - API keys: who asks, what they may do, and how much of it they have used.
 *
 * The key file has a line a key, `NAME HASH [option=value]...`; the hash is the hex
 * of BLAKE2b-256 over the key, which is enough because keys are 256 random bits
 * (`siliceo-coordinator keygen --api NAME` makes both).  Options: requests_per_min, tokens_per_min,
 * concurrent (requests that run at once), waiting (that may queue), priority
 * (interactive|background), admin (true|false).  A line that begins with '#' is a comment.
 * A key that is presented is compared with every listed one in constant time.
 *
 * A tenant is a key's standing: its limits and what it uses now.  It outlives its
 * removal from the file until its last request has ended, and keeps its use when
 * the file is read again.  Without a key file everyone is the tenant "open", which
 * may do everything.  `io` thread; no key is kept or logged.
 */
#ifndef SILICEO_COORDINATOR_AUTH_H
#define SILICEO_COORDINATOR_AUTH_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AUTH_HASH_BYTES = 32, AUTH_NAME_SIZE = 64, AUTH_KEY_SIZE = 64, AUTH_MAX_KEYS = 4096 };

typedef struct tenant_limits { /* 0: no limit */
    double requests_per_min;
    double tokens_per_min;
    uint32_t concurrent;
    uint32_t waiting;
    uint64_t priority; /* of requests that name none: 0 interactive, 1 background */
    bool admin;
} tenant_limits;

typedef struct tenant {
    struct tenant *next;
    uint32_t refs; /* the list's and each request's */
    char name[AUTH_NAME_SIZE];
    unsigned char hash[AUTH_HASH_BYTES];
    tenant_limits limits;
    bool listed;

    uint32_t n_running;     /* requests that hold a place on a node */
    uint32_t n_waiting;     /* in the queue */
    uint64_t fair_round[2]; /* admission's: the turn of its last request, by priority */
    double requests_left,
        tokens_left; /* of the minute, refilled all the time; may be negative */
    uint64_t refilled_ms;
    uint64_t requests, tokens;               /* since the start */
    uint64_t others_requests, others_tokens; /* at other coordinators, as last heard */
    bool heard_others;
} tenant;

typedef struct auth {
    tenant *first;
    size_t n_keys;
    tenant *open; /* whoever asks where there are no keys; NULL where there are */
} auth;

/* Keys of a file (path ""; none) and of lines that stand elsewhere, one a line (NULL: there is no
 * such place).  Without either everyone is "open".  On failure err names file, line and field,
 * and *a holds nothing. */
status auth_open(auth *a, const char *path, const char *lines, error *err);
/* Read them again.  On failure everything stays as it was. */
status auth_reload(auth *a, const char *path, const char *lines, error *err);
void auth_close(auth *a); /* tenants that requests still hold go with the last of these */

/* The tenant of a key; NULL: no such key.  key NULL or "" where keys exist is none. */
tenant *auth_find(const auth *a, const char *key);
/* The key in an Authorization header's value ("Bearer KEY"); NULL without one. */
const char *auth_bearer(const char *authorization);

void tenant_ref(tenant *t);
void tenant_unref(tenant *t); /* accepts NULL */

/* May it begin a request now?  Counts it when so.  Otherwise *retry_after_s is when it
 * may, and the code says which limit it was ("requests_per_min", "tokens_per_min"). */
const char *tenant_begin(tenant *t, uint64_t now_ms, double *retry_after_s);
/* The request that was begun found no place after all. */
void tenant_take_back(tenant *t);
/* Its tokens, prompt and answer, once they are known. */
void tenant_spend(tenant *t, uint64_t tokens, uint64_t now_ms);

/* What its key has used at other coordinators in all; the difference to the last call is taken from
 * what is left of the minute. */
void tenant_used_elsewhere(tenant *t, uint64_t requests, uint64_t tokens, uint64_t now_ms);

/* A new key of 256 random bits, and the hash for the file in hex. */
void auth_make_key(char key[AUTH_KEY_SIZE], char hash_hex[2 * AUTH_HASH_BYTES + 1]);
void auth_hash(unsigned char hash[AUTH_HASH_BYTES], const char *key);
/* One line of the file, for the fuzz target and the database: words are NAME HASH OPTION... */
status auth_parse_line(char *line, char name[AUTH_NAME_SIZE],
                       unsigned char hash[AUTH_HASH_BYTES], tenant_limits *limits, error *err);

#endif
