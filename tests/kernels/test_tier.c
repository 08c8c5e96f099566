/* test_tier.c - the choice of instruction sets and its override. */
#include "kernels/cpu/tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* needs the headers above */

static void no_override_takes_the_best(void **state) {
    (void)state;
    error err;
    cpu_tier tier = CPU_SCALAR;
    unsetenv("SILICEO_CPU_TIER");
    assert_int_equal(cpu_tier_choose(&tier, &err), STATUS_OK);
    assert_int_equal(tier, cpu_tier_best());
}

static void every_tier_up_to_the_best_can_be_named(void **state) {
    (void)state;
    for (cpu_tier want = CPU_SCALAR; want <= CPU_AVX512; want++) {
        error err = {0};
        cpu_tier tier = CPU_SCALAR;
        setenv("SILICEO_CPU_TIER", cpu_tier_name(want), 1);
        status rc = cpu_tier_choose(&tier, &err);
        if (want <= cpu_tier_best()) {
            assert_int_equal(rc, STATUS_OK);
            assert_int_equal(tier, want);
        } else {
            assert_int_equal(rc, STATUS_BAD_INPUT);
            assert_non_null(strstr(err.text, cpu_tier_name(want)));
        }
    }
    unsetenv("SILICEO_CPU_TIER");
}

static void unknown_name_is_refused_with_the_name(void **state) {
    (void)state;
    error err = {0};
    cpu_tier tier = CPU_SCALAR;
    setenv("SILICEO_CPU_TIER", "mmx", 1);
    assert_int_equal(cpu_tier_choose(&tier, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "mmx"));
    unsetenv("SILICEO_CPU_TIER");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_override_takes_the_best),
        cmocka_unit_test(every_tier_up_to_the_best_can_be_named),
        cmocka_unit_test(unknown_name_is_refused_with_the_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
