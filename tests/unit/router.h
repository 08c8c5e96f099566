/* router.h - a small coordinator's end for tests: one ROUTER that is talked to by hand. */
#ifndef SILICEO_TESTS_ROUTER_H
#define SILICEO_TESTS_ROUTER_H

#include "common/wire.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct router {
    void *context;
    void *socket;
    char address[128];
    char peer[64]; /* routing id of the worker that spoke last */
    size_t peer_length;
    char *frame; /* bytes of `got` */
    wire_message got;
} router;

/* Bind where address says, or to a free port of loopback when it is NULL. */
void router_open(router *r, const char *address);
/* The same with the CURVE secret key of a server; any client is admitted. */
void router_open_curve(router *r, const char *secret_key);
void router_close(router *r);

/* The next message, in r->got until the next call; false after timeout_ms. */
bool router_next(router *r, int timeout_ms);
/* Skip others until one of this type comes; the test fails after five seconds. */
const wire_message *router_expect(router *r, wire_type type);
/* Fails when one of this type comes within ms. */
void router_expect_none(router *r, wire_type type, int ms);

void router_send(router *r, const wire_message *m);
void router_send_bytes(router *r, const void *bytes, size_t length);

/* HELLO comes, WELCOME goes. */
void router_welcome(router *r, uint64_t instance);
/* As router_welcome(), and BEATs come until the worker is ready. */
void router_until_ready(router *r, uint64_t instance);
void router_submit(router *r, uint64_t request, uint64_t epoch, const char *body);
void router_cancel(router *r, uint64_t request, uint64_t epoch);

#endif
