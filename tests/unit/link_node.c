#include "tests/unit/link_node.h"

#include "common/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

router r, a, b;
node n;
char address[128];
uint64_t grace_ms;

static status prepare(void *context, engine_params *out, error *err) {
    (void)context, (void)err;
    out->model_path = "models/double.gguf";
    out->n_sequences = SEQUENCES;
    return STATUS_OK;
}

const link_times node_times = {.heartbeat_ms = 1000,
                               .heartbeat_timeout_ms = 5000,
                               .reconnect_ms = 100,
                               .reconnect_max_ms = 2000,
                               .connect_ms = 5000,
                               .hello_ms = 2000,
                               .refused_ms = 30000,
                               .idle_ms = 10000,
                               .cut_ms = 2000,
                               .tell_ms = 1000,
                               .linger_ms = 1000};

void node_start(const char *first, const char *second) {
    memset(&n, 0, sizeof n);
    n.addresses[0] = first;
    n.addresses[1] = second;
    n.link_params = (link_params){.node = "node-a",
                                  .build = "b1",
                                  .profile = "home",
                                  .coordinators = n.addresses,
                                  .n_coordinators = second == NULL ? 1 : 2,
                                  .security = &n.security,
                                  .max_sequences = SEQUENCES,
                                  .queue = QUEUE,
                                  .times = node_times,
                                  .grace_ms = grace_ms,
                                  .drain_limit_ms = 10000};
    n.loop_params.measure_ms = 10;
    node_start_as(2 * (SEQUENCES + QUEUE));
}

void node_start_as(size_t n_places) {
    error err;
    n.model = (loop_model){.prepare = prepare};
    n.loop_params.models = &n.model;
    n.loop_params.n_models = 1;
    assert_int_equal(exchange_init(&n.exchange, n_places, &err), STATUS_OK);
    if (coordinator_link_start(&n.link, &n.link_params, &n.exchange, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(engine_loop_start(&n.loop, &n.loop_params, &n.exchange, &err), STATUS_OK);
}

void node_wish_to_stop(void) {
    assert_true(ring_push(&n.exchange.wishes, &n));
}

void node_join(void) {
    coordinator_link_join(&n.link);
    engine_loop_join(&n.loop);
    exchange_release(&n.exchange);
}

void node_stop(void) {
    n.link_params.drain_limit_ms = 0;
    node_wish_to_stop();
    node_join();
}

void wait_until(const atomic_int *value, int wanted) {
    uint64_t until_ms = clock_monotonic_ms() + 5000;
    while (atomic_load(value) != wanted) {
        if (clock_monotonic_ms() > until_ms)
            fail_msg("stays %d, not %d", atomic_load(value), wanted);
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
}

bool says(wire_bytes text, const char *word) {
    return text.length > 0 && memmem(text.bytes, text.length, word, strlen(word)) != NULL;
}

int begin_test(void **state) {
    (void)state;
    engine_double_reset();
    grace_ms = GRACE_MS;
    return 0;
}

int end_test(void **state) {
    (void)state;
    atomic_store(&double_engine.step_waits, false);
    atomic_store(&double_engine.load_waits, false);
    if (n.link != NULL) node_stop();
    router_close(&r);
    router_close(&a);
    router_close(&b);
    return 0;
}

void start_ready(void) {
    router_open(&r, NULL);
    node_start(r.address, NULL);
    router_until_ready(&r, 1);
}
