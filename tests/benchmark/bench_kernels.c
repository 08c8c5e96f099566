/* bench_kernels.c - speed of the CPU matrix kernels, as JSON on stdout.
 *
 *     bench_kernels [--tier T] [--type Q4_K] [--seconds S] [--tokens N]
 *
 * One thread.  For each type: decode (one activation row) from the second-level cache
 * and streamed from memory, in 10^9 bytes of weights a second; prefill (N rows, default
 * 64) in 10^9 operations a second, two for each multiply-add; 512 x 2048 weights in
 * cache.  Then what an empty operation of a pool of two threads costs, and the
 * quantization of one row of 2048.  The fastest of many short runs: what the code
 * reaches, also while others use the machine.
 */
#include "common/clock.h"
#include "kernels/cpu/pool.h"
#include "tests/kernels/matmul_case.h"

#include <stdio.h>

#define N_ROWS       512
#define N_COLS       2048
#define STREAM_BYTES ((size_t)192 << 20)

typedef struct bench_options {
    cpu_tier tier;
    const char *type; /* NULL: all */
    double seconds;   /* of one measurement */
    size_t n_tokens;
} bench_options;

/* Nanoseconds of the fastest pass of the whole job. */
static double job_ns(const bench_options *o, const matmul_job *job, void *scratch) {
    uint64_t budget_ns = (uint64_t)(o->seconds * 1e9), least_ns = UINT64_MAX;
    uint64_t begin_ns = clock_monotonic_ns(), now_ns = begin_ns;
    for (int passes = 0; passes < 3 || now_ns - begin_ns < budget_ns; passes++) {
        uint64_t start_ns = clock_monotonic_ns();
        matmul_chunk(o->tier, job, 0, 1, scratch);
        now_ns = clock_monotonic_ns();
        if (now_ns - start_ns < least_ns) least_ns = now_ns - start_ns;
    }
    return (double)least_ns;
}

/* One row against many copies of the weights, more than any cache holds. */
static double stream_ns(const bench_options *o, const matmul_case *c,
                        const matmul_job *cached) {
    size_t row_bytes = cached->row_bytes;
    size_t n_rows = STREAM_BYTES / row_bytes / 64 * 64;
    uint8_t *weights = malloc(n_rows * row_bytes);
    float *out = malloc(n_rows * sizeof *out);
    CHECK(weights != NULL && out != NULL);
    for (size_t r = 0; r < n_rows; r++)
        memcpy(weights + r * row_bytes, c->weights + r % N_ROWS * row_bytes, row_bytes);
    matmul_job job = *cached;
    job.weights = weights;
    job.n_rows = job.out_stride = n_rows;
    job.out = out;
    double ns = job_ns(o, &job, c->scratch) / (double)n_rows * N_ROWS;
    free(weights);
    free(out);
    return ns;
}

static void bench_type(const bench_options *o, quant_type type, act_format format) {
    matmul_case c;
    case_make(&c, type, format, N_ROWS, N_COLS, o->n_tokens);
    float *out = malloc(o->n_tokens * N_ROWS * sizeof *out);
    CHECK(out != NULL);
    matmul_job one = case_job(&c, 1, out), many = case_job(&c, o->n_tokens, out);
    double bytes = (double)(N_ROWS * one.row_bytes);
    double ops = 2.0 * N_ROWS * N_COLS * (double)o->n_tokens;
    double cached_ns = job_ns(o, &one, c.scratch);
    double streamed_ns = stream_ns(o, &c, &one);
    double prefill_ns = job_ns(o, &many, c.scratch);
    static const char *const by[ACT_FORMATS] = {
        [ACT_F32] = "_by_f32", [ACT_STEP_32] = "_by_step", [ACT_Q8_16_PAIRS] = "_by_q8_pairs"};
    char name[32];
    (void)snprintf(name, sizeof name, "%s%s", quant_traits_of((uint32_t)type)->name,
                   format == act_format_of(type) ? "" : by[format]);
    printf("  \"%s_decode_cached_gb_per_s\": %.1f,\n", name, bytes / cached_ns);
    printf("  \"%s_decode_streamed_gb_per_s\": %.1f,\n", name, bytes / streamed_ns);
    printf("  \"%s_prefill_gop_per_s\": %.1f,\n", name, ops / prefill_ns);
    (void)fflush(stdout);
    free(out);
    case_release(&c);
}

static void no_work(void *context, size_t chunk, uint32_t worker) {
    (void)context;
    (void)chunk;
    (void)worker;
}

static double pool_empty_ns(void) {
    error err;
    pool *p = NULL;
    CHECK(pool_new(&p, 2, &err) == STATUS_OK);
    uint64_t least_ns = UINT64_MAX;
    for (int r = 0; r < 20; r++) {
        uint64_t start_ns = clock_monotonic_ns();
        for (int i = 0; i < 1000; i++)
            pool_run(p, 2, no_work, NULL);
        uint64_t ns = clock_monotonic_ns() - start_ns;
        if (ns < least_ns) least_ns = ns;
    }
    pool_free(p);
    return (double)least_ns / 1000;
}

static double quantize_ns(cpu_tier tier, act_format format) {
    _Alignas(64) static float x[N_COLS];
    _Alignas(64) static uint8_t row[4 * N_COLS];
    for (size_t i = 0; i < N_COLS; i++)
        x[i] = case_normal();
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < 5000; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        act_quantize_row(tier, format, x, N_COLS, row);
        uint64_t ns = clock_monotonic_ns() - start_ns;
        if (ns < least_ns) least_ns = ns;
    }
    return (double)least_ns;
}

static int usage(void) {
    (void)fprintf(stderr, "usage: bench_kernels [--tier scalar|avx2|avx512] [--type NAME] "
                          "[--seconds S] [--tokens N]\n");
    return 2;
}

static int parse(int argc, char **argv, bench_options *o) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--tier") == 0) {
            (void)setenv("SILICEO_CPU_TIER", value, 1);
        } else if (strcmp(argv[i], "--type") == 0) {
            o->type = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            o->seconds = strtod(value, NULL);
        } else if (strcmp(argv[i], "--tokens") == 0) {
            o->n_tokens = strtoul(value, NULL, 10);
        } else {
            return usage();
        }
    }
    error err = {0};
    if (argc % 2 == 0 || o->n_tokens == 0) return usage();
    if (cpu_tier_choose(&o->tier, &err) != STATUS_OK) {
        (void)fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 2;
    }
    return 0;
}

int main(int argc, char **argv) {
    bench_options o = {.seconds = 0.3, .n_tokens = 64};
    int rc = parse(argc, argv, &o);
    if (rc != 0) return rc;
    printf("{\"tier\": \"%s\", \"threads\": 1, \"prefill_tokens\": %zu, \"figures\": {\n",
           cpu_tier_name(o.tier), o.n_tokens);
    for (size_t i = 0; i < N_TYPES; i++) {
        quant_type type = all_types[i];
        if (o.type != NULL && strcmp(o.type, quant_traits_of((uint32_t)type)->name) != 0)
            continue;
        bench_type(&o, type, act_format_of(type));
        if (act_format_of(type) == ACT_F32) continue;
        bench_type(&o, type, ACT_Q8_16_PAIRS);
        bench_type(&o, type, ACT_STEP_32);
    }
    if (o.type == NULL || strcmp(o.type, "Q4_K") == 0) bench_type(&o, QUANT_Q4_K, ACT_F32);
    printf("  \"pool_empty_ns\": %.0f,\n", pool_empty_ns());
    printf("  \"quantize_2048_q8_256_ns\": %.0f,\n", quantize_ns(o.tier, ACT_Q8_256));
    printf("  \"quantize_2048_q8_pairs_ns\": %.0f,\n", quantize_ns(o.tier, ACT_Q8_16_PAIRS));
    printf("  \"quantize_2048_q8_32_ns\": %.0f\n}}\n", quantize_ns(o.tier, ACT_Q8_32));
    return 0;
}
