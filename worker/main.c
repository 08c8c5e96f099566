/* main.c - siliceo-worker: finds the subcommand and hands over. */
#include "worker/commands.h"
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char *argv[]);
    const char *help;
} command;

static const command commands[] = {
    {"serve", command_serve, "run the engine and connect to coordinators (the default)"},
    {"inspect", command_inspect, "metadata, tensors and sizes of a GGUF file"},
    {"plan", command_plan, "the memory plan of a model and profile; nothing is loaded"},
    {"tokenize", command_tokenize, "stdin bytes to a JSON array of token ids"},
    {"detokenize", command_detokenize, "a JSON array of token ids on stdin to bytes"},
    {"template", command_template, "a chat request in JSON on stdin to the prompt text"},
    {"logits", command_logits, "float32 logits of token ids to a file"},
    {"generate", command_generate, "greedy continuation: ids as JSON, then text"},
    {"bench", command_bench, "prefill and decode rates, hit rate, bytes a token"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int print_help(FILE *out) {
    (void)fprintf(out, "usage: siliceo-worker [SUBCOMMAND] [--help] [--key value]...\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        (void)fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].help);
    }
    (void)fprintf(out, "\nsiliceo-worker SUBCOMMAND --help lists the keys of one.\n");
    return out == stdout ? 0 : 2;
}

int main(int argc, char *argv[]) {
    if (argc < 2) return print_help(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        return print_help(stdout);
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    if (argv[1][0] == '-') return command_serve(argc, argv);
    (void)fprintf(stderr, "siliceo-worker: unknown subcommand '%s'; --help lists them\n",
                  argv[1]);
    return 2;
}
