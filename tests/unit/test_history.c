/* test_history.c - the fleet's last five minutes, and the dashboard's policy. */
#include "common/json.h"
#include "coordinator/dashboard.h"
#include "coordinator/history.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static cJSON *printed(const history *h) {
    json_text out = {0};
    cJSON *tree = NULL;
    error err = {0};
    history_print(h, &out);
    assert_int_equal(json_parse(&tree, out.bytes, out.length, "history", &err), STATUS_OK);
    json_text_release(&out);
    return tree;
}

static void a_sample_is_the_rate_since_the_last_one(void **state) {
    (void)state;
    history h = {0};
    history_tick(&h, 5000, 100);
    history_tick(&h, 5999, 150); /* not due */
    assert_int_equal(h.n_samples, 0);
    history_tick(&h, 6000, 150);
    history_tick(&h, 8000, 250); /* the loop was late: still a rate a second */
    assert_int_equal(h.n_samples, 2);
    assert_true(fabsf(h.tokens_per_s[0] - 50) < 1e-3f);
    assert_true(fabsf(h.tokens_per_s[1] - 50) < 1e-3f);
}

static void after_five_minutes_the_oldest_go_and_the_newest_is_last(void **state) {
    (void)state;
    history h = {0};
    double total = 0;
    for (int i = 0; i <= HISTORY_SAMPLES + 7; i++) {
        total += i;
        history_tick(&h, 1 + (uint64_t)i * HISTORY_STEP_MS, total);
    }
    cJSON *tree = printed(&h);
    const cJSON *list = cJSON_GetObjectItem(tree, "tokens_per_s");
    assert_int_equal(cJSON_GetArraySize(list), HISTORY_SAMPLES);
    assert_true(fabs(cJSON_GetArrayItem(list, 0)->valuedouble - 8) < 1e-3);
    assert_true(fabs(cJSON_GetArrayItem(list, HISTORY_SAMPLES - 1)->valuedouble -
                     (HISTORY_SAMPLES + 7)) < 1e-3);
    cJSON_Delete(tree);
}

static void an_empty_history_is_an_empty_list(void **state) {
    (void)state;
    history h = {0};
    cJSON *tree = printed(&h);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(tree, "tokens_per_s")), 0);
    cJSON_Delete(tree);
}

static void the_policy_names_the_script_and_the_style_and_forbids_the_rest(void **state) {
    (void)state;
    char policy[DASHBOARD_POLICY_SIZE];
    size_t length = 0;
    const char *page = dashboard_page_text(&length);
    assert_true(length > 1000 && memcmp(page, "<!doctype html>", 15) == 0);
    dashboard_policy(policy);
    assert_true(strlen(policy) < DASHBOARD_POLICY_SIZE - 1);
    assert_non_null(strstr(policy, "default-src 'none'; script-src 'sha256-"));
    assert_non_null(strstr(policy, "frame-ancestors 'none'"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_is_the_rate_since_the_last_one),
        cmocka_unit_test(after_five_minutes_the_oldest_go_and_the_newest_is_last),
        cmocka_unit_test(an_empty_history_is_an_empty_list),
        cmocka_unit_test(the_policy_names_the_script_and_the_style_and_forbids_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
