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

void cuda_copy_back(const weight_matrix *m, size_t first_block, size_t n_blocks,
                    const unsigned char *data, unsigned char *out) {
    const unsigned char *scale = data + matrix_bytes(m) / Q6_K_BYTES * Q6_K_SPLIT_BYTES;
    for (size_t i = first_block; i < first_block + n_blocks; i++) {
        memcpy(out + i * Q6_K_BYTES, data + i * Q6_K_SPLIT_BYTES, Q6_K_SPLIT_BYTES);
        memcpy(out + i * Q6_K_BYTES + Q6_K_SPLIT_BYTES, scale + i * 2, 2);
    }
}

void cuda_tell_progress(backend_cuda *b, uint64_t n_bytes) {
    const model_progress *p = &b->params.progress;
    b->loaded_bytes += n_bytes;
    if (p->report != NULL) p->report(p->context, b->loaded_bytes, b->load_bytes);
}

/* Backbone. */

typedef struct upload {
    backend_cuda *b;
    unsigned char *raw;   /* [CUDA_STAGING_BYTES], as in the file */
    unsigned char *bytes; /* [CUDA_STAGING_BYTES], pinned, before it goes */
    status rc;
    error *err;
} upload;

static void send(upload *u, cuda_pointer to, const void *bytes, size_t n) {
    if (u->rc != STATUS_OK) return;
    u->rc = CUDA_CALL(u->b->driver, u->err, cuMemcpyHtoD, to, bytes, n);
}

static const gguf_tensor *tensor_at(const gguf_file *file, const void *data) {
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        if (gguf_tensor_at(file, i)->data == data) return gguf_tensor_at(file, i);
    }
    return NULL;
}

/* n bytes of a tensor from byte `at` on, whole blocks, to `out`. */
static void read_piece(upload *u, const void *tensor, uint32_t type_id, size_t at, size_t n,
                       unsigned char *out) {
    uint32_t shard = 0;
    uint64_t offset = 0;
    const gguf_file *file = u->b->weights->file;
    if (u->rc != STATUS_OK) return;
    bool found = gguf_locate(file, (const unsigned char *)tensor + at, &shard, &offset);
    CHECK(found); /* weights.c took the address from the mapping */
    u->rc = disk_tier_read(u->b->disk, shard, offset, n, out, u->err);
    if (u->rc != STATUS_OK) return;
    size_t block_bytes = quant_traits_of(type_id)->block_bytes;
    uint64_t bad = gguf_find_bad_block(type_id, out, n / block_bytes);
    const gguf_tensor *t = tensor_at(file, tensor);
    if (bad < n / block_bytes && t != NULL) {
        u->rc = error_set(u->err, STATUS_IO,
                          "tensor %s: at byte %llu of it, the scale is not a finite number",
                          gguf_label_of(t->name).text,
                          (unsigned long long)(at + bad * block_bytes));
    }
    cuda_tell_progress(u->b, n);
}

/* A split matrix goes in two streams of pieces: blocks and scales. */
static void send_split(upload *u, const weight_matrix *m, cuda_pointer to) {
    enum { PIECE = CUDA_STAGING_BYTES / Q6_K_BYTES };
    size_t n = matrix_bytes(m) / Q6_K_BYTES;
    for (size_t at = 0; at < n && u->rc == STATUS_OK; at += PIECE) {
        size_t now = n - at < PIECE ? n - at : PIECE;
        unsigned char *scales = u->bytes + now * Q6_K_SPLIT_BYTES;
        read_piece(u, m->data, QUANT_Q6_K, at * Q6_K_BYTES, now * Q6_K_BYTES, u->raw);
        for (size_t i = 0; i < now && u->rc == STATUS_OK; i++) {
            const unsigned char *block = u->raw + i * Q6_K_BYTES;
            memcpy(u->bytes + i * Q6_K_SPLIT_BYTES, block, Q6_K_SPLIT_BYTES);
            memcpy(scales + i * 2, block + Q6_K_SPLIT_BYTES, 2);
        }
        send(u, to + at * Q6_K_SPLIT_BYTES, u->bytes, now * Q6_K_SPLIT_BYTES);
        send(u, to + n * Q6_K_SPLIT_BYTES + at * 2, scales, now * 2);
    }
}

static void send_plain(upload *u, const void *data, uint32_t type_id, size_t n,
                       cuda_pointer to) {
    size_t block = quant_traits_of(type_id)->block_bytes;
    size_t piece = CUDA_STAGING_BYTES / block * block;
    for (size_t at = 0; at < n && u->rc == STATUS_OK; at += piece) {
        size_t now = n - at < piece ? n - at : piece;
        read_piece(u, data, type_id, at, now, u->bytes);
        send(u, to + at, u->bytes, now);
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
    read_piece(u, v->data, QUANT_F32, 0, v->n * sizeof(float), u->raw);
    conv1d_transpose((const float *)(const void *)u->raw, c->conv_dim, c->conv_taps, turned);
    send(u, to, turned, v->n * sizeof(float));
    free(turned);
}

static void send_item(void *context, const cuda_backbone_item *item) {
    upload *u = context;
    if (u->rc != STATUS_OK) return;
    cuda_pointer to = cuda_part_at(u->b, CUDA_PART_BACKBONE) + item->offset;
    const weight_matrix *m = item->matrix;
    if (m != NULL) {
        item->matrix->place = cuda_ptr(to);
        if (is_split(m))
            send_split(u, m, to);
        else
            send_plain(u, m->data, (uint32_t)m->type, matrix_bytes(m), to);
        return;
    }
    item->vector->place = cuda_ptr(to);
    if (item->transposed)
        send_taps(u, item->vector, to);
    else
        send_plain(u, item->vector->data, QUANT_F32, item->vector->n * sizeof(float), to);
}

static uint32_t loaders_of(const backend_cuda *b) {
    return b->params.n_loaders > 0 ? b->params.n_loaders : DISK_LOADERS;
}

static uint64_t expert_bytes(const backend_cuda *b) {
    const model_config *c = b->config;
    bool whole = b->layout.n_slots == c->n_layers * c->n_experts || cuda_pins_all(b);
    uint64_t sum = 0;
    if (c->moe && !whole) return cuda_count_listed(b) * b->layout.slot_bytes;
    for (uint32_t i = 0; c->moe && i < c->n_layers; i++)
        sum += layer_expert_bytes(&b->weights->layers[i]) * c->n_experts;
    return sum;
}

status cuda_upload_weights(backend_cuda *b, model_weights *w, error *err) {
    enum { PIECE_BYTES = 1024 * 1024 };
    void *bytes = NULL;
    upload u = {.b = b, .raw = malloc(CUDA_STAGING_BYTES), .err = err};
    if (u.raw == NULL) return error_set(err, STATUS_NO_MEMORY, "cuda backend: no memory");
    u.rc = CUDA_CALL(b->driver, err, cuMemHostAlloc, &bytes, CUDA_STAGING_BYTES, 0);
    u.bytes = bytes;
    if (u.rc == STATUS_OK)
        u.rc = disk_tier_open(&b->disk, w->file, loaders_of(b), PIECE_BYTES, err);
    b->load_bytes = cuda_backbone_walk(w, NULL, NULL) + expert_bytes(b);
    w->embedding.place = w->embedding.data; /* a token's row of it travels with the batch */
    if (u.rc == STATUS_OK) (void)cuda_backbone_walk(w, send_item, &u);
    if (b->disk != NULL) {
        disk_counts read;
        disk_tier_count(b->disk, &read);
        b->load_disk_bytes = read.n_bytes;
    }
    disk_tier_close(b->disk);
    b->disk = NULL;
    if (bytes != NULL) (void)b->driver->cuMemFreeHost(bytes);
    free(u.raw);
    return u.rc;
}

/* Experts. */

bool cuda_pins_all(const backend_cuda *b) {
    return b->params.pin_experts ||
           b->params.host_records >= b->config->n_layers * b->config->n_experts;
}

/* Every expert to its own slot: layer after layer, as they are numbered. */
status cuda_upload_experts(backend_cuda *b, error *err) {
    const model_config *c = b->config;
    cuda_experts *x = &b->experts;
    size_t n = (size_t)c->n_layers * c->n_experts;
    for (uint32_t e = 0; e < c->n_experts; e++)
        x->missing[e] = (int32_t)e;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        host_tier_prefetch(x->host, layer, x->missing, c->n_experts);
        for (uint32_t e = 0; e < c->n_experts; e++) {
            size_t at = (size_t)layer * c->n_experts + e;
            x->records[at] = cuda_part_at(b, CUDA_PART_SLOTS) + at * b->layout.slot_bytes;
            cuda_ship(b, layer, e, x->records[at]);
        }
        if (b->failed != STATUS_OK) return error_set(err, b->failed, "%s", b->failure.text);
        cuda_tell_progress(b, layer_expert_bytes(&b->weights->layers[layer]) * c->n_experts);
    }
    if (b->params.n_slots == 0) x->bytes_moved = 0; /* nobody asked for slots */
    status rc = CUDA_CALL(b->driver, err, cuStreamSynchronize, b->h2d);
    if (rc != STATUS_OK) return rc;
    return CUDA_CALL(b->driver, err, cuMemcpyHtoD, cuda_work_at(b, b->layout.work.records),
                     x->records, n * sizeof *x->records);
}
