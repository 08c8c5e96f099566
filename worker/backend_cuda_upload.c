/* backend_cuda_upload.c - weights from the mapped file to VRAM, once, through pinned memory.
 *
 * Matrices lie as in the file, apart from Q6_K, whose blocks of 210 bytes would leave
 * every load unaligned: 208 bytes of each block come first, then all scales d
 * (kernels/cuda/weights.h).  The bytes are as many.
 */
#include "worker/backend_cuda.h"

#include "kernels/conv1d.h"
#include "kernels/cuda/weights.h"
#include <stdlib.h>
#include <string.h>

enum { Q6_K_BYTES = 210, Q6_K_SPLIT_BYTES = 208 };

static bool is_split(const weight_matrix *m) {
    return m->type == QUANT_Q6_K;
}

static size_t matrix_bytes(const weight_matrix *m) {
    return m->row_bytes * m->n_rows;
}

cuda_matrix cuda_matrix_of(const weight_matrix *m) {
    if (!is_split(m)) return (cuda_matrix){m->row_bytes, 0, (uint32_t)m->type};
    uint64_t blocks = m->row_bytes / Q6_K_BYTES;
    return (cuda_matrix){blocks * Q6_K_SPLIT_BYTES, blocks * m->n_rows * Q6_K_SPLIT_BYTES,
                         CUDA_Q6_K_SPLIT};
}

void cuda_copy_matrix(const weight_matrix *m, const void *data, unsigned char *out) {
    if (!is_split(m)) {
        memcpy(out, data, matrix_bytes(m));
        return;
    }
    size_t n = matrix_bytes(m) / Q6_K_BYTES;
    const unsigned char *block = data;
    unsigned char *scale = out + n * Q6_K_SPLIT_BYTES;
    for (size_t i = 0; i < n; i++, block += Q6_K_BYTES) {
        memcpy(out + i * Q6_K_SPLIT_BYTES, block, Q6_K_SPLIT_BYTES);
        memcpy(scale + i * 2, block + Q6_K_SPLIT_BYTES, 2);
    }
}

void cuda_fill_record(const layer_weights *l, uint32_t expert, unsigned char *out) {
    const weight_experts *parts[] = {&l->exp_gate, &l->exp_up, &l->exp_down};
    for (size_t i = 0; i < 3; i++) {
        const weight_experts *p = parts[i];
        const unsigned char *data = p->first.data;
        cuda_copy_matrix(&p->first, data + expert * p->expert_bytes, out);
        out += matrix_bytes(&p->first);
    }
}

/* Backbone. */

typedef struct upload {
    backend_cuda *b;
    unsigned char *bytes; /* of the item, before it goes */
    status rc;
    error *err;
} upload;

/* A split matrix larger than the buffer goes in two streams of pieces: blocks and scales. */
static void send(upload *u, cuda_pointer to, size_t n) {
    if (u->rc != STATUS_OK) return;
    u->rc = CUDA_CALL(u->b->driver, u->err, cuMemcpyHtoD, to, u->bytes, n);
}

static void send_split(upload *u, const weight_matrix *m, cuda_pointer to) {
    enum { PIECE = CUDA_STAGING_BYTES / Q6_K_BYTES };
    size_t n = matrix_bytes(m) / Q6_K_BYTES;
    const unsigned char *blocks = m->data;
    for (size_t at = 0; at < n; at += PIECE) {
        size_t now = n - at < PIECE ? n - at : PIECE;
        for (size_t i = 0; i < now; i++)
            memcpy(u->bytes + i * Q6_K_SPLIT_BYTES, blocks + (at + i) * Q6_K_BYTES,
                   Q6_K_SPLIT_BYTES);
        send(u, to + at * Q6_K_SPLIT_BYTES, now * Q6_K_SPLIT_BYTES);
        for (size_t i = 0; i < now; i++)
            memcpy(u->bytes + i * 2, blocks + (at + i) * Q6_K_BYTES + Q6_K_SPLIT_BYTES, 2);
        send(u, to + n * Q6_K_SPLIT_BYTES + at * 2, now * 2);
    }
}

static void send_plain(upload *u, const void *data, size_t n, cuda_pointer to) {
    for (size_t at = 0; at < n; at += CUDA_STAGING_BYTES) {
        size_t now = n - at < CUDA_STAGING_BYTES ? n - at : CUDA_STAGING_BYTES;
        memcpy(u->bytes, (const unsigned char *)data + at, now);
        send(u, to + at, now);
    }
}

static void send_taps(upload *u, const weight_vector *v, cuda_pointer to) {
    const model_config *c = u->b->config;
    float *turned = malloc(v->n * sizeof(float));
    if (turned == NULL) {
        u->rc =
            error_set(u->err, STATUS_NO_MEMORY, "cuda backend: no memory for a convolution");
        return;
    }
    conv1d_transpose(v->data, c->conv_dim, c->conv_taps, turned);
    send_plain(u, turned, v->n * sizeof(float), to);
    free(turned);
}

static void send_item(void *context, const cuda_backbone_item *item) {
    upload *u = context;
    if (u->rc != STATUS_OK) return;
    cuda_pointer to = cuda_part_at(u->b, CUDA_PART_BACKBONE) + item->offset;
    if (item->matrix != NULL) {
        item->matrix->place = cuda_ptr(to);
        if (is_split(item->matrix))
            send_split(u, item->matrix, to);
        else
            send_plain(u, item->matrix->data, item->bytes, to);
        return;
    }
    item->vector->place = cuda_ptr(to);
    if (item->transposed)
        send_taps(u, item->vector, to);
    else
        send_plain(u, item->vector->data, item->bytes, to);
}

status cuda_upload_weights(backend_cuda *b, model_weights *w, error *err) {
    void *bytes = NULL;
    status rc = CUDA_CALL(b->driver, err, cuMemHostAlloc, &bytes, CUDA_STAGING_BYTES, 0);
    if (rc != STATUS_OK) return rc;
    upload u = {b, bytes, STATUS_OK, err};
    w->embedding.place = w->embedding.data; /* a token's row of it travels with the batch */
    (void)cuda_backbone_walk(w, send_item, &u);
    (void)b->driver->cuMemFreeHost(bytes);
    return u.rc;
}

typedef struct fill_task {
    const backend_cuda *b;
    size_t first;
    unsigned char *out;
} fill_task;

static void fill_one(void *context, size_t i, uint32_t thread) {
    (void)thread;
    const fill_task *t = context;
    const backend_cuda *b = t->b;
    size_t at = t->first + i, n = b->config->n_experts;
    cuda_fill_record(&b->weights->layers[at / n], (uint32_t)(at % n),
                     t->out + i * b->layout.slot_bytes);
}

void cuda_fill_records(backend_cuda *b, size_t first, size_t n, unsigned char *out) {
    fill_task t = {b, first, out};
    pool_run(b->threads, n, fill_one, &t);
}

/* Every expert to its own slot: layer after layer, as they are numbered. */
status cuda_upload_experts(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t slot_bytes = b->layout.slot_bytes;
    size_t n = (size_t)c->n_layers * c->n_experts;
    status rc = STATUS_OK;
    if (b->params.n_slots > 0) x->bytes_moved = n * slot_bytes;
    for (size_t at = 0; at < n && rc == STATUS_OK; at += CUDA_RECORD_BUFFERS) {
        size_t now = n - at < CUDA_RECORD_BUFFERS ? n - at : CUDA_RECORD_BUFFERS;
        cuda_fill_records(b, at, now, x->staging.bytes);
        for (size_t i = 0; i < now; i++)
            x->records[at + i] = cuda_part_at(b, CUDA_PART_SLOTS) + (at + i) * slot_bytes;
        rc = CUDA_CALL(b->driver, err, cuMemcpyHtoD,
                       cuda_part_at(b, CUDA_PART_SLOTS) + at * slot_bytes, x->staging.bytes,
                       now * slot_bytes);
    }
    if (rc != STATUS_OK) return rc;
    return CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_work_at(b, b->layout.work.records),
                     x->records, n * sizeof *x->records);
}
