/* backend_cpu_replay.c - rows of a step remembered by what they bring into the states.
 *
 * A row changes a state through the inputs of the convolution and the decay and strength of the
 * delta net: some thousand floats a layer, where the state has a hundred thousand.  Replaying
 * rows runs the two kernels on them again, in the form that verified rows take, so the state
 * has the bits that it had after that row.  Outputs go where nobody reads them.
 */
#include "worker/backend_cpu.h"

#include <stdlib.h>
#include <string.h>

status cpu_journal_init(backend_cpu *b, error *err) {
    const model_config *c = b->config;
    cpu_journal *j = &b->journal;
    j->cap_rows = b->params.n_remembered;
    if (j->cap_rows == 0) return STATUS_OK;
    size_t floats = (size_t)c->conv_dim + 2 * (size_t)c->n_value_heads;
    j->row_floats = (floats + 15) / 16 * 16;
    j->rows = cpu_alloc(c->n_linear_layers * j->cap_rows * j->row_floats * sizeof *j->rows);
    j->states = calloc(1 + j->cap_rows, sizeof *j->states);
    if (j->rows != NULL && j->states != NULL) return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "cpu backend: no memory to remember %zu rows",
                     j->cap_rows);
}

void cpu_journal_release(backend_cpu *b) {
    free(b->journal.states);
    free(b->journal.rows);
}

static float *journal_row(const backend_cpu *b, uint32_t ordinal, uint32_t row) {
    const cpu_journal *j = &b->journal;
    return j->rows + (ordinal * j->cap_rows + row) * j->row_floats;
}

void cpu_remember(backend_cpu *b, uint32_t ordinal) {
    const batch_view *v = &b->batch.view;
    const size_t dim = b->config->conv_dim, heads = b->config->n_value_heads;
    for (uint32_t i = 0; i < v->n_runs; i++) {
        const batch_run *run = &v->runs[i];
        if (b->batch.remembered[i] == BATCH_FORGOTTEN) continue;
        for (uint32_t t = 0; t < run->n_rows; t++) {
            const size_t from = run->first_row + t;
            float *to = journal_row(b, ordinal, b->batch.remembered[i] + t);
            memcpy(to, b->buffer[BUFFER_U] + from * dim, dim * sizeof *to);
            memcpy(to + dim, b->buffer[BUFFER_ALPHA] + from * heads, heads * sizeof *to);
            memcpy(to + dim + heads, b->buffer[BUFFER_BETA] + from * heads, heads * sizeof *to);
        }
    }
}

void cpu_state_replay(backend *base, const batch_run *run, uint32_t first, uint32_t n_rows) {
    backend_cpu *b = (backend_cpu *)base;
    const model_config *c = b->config;
    const cpu_journal *j = &b->journal;
    const batch_run again = {
        .n_rows = n_rows, .position = run->position, .state = run->state, .first_kept = 1};
    for (uint32_t t = 0; t < n_rows; t++)
        j->states[again.first_kept + t] = run->state;
    cpu_delta_rows rows = {
        .batch = {.runs = &again, .pages = j->states, .n_rows = n_rows, .n_runs = 1},
        .u_stride = j->row_floats,
        .alpha_stride = j->row_floats,
        .beta_stride = j->row_floats};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->is_linear[i]) continue;
        rows.u = journal_row(b, c->kind_index[i], first);
        rows.alpha = rows.u + c->conv_dim;
        rows.beta = rows.alpha + c->n_value_heads;
        cpu_mix_delta(b, &b->weights->layers[i], c->kind_index[i], &rows);
    }
}
