/* matmul_run.c - cuts a matrix job into chunks and drives the kernels of the tier.
 *
 * Few tokens: the four rows of a group lie a quarter of the matrix apart.  That gives
 * four sequential streams from memory, which one core reads faster than one stream,
 * and far faster than four neighbouring rows in lockstep (28, 37 and 18 GB/s on the
 * machine of the measurement).  A chunk is a range of each quarter.
 * Many tokens: a panel of 32 neighbouring rows is unpacked once, then multiplied with
 * all tokens.  A chunk is a range of panels.
 * Float32 activations with quantized weights: groups of four rows are dequantized.
 */
#include "kernels/cpu/act_layout.h"
#include "kernels/cpu/matmul_impl.h"

#include "common/error.h"
#include <string.h>

/* Tokens whose sums wait in scratch while a wide panel is unpacked piece by piece. */
#define PANEL_BATCH (42 * MATMUL_PANEL_TOKENS)
/* Tokens that the rows kernels take before they go to the next rows: their
 * activations should stay in the first-level cache. */
#define ROWS_BATCH 16
/* Rows of a quarter in a chunk: 16 outputs fill a cache line. */
#define ROWS_UNIT 16

/* Rough rates of weights in cache, only to choose how many chunks are worth it; measured
 * on one Zen 4 core, AVX-512. */
#define CHUNK_LEAST_NS     3000u
#define SINGLE_CHUNK_NS    6000u /* an operation shorter than this stays whole */
#define CHUNKS_PER_THREAD  8u
#define ROWS_MACS_PER_NS   45u
#define PANEL_MACS_PER_NS  140u
#define UNPACK_PER_NS      22u /* weights */
#define FLOAT_BYTES_PER_NS 60u
#define SCALAR_MACS_PER_NS 1u

static const matmul_tier *tier_of(cpu_tier tier) {
    switch (tier) {
    case CPU_AVX512:
        return &matmul_tier_avx512;
    case CPU_AVX2:
        return &matmul_tier_avx2;
    case CPU_SCALAR:
        break;
    }
    return &matmul_tier_scalar;
}

static bool by_panels(const matmul_tier *tier, const matmul_job *job) {
    return job->format != ACT_F32 && !matmul_is_step(job->format) &&
           job->n_tokens >= tier->panel_tokens && job->n_rows >= MATMUL_PANEL_ROWS / 2;
}

/* What the chunks share out: panels, or units of rows in each quarter. */
static size_t n_units(const matmul_tier *tier, const matmul_job *job) {
    if (by_panels(tier, job)) return (job->n_rows + MATMUL_PANEL_ROWS - 1) / MATMUL_PANEL_ROWS;
    return (job->n_rows / MATMUL_ROWS + ROWS_UNIT - 1) / ROWS_UNIT;
}

static size_t estimate_ns(cpu_tier tier, const matmul_job *job) {
    size_t weights = job->n_rows * job->n_cols;
    size_t macs = weights * job->n_tokens;
    if (tier == CPU_SCALAR) return macs / SCALAR_MACS_PER_NS;
    if (by_panels(tier_of(tier), job)) {
        return weights / UNPACK_PER_NS + macs / PANEL_MACS_PER_NS;
    }
    size_t ns = macs / ROWS_MACS_PER_NS;
    if (job->format == ACT_F32) ns += job->n_rows * job->row_bytes / FLOAT_BYTES_PER_NS;
    return ns;
}

size_t matmul_n_chunks(cpu_tier tier, const matmul_job *job, uint32_t n_threads) {
    if (n_threads <= 1) return 1;
    size_t ns = estimate_ns(tier, job);
    size_t units = n_units(tier_of(tier), job);
    if (ns < SINGLE_CHUNK_NS || units <= 1) return 1;
    size_t n = ns / CHUNK_LEAST_NS;
    size_t most = (size_t)n_threads * CHUNKS_PER_THREAD;
    if (n > most) n = most;
    return n < units ? n : units;
}

static size_t round_64(size_t n) {
    return (n + 63) / 64 * 64;
}

static size_t tiles_bytes(size_t n_cols) {
    size_t cols = n_cols < MATMUL_PANEL_COLS ? n_cols : MATMUL_PANEL_COLS;
    return round_64(MATMUL_PANEL_ROWS / 16 * MATMUL_TILE_BYTES_PER_COL * cols);
}

size_t matmul_scratch_bytes(size_t n_cols) {
    size_t panel = tiles_bytes(n_cols) + PANEL_BATCH * sizeof(matmul_sums);
    size_t floats = MATMUL_ROWS * round_64(n_cols * sizeof(float));
    return panel > floats ? panel : floats;
}

/* ---- what a token's rows are ---- */

static const uint8_t *act_of(const matmul_job *job, size_t token) {
    size_t row = job->act_rows != NULL ? (size_t)job->act_rows[token] : token;
    return (const uint8_t *)job->acts + row * job->act_stride;
}

static float *out_of(const matmul_job *job, size_t token) {
    size_t row = job->out_rows != NULL ? (size_t)job->out_rows[token] : token;
    return job->out + row * job->out_stride;
}

static const uint8_t *weights_of(const matmul_job *job, size_t row) {
    return (const uint8_t *)job->weights + row * job->row_bytes;
}

/* ---- groups of four rows ---- */

typedef struct rows_run {
    cpu_tier tier;
    const matmul_tier *kernels;
    const matmul_job *job;
    bool dequantize; /* the kernel gets float32 rows, made in scratch */
    float *scratch;
    size_t first_token, n_tokens;
} rows_run;

static rows_run rows_run_of(cpu_tier tier, const matmul_job *job, void *scratch) {
    bool is_float = quant_traits_of((uint32_t)job->type)->block_values == 1;
    return (rows_run){.tier = tier,
                      .kernels = tier_of(tier),
                      .job = job,
                      .dequantize = job->format == ACT_F32 && !is_float,
                      .scratch = scratch};
}

static void dequantize_group(const rows_run *run, matmul_rows *a, size_t n_rows) {
    const matmul_job *job = run->job;
    size_t stride = round_64(job->n_cols * sizeof(float)) / sizeof(float);
    for (size_t r = 0; r < MATMUL_ROWS; r++) {
        float *row = run->scratch + (r < n_rows ? r : n_rows - 1) * stride;
        if (r < n_rows) {
            dequantize_row_fast(run->tier, job->type, a->rows[r], job->n_cols, row);
        }
        a->rows[r] = (const void *)row;
    }
}

/* Rows first, first + step, ...: n_rows of them (1..4), against the run's tokens. */
static void run_group(const rows_run *run, size_t first, size_t step, size_t n_rows) {
    const matmul_job *job = run->job;
    matmul_rows a;
    a.type = run->dequantize ? QUANT_F32 : job->type;
    a.format = job->format;
    a.n_cols = job->n_cols;
    for (size_t r = 0; r < MATMUL_ROWS; r++)
        a.rows[r] = weights_of(job, first + (r < n_rows ? r : n_rows - 1) * step);
    if (run->dequantize) dequantize_group(run, &a, n_rows);
    size_t end = run->first_token + run->n_tokens;
    for (size_t token = run->first_token; token < end; token += a.n_tokens) {
        a.n_tokens = end - token < MATMUL_TOKENS ? end - token : MATMUL_TOKENS;
        for (size_t t = 0; t < a.n_tokens; t++)
            a.acts[t] = act_of(job, token + t);
        run->kernels->rows_kernel(a.format, a.type, a.n_tokens)(&a);
        for (size_t t = 0; t < a.n_tokens; t++) {
            float *out = out_of(job, token + t) + first;
            for (size_t r = 0; r < n_rows; r++)
                out[r * step] = a.out[t][r];
        }
    }
}

/* One token against whole groups: what run_group() does, with all that stays the same
 * out of the loop.  A row of one block takes a few ns, so this is felt. */
static void run_groups_of_one(const rows_run *run, size_t first, size_t end, size_t quarter) {
    const matmul_job *job = run->job;
    matmul_rows_kernel kernel = run->kernels->rows_kernel(job->format, job->type, 1);
    matmul_rows a = {
        .type = job->type, .format = job->format, .n_cols = job->n_cols, .n_tokens = 1};
    float *out[MATMUL_ROWS];
    a.acts[0] = act_of(job, run->first_token);
    for (size_t r = 0; r < MATMUL_ROWS; r++) {
        a.rows[r] = weights_of(job, first + r * quarter);
        out[r] = out_of(job, run->first_token) + r * quarter;
    }
    for (size_t row = first; row < end; row++) {
        kernel(&a);
        for (size_t r = 0; r < MATMUL_ROWS; r++) {
            out[r][row] = a.out[0][r];
            a.rows[r] += job->row_bytes;
        }
    }
}

static void run_rows(rows_run *run, size_t first, size_t end, bool with_rest) {
    size_t n_rows = run->job->n_rows;
    size_t quarter = n_rows / MATMUL_ROWS;
    size_t rest = n_rows % MATMUL_ROWS;
    /* Dequantizing is dear: then all tokens pass before the next rows. */
    size_t batch = run->dequantize ? run->job->n_tokens : ROWS_BATCH;
    for (size_t token = 0; token < run->job->n_tokens; token += batch) {
        size_t left = run->job->n_tokens - token;
        run->first_token = token;
        run->n_tokens = left < batch ? left : batch;
        if (run->n_tokens == 1 && !run->dequantize) {
            run_groups_of_one(run, first, end, quarter);
        } else {
            for (size_t row = first; row < end; row++)
                run_group(run, row, quarter, MATMUL_ROWS);
        }
        if (with_rest && rest > 0) run_group(run, n_rows - rest, 1, rest);
    }
}

/* ---- panels ---- */

typedef struct panel_run {
    const matmul_tier *kernels;
    const matmul_job *job;
    matmul_panel panel;
    matmul_sums *sums; /* [PANEL_BATCH] */
    size_t first_row;
    size_t first_token, n_tokens;
} panel_run;

/* Split n tokens into kernel calls of nearly equal size: one of 6 and one of 1 would be
 * slower than one of 4 and one of 3. */
static size_t tokens_of_call(size_t n, size_t most) {
    size_t n_calls = (n + most - 1) / most;
    return (n + n_calls - 1) / n_calls;
}

static void multiply_batch(panel_run *run) {
    matmul_panel *p = &run->panel;
    for (size_t done = 0; done < run->n_tokens; done += p->n_tokens) {
        p->n_tokens = tokens_of_call(run->n_tokens - done, run->kernels->call_tokens);
        for (size_t t = 0; t < p->n_tokens; t++)
            p->acts[t] = act_of(run->job, run->first_token + done + t);
        p->sums = run->sums + done;
        run->kernels->panel_multiply(p);
    }
}

static void write_sums(const matmul_sums *s, size_t n_rows, float *out) {
    for (size_t r = 0; r < n_rows; r++)
        out[r] = s->acc[r] - s->min[r]; /* a minimum of 0 where there is none */
}

static void write_batch(const panel_run *run) {
    size_t left = run->job->n_rows - run->first_row;
    size_t n_rows = left < MATMUL_PANEL_ROWS ? left : MATMUL_PANEL_ROWS;
    for (size_t t = 0; t < run->n_tokens; t++) {
        float *out = out_of(run->job, run->first_token + t) + run->first_row;
        write_sums(run->sums + t, n_rows, out);
    }
}

/* Read one byte of each cache line in the order of addresses: unpacking walks 32 rows
 * in lockstep, which is slow when they come from memory. */
static void touch_rows(const uint8_t *from, size_t n_bytes) {
    const volatile uint8_t *bytes = from;
    for (size_t i = 0; i < n_bytes; i += 64)
        (void)bytes[i];
}

static void unpack_piece(panel_run *run, size_t first_col) {
    size_t left = run->job->n_cols - first_col;
    run->panel.first_col = first_col;
    run->panel.n_cols = left < MATMUL_PANEL_COLS ? left : MATMUL_PANEL_COLS;
    run->kernels->panel_unpack(&run->panel);
}

/* One panel: the columns are unpacked in pieces that stay in the second-level cache,
 * again for every batch of tokens where there is more than one piece. */
static void run_panel(panel_run *run) {
    const matmul_job *job = run->job;
    size_t left = job->n_rows - run->first_row;
    size_t n_rows = left < MATMUL_PANEL_ROWS ? left : MATMUL_PANEL_ROWS;
    for (size_t r = 0; r < MATMUL_PANEL_ROWS; r++)
        run->panel.rows[r] = weights_of(job, run->first_row + (r < n_rows ? r : n_rows - 1));
    touch_rows(run->panel.rows[0], n_rows * job->row_bytes);
    bool one_piece = job->n_cols <= MATMUL_PANEL_COLS;
    if (one_piece) unpack_piece(run, 0);
    for (size_t token = 0; token < job->n_tokens; token += PANEL_BATCH) {
        const size_t rest = job->n_tokens - token;
        run->first_token = token;
        run->n_tokens = rest < PANEL_BATCH ? rest : PANEL_BATCH;
        memset(run->sums, 0, run->n_tokens * sizeof *run->sums);
        for (size_t col = 0; col < job->n_cols; col += MATMUL_PANEL_COLS) {
            if (!one_piece) unpack_piece(run, col);
            multiply_batch(run);
        }
        write_batch(run);
    }
}

static void run_panels(cpu_tier tier, const matmul_job *job, size_t first, size_t end,
                       void *scratch) {
    panel_run run = {.kernels = tier_of(tier), .job = job};
    run.panel.type = job->type;
    run.panel.format = job->format;
    run.panel.row_cols = job->n_cols;
    run.panel.tiles = scratch;
    run.sums = (void *)((uint8_t *)scratch + tiles_bytes(job->n_cols));
    for (size_t i = first; i < end; i++) {
        run.first_row = i * MATMUL_PANEL_ROWS;
        run_panel(&run);
    }
}

void matmul_chunk(cpu_tier tier, const matmul_job *job, size_t chunk, size_t n_chunks,
                  void *scratch) {
    const quant_traits *traits = quant_traits_of((uint32_t)job->type);
    CHECK(chunk < n_chunks && traits->name != NULL);
    CHECK(job->n_cols % traits->block_values == 0);
    CHECK(job->format == ACT_F32 || job->format == act_format_of(job->type) ||
          ((job->format == ACT_Q8_16_PAIRS || matmul_is_step(job->format)) &&
           traits->block_values > 1));
    size_t units = n_units(tier_of(tier), job);
    size_t first = units * chunk / n_chunks;
    size_t end = units * (chunk + 1) / n_chunks;
    if (by_panels(tier_of(tier), job)) {
        run_panels(tier, job, first, end, scratch);
        return;
    }
    size_t quarter = job->n_rows / MATMUL_ROWS;
    rows_run run = rows_run_of(tier, job, scratch);
    end *= ROWS_UNIT;
    run_rows(&run, first * ROWS_UNIT, end < quarter ? end : quarter, chunk == n_chunks - 1);
}
