/* bench_cuda.c - every CUDA kernel on this machine's GPU: checked, then timed alone.
 *
 *     bench_cuda [check|time] [PEAK_GB_S]
 *
 * Checks are those of tests/kernels/cuda_cases.c.  Times: bench_cuda_decode.c and
 * bench_cuda_prompts.c, taken as bench_cuda_device.c says.  Bytes count weights, states
 * or pages once; percent is of PEAK_GB_S (default 4200).  Exit 1 when a check fails.
 */
#include "tests/benchmark/bench_cuda.h"

#include "tests/kernels/cuda_cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(void) {
    const kernel_device device = {bench_alloc, bench_free,   bench_write,
                                  bench_read,  bench_launch, (uint32_t)bench_card()->n_sms};
    int failed = 0;
    for (size_t i = 0; i < n_cuda_cases; i++) {
        const cuda_case *c = &cuda_cases[i];
        const double off = c->run(&device);
        const int ok = off <= c->tolerance;
        printf("%s %-36s error %.2g, at most %.2g\n", ok ? "ok    " : "FAILED", c->name, off,
               c->tolerance);
        failed += !ok;
    }
    printf("%zu passed, %d failed\n", n_cuda_cases - (size_t)failed, failed);
    return failed;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    bench_open(argc > 2 ? atof(argv[2]) : 4200);
    const int failed = strcmp(what, "time") != 0 ? check() : 0;
    (void)fflush(stdout);
    if (strcmp(what, "check") != 0) {
        bench_decode();
        bench_prompts();
    }
    return failed > 0;
}
