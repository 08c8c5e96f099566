/* command_keygen.c - `siliceo-coordinator keygen`: a CURVE key pair as a key file on stdout. */
#include "coordinator/commands.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

int command_keygen(int argc, char *argv[]) {
    if (argc > 1) {
        bool help = strcmp(argv[1], "--help") == 0;
        (void)fprintf(help ? stdout : stderr, "usage: siliceo-coordinator keygen > FILE   "
                                              "(umask 077 first: it holds a secret)\n");
        return help ? 0 : 2;
    }
    char public_key[41], secret_key[41];
    if (zmq_curve_keypair(public_key, secret_key) != 0) {
        (void)fprintf(stderr, "siliceo-coordinator: this ZeroMQ has no CURVE\n");
        return 1;
    }
    (void)printf("# public key: %s\n%s\n", public_key, secret_key);
    explicit_bzero(secret_key, sizeof secret_key);
    return 0;
}
