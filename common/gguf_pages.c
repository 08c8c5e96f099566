/* gguf_pages.c - where mapped tensors lie in their files, and which pages are in memory. */
#include "common/gguf_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

bool gguf_locate(const gguf_file *file, const void *at, uint32_t *shard, uint64_t *offset) {
    uintptr_t byte = (uintptr_t)at;
    for (uint32_t i = 0; i < file->n_shards; i++) {
        uintptr_t first = (uintptr_t)file->shards[i].map;
        if (byte < first || byte - first >= file->shards[i].n_bytes) continue;
        *shard = i;
        *offset = byte - first;
        return true;
    }
    return false;
}

/* Only advice: where it is not taken, pages stay until the kernel needs their memory. */
void gguf_give_back(const gguf_file *file) {
    for (uint32_t i = 0; i < file->n_shards; i++) {
        const gguf_shard *s = &file->shards[i];
        (void)madvise((void *)(uintptr_t)s->map, (size_t)s->n_bytes, MADV_DONTNEED);
        int fd = open(s->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
}

static bool count_resident(const gguf_shard *s, size_t page, uint64_t *n) {
    size_t n_pages = (size_t)(s->n_bytes + page - 1) / page;
    unsigned char *resident = malloc(n_pages);
    if (resident == NULL) return false;
    bool known = mincore((void *)(uintptr_t)s->map, (size_t)s->n_bytes, resident) == 0;
    for (size_t i = 0; i < n_pages && known; i++)
        *n += resident[i] & 1;
    free(resident);
    return known;
}

double gguf_resident_share(const gguf_file *file) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t n_resident = 0, n_pages = 0;
    for (uint32_t i = 0; i < file->n_shards; i++) {
        if (!count_resident(&file->shards[i], page, &n_resident)) return -1;
        n_pages += (file->shards[i].n_bytes + page - 1) / page;
    }
    return n_pages > 0 ? (double)n_resident / (double)n_pages : -1;
}
