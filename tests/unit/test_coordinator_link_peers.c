/* test_coordinator_link_peers.c - coordinators that misbehave or go, several of them, and keys. */
#include "tests/unit/link_node.h"

#include "common/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the peer misbehaves or goes ---- */

static void rubbish_from_a_peer_is_answered_and_harms_nothing(void **state) {
    (void)state;
    start_ready();
    router_send_bytes(&r, "\x93\x02\x11\x01", 4); /* another version */
    const wire_error *e = &router_expect(&r, WIRE_ERROR)->error;
    assert_int_equal(e->request, 0);
    assert_true(says(e->text, "version 2"));
    assert_true(says(e->text, "version 1"));
    srand(1);
    for (int i = 0; i < 200; i++) {
        char bytes[64];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (char)rand();
        router_send_bytes(&r, bytes, (size_t)rand() % sizeof bytes);
    }
    router_send_bytes(&r, "", 0);
    const wire_message wrong_way = {.type = WIRE_BYE, .bye = {.instance = 1}};
    router_send(&r, &wrong_way);
    router_submit(&r, 0, 1, "1"); /* no number */
    router_cancel(&r, 99, 1);     /* nobody's */
    router_submit(&r, 3, 1, "3");
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.number, 3);
}

static void a_coordinator_that_starts_anew_ends_its_old_requests(void **state) {
    (void)state;
    router_open(&r, NULL);
    memcpy(address, r.address, sizeof address);
    node_start(address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 9, "hold");
    wait_until(&double_engine.n_running, 1);
    router_close(&r);
    router_open(&r, address);
    router_until_ready(&r, 2);
    wait_until(&double_engine.n_cancelled, 1);
    router_submit(&r, 1, 1, "2"); /* the same number with an older epoch is a new request */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.epoch, 1);
}

static void a_short_break_of_the_connection_loses_nothing(void **state) {
    (void)state;
    router_open(&r, NULL);
    memcpy(address, r.address, sizeof address);
    grace_ms = 60000;
    node_start(address, NULL);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "hold");
    wait_until(&double_engine.n_running, 1);
    atomic_store(&double_engine.step_waits, true);
    router_submit(&r, 2, 1, "20");
    while (router_expect(&r, WIRE_BEAT)->beat.number < 5)
        continue;
    router_close(&r);
    router_open(&r, address); /* the same process again, as after a broken path */
    (void)router_expect(&r, WIRE_HELLO);
    atomic_store(&double_engine.step_waits,
                 false); /* tokens come while it has not said WELCOME */
    wait_until(&double_engine.n_submitted, 2);
    router_expect_none(&r, WIRE_TOKENS, 100);
    const wire_message welcome = {.type = WIRE_WELCOME,
                                  .welcome = {.instance = 1, .beat_interval_ms = 50}};
    router_send(&r, &welcome);
    for (uint64_t i = 0; i < 20; i++) {
        assert_int_equal(router_expect(&r, WIRE_TOKENS)->tokens.number, i);
    }
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 2);
    assert_int_equal(atomic_load(&double_engine.n_cancelled), 0);
}

static void requests_of_a_coordinator_that_stays_away_are_cancelled(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 1, 1, "hold");
    router_submit(&r, 2, 1, "hold");
    wait_until(&double_engine.n_running, 2);
    router_close(&r);
    wait_until(&double_engine.n_cancelled, 2);
    wait_until(&double_engine.n_running, 0);
}

static void one_that_does_not_read_loses_its_requests_and_is_told(void **state) {
    (void)state;
    start_ready();
    router_submit(&r, 1, 1, "10000000");
    wait_until(&double_engine.n_cancelled, 1); /* every queue on the way is full before that */
    uint64_t number = 0;
    while (router_next(&r, 2000) && r.got.type != WIRE_ERROR) {
        if (r.got.type == WIRE_TOKENS) assert_int_equal(r.got.tokens.number, number++);
    }
    assert_int_equal(r.got.type, WIRE_ERROR);
    assert_true(says(r.got.error.code, "coordinator_slow"));
    assert_true(r.got.error.retryable);
    router_submit(&r, 2, 1, "2"); /* and it is served again */
    assert_int_equal(router_expect(&r, WIRE_DONE)->done.request, 2);
}

static void one_that_asks_for_a_hello_gets_it_soon(void **state) {
    (void)state;
    start_ready();
    const wire_message refusal = {.type = WIRE_ERROR,
                                  .error = {.http_status = 409,
                                            .text = wire_text("say HELLO first", 15),
                                            .retryable = true}};
    router_send(&r, &refusal);
    router_until_ready(&r, 1);
    router_submit(&r, 1, 1, "1");
    (void)router_expect(&r, WIRE_DONE);
}

static void a_coordinator_that_refuses_gets_no_beats(void **state) {
    (void)state;
    router_open(&r, NULL);
    node_start(r.address, NULL);
    (void)router_expect(&r, WIRE_HELLO);
    const wire_message refusal = {
        .type = WIRE_ERROR,
        .error = {.http_status = 403, .text = wire_text("who are you", 11)}};
    router_send(&r, &refusal);
    while (router_next(&r, 1500))
        continue; /* what was on its way */
    assert_false(router_next(&r, 1200));
}

/* ---- several coordinators, keys ---- */

static void two_coordinators_share_the_credit_and_an_idle_one_lends(void **state) {
    (void)state;
    router_open(&a, NULL);
    router_open(&b, NULL);
    node_start(a.address, b.address);
    router_until_ready(&a, 1);
    router_until_ready(&b, 2);
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 3)
        continue;
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 3)
        continue;
    router_submit(&a, 1, 1, "hold");
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 5)
        continue;
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 1)
        continue;
    router_submit(&b, 1, 1, "hold"); /* the same number means another request there */
    while (router_expect(&b, WIRE_BEAT)->beat.credit != 3)
        continue;
    wait_until(&double_engine.n_running, 2);
    router_cancel(&b, 1, 1);
    assert_int_equal(router_expect(&b, WIRE_ERROR)->error.request, 1);
    assert_int_equal(atomic_load(&double_engine.n_running), 1);
    router_close(&b);
    while (router_expect(&a, WIRE_BEAT)->beat.credit != 6)
        continue;
}

static void write_key(char *path, const char *key, mode_t mode) {
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "w");
    assert_non_null(out);
    (void)fprintf(out, "# public key: x\n%s\n", key);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(fclose(out), 0);
}

static void speaks_curve_with_a_server_whose_key_it_knows(void **state) {
    (void)state;
    char server_public[41], server_secret[41], own_public[41], own_secret[41];
    char path[] = "/tmp/siliceo-key-XXXXXX";
    assert_int_equal(zmq_curve_keypair(server_public, server_secret), 0);
    assert_int_equal(zmq_curve_keypair(own_public, own_secret), 0);
    write_key(path, own_secret, 0600);
    router_open_curve(&r, server_secret);
    static mesh_security keys;
    error err;
    assert_int_equal(mesh_security_init(&keys, path, server_public, false, &err), STATUS_OK);
    assert_string_equal(keys.public_key, own_public);
    node_start(r.address, NULL); /* plain text: the handshake fails */
    assert_false(router_next(&r, 300));
    node_stop();

    memset(&n, 0, sizeof n);
    const char *const only[] = {r.address};
    n.link_params = (link_params){.node = "node-a",
                                  .build = "b",
                                  .profile = "p",
                                  .coordinators = only,
                                  .n_coordinators = 1,
                                  .security = &keys,
                                  .times = node_times,
                                  .max_sequences = 1};
    node_start_as(2);
    router_until_ready(&r, 1);
    node_stop();
    router_close(&r);
    assert_int_equal(remove(path), 0);
}

static void keys_are_checked_before_anything_connects(void **state) {
    (void)state;
    mesh_security s;
    error err;
    char public_key[41], secret[41];
    assert_int_equal(zmq_curve_keypair(public_key, secret), 0);
    char open_path[] = "/tmp/siliceo-key-XXXXXX", bad_path[] = "/tmp/siliceo-key-XXXXXX";
    write_key(open_path, secret, 0644);
    write_key(bad_path, "short", 0600);
    assert_int_equal(mesh_security_init(&s, NULL, public_key, false, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "curve.secret_key_file"));
    assert_int_equal(mesh_security_init(&s, open_path, public_key, false, &err),
                     STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "644"));
    assert_int_equal(mesh_security_init(&s, bad_path, public_key, false, &err),
                     STATUS_BAD_INPUT);
    assert_int_equal(mesh_security_init(&s, "/nowhere", public_key, false, &err), STATUS_IO);
    assert_int_equal(mesh_security_init(&s, open_path, "abc", false, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "curve.server_key"));
    assert_int_equal(remove(open_path), 0);
    assert_int_equal(remove(bad_path), 0);
}

static void plain_text_goes_only_to_this_machine_unless_allowed(void **state) {
    (void)state;
    mesh_security s;
    error err;
    assert_int_equal(mesh_security_init(&s, "", "", false, &err), STATUS_OK);
    const char *const here[] = {"tcp://127.0.0.1:1", "tcp://127.8.9.1:1", "tcp://[::1]:1",
                                "tcp://localhost:1", "ipc:///run/x"};
    const char *const away[] = {"tcp://192.168.1.2:5690", "tcp://127.0.0.1.example.org:1",
                                "tcp://host:1", "tcp://[fe80::1]:1"};
    for (size_t i = 0; i < sizeof here / sizeof here[0]; i++) {
        assert_int_equal(mesh_security_check(&s, here[i], &err), STATUS_OK);
    }
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
        assert_int_equal(mesh_security_check(&s, away[i], &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, "mesh.allow_plain"));
    }
    s.allow_plain = true;
    assert_int_equal(mesh_security_check(&s, away[0], &err), STATUS_OK);
    assert_int_equal(mesh_security_check(&s, "pgm://127.0.0.1:1", &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "is no tcp://HOST:PORT"));
}

static void a_wrong_address_is_an_error_at_the_start(void **state) {
    (void)state;
    const mesh_security security = {.allow_plain = true};
    const char *const bad[] = {"tcp://127.0.0.1", "nonsense", "tcp://127.0.0.1:65536",
                               "tcp://:80", "tcp://127.0.0.1:80x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        exchange x;
        coordinator_link *l = NULL;
        error err;
        const link_params p = {.node = "n",
                               .build = "b",
                               .profile = "p",
                               .coordinators = &bad[i],
                               .n_coordinators = 1,
                               .security = &security,
                               .times = node_times,
                               .max_sequences = 1};
        assert_int_equal(exchange_init(&x, 2, &err), STATUS_OK);
        assert_int_equal(coordinator_link_start(&l, &p, &x, &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, bad[i]));
        coordinator_link_join(&l);
        exchange_release(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(rubbish_from_a_peer_is_answered_and_harms_nothing),
        TEST(a_coordinator_that_starts_anew_ends_its_old_requests),
        TEST(a_short_break_of_the_connection_loses_nothing),
        TEST(requests_of_a_coordinator_that_stays_away_are_cancelled),
        TEST(one_that_does_not_read_loses_its_requests_and_is_told),
        TEST(one_that_asks_for_a_hello_gets_it_soon),
        TEST(a_coordinator_that_refuses_gets_no_beats),
        TEST(two_coordinators_share_the_credit_and_an_idle_one_lends),
        TEST(speaks_curve_with_a_server_whose_key_it_knows),
        TEST(keys_are_checked_before_anything_connects),
        TEST(plain_text_goes_only_to_this_machine_unless_allowed),
        TEST(a_wrong_address_is_an_error_at_the_start),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("coordinator link, peers", tests, NULL, NULL);
}
