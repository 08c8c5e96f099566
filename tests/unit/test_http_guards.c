/* test_http_guards.c - which headers are refused, echoed and trusted. */
#include "coordinator/http_guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct guard_case {
    const char *headers[4][2];
    bool http_1_1;
    bool refused;
} guard_case;

static void doubtful_framing_is_refused(void **state) {
    (void)state;
    static const guard_case cases[] = {
        {{{"Host", "a"}, {"Content-Length", "5"}}, true, false},
        {{{"host", "a"}, {"transfer-encoding", "Chunked"}}, true, false},
        {{{"Content-Length", "0"}}, false, false},
        {{{"Content-Length", "5"}}, true, true},
        {{{"Host", "a"}, {"Host", "a"}}, true, true},
        {{{"Host", "a"}, {"Host", "b"}}, false, true},
        {{{"Host", "a"}, {"Content-Length", "5"}, {"content-length", "5"}}, true, true},
        {{{"Host", "a"}, {"Content-Length", "5"}, {"Transfer-Encoding", "chunked"}},
         true,
         true},
        {{{"Host", "a"}, {"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}},
         true,
         true},
        {{{"Host", "a"}, {"Transfer-Encoding", "gzip, chunked"}}, true, true},
        {{{"Host", "a"}, {"Transfer-Encoding", "identity"}}, true, true},
        {{{"Host", "a"}, {"Transfer-Encoding", "chunked"}}, false, true},
        {{{"Host", "a"}, {"Content-Length", "-1"}}, true, true},
        {{{"Host", "a"}, {"Content-Length", "+5"}}, true, true},
        {{{"Host", "a"}, {"Content-Length", "5, 5"}}, true, true},
        {{{"Host", "a"}, {"Content-Length", ""}}, true, true},
        {{{"Host", "a"}, {"Content-Length", "0x10"}}, true, true},
        {{{"Host", "a"}, {"Content-Length", "99999999999999999999999"}}, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        http_guard g;
        http_guard_init(&g, cases[i].http_1_1);
        for (size_t k = 0; k < 4 && cases[i].headers[k][0] != NULL; k++) {
            http_guard_header(&g, cases[i].headers[k][0], cases[i].headers[k][1]);
        }
        if ((http_guard_verdict(&g) != NULL) != cases[i].refused) fail_msg("case %zu", i);
    }
}

static void the_length_is_read(void **state) {
    (void)state;
    http_guard g;
    http_guard_init(&g, true);
    http_guard_header(&g, "Host", "a");
    http_guard_header(&g, "Content-Length", "104857600");
    http_guard_header(&g, "X-Other", NULL);
    assert_null(http_guard_verdict(&g));
    assert_int_equal(g.content_length, 104857600);
}

static void request_ids_are_echoed_only_when_sane(void **state) {
    (void)state;
    assert_true(http_guard_request_id_is_sane("abc-DEF_0.9"));
    static const char *const bad[] = {
        "",
        "a b",
        "a\"b",
        "a\nb",
        "\xc3\xa9",
        "a/b",
        "12345678901234567890123456789012345678901234567890123456789012345"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(http_guard_request_id_is_sane(bad[i]));
    }
}

static void header_lists_and_paths_and_origins(void **state) {
    (void)state;
    assert_true(http_guard_header_list_is_sane("authorization, x-Custom_1"));
    assert_false(http_guard_header_list_is_sane("a\r\nSet-Cookie: x"));
    assert_false(http_guard_header_list_is_sane(""));
    assert_true(http_guard_path_is_api("/v1/models"));
    assert_true(http_guard_path_is_api("/rerank"));
    assert_false(http_guard_path_is_api("/v1"));
    assert_false(http_guard_path_is_api("/admin/nodes/v1/"));
    assert_true(http_guard_same_origin("http://host:8080", "HOST:8080"));
    assert_false(http_guard_same_origin("http://evil", "host:8080"));
    assert_false(http_guard_same_origin("null", "host:8080"));
    assert_false(http_guard_same_origin("http://host", NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubtful_framing_is_refused),
        cmocka_unit_test(the_length_is_read),
        cmocka_unit_test(request_ids_are_echoed_only_when_sane),
        cmocka_unit_test(header_lists_and_paths_and_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
