/* command_serve.c - `siliceo-coordinator serve`: runs until SIGTERM or SIGINT. */
#include "common/log.h"
#include "common/thread.h"
#include "coordinator/commands.h"
#include "coordinator/coordinator.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int serve(const options *o, int argc, char *argv[]) {
    coordinator *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)fprintf(stderr, "siliceo-coordinator: no memory\n");
        return 1;
    }
    c->options = o;
    c->argc = argc;
    c->argv = argv;
    error err = {0};
    int code = 1;
    if (coordinator_open(c, &err) != STATUS_OK) {
        (void)fprintf(stderr, "siliceo-coordinator: %s\n", err.text);
    } else {
        (void)printf("ready http=%s mesh=%s\n", http_server_address(c->http),
                     worker_link_address(c->link));
        (void)fflush(stdout);
        code = coordinator_run(c);
    }
    coordinator_close(c);
    free(c);
    return code;
}

int command_serve(int argc, char *argv[]) {
    config c = {0};
    options o;
    error err = {0};
    int code = 2;
    status rc = options_init(&c, &o, &err);
    if (rc == STATUS_OK && argc > 1 && strcmp(argv[1], "--help") == 0) {
        (void)printf("usage: siliceo-coordinator serve [--key value]...\n\n");
        config_print_help(&c, stdout);
        config_release(&c);
        return 0;
    }
    if (rc == STATUS_OK) rc = config_read(&c, argc, argv, &err);
    if (rc == STATUS_OK) rc = options_check(&o, &err);
    if (rc != STATUS_OK) {
        (void)fprintf(stderr, "siliceo-coordinator: %s\n", err.text);
    } else {
        log_level level = LOG_INFO;
        (void)log_parse_level(o.log_level, &level);
        log_set_level(level);
        thread_name_current("io");
        code = serve(&o, argc, argv);
    }
    config_release(&c);
    return code;
}
