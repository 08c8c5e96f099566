/* main.c - siliceo-coordinator: finds the subcommand and hands over.
 *
 * Threads of `serve`: `io` (this one) owns HTTP, the mesh, the queue and the
 * nodes; ZeroMQ has an I/O thread of its own; with CURVE `zap` answers who may connect; `ledger`
 * writes rows to the database and `curl` talks to other servers, both behind bounded rings.
 */
#include "common/subcommand.h"
#include "coordinator/commands.h"

static const subcommand commands[] = {
    {"serve", command_serve, "accept requests and route them to the workers (the default)"},
    {"usage", command_usage,
     "what the ledger says: requests and tokens by key, model, node or day"},
    {"keygen", command_keygen, "a new CURVE key pair on stdout, or an API key"},
    {"check-config", command_check_config, "read the settings, say what is wrong, print them"},
};

static const subcommand_list list = {.program = "siliceo-coordinator",
                                     .commands = commands,
                                     .n = sizeof commands / sizeof commands[0],
                                     .hint =
                                         "siliceo-coordinator serve --help lists the keys."};

int main(int argc, char *argv[]) {
    if (argc < 2) return command_serve(argc, argv);
    return subcommand_run(&list, argc, argv);
}
