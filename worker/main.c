/* main.c - siliceo-worker: finds the subcommand and hands over. */
#include "common/subcommand.h"
#include "worker/commands.h"

static const subcommand commands[] = {
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

static const subcommand_list list = {
    .program = "siliceo-worker",
    .commands = commands,
    .n = sizeof commands / sizeof commands[0],
    .hint = "siliceo-worker SUBCOMMAND --help lists the keys of one."};

int main(int argc, char *argv[]) {
    if (argc < 2) {
        subcommand_help(&list, stderr);
        return 2;
    }
    return subcommand_run(&list, argc, argv);
}
