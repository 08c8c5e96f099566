/* commands.h - the subcommands of siliceo-worker, one file each (command_NAME.c).
 *
 * argv[0] is the subcommand's name.  The value is the exit code: 0 success, 2 a
 * usage error, 1 otherwise; errors are one line on stderr.
 */
#ifndef SILICEO_WORKER_COMMANDS_H
#define SILICEO_WORKER_COMMANDS_H

int command_serve(int argc, char *argv[]);
int command_inspect(int argc, char *argv[]);
int command_plan(int argc, char *argv[]);
int command_tokenize(int argc, char *argv[]);
int command_detokenize(int argc, char *argv[]);
int command_template(int argc, char *argv[]);
int command_logits(int argc, char *argv[]);
int command_generate(int argc, char *argv[]);
int command_bench(int argc, char *argv[]);

#endif
