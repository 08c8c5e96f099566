/* test_auth.c - API keys: the file's lines, finding a key, limits over time, reading again. */
#include "coordinator/auth.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/siliceo-auth-XXXXXX";
static char keys[3][AUTH_KEY_SIZE], hashes[3][2 * AUTH_HASH_BYTES + 1];

static int make_keys(void **state) {
    (void)state;
    int fd = mkstemp(path);
    if (fd < 0 || sodium_init() < 0) return -1;
    (void)close(fd);
    for (int i = 0; i < 3; i++)
        auth_make_key(keys[i], hashes[i]);
    return 0;
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void write_file(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void write_file(const char *format, ...) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    va_list args;
    va_start(args, format);
    (void)vfprintf(file, format, args);
    va_end(args);
    assert_int_equal(fclose(file), 0);
}

static void a_key_is_found_by_itself_alone(void **state) {
    (void)state;
    auth a;
    error err = {0};
    write_file("# two\nalice %s admin=true\n\nbob %s concurrent=2\r\n", hashes[0], hashes[1]);
    assert_int_equal(auth_open(&a, path, NULL, &err), STATUS_OK);
    assert_int_equal(a.n_keys, 2);
    assert_string_equal(auth_find(&a, keys[0])->name, "alice");
    assert_true(auth_find(&a, keys[0])->limits.admin);
    assert_string_equal(auth_find(&a, keys[1])->name, "bob");
    assert_int_equal(auth_find(&a, keys[1])->limits.concurrent, 2);
    const char *const wrong[] = {keys[2], hashes[0], "", NULL, "alice", "sk-siliceo-"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_null(auth_find(&a, wrong[i]));
    auth_close(&a);
}

static void without_a_file_everyone_is_open(void **state) {
    (void)state;
    auth a;
    assert_int_equal(auth_open(&a, "", NULL, NULL), STATUS_OK);
    assert_string_equal(auth_find(&a, NULL)->name, "open");
    assert_true(auth_find(&a, "whatever")->limits.admin);
    assert_int_equal(auth_reload(&a, "", NULL, NULL), STATUS_OK);
    auth_close(&a);
}

static void bad_lines_are_named_and_never_shown_where_a_key_may_stand(void **state) {
    (void)state;
    static const struct {
        const char *options, *expected;
    } cases[] = {{"nonsense", "'nonsense' is not option=value"},
                 {"moon=1", "'moon' is no option"},
                 {"concurrent=1.5", "concurrent: '1.5'"},
                 {"concurrent=-1", "concurrent: '-1'"},
                 {"waiting=99999999", "waiting: '99999999'"},
                 {"requests_per_min=nan", "requests_per_min: 'nan'"},
                 {"tokens_per_min=", "tokens_per_min: ''"},
                 {"priority=high", "priority: 'high'"},
                 {"admin=yes", "admin: 'yes'"}};
    auth a;
    error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file("ok %s\nalice %s %s\n", hashes[1], hashes[0], cases[i].options);
        assert_int_equal(auth_open(&a, path, NULL, &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, ":2: "));
        assert_non_null(strstr(err.text, cases[i].expected));
    }
    write_file("alice %s\n", keys[0]); /* the key in place of its hash */
    assert_int_equal(auth_open(&a, path, NULL, &err), STATUS_BAD_INPUT);
    assert_null(strstr(err.text, keys[0]));
    write_file("alice %s\nalice %s\n", hashes[0], hashes[1]);
    assert_int_equal(auth_open(&a, path, NULL, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "twice"));
    assert_int_equal(auth_open(&a, "/nonexistent/keys", NULL, &err), STATUS_IO);
}

static void requests_of_a_minute_come_back_one_by_one(void **state) {
    (void)state;
    tenant t = {.limits = {.requests_per_min = 6}, .requests_left = 6};
    double wait_s = 0;
    uint64_t now_ms = 1000;
    for (int i = 0; i < 6; i++)
        assert_null(tenant_begin(&t, now_ms, &wait_s));
    assert_string_equal(tenant_begin(&t, now_ms, &wait_s), "requests_per_min");
    assert_true(wait_s > 9.9 && wait_s < 10.1);
    assert_non_null(tenant_begin(&t, now_ms + 9900, &wait_s));
    assert_null(tenant_begin(&t, now_ms + 10001, &wait_s));
    assert_non_null(tenant_begin(&t, now_ms + 10001, &wait_s));
    tenant_take_back(&t);
    assert_null(tenant_begin(&t, now_ms + 10001, &wait_s));
    /* A long rest gives a minute's worth, not more. */
    for (int i = 0; i < 6; i++)
        assert_null(tenant_begin(&t, now_ms + 10000000, &wait_s));
    assert_non_null(tenant_begin(&t, now_ms + 10000000, &wait_s));
}

static void tokens_that_were_overdrawn_are_paid_back_first(void **state) {
    (void)state;
    tenant t = {.limits = {.tokens_per_min = 600}, .tokens_left = 600};
    double wait_s = 0;
    assert_null(tenant_begin(&t, 1000, &wait_s));
    tenant_spend(&t, 1600, 1000);
    assert_string_equal(tenant_begin(&t, 1000, &wait_s), "tokens_per_min");
    assert_true(wait_s > 100 && wait_s < 101); /* 1,000 overdrawn at 10 a second */
    assert_null(tenant_begin(&t, 1000 + 101000, &wait_s));
    tenant none = {.requests_left = 0};
    for (int i = 0; i < 1000; i++) {
        assert_null(tenant_begin(&none, 1000, &wait_s));
        tenant_spend(&none, 1000000, 1000);
    }
}

static void reading_again_keeps_standing_and_what_requests_hold(void **state) {
    (void)state;
    auth a;
    error err = {0};
    double wait_s = 0;
    write_file("alice %s requests_per_min=2\nbob %s\n", hashes[0], hashes[1]);
    assert_int_equal(auth_open(&a, path, NULL, &err), STATUS_OK);
    tenant *alice = auth_find(&a, keys[0]), *bob = auth_find(&a, keys[1]);
    assert_null(tenant_begin(alice, 1000, &wait_s));
    tenant_ref(bob); /* a request of bob's runs */
    bob->n_running = 1;
    write_file("alice %s requests_per_min=3\n", hashes[2]); /* a new key, a new limit, no bob */
    assert_int_equal(auth_reload(&a, path, NULL, &err), STATUS_OK);
    assert_null(auth_find(&a, keys[0]));
    assert_null(auth_find(&a, keys[1]));
    assert_ptr_equal(auth_find(&a, keys[2]), alice);
    assert_null(tenant_begin(alice, 1000, &wait_s)); /* one of three is used */
    assert_null(tenant_begin(alice, 1000, &wait_s));
    assert_non_null(tenant_begin(alice, 1000, &wait_s));
    assert_int_equal(bob->n_running, 1);
    assert_false(bob->listed);
    write_file("nonsense\n");
    assert_int_equal(auth_reload(&a, path, NULL, &err), STATUS_BAD_INPUT);
    assert_ptr_equal(auth_find(&a, keys[2]), alice);
    tenant_unref(bob);
    auth_close(&a);
}

static void keys_that_stand_elsewhere_count_as_the_file_s(void **state) {
    (void)state;
    auth a;
    error err = {0};
    char lines[400];
    (void)snprintf(lines, sizeof lines, "bob %s concurrent=3\n\ncarol %s\n", hashes[1],
                   hashes[2]);
    write_file("alice %s\n", hashes[0]);
    assert_int_equal(auth_open(&a, path, lines, &err), STATUS_OK);
    assert_int_equal(a.n_keys, 3);
    assert_int_equal(auth_find(&a, keys[1])->limits.concurrent, 3);
    assert_int_equal(auth_reload(&a, path, "", &err), STATUS_OK);
    assert_null(auth_find(&a, keys[1]));
    assert_non_null(auth_find(&a, keys[0]));
    (void)snprintf(lines, sizeof lines, "alice %s\n", hashes[1]);
    assert_int_equal(auth_reload(&a, path, lines, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "the ledger's keys"));
    auth_close(&a);
    assert_int_equal(auth_open(&a, "", "", &err), STATUS_OK);
    assert_null(auth_find(&a, keys[0])); /* none yet, and so nobody */
    auth_close(&a);
}

static void use_at_other_coordinators_counts_once(void **state) {
    (void)state;
    tenant t = {.limits = {.requests_per_min = 10, .tokens_per_min = 1000},
                .requests_left = 10,
                .tokens_left = 1000};
    tenant_used_elsewhere(&t, 500, 70000, 1000); /* before we began */
    assert_true(t.requests_left > 9.9);
    tenant_used_elsewhere(&t, 506, 70900, 1000);
    tenant_used_elsewhere(&t, 506, 70900, 1000);
    assert_true(t.requests_left > 3.9 && t.requests_left < 4.1);
    assert_true(t.tokens_left > 99 && t.tokens_left < 101);
    tenant_used_elsewhere(&t, 0, 0, 1000); /* old rows were cleared away */
    tenant_used_elsewhere(&t, 1, 0, 1000);
    assert_true(t.requests_left > 2.9 && t.requests_left < 3.1);
}

static void a_bearer_is_read_as_clients_write_it(void **state) {
    (void)state;
    assert_string_equal(auth_bearer("Bearer abc"), "abc");
    assert_string_equal(auth_bearer("bearer   abc"), "abc");
    assert_null(auth_bearer("Basic abc"));
    assert_null(auth_bearer("Bearer"));
    assert_null(auth_bearer(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_found_by_itself_alone),
        cmocka_unit_test(without_a_file_everyone_is_open),
        cmocka_unit_test(bad_lines_are_named_and_never_shown_where_a_key_may_stand),
        cmocka_unit_test(requests_of_a_minute_come_back_one_by_one),
        cmocka_unit_test(tokens_that_were_overdrawn_are_paid_back_first),
        cmocka_unit_test(reading_again_keeps_standing_and_what_requests_hold),
        cmocka_unit_test(keys_that_stand_elsewhere_count_as_the_file_s),
        cmocka_unit_test(use_at_other_coordinators_counts_once),
        cmocka_unit_test(a_bearer_is_read_as_clients_write_it),
    };
    return cmocka_run_group_tests(tests, make_keys, remove_file);
}
