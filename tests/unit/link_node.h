/* link_node.h - a worker without its main, as command_serve holds one, and the coordinators that
 * its tests play.
 *
 * The engine is the double.  Both threads end by themselves; one that does not hangs the test.
 */
#ifndef SILICEO_TESTS_UNIT_LINK_NODE_H
#define SILICEO_TESTS_UNIT_LINK_NODE_H

#include "common/wire.h"
#include "tests/unit/engine_double.h"
#include "tests/unit/router.h"
#include "worker/coordinator_link.h"
#include "worker/engine_loop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>

#include <cmocka.h>

enum { GRACE_MS = 400, SEQUENCES = 4, QUEUE = 2 };

typedef struct node {
    exchange exchange; /* first: its rings stand on cache lines of their own */
    mesh_security security;
    const char *addresses[2];
    link_params link_params;
    loop_model model;
    engine_loop_params loop_params;
    coordinator_link *link;
    engine_loop *loop;
} node;

extern const link_times node_times;

/* Of the test that runs; a failed one leaves them to end_test(). */
extern router r, a, b;
extern node n;
extern char address[128];
extern uint64_t grace_ms;

int begin_test(void **state);
int end_test(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)

/* second: another coordinator, or NULL. */
void node_start(const char *first, const char *second);
/* The same with what n.link_params and n.loop_params say; room for n_places requests. */
void node_start_as(size_t n_places);
/* One coordinator, r, and a node that is ready. */
void start_ready(void);
void node_wish_to_stop(void);
void node_join(void);
void node_stop(void);

void wait_until(const atomic_int *value, int wanted);
bool says(wire_bytes text, const char *word);

#endif
