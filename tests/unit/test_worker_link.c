/* test_worker_link.c - the ROUTER against nodes that are processes of their own: floods, stalls, deaths.
 *
 * Nothing here reads the socket until the test does, which is what a coordinator that is
 * late, or was stopped, looks like to its nodes.
 */
#include "common/clock.h"
#include "coordinator/worker_link.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

enum {
    FLOOD_FRAMES = 16000, /* four times what ZeroMQ was once allowed to keep */
    FRAME_TEXT = 2000,    /* so that what exceeds that exceeds the kernel's buffers, too */
    LIMIT_MS = 30000,
    PATIENCE_MS = 10000 /* for heartbeats that are not answered */
};

typedef struct rig {
    worker_link *link;
    char address[300];
    unsigned n_messages, n_garbage, n_disconnected;
    unsigned char identity[256];
    size_t n_identity;
} rig;

static void on_message(void *context, const worker_peer *peer, const wire_message *m) {
    (void)m;
    rig *g = context;
    g->n_messages++;
    g->n_identity = peer->n_identity < sizeof g->identity ? peer->n_identity : 0;
    memcpy(g->identity, peer->identity, g->n_identity);
}

static void on_garbage(void *context, const worker_peer *peer, const char *why) {
    (void)peer;
    (void)why;
    ((rig *)context)->n_garbage++;
}

static void on_disconnect(void *context, int fd) {
    (void)fd;
    ((rig *)context)->n_disconnected++;
}

static int open_rig(void **state) {
    rig *g = calloc(1, sizeof *g);
    error err = {0};
    if (g == NULL) return -1;
    worker_link_params params = {.address = "tcp://127.0.0.1:0",
                                 .curve_secret_file = "",
                                 .curve_allow_file = "",
                                 .heartbeat_ms = 50,
                                 .heartbeat_timeout_ms = PATIENCE_MS,
                                 .context = g,
                                 .on_message = on_message,
                                 .on_garbage = on_garbage,
                                 .on_disconnect = on_disconnect};
    if (worker_link_open(&g->link, &params, &err) != STATUS_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    (void)snprintf(g->address, sizeof g->address, "%s", worker_link_address(g->link));
    *state = g;
    return 0;
}

static int close_rig(void **state) {
    rig *g = *state;
    worker_link_close(g->link);
    free(g);
    return 0;
}

/* ---- the nodes ---- */

static void encode_tokens(wire_frame *frame, uint64_t number) {
    static char text[FRAME_TEXT];
    memset(text, 'x', sizeof text);
    wire_message m = {.type = WIRE_TOKENS};
    m.tokens = (wire_tokens){
        .request = 1, .epoch = 1, .number = number, .text = wire_text(text, sizeof text)};
    if (wire_encode(frame, &m, NULL) != STATUS_OK) _exit(2);
}

/* Sends n frames, each as soon as there is room, and dies with the last of them on their way. */
static void flood(const char *address, unsigned n) {
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    int few = 10, limit_ms = PATIENCE_MS / 2;
    wire_frame frame = {0};
    if (zmq_setsockopt(socket, ZMQ_SNDHWM, &few, sizeof few) != 0 ||
        zmq_setsockopt(socket, ZMQ_SNDTIMEO, &limit_ms, sizeof limit_ms) != 0 ||
        zmq_connect(socket, address) != 0)
        _exit(3);
    for (unsigned i = 0; i < n; i++) {
        encode_tokens(&frame, i);
        if (zmq_send(socket, frame.bytes, frame.length, 0) < 0) _exit(4);
    }
    _exit(0);
}

/* Says one thing and never looks at what it gets. */
static void stall(const char *address) {
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    int small = 1;
    wire_frame frame = {0};
    if (zmq_setsockopt(socket, ZMQ_RCVHWM, &small, sizeof small) != 0 ||
        zmq_connect(socket, address) != 0)
        _exit(3);
    encode_tokens(&frame, 0);
    if (zmq_send(socket, frame.bytes, frame.length, 0) < 0) _exit(4);
    for (;;)
        (void)pause();
}

/* A node in a process of its own, which ends with this one at the latest. */
static pid_t start_node(const rig *g, bool floods) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(5);
        if (floods) flood(g->address, FLOOD_FRAMES);
        stall(g->address);
    }
    assert_true(pid > 0);
    return pid;
}

/* Receives until the counter has got to n; fails when it does not within the limit. */
static void drain_until(rig *g, const unsigned *counter, unsigned n) {
    uint64_t end_ms = clock_monotonic_ms() + LIMIT_MS;
    while (*counter < n) {
        bool more = worker_link_drain(g->link, 512);
        assert_true(clock_monotonic_ms() < end_ms);
        struct pollfd fds[] = {{worker_link_fd(g->link), POLLIN, 0},
                               {worker_link_monitor_fd(g->link), POLLIN, 0}};
        if (!more && *counter < n) (void)poll(fds, 2, 20);
    }
}

/* ---- the tests ---- */

static void a_node_that_floods_a_late_coordinator_and_dies_harms_nobody(void **state) {
    rig *g = *state;
    int how = 0;
    pid_t pid = start_node(g, true);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    /* Where ZeroMQ keeps a bounded number of messages the node could not send them all, and
     * the end of its connection would abort this process at the next heartbeat.  Here it becomes
     * known while nearly all of them still wait. */
    uint64_t end_ms = clock_monotonic_ms() + LIMIT_MS;
    while (g->n_disconnected == 0) {
        (void)worker_link_drain(g->link, 1);
        (void)poll(NULL, 0, 5);
        assert_true(clock_monotonic_ms() < end_ms);
    }
    assert_true(g->n_messages < FLOOD_FRAMES / 4);
    drain_until(g, &g->n_messages, FLOOD_FRAMES / 2);
    while (worker_link_drain(g->link, 512))
        continue;
    assert_int_equal(g->n_disconnected, 1);
    assert_int_equal(g->n_garbage, 0);
    /* The next one is served as if nothing had been. */
    unsigned n_before = g->n_messages;
    pid = start_node(g, false);
    drain_until(g, &g->n_messages, n_before + 1);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &how, 0);
}

static status send_large(rig *g, error *err) {
    static char body[60000];
    wire_message m = {.type = WIRE_SUBMIT};
    m.submit = (wire_submit){.kind = WIRE_CHAT,
                             .request = 1,
                             .epoch = 1,
                             .model = wire_text("m", 1),
                             .body = wire_text(body, sizeof body)};
    return worker_link_send(g->link, g->identity, g->n_identity, &m, err);
}

static void
a_stalled_node_is_a_full_queue_and_a_dead_one_is_unknown_both_at_once(void **state) {
    rig *g = *state;
    error err = {0};
    status rc = STATUS_OK;
    uint64_t slowest_ms = 0;
    int how = 0;
    pid_t pid = start_node(g, false);
    drain_until(g, &g->n_messages, 1);
    for (int i = 0; rc == STATUS_OK && i < 100000; i++) {
        uint64_t at_ms = clock_monotonic_ms();
        rc = send_large(g, &err);
        uint64_t took_ms = clock_monotonic_ms() - at_ms;
        if (took_ms > slowest_ms) slowest_ms = took_ms;
    }
    if (rc != STATUS_TIMEOUT) print_error("%s\n", err.text);
    assert_int_equal(rc, STATUS_TIMEOUT);
    assert_true(slowest_ms < 2000);
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    drain_until(g, &g->n_disconnected, 1);
    /* ZeroMQ forgets the queue when it is asked next for something to receive. */
    uint64_t end_ms = clock_monotonic_ms() + LIMIT_MS;
    while ((rc = send_large(g, &err)) == STATUS_TIMEOUT && clock_monotonic_ms() < end_ms)
        (void)worker_link_drain(g->link, 512);
    assert_int_equal(rc, STATUS_UNAVAILABLE);
    memcpy(g->identity, "nobody", 6);
    g->n_identity = 6;
    assert_int_equal(send_large(g, &err), STATUS_UNAVAILABLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_node_that_floods_a_late_coordinator_and_dies_harms_nobody, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(
            a_stalled_node_is_a_full_queue_and_a_dead_one_is_unknown_both_at_once, open_rig,
            close_rig),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
