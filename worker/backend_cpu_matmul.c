/* backend_cpu_matmul.c - norms, quantized inputs and the matrices that read them. */
#include "worker/backend_cpu.h"

#include "kernels/embed.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include <stdlib.h>
#include <string.h>

static const size_t form_multiple[CPU_FORMS] = {
    [ACT_F32] = 1,          [ACT_Q8_256] = 256, [ACT_Q8_32] = 32,
    [ACT_Q8_16_PAIRS] = 32, [ACT_STEP_32] = 32, [ACT_STEP_16] = 32};

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

input_forms backend_form_of(quant_type type, activation_type activations) {
    return 1u << (activations == ACTIVATIONS_F32 ? ACT_F32 : act_format_of(type));
}

/* Inputs. */

act_format cpu_input_form(const backend_cpu *b, const cpu_input *in, quant_type type) {
    if (b->params.activations == ACTIVATIONS_F32) return ACT_F32;
    const act_format own = act_format_of(type);
    return own != ACT_F32 && in->quantized != ACT_F32 ? in->quantized : own;
}

status cpu_input_init(cpu_input *in, size_t n_rows, size_t max_cols, unsigned forms,
                      error *err) {
    for (int f = 0; f < CPU_FORMS; f++) {
        if ((forms & 1u << f) == 0) continue;
        size_t bytes = n_rows * act_row_bytes((act_format)f, round_up(max_cols, 256));
        in->form[f] = cpu_alloc(bytes);
        if (in->form[f] == NULL) {
            return error_set(err, STATUS_NO_MEMORY,
                             "cpu backend: no memory for %zu bytes of activations", bytes);
        }
    }
    return STATUS_OK;
}

void cpu_input_release(cpu_input *in) {
    for (int f = 0; f < CPU_FORMS; f++)
        free(in->form[f]);
    memset(in, 0, sizeof *in);
}

void cpu_input_begin(cpu_input *in, uint32_t n_cols) {
    if (in->n_cols == n_cols) return;
    in->n_cols = n_cols;
    for (int f = 0; f < CPU_FORMS; f++) {
        bool fits = n_cols % form_multiple[f] == 0;
        in->stride[f] = fits ? act_row_bytes((act_format)f, n_cols) : 0;
    }
}

void cpu_input_quantize(const backend_cpu *b, const cpu_input *in, size_t row,
                        input_forms forms) {
    for (int f = ACT_F32 + 1; f < CPU_FORMS; f++) {
        if ((forms & 1u << f) == 0) continue;
        act_quantize_row(b->tier, (act_format)f, cpu_input_row(in, row), in->n_cols,
                         (unsigned char *)in->form[f] + row * in->stride[f]);
    }
}

typedef struct quantize_task {
    const cpu_input *in;
    input_forms forms;
} quantize_task;

static void quantize_range(const backend_cpu *b, const void *args, size_t first, size_t end,
                           uint32_t worker) {
    (void)worker;
    const quantize_task *t = args;
    for (size_t row = first; row < end; row++)
        cpu_input_quantize(b, t->in, row, t->forms);
}

void cpu_input_quantize_rows(backend_cpu *b, const cpu_input *in, size_t n, input_forms forms) {
    if (forms == 1u << ACT_F32) return;
    const quantize_task t = {in, forms};
    cpu_run_range(b, n, 1, in->n_cols * 0.2, quantize_range, &t);
}

/* Matrices. */

matmul_job cpu_job(const backend_cpu *b, const weight_matrix *w, const void *weights,
                   const cpu_input *in, size_t n_rows, float *out, size_t out_stride) {
    act_format format = cpu_input_form(b, in, w->type);
    return (matmul_job){.type = w->type,
                        .format = format,
                        .weights = weights,
                        .row_bytes = w->row_bytes,
                        .n_rows = w->n_rows,
                        .n_cols = w->n_cols,
                        .acts = in->form[format],
                        .act_stride = in->stride[format],
                        .n_tokens = n_rows,
                        .out = out,
                        .out_stride = out_stride};
}

typedef struct jobs_task {
    const backend_cpu *b;
    const matmul_job *jobs;
    size_t n;
} jobs_task;

/* The job whose chunks contain this one: the first whose end is beyond it. */
static void job_chunk(void *context, size_t chunk, uint32_t worker) {
    const jobs_task *t = context;
    size_t low = 0, high = t->n - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->b->job_end[middle] > chunk)
            high = middle;
        else
            low = middle + 1;
    }
    size_t from = low > 0 ? t->b->job_end[low - 1] : 0;
    matmul_chunk(t->b->tier, &t->jobs[low], chunk - from, t->b->job_end[low] - from,
                 cpu_scratch(t->b, worker));
}

/* About how long a job runs on one thread: weights at 30 bytes a ns, once a token. */
static double job_ns(const matmul_job *j) {
    return (double)j->n_rows * (double)j->row_bytes * (double)j->n_tokens / 30.0;
}

/* Jobs that are not worth sharing are run at once. */
static bool run_alone(const backend_cpu *b, const matmul_job *jobs, size_t n) {
    CHECK_HOT(n <= b->cap_jobs);
    double ns = 0;
    for (size_t i = 0; i < n && b->n_threads > 1; i++)
        ns += job_ns(&jobs[i]);
    if (ns >= 10000.0) return false;
    for (size_t i = 0; i < n; i++)
        matmul_chunk(b->tier, &jobs[i], 0, 1, b->scratch);
    return true;
}

static size_t cut_jobs(const backend_cpu *b, const matmul_job *jobs, size_t n) {
    size_t n_chunks = 0;
    for (size_t i = 0; i < n; i++) {
        n_chunks += matmul_n_chunks(b->tier, &jobs[i], b->n_threads);
        b->job_end[i] = n_chunks;
    }
    return n_chunks;
}

void cpu_run_jobs(backend_cpu *b, const matmul_job *jobs, size_t n) {
    if (run_alone(b, jobs, n)) return;
    jobs_task t = {b, jobs, n};
    pool_run(b->threads, cut_jobs(b, jobs, n), job_chunk, &t);
}

void cpu_run_jobs_evenly(backend_cpu *b, const matmul_job *jobs, size_t n) {
    if (run_alone(b, jobs, n)) return;
    const size_t rounds = (cut_jobs(b, jobs, n) + b->n_threads - 1) / b->n_threads;
    const size_t each = (rounds * b->n_threads + n - 1) / n;
    for (size_t i = 0; i < n; i++)
        b->job_end[i] = (i + 1) * each;
    jobs_task t = {b, jobs, n};
    pool_run(b->threads, n * each, job_chunk, &t);
}

void cpu_project(backend *base, backend_input in, const projection *list, size_t n) {
    backend_cpu *b = (backend_cpu *)base;
    enum { MOST = 8 };
    matmul_job jobs[MOST];
    CHECK_HOT(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        const projection *p = &list[i];
        float *out = b->buffer[p->out];
        if (p->add) {
            cpu_flush_delta(b);
            out = b->delta;
            b->has_delta = true;
        }
        jobs[i] = cpu_job(b, p->matrix, p->matrix->place, &b->input[in], b->batch.view.n_rows,
                          out, b->row[p->out]);
    }
    cpu_run_jobs(b, jobs, n);
}

status cpu_logits(backend *base, const weight_matrix *head, float *out, error *err) {
    (void)err;
    backend_cpu *b = (backend_cpu *)base;
    matmul_job job = cpu_job(b, head, head->place, &b->input[INPUT_FINAL], b->batch.n_outputs,
                             out, head->n_rows);
    cpu_run_jobs(b, &job, 1);
    return STATUS_OK;
}

/* Norms. */

void cpu_flush_delta(backend_cpu *b) {
    if (!b->has_delta) return;
    size_t n = (size_t)b->batch.view.n_rows * b->config->n_embd;
    float *x = b->buffer[BUFFER_RESIDUAL];
    for (size_t i = 0; i < n; i++)
        x[i] += b->delta[i];
    b->has_delta = false;
}

typedef struct norm_task {
    rmsnorm_args args;
    const cpu_input *in;
    const uint32_t *rows; /* which residual rows; NULL: all */
    input_forms forms;
} norm_task;

static void norm_range(const backend_cpu *b, const void *context, size_t first, size_t end,
                       uint32_t worker) {
    (void)worker;
    const norm_task *t = context;
    for (size_t i = first; i < end; i++) {
        size_t from = t->rows != NULL ? t->rows[i] : i;
        rmsnorm_args row = t->args;
        row.x += from * row.x_stride;
        if (row.delta != NULL) row.delta += from * row.delta_stride;
        row.y = cpu_input_row(t->in, i);
        rmsnorm_rows(b->tier, &row, 0, 1);
        cpu_input_quantize(b, t->in, i, t->forms);
    }
}

static void run_norm(backend_cpu *b, const weight_vector *weight, cpu_input *in,
                     const uint32_t *rows, size_t n, input_forms forms) {
    uint32_t dim = b->config->n_embd;
    cpu_input_begin(in, dim);
    const norm_task t = {.args = {.x = b->buffer[BUFFER_RESIDUAL],
                                  .delta = b->has_delta ? b->delta : NULL,
                                  .weight = weight->place,
                                  .x_stride = dim,
                                  .delta_stride = dim,
                                  .y_stride = dim,
                                  .dim = dim,
                                  .eps = b->config->norm_eps},
                         .in = in,
                         .rows = rows,
                         .forms = forms};
    cpu_run_range(b, n, 1, dim * 0.4, norm_range, &t);
    b->has_delta = false;
}

void cpu_norm(backend *base, const weight_vector *weight, input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    run_norm(b, weight, &b->input[INPUT_HIDDEN], NULL, b->batch.view.n_rows, forms);
}

void cpu_hidden(backend *base, const weight_vector *weight) {
    cpu_norm(base, weight, 1u << ACT_F32);
}

/* Rows without logits keep their part of the delta unadded: nobody reads them again. */
void cpu_final_norm(backend *base, const weight_vector *weight, input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    run_norm(b, weight, &b->input[INPUT_FINAL], b->batch.output_rows, b->batch.n_outputs,
             forms);
}

/* The input of an MTP block. */

typedef struct pair_task {
    const weight_matrix *table;
    const block_weights *block;
    input_forms forms;
} pair_task;

static void pair_range(const backend_cpu *b, const void *context, size_t first, size_t end,
                       uint32_t worker) {
    (void)worker;
    const pair_task *t = context;
    const batch_view *v = &b->batch.view;
    const uint32_t dim = b->config->n_embd;
    for (size_t i = first; i < end; i++) {
        const uint32_t run = v->row_run[i];
        float *row = cpu_input_row(&b->pair, i);
        const embed_args args = {.table = t->table->place,
                                 .tokens = b->batch.tokens + i,
                                 .out = row,
                                 .row_bytes = t->table->row_bytes,
                                 .out_stride = dim,
                                 .type = (uint32_t)t->table->type,
                                 .dim = dim};
        embed_rows(b->tier, &args, 0, 1);
        memcpy(row + dim, b->batch.before[run] + (i - v->runs[run].first_row) * (size_t)dim,
               dim * sizeof(float));
        rmsnorm_args norm = {.x = row,
                             .weight = t->block->embedding_norm.place,
                             .y = row,
                             .dim = dim,
                             .eps = b->config->norm_eps};
        rmsnorm_rows(b->tier, &norm, 0, 1);
        norm.x = norm.y = row + dim;
        norm.weight = t->block->hidden_norm.place;
        rmsnorm_rows(b->tier, &norm, 0, 1);
        cpu_input_quantize(b, &b->pair, i, t->forms);
    }
}

void cpu_embed_after(backend *base, const weight_matrix *table, const block_weights *block,
                     input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    const size_t n = b->batch.view.n_rows;
    const pair_task t = {table, block, forms};
    cpu_input_begin(&b->pair, 2 * b->config->n_embd);
    cpu_run_range(b, n, 1, b->config->n_embd * 1.2, pair_range, &t);
    const matmul_job job = cpu_job(b, &block->in, block->in.place, &b->pair, n,
                                   b->buffer[BUFFER_RESIDUAL], b->row[BUFFER_RESIDUAL]);
    cpu_run_jobs(b, &job, 1);
}

/* Dense feed forward. */

typedef struct swiglu_task {
    swiglu_args args;
    const cpu_input *in;
    input_forms forms;
} swiglu_task;

static void swiglu_range(const backend_cpu *b, const void *context, size_t first, size_t end,
                         uint32_t worker) {
    (void)worker;
    const swiglu_task *t = context;
    for (size_t row = first; row < end; row++) {
        swiglu_rows(b->tier, &t->args, row, row + 1);
        cpu_input_quantize(b, t->in, row, t->forms);
    }
}

void cpu_run_swiglu(backend_cpu *b, const cpu_input *in, const float *up, size_t n,
                    input_forms forms) {
    const swiglu_task t = {.args = {.gate = cpu_input_row(in, 0),
                                    .up = up,
                                    .out = cpu_input_row(in, 0),
                                    .gate_stride = cpu_input_floats(in),
                                    .up_stride = in->n_cols,
                                    .out_stride = cpu_input_floats(in),
                                    .n_cols = in->n_cols},
                           .in = in,
                           .forms = forms};
    cpu_run_range(b, n, 1, in->n_cols * 0.5, swiglu_range, &t);
}

void cpu_gated(backend *base, const weight_matrix *gate, const weight_matrix *up,
               input_forms forms) {
    backend_cpu *b = (backend_cpu *)base;
    cpu_input *hidden = &b->input[INPUT_HIDDEN], *out = &b->input[INPUT_GATED];
    size_t n = b->batch.view.n_rows;
    cpu_input_begin(out, gate->n_rows);
    const matmul_job jobs[] = {
        cpu_job(b, gate, gate->place, hidden, n, cpu_input_row(out, 0), cpu_input_floats(out)),
        cpu_job(b, up, up->place, hidden, n, b->up, up->n_rows),
    };
    cpu_run_jobs(b, jobs, 2);
    cpu_run_swiglu(b, out, b->up, n, forms);
}
