/* test_routing_trace.c - traces are read whole or refused with line and value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/routing_trace.h"
#include <string.h>

static status parse(const char *text, routing_trace *out, error *err) {
    return routing_trace_parse(out, "trace", text, strlen(text), err);
}

static void a_trace_gives_the_ids_of_position_and_layer(void **state) {
    (void)state;
    routing_trace t;
    error err = {0};
    assert_int_equal(parse("siliceo-routing 1 2 2 8 2\n0 1\n2 3\n4 5\n6 7\n", &t, &err),
                     STATUS_OK);
    assert_int_equal(routing_trace_at(&t, 0, 1)[0], 2);
    assert_int_equal(routing_trace_at(&t, 1, 0)[1], 5);
    assert_int_equal(routing_trace_at(&t, 3, 1)[1], 7); /* goes round */
    routing_trace_release(&t);
}

static void wrong_traces_are_refused_with_line_and_value(void **state) {
    (void)state;
    const struct {
        const char *text, *words;
    } cases[] = {
        {"", "line 1"},
        {"siliceo-routing 2 1 1 8 1\n0\n", "line 1"},
        {"siliceo-routing 1 0 1 8 1\n", "line 1"},
        {"siliceo-routing 1 1 1 8 9\n", "line 1"},
        {"siliceo-routing 1 9999 9 8 2\n0 1\n", "cannot hold"},
        {"siliceo-routing 1 1 2 8 2\n0 1\n2 8\n", "line 3: id 2 is not in 0..7"},
        {"siliceo-routing 1 1 2 8 2\n0 1\n2 2\n", "line 3: expert 2 stands twice"},
        {"siliceo-routing 1 1 2 8 2\n0 1 2\n2 3\n", "line 2 has more than 2 ids"},
        {"siliceo-routing 1 1 2 8 2\n0 1\n", "line 3: id 1"},
        {"siliceo-routing 1 1 2 8 2\n0 x\n2 3\n", "line 2: id 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        routing_trace t;
        error err = {0};
        assert_int_equal(parse(cases[i].text, &t, &err), STATUS_BAD_INPUT);
        if (strstr(err.text, cases[i].words) == NULL) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i].words);
        }
        routing_trace_release(&t);
    }
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    routing_trace t;
    error err = {0};
    assert_int_equal(routing_trace_read(&t, "/nowhere/trace", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nowhere/trace"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_gives_the_ids_of_position_and_layer),
        cmocka_unit_test(wrong_traces_are_refused_with_line_and_value),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
