/* test_cuda_kernels.c - the CUDA kernels, run by the fibers of cuda_emu.h, against their oracles. */
#include "tests/kernels/cuda_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void kernel_agrees_with_its_oracle(void **state) {
    const cuda_case *c = *state;
    const double error = c->run(&kernel_device_emu);
    if (!(error <= c->tolerance))
        fail_msg("%s: error %.3g, at most %.3g", c->name, error, c->tolerance);
}

int main(void) {
    struct CMUnitTest *tests = calloc(n_cuda_cases, sizeof *tests);
    if (tests == NULL) return 1;
    for (size_t i = 0; i < n_cuda_cases; i++) {
        tests[i].name = cuda_cases[i].name;
        tests[i].test_func = kernel_agrees_with_its_oracle;
        tests[i].initial_state = (void *)(uintptr_t)&cuda_cases[i];
    }
    const int failed = _cmocka_run_group_tests("cuda kernels", tests, n_cuda_cases, NULL, NULL);
    free(tests);
    return failed;
}
