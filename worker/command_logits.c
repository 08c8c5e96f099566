#include "worker/commands.h"
#include <stdio.h>

int command_logits(int argc, char *argv[]) {
    (void)argc;
    (void)fprintf(stderr, "siliceo-worker %s: not built in this version\n", argv[0]);
    return 1;
}
