/* command_keygen.c - `siliceo-coordinator keygen`: a CURVE key pair as a key file on stdout, or
 * with --api a key for the HTTP interface and the line for its file. */
#include "coordinator/auth.h"
#include "coordinator/commands.h"
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

/* The options are checked as the file's reader will; the key is shown this once. */
static int make_api(const char *name, int n_options, char *options[]) {
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
    (void)fprintf(stderr,
                  "the key, shown only now (the line for api.keys_file is on stdout):\n%s\n",
                  key);
    (void)printf("%s\n", line);
    explicit_bzero(key, sizeof key);
    return 0;
}

int command_keygen(int argc, char *argv[]) {
    if (argc == 1) return make_curve();
    if (argc >= 3 && strcmp(argv[1], "--api") == 0)
        return make_api(argv[2], argc - 3, argv + 3);
    bool help = strcmp(argv[1], "--help") == 0;
    (void)fprintf(
        help ? stdout : stderr,
        "usage: siliceo-coordinator keygen > FILE   (umask 077 first: it holds a secret)\n"
        "       siliceo-coordinator keygen --api NAME [requests_per_min=N] [tokens_per_min=N]\n"
        "           [concurrent=N] [waiting=N] [priority=background] [admin=true] >> "
        "KEYS-FILE\n");
    return help ? 0 : 2;
}
