/* expert_list.c - a header of fixed places and a table.  Hash: XXH3 of xxhash. */
#include "worker/memory/expert_list.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 1, IDENTITY = 32 };

typedef struct header {
    uint64_t magic;
    uint32_t version, n_layers, n_experts, unused;
    char identity[IDENTITY];       /* zeros behind it */
    uint64_t table_hash, own_hash; /* of what is before it */
} header;
_Static_assert(sizeof(header) == EXPERT_LIST_HEADER, "every byte of a header counts");
_Static_assert(offsetof(header, own_hash) + 8 == sizeof(header), "its hash is its end");

static const uint64_t MAGIC = 0x3153504545434c53u; /* "SLCEEPS1" */

static size_t count(const expert_list *list) {
    return (size_t)list->n_layers * list->n_experts;
}

static bool is_small(const expert_list *list) {
    return (uint64_t)list->n_layers * list->n_experts <= EXPERT_LIST_MOST;
}

size_t expert_list_bytes(const expert_list *list) {
    return EXPERT_LIST_HEADER + count(list) * sizeof(uint32_t);
}

static uint64_t hash_header(const header *h) {
    return XXH3_64bits(h, offsetof(header, own_hash));
}

static void put_identity(char out[IDENTITY], const char *identity) {
    memset(out, 0, IDENTITY);
    memcpy(out, identity, strnlen(identity, IDENTITY));
}

void expert_list_write(const expert_list *list, const uint32_t *uses, unsigned char *out) {
    header h = {.magic = MAGIC,
                .version = VERSION,
                .n_layers = list->n_layers,
                .n_experts = list->n_experts,
                .table_hash = XXH3_64bits(uses, count(list) * sizeof *uses)};
    put_identity(h.identity, list->identity);
    h.own_hash = hash_header(&h);
    memcpy(out, &h, sizeof h);
    memcpy(out + EXPERT_LIST_HEADER, uses, count(list) * sizeof *uses);
}

static status check_header(const expert_list *list, const header *h, error *err) {
    char identity[IDENTITY];
    put_identity(identity, list->identity);
    if (h->magic != MAGIC)
        return error_set(err, STATUS_BAD_INPUT, "magic = %016" PRIx64, h->magic);
    if (h->version != VERSION)
        return error_set(err, STATUS_BAD_INPUT, "version = %" PRIu32, h->version);
    if (h->own_hash != hash_header(h))
        return error_set(err, STATUS_BAD_INPUT, "the header's hash is another");
    if (memcmp(h->identity, identity, IDENTITY) != 0)
        return error_set(err, STATUS_BAD_INPUT, "identity = %.32s, the model is %.32s",
                         h->identity, identity);
    if (h->n_layers != list->n_layers || h->n_experts != list->n_experts)
        return error_set(err, STATUS_BAD_INPUT,
                         "layers = %" PRIu32 ", experts = %" PRIu32 ", the model has %" PRIu32
                         " and %" PRIu32,
                         h->n_layers, h->n_experts, list->n_layers, list->n_experts);
    return STATUS_OK;
}

static status check_table(const expert_list *list, const header *h, const unsigned char *table,
                          error *err) {
    size_t n = count(list);
    if (XXH3_64bits(table, n * sizeof(uint32_t)) != h->table_hash)
        return error_set(err, STATUS_BAD_INPUT, "the table's hash is another");
    for (size_t i = 0; i < n; i++) {
        uint32_t rows = 0;
        memcpy(&rows, table + i * sizeof rows, sizeof rows);
        if (rows > EXPERT_LIST_ROWS)
            return error_set(err, STATUS_BAD_INPUT, "rows of layer %zu, expert %zu = %" PRIu32,
                             i / list->n_experts, i % list->n_experts, rows);
    }
    return STATUS_OK;
}

status expert_list_read(const expert_list *list, const unsigned char *bytes, size_t n,
                        uint32_t *uses, error *err) {
    header h;
    if (n < EXPERT_LIST_HEADER)
        return error_set(err, STATUS_BAD_INPUT, "header: %zu bytes of %d", n,
                         EXPERT_LIST_HEADER);
    memcpy(&h, bytes, sizeof h);
    status rc = check_header(list, &h, err);
    if (rc != STATUS_OK) return rc;
    if (n != expert_list_bytes(list))
        return error_set(err, STATUS_BAD_INPUT, "file: %zu bytes of %zu", n,
                         expert_list_bytes(list));
    rc = check_table(list, &h, bytes + EXPERT_LIST_HEADER, err);
    if (rc != STATUS_OK) return rc;
    memcpy(uses, bytes + EXPERT_LIST_HEADER, count(list) * sizeof *uses);
    return STATUS_OK;
}

/* --- files --- */

enum { PATH_SIZE = 4096 };

static status make_path(const expert_list *list, const char *folder, const char *end,
                        char out[PATH_SIZE], error *err) {
    int n = snprintf(out, PATH_SIZE, "%s/%.32s.experts%s", folder, list->identity, end);
    if (n > 0 && n < PATH_SIZE) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "experts.dir: the path is too long");
}

static status make_buffer(const expert_list *list, size_t n, unsigned char **out, error *err) {
    *out = NULL;
    if (!is_small(list))
        return error_set(err, STATUS_BAD_INPUT, "%" PRIu32 " layers of %" PRIu32 " experts",
                         list->n_layers, list->n_experts);
    *out = malloc(n);
    return *out != NULL ? STATUS_OK
                        : error_set(err, STATUS_NO_MEMORY, "experts.dir: no memory");
}

/* Up to n bytes; returns how many, or -1. */
static ssize_t read_up_to(int fd, unsigned char *bytes, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t now = read(fd, bytes + done, n - done);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return -1;
        if (now == 0) break;
        done += (size_t)now;
    }
    return (ssize_t)done;
}

static bool write_all(int fd, const unsigned char *bytes, size_t n) {
    while (n > 0) {
        ssize_t now = write(fd, bytes, n);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) return false;
        bytes += now;
        n -= (size_t)now;
    }
    return true;
}

status expert_list_load(const expert_list *list, const char *folder, uint32_t *uses,
                        bool *found, error *err) {
    char path[PATH_SIZE];
    unsigned char *bytes = NULL;
    error why = {0};
    *found = false;
    status rc = make_path(list, folder, "", path, err);
    if (rc != STATUS_OK) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* whatever lies there */
    if (fd < 0 && errno == ENOENT) return STATUS_OK;
    if (fd < 0) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    size_t most = expert_list_bytes(list) + 1; /* one more tells of a longer file */
    rc = make_buffer(list, most, &bytes, err);
    if (rc == STATUS_OK) {
        ssize_t n = read_up_to(fd, bytes, most);
        rc = n < 0 ? error_set_errno(err, STATUS_IO, errno, "%s", path)
                   : expert_list_read(list, bytes, (size_t)n, uses, &why);
        if (rc == STATUS_BAD_INPUT) (void)error_set(err, rc, "%s: %s", path, why.text);
        *found = rc == STATUS_OK;
    }
    free(bytes);
    (void)close(fd);
    return rc;
}

/* Another process may write one of the same model: each has a file of its own until it is whole. */
static status put_file(const char *path, char *beside, const unsigned char *bytes, size_t n,
                       error *err) {
    int fd = mkostemp(beside, O_CLOEXEC);
    if (fd < 0) return error_set_errno(err, STATUS_IO, errno, "%s", beside);
    bool whole = write_all(fd, bytes, n);
    whole = close(fd) == 0 && whole;
    if (whole && rename(beside, path) == 0) return STATUS_OK;
    int cause = errno;
    (void)unlink(beside);
    return error_set_errno(err, STATUS_IO, cause, "%s", path);
}

status expert_list_save(const expert_list *list, const char *folder, const uint32_t *uses,
                        error *err) {
    char path[PATH_SIZE], beside[PATH_SIZE];
    unsigned char *bytes = NULL;
    size_t n = expert_list_bytes(list);
    status rc = make_path(list, folder, "", path, err);
    if (rc == STATUS_OK) rc = make_path(list, folder, ".XXXXXX", beside, err);
    if (rc == STATUS_OK) rc = make_buffer(list, n, &bytes, err);
    if (rc != STATUS_OK) return rc;
    expert_list_write(list, uses, bytes);
    (void)mkdir(folder, 0700);
    rc = put_file(path, beside, bytes, n, err);
    free(bytes);
    return rc;
}
