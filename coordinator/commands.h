/* commands.h - the subcommands of siliceo-coordinator; each returns the exit code:
 * 0 done, 1 failed, 2 used wrongly. */
#ifndef SILICEO_COORDINATOR_COMMANDS_H
#define SILICEO_COORDINATOR_COMMANDS_H

int command_serve(int argc, char *argv[]);
int command_usage(int argc, char *argv[]);
int command_keygen(int argc, char *argv[]);
int command_check_config(int argc, char *argv[]);

#endif
