/* command_check_config.c - `siliceo-coordinator check-config`: would serve start with these settings? */
#include "coordinator/auth.h"
#include "coordinator/commands.h"
#include "coordinator/mesh_keys.h"
#include "coordinator/options.h"
#include "coordinator/upstream.h"
#include <stdio.h>

static status check(config *c, options *o, int argc, char *argv[], error *err) {
    status rc = options_init(c, o, err);
    if (rc == STATUS_OK) rc = config_read(c, argc, argv, err);
    if (rc == STATUS_OK) rc = options_check(o, err);
    auth a;
    if (rc == STATUS_OK && (rc = auth_open(&a, o->api_keys_file, NULL, err)) == STATUS_OK)
        auth_close(&a);
    if (rc == STATUS_OK) rc = upstreams_check(o->upstream_servers, err);
    if (rc != STATUS_OK || o->mesh_curve_secret_file[0] == '\0') return rc;
    mesh_keys *keys;
    rc = mesh_keys_read(&keys, o->mesh_curve_secret_file, o->mesh_curve_allow_file, err);
    if (rc == STATUS_OK) mesh_keys_free(keys);
    return rc;
}

int command_check_config(int argc, char *argv[]) {
    config c = {0};
    options o;
    error err = {0};
    status rc = check(&c, &o, argc, argv, &err);
    if (rc == STATUS_OK)
        config_print(&c, stdout);
    else
        (void)fprintf(stderr, "siliceo-coordinator: %s\n", err.text);
    config_release(&c);
    return rc == STATUS_OK ? 0 : 1;
}
