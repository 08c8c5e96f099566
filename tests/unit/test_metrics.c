/* test_metrics.c - counting, and the text that Prometheus reads. */
#include "common/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *text_of(const metrics *m) {
    json_text out = {0};
    metrics_print(m, &out);
    assert_false(out.failed);
    return out.bytes;
}

static void a_counter_adds_and_never_goes_down(void **state) {
    (void)state;
    metrics m;
    metrics_init(&m);
    metric *c = metrics_child(
        metrics_family_add(&m, METRICS_COUNTER, "x_total", "Things.", NULL, 0), "");
    metric_add(c, 2);
    metric_add(c, -1);
    metric_add(c, (double)NAN);
    metric_add(c, 0.5);
    char *text = text_of(&m);
    assert_string_equal(text, "# HELP x_total Things.\n# TYPE x_total counter\nx_total 2.5\n");
    free(text);
    metrics_release(&m);
}

static void a_histogram_sums_its_buckets_upwards(void **state) {
    (void)state;
    static const double bounds[] = {0.1, 1, 10};
    metrics m;
    metrics_init(&m);
    metric *h = metrics_child(
        metrics_family_add(&m, METRICS_HISTOGRAM, "t_seconds", "T", bounds, 3), "a=\"b\"");
    const double seen[] = {0.1, 0.5, 0.5, 100};
    for (size_t i = 0; i < 4; i++)
        metric_observe(h, seen[i]);
    metric_observe(h, (double)NAN);
    char *text = text_of(&m);
    assert_string_equal(text, "# HELP t_seconds T\n# TYPE t_seconds histogram\n"
                              "t_seconds_bucket{a=\"b\",le=\"0.1\"} 1\n"
                              "t_seconds_bucket{a=\"b\",le=\"1\"} 3\n"
                              "t_seconds_bucket{a=\"b\",le=\"10\"} 3\n"
                              "t_seconds_bucket{a=\"b\",le=\"+Inf\"} 4\n"
                              "t_seconds_sum{a=\"b\"} 101.1\n"
                              "t_seconds_count{a=\"b\"} 4\n");
    assert_true(metric_value(h) > 3.5 && metric_value(h) < 4.5);
    free(text);
    metrics_release(&m);
}

static void label_values_are_escaped(void **state) {
    (void)state;
    json_text labels = {0};
    metrics_label(&labels, "a", "x\"y\\z\n");
    metrics_label(&labels, "b", "1");
    assert_string_equal(labels.bytes, "a=\"x\\\"y\\\\z\\n\",b=\"1\"");
    json_text_release(&labels);
}

static void children_are_found_again_and_gauges_cleared(void **state) {
    (void)state;
    metrics m;
    metrics_init(&m);
    metrics_family *f = metrics_family_add(&m, METRICS_GAUGE, "g", "G", NULL, 0);
    metric_set(metrics_child(f, "n=\"1\""), 7);
    assert_ptr_equal(metrics_child(f, "n=\"1\""), metrics_child(f, "n=\"1\""));
    assert_ptr_not_equal(metrics_child(f, "n=\"1\""), metrics_child(f, "n=\"2\""));
    metrics_family_clear(f);
    char *text = text_of(&m);
    assert_string_equal(text, "# HELP g G\n# TYPE g gauge\n");
    free(text);
    metric_set(metrics_child(f, ""), (double)INFINITY);
    text = text_of(&m);
    assert_non_null(strstr(text, "g +Inf\n"));
    free(text);
    metrics_release(&m);
}

static void nothing_breaks_without_a_child(void **state) {
    (void)state;
    metric_add(NULL, 1);
    metric_set(NULL, 1);
    metric_observe(NULL, 1);
    assert_true(metric_value(NULL) <= 0);
    assert_null(metrics_child(NULL, ""));
    metrics_family_clear(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_adds_and_never_goes_down),
        cmocka_unit_test(a_histogram_sums_its_buckets_upwards),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(children_are_found_again_and_gauges_cleared),
        cmocka_unit_test(nothing_breaks_without_a_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
