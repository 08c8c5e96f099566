/* gguf.c - opens GGUF files, finds the shards of a split model, looks up names.
 *
 * A split model is named PREFIX-00001-of-0000N.gguf and so on.  Its first shard
 * has the model's keys; each shard says which one it is (split.no, from 0), how
 * many there are (split.count), and how many tensors all of them have
 * (split.tensors.count).  gguf_parse.c reads each shard.
 */
#include "common/gguf_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MAX_SHARDS = 1024, HASHED_TENSOR_BYTES = 64 << 10 };

/* ---- names ---- */

typedef struct name_array {
    const uint8_t *items;
    size_t stride;
} name_array;

static gguf_string name_at(const name_array *names, uint32_t index) {
    gguf_string name;
    memcpy(&name, names->items + (size_t)index * names->stride, sizeof name);
    return name;
}

static int compare_names(gguf_string a, gguf_string b) {
    size_t shorter = a.length < b.length ? a.length : b.length;
    int order = memcmp(a.bytes, b.bytes, shorter);
    if (order != 0) return order;
    return a.length < b.length ? -1 : a.length > b.length;
}

static int by_name(const void *a, const void *b, void *context) {
    const name_array *names = context;
    return compare_names(name_at(names, *(const uint32_t *)a),
                         name_at(names, *(const uint32_t *)b));
}

status gguf_sort_names(uint32_t **out, const void *items, size_t n, size_t stride,
                       size_t *twice, error *err) {
    uint32_t *order = calloc(n + 1, sizeof *order);
    *out = order;
    if (order == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory to sort %zu names", n);
    }
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    name_array names = {items, stride};
    qsort_r(order, n, sizeof *order, by_name, &names);
    for (size_t i = 1; i < n; i++) {
        if (compare_names(name_at(&names, order[i - 1]), name_at(&names, order[i])) != 0)
            continue;
        *twice = order[i];
        return STATUS_BAD_INPUT;
    }
    return STATUS_OK;
}

const void *gguf_search_name(const uint32_t *order, const void *items, size_t n, size_t stride,
                             const char *name) {
    name_array names = {items, stride};
    gguf_string wanted = {name, strlen(name)};
    size_t low = 0;
    size_t high = order == NULL ? 0 : n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int side = compare_names(name_at(&names, order[middle]), wanted);
        if (side == 0) return names.items + (size_t)order[middle] * stride;
        if (side < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- shards ---- */

static status map_descriptor(gguf_shard *shard, int fd, error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return error_set_errno(err, STATUS_IO, errno, "%s: cannot stat", shard->path);
    }
    if (!S_ISREG(info.st_mode)) {
        return error_set(err, STATUS_BAD_INPUT, "%s: is not a regular file", shard->path);
    }
    if (info.st_size == 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: the file is 0 bytes, a GGUF header needs 24", shard->path);
    }
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        return error_set_errno(err, STATUS_IO, errno, "%s: cannot map %lld bytes", shard->path,
                               (long long)info.st_size);
    }
    shard->map = map;
    shard->n_bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

/* Map one file and parse it.  Takes path over. */
static status open_shard(gguf_file *file, uint32_t index, char *path, error *err) {
    gguf_shard *shard = &file->shards[index];
    shard->path = path;
    if (path == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the path of a shard");
    /* Not blocking: opening a FIFO by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_set_errno(err, STATUS_IO, errno, "%s: cannot open", path);
    status rc = map_descriptor(shard, fd, err);
    (void)close(fd);
    return rc == STATUS_OK ? gguf_parse_shard(file, index, err) : rc;
}

static const gguf_key *shard_key(const gguf_shard *shard, const char *name) {
    return gguf_search_name(shard->keys_by_name, shard->keys, shard->n_keys,
                            sizeof *shard->keys, name);
}

/* An optional integer key of a shard; fallback when it is absent. */
static status read_split_key(const gguf_shard *shard, const char *name, uint64_t fallback,
                             uint64_t *out, error *err) {
    const gguf_key *key = shard_key(shard, name);
    *out = fallback;
    if (key == NULL || gguf_read_u64(key, out)) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "%s: key %s: type %s or its sign is wrong",
                     shard->path, name, gguf_kind_name(key->kind));
}

static status check_split_value(const gguf_shard *shard, const char *name, uint64_t expected,
                                error *err) {
    uint64_t value = 0;
    status rc = read_split_key(shard, name, UINT64_MAX, &value, err);
    if (rc != STATUS_OK || value == expected) return rc;
    if (value == UINT64_MAX) {
        return error_set(err, STATUS_BAD_INPUT, "%s: key %s is missing, should be %" PRIu64,
                         shard->path, name, expected);
    }
    return error_set(err, STATUS_BAD_INPUT, "%s: key %s is %" PRIu64 ", should be %" PRIu64,
                     shard->path, name, value, expected);
}

/* The length of the path before its "-00001-of-0000N.gguf", or -1. */
static long shard_prefix_length(const char *path, uint64_t n_shards) {
    char suffix[64];
    (void)snprintf(suffix, sizeof suffix, "-00001-of-%05" PRIu64 ".gguf", n_shards);
    size_t length = strlen(path);
    size_t tail = strlen(suffix);
    if (length < tail || strcmp(path + length - tail, suffix) != 0) return -1;
    return (long)(length - tail);
}

static char *shard_path(const char *first, long prefix, uint32_t index, uint64_t n_shards) {
    char *path = NULL;
    int n = asprintf(&path, "%.*s-%05" PRIu32 "-of-%05" PRIu64 ".gguf", (int)prefix, first,
                     index + 1, n_shards);
    return n < 0 ? NULL : path;
}

static status grow_shards(gguf_file *file, uint64_t n_shards, error *err) {
    gguf_shard *grown = realloc(file->shards, (size_t)n_shards * sizeof *grown);
    if (grown == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for %" PRIu64 " shards", n_shards);
    }
    memset(grown + file->n_shards, 0, (size_t)(n_shards - file->n_shards) * sizeof *grown);
    file->shards = grown;
    file->n_shards = (uint32_t)n_shards;
    return STATUS_OK;
}

static status check_split_member(const gguf_file *file, uint32_t index, error *err) {
    const gguf_shard *shard = &file->shards[index];
    status rc = check_split_value(shard, "split.no", index, err);
    if (rc == STATUS_OK) rc = check_split_value(shard, "split.count", file->n_shards, err);
    if (rc != STATUS_OK || shard->version == file->shards[0].version) return rc;
    return error_set(err, STATUS_BAD_INPUT,
                     "%s: version is %" PRIu32 ", but %" PRIu32 " in the first shard",
                     shard->path, shard->version, file->shards[0].version);
}

static status open_other_shards(gguf_file *file, error *err) {
    uint64_t n_shards = 0;
    uint64_t number = 0;
    status rc = read_split_key(&file->shards[0], "split.count", 1, &n_shards, err);
    if (rc != STATUS_OK || n_shards <= 1) return rc;
    rc = read_split_key(&file->shards[0], "split.no", 0, &number, err);
    if (rc != STATUS_OK) return rc;
    const char *first = file->shards[0].path;
    if (number != 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: key split.no is %" PRIu64
                         ": open the first shard, the one named -00001-of-%05" PRIu64 ".gguf",
                         first, number, n_shards);
    }
    if (n_shards > MAX_SHARDS) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: key split.count is %" PRIu64 ", more than %d", first, n_shards,
                         MAX_SHARDS);
    }
    long prefix = shard_prefix_length(first, n_shards);
    if (prefix < 0) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: key split.count is %" PRIu64
                         ", so the name must end in -00001-of-%05" PRIu64
                         ".gguf to find the other shards",
                         first, n_shards, n_shards);
    }
    rc = grow_shards(file, n_shards, err);
    for (uint32_t i = 1; i < file->n_shards && rc == STATUS_OK; i++) {
        rc = open_shard(file, i, shard_path(file->shards[0].path, prefix, i, n_shards), err);
        if (rc == STATUS_OK) rc = check_split_member(file, i, err);
    }
    if (rc != STATUS_OK) return rc;
    return check_split_value(&file->shards[0], "split.tensors.count", file->n_tensors, err);
}

status gguf_open(gguf_file **out, const char *path, error *err) {
    *out = NULL;
    gguf_file *file = calloc(1, sizeof *file);
    if (file == NULL) return error_set(err, STATUS_NO_MEMORY, "%s: no memory to open", path);
    size_t twice = 0;
    status rc = grow_shards(file, 1, err);
    if (rc == STATUS_OK) rc = open_shard(file, 0, strdup(path), err);
    if (rc == STATUS_OK) rc = open_other_shards(file, err);
    if (rc != STATUS_OK) goto fail;
    rc = gguf_sort_names(&file->tensors_by_name, file->tensors, file->n_tensors,
                         sizeof *file->tensors, &twice, err);
    if (rc == STATUS_BAD_INPUT) {
        const gguf_tensor *t = &file->tensors[twice];
        (void)error_set(err, rc, "%s: tensor %s stands twice", file->shards[t->shard].path,
                        gguf_label_of(t->name).text);
    }
    if (rc != STATUS_OK) goto fail;
    *out = file;
    return STATUS_OK;
fail:
    gguf_close(file);
    return rc;
}

void gguf_close(gguf_file *file) {
    if (file == NULL) return;
    for (uint32_t i = 0; i < file->n_shards; i++) {
        gguf_shard *shard = &file->shards[i];
        free(shard->keys_by_name);
        free(shard->keys);
        if (shard->map != NULL) {
            /* munmap() takes a writable pointer, though it never writes. */
            (void)munmap((void *)(uintptr_t)shard->map, (size_t)shard->n_bytes);
        }
        free(shard->path);
    }
    free(file->tensors_by_name);
    free(file->tensors);
    free(file->shards);
    free(file);
}

/* ---- what was read ---- */

uint32_t gguf_version(const gguf_file *file) {
    return file->shards[0].version;
}

uint32_t gguf_alignment(const gguf_file *file) {
    return file->shards[0].alignment;
}

uint32_t gguf_n_shards(const gguf_file *file) {
    return file->n_shards;
}

const char *gguf_shard_path(const gguf_file *file, uint32_t shard) {
    return file->shards[shard].path;
}

uint64_t gguf_file_bytes(const gguf_file *file, uint32_t shard) {
    return file->shards[shard].n_bytes;
}

uint64_t gguf_data_start(const gguf_file *file, uint32_t shard) {
    return file->shards[shard].data_start;
}

size_t gguf_n_keys(const gguf_file *file) {
    return file->shards[0].n_keys;
}

const gguf_key *gguf_key_at(const gguf_file *file, size_t index) {
    return &file->shards[0].keys[index];
}

size_t gguf_n_tensors(const gguf_file *file) {
    return file->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf_file *file, size_t index) {
    return &file->tensors[index];
}

const gguf_key *gguf_find_key(const gguf_file *file, const char *name) {
    return shard_key(&file->shards[0], name);
}

const gguf_tensor *gguf_find_tensor(const gguf_file *file, const char *name) {
    return gguf_search_name(file->tensors_by_name, file->tensors, file->n_tensors,
                            sizeof *file->tensors, name);
}

void gguf_hash(const gguf_file *file, char hex[33]) {
    XXH3_state_t *state = XXH3_createState();
    CHECK(state != NULL);
    (void)XXH3_128bits_reset(state);
    for (uint32_t s = 0; s < file->n_shards; s++) {
        const gguf_shard *shard = &file->shards[s];
        (void)XXH3_128bits_update(state, shard->map, (size_t)shard->infos_end);
        for (size_t i = 0; i < shard->n_tensors; i++) {
            const gguf_tensor *t = &file->tensors[shard->first_tensor + i];
            const uint8_t *data = t->data;
            size_t n =
                t->n_bytes < HASHED_TENSOR_BYTES ? (size_t)t->n_bytes : HASHED_TENSOR_BYTES;
            (void)XXH3_128bits_update(state, data, n);
            (void)XXH3_128bits_update(state, data + t->n_bytes - n, n);
        }
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    (void)XXH3_freeState(state);
    (void)snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
                   (uint64_t)hash.low64);
}
