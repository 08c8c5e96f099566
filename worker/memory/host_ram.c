#include "worker/memory/host_ram.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 16384 };

/* First TEXT_BYTES - 1 bytes of a small file of /proc or /sys. */
static bool read_text(const char *path, char *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, out + n, TEXT_BYTES - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    out[n] = '\0';
    (void)close(fd);
    return n > 0;
}

/* The text after `name` and `separator` at the start of a line, or NULL. */
static const char *find_line(const char *text, const char *name, char separator) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, length) == 0 && line[length] == separator) {
            return line + length + 1;
        }
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return NULL;
}

uint64_t host_ram_parse_kb(const char *text, const char *name) {
    const char *at = find_line(text, name, ':');
    if (at == NULL) return UINT64_MAX;
    char *end = NULL;
    unsigned long long kb = strtoull(at, &end, 10);
    if (end == at || kb > UINT64_MAX / 1024) return UINT64_MAX;
    return kb * 1024;
}

uint64_t host_ram_parse_stat(const char *text, const char *name) {
    const char *at = find_line(text, name, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

/* limit - (used - page cache), or UINT64_MAX without a limit. */
static uint64_t left_in(const char *folder, const char *limit_name, const char *used_name,
                        const char *cache_name) {
    char path[PATH_MAX + 64], text[TEXT_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, limit_name);
    if (!read_text(path, text)) return UINT64_MAX;
    char *end = NULL;
    uint64_t limit = strtoull(text, &end, 10);
    if (end == text || limit >= (uint64_t)1 << 60) return UINT64_MAX; /* "max" */
    (void)snprintf(path, sizeof path, "%s/%s", folder, used_name);
    uint64_t used = read_text(path, text) ? strtoull(text, NULL, 10) : 0;
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t cache = read_text(path, text) ? host_ram_parse_stat(text, cache_name) : 0;
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* A limit may stand at any level, so walk from the process's own group to the root. */
static uint64_t left_in_cgroup_v2(void) {
    char text[TEXT_BYTES], folder[PATH_MAX];
    uint64_t least = UINT64_MAX;
    if (!read_text("/proc/self/cgroup", text)) return least;
    const char *at = find_line(text, "0:", ':');
    if (at == NULL) return least;
    int length = (int)strcspn(at, "\n");
    (void)snprintf(folder, sizeof folder, "/sys/fs/cgroup%.*s", length, at);
    for (;;) {
        uint64_t left = left_in(folder, "memory.max", "memory.current", "file");
        if (left < least) least = left;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= strlen("/sys/fs/cgroup")) return least;
        *slash = '\0';
    }
}

uint64_t host_ram_available_bytes(void) {
    char text[TEXT_BYTES];
    uint64_t least = UINT64_MAX;
    if (read_text("/proc/meminfo", text)) least = host_ram_parse_kb(text, "MemAvailable");
    uint64_t v2 = left_in_cgroup_v2();
    uint64_t v1 = left_in("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                          "memory.usage_in_bytes", "total_cache");
    if (v2 < least) least = v2;
    return v1 < least ? v1 : least;
}

uint64_t host_ram_used_bytes(void) {
    char text[TEXT_BYTES];
    if (!read_text("/proc/self/status", text)) return 0;
    uint64_t bytes = host_ram_parse_kb(text, "RssAnon");
    return bytes == UINT64_MAX ? 0 : bytes;
}
