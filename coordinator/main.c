/* main.c - siliceo-coordinator: finds the subcommand and hands over.
 *
 * Threads of `serve`: `io` (this one) owns HTTP, the mesh, the queue and the
 * nodes; ZeroMQ has an I/O thread of its own; with CURVE `zap` answers who may connect; `ledger`
 * writes rows to the database and `curl` talks to other servers, both behind bounded rings.
 */
#include "coordinator/commands.h"
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char *argv[]);
    const char *help;
} command;

static const command commands[] = {
    {"serve", command_serve, "accept requests and route them to the workers (the default)"},
    {"usage", command_usage,
     "what the ledger says: requests and tokens by key, model, node or day"},
    {"keygen", command_keygen, "a new CURVE key pair on stdout, or an API key"},
    {"check-config", command_check_config, "read the settings, say what is wrong, print them"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int print_help(void) {
    (void)printf("usage: siliceo-coordinator [SUBCOMMAND] [--help] [--key value]...\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        (void)printf("  %-12s %s\n", commands[i].name, commands[i].help);
    }
    (void)printf("\nsiliceo-coordinator serve --help lists the keys.\n");
    return 0;
}

int main(int argc, char *argv[]) {
    if (argc < 2) return command_serve(argc, argv);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        return print_help();
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    if (argv[1][0] == '-') return command_serve(argc, argv);
    (void)fprintf(stderr, "siliceo-coordinator: unknown subcommand '%s'; --help lists them\n",
                  argv[1]);
    return 2;
}
