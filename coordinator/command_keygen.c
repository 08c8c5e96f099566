/* command_keygen.c - `siliceo-coordinator keygen`: a CURVE key pair as a key file on stdout, or
 * with --api a key for the HTTP interface and the line for its file, or in the ledger's database. */
#include "coordinator/auth.h"
#include "coordinator/commands.h"
#include "coordinator/ledger_store.h"
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

static int make_curve(void) {
    char public_key[41], secret_key[41];
    if (zmq_curve_keypair(public_key, secret_key) != 0) {
        (void)fprintf(stderr, "siliceo-coordinator: this ZeroMQ has no CURVE\n");
        return 1;
    }
    (void)printf("# public key: %s\n%s\n", public_key, secret_key);
    explicit_bzero(secret_key, sizeof secret_key);
    return 0;
}

/* Puts the key's line into the ledger's database; line NULL takes it away. */
static int store_line(const char *url, const char *name, const char *line) {
    error err = {0};
    ledger_store *store = NULL;
    status rc = ledger_store_open(&store, url, true, &err);
    if (rc == STATUS_OK) rc = ledger_store_put_key(store, name, line, &err);
    ledger_store_close(store);
    if (rc != STATUS_OK) (void)fprintf(stderr, "siliceo-coordinator: keygen: %s\n", err.text);
    return rc == STATUS_OK ? 0 : 1;
}

/* The options are checked as the file's reader will; the key is shown this once. */
static int make_api(const char *url, const char *name, int n_options, char *options[]) {
    char key[AUTH_KEY_SIZE], hash_hex[2 * AUTH_HASH_BYTES + 1], line[1000], checked[1000];
    if (sodium_init() < 0) return 1;
    auth_make_key(key, hash_hex);
    int n = snprintf(line, sizeof line, "%s %s", name, hash_hex);
    for (int i = 0; i < n_options && n >= 0 && (size_t)n < sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %s", options[i]);
    char parsed[AUTH_NAME_SIZE];
    unsigned char hash[AUTH_HASH_BYTES];
    tenant_limits limits;
    error err = {0};
    bool fits = n >= 0 && (size_t)n + 2 < sizeof line;
    memcpy(checked, line, sizeof checked);
    if (!fits) (void)error_set(&err, STATUS_BAD_INPUT, "the options are too long");
    if (!fits || auth_parse_line(checked, parsed, hash, &limits, &err) != STATUS_OK) {
        (void)fprintf(stderr, "siliceo-coordinator: keygen: %s\n", err.text);
        return 2;
    }
    if (url != NULL && store_line(url, name, line) != 0) return 1;
    (void)fprintf(stderr,
                  "the key, shown only now (its line with the hash is on stdout):\n%s\n", key);
    (void)printf("%s\n", line);
    explicit_bzero(key, sizeof key);
    return 0;
}

static int usage(bool help) {
    (void)fprintf(
        help ? stdout : stderr,
        "usage: siliceo-coordinator keygen > FILE   (umask 077 first: it holds a secret)\n"
        "       siliceo-coordinator keygen --api NAME [OPTION]... >> KEYS-FILE\n"
        "       siliceo-coordinator keygen --store LEDGER-URL NAME [OPTION]...\n"
        "       siliceo-coordinator keygen --revoke LEDGER-URL NAME\n"
        "options: requests_per_min=N tokens_per_min=N concurrent=N waiting=N\n"
        "         priority=interactive|background admin=true|false\n");
    return help ? 0 : 2;
}

int command_keygen(int argc, char *argv[]) {
    if (argc == 1) return make_curve();
    const char *what = argv[1];
    if (argc >= 3 && strcmp(what, "--api") == 0)
        return make_api(NULL, argv[2], argc - 3, argv + 3);
    if (argc >= 4 && strcmp(what, "--store") == 0)
        return make_api(argv[2], argv[3], argc - 4, argv + 4);
    if (argc == 4 && strcmp(what, "--revoke") == 0) return store_line(argv[2], argv[3], NULL);
    return usage(strcmp(what, "--help") == 0);
}
