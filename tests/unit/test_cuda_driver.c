/* test_cuda_driver.c - a machine without a usable driver says what is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/cuda_driver.h"
#include <stdlib.h>
#include <string.h>

static void assert_unavailable(const char *library, const char *word) {
    cuda_driver *d = NULL;
    error err = {0};
    assert_int_equal(setenv("SILICEO_LIBCUDA", library, 1), 0);
    assert_int_equal(cuda_driver_open(&d, &err), STATUS_UNAVAILABLE);
    assert_int_equal(unsetenv("SILICEO_LIBCUDA"), 0);
    assert_null(d);
    if (strstr(err.text, word) == NULL) fail_msg("'%s' does not say '%s'", err.text, word);
}

static void a_missing_driver_is_said(void **state) {
    (void)state;
    assert_unavailable("/nowhere/libcuda.so.1", "no CUDA driver on this machine");
    assert_unavailable("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1");
}

static void a_library_without_the_functions_is_refused_by_name(void **state) {
    (void)state;
    assert_unavailable("libm.so.6", "cuInit is missing");
}

static void closing_nothing_is_allowed(void **state) {
    (void)state;
    cuda_driver_close(NULL);
    gpu_sensors_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_driver_is_said),
        cmocka_unit_test(a_library_without_the_functions_is_refused_by_name),
        cmocka_unit_test(closing_nothing_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
