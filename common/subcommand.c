#include "common/subcommand.h"

#include <string.h>

void subcommand_help(const subcommand_list *list, FILE *out) {
    (void)fprintf(out, "usage: %s [SUBCOMMAND] [--help] [--key value]...\n\n", list->program);
    for (size_t i = 0; i < list->n; i++)
        (void)fprintf(out, "  %-12s %s\n", list->commands[i].name, list->commands[i].help);
    (void)fprintf(out, "\n%s\n", list->hint);
}

int subcommand_run(const subcommand_list *list, int argc, char *argv[]) {
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        subcommand_help(list, stdout);
        return 0;
    }
    for (size_t i = 0; i < list->n; i++) {
        const subcommand *c = &list->commands[i];
        if (strcmp(word, c->name) == 0) return c->run(argc - 1, argv + 1);
    }
    if (word[0] == '-') return list->commands[0].run(argc, argv);
    (void)fprintf(stderr, "%s: unknown subcommand '%s'; --help lists them\n", list->program,
                  word);
    return 2;
}
