/* subcommand.h - the first word of a command line, and what it starts.
 *
 * Thread: the main one, before any other.
 */
#ifndef SILICEO_COMMON_SUBCOMMAND_H
#define SILICEO_COMMON_SUBCOMMAND_H

#include <stddef.h>
#include <stdio.h>

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char *argv[]);
    const char *help;
} subcommand;

typedef struct subcommand_list {
    const char *program;
    const subcommand *commands; /* the first is run where keys come at once */
    size_t n;
    const char *hint; /* the last line of the help */
} subcommand_list;

void subcommand_help(const subcommand_list *list, FILE *out);
/* Run the one that argv[1] names; the exit code.  argc is 2 at least. */
int subcommand_run(const subcommand_list *list, int argc, char *argv[]);

#endif
