/* files.h - files that tests read, and folders and models that they make.
 *
 * Needs cmocka.h before it.
 */
#ifndef SILICEO_TESTS_FILES_H
#define SILICEO_TESTS_FILES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The whole file, with a terminator. */
static inline char *read_file(const char *path, size_t *n_bytes) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    char *bytes = malloc((size_t)n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)n, f), (size_t)n);
    bytes[n] = '\0';
    (void)fclose(f);
    *n_bytes = (size_t)n;
    return bytes;
}

static inline cJSON *read_json(const char *path) {
    size_t n = 0;
    char *text = read_file(path, &n);
    cJSON *root = cJSON_ParseWithLength(text, n);
    free(text);
    if (root == NULL) fail_msg("%s is no JSON", path);
    return root;
}

/* A new folder below $TMPDIR, or /tmp; false: there is none. */
static inline bool make_temporary(char *folder, size_t cap) {
    const char *base = getenv("TMPDIR");
    int n = snprintf(folder, cap, "%s/siliceo-test-XXXXXX", base != NULL ? base : "/tmp");
    return n > 0 && (size_t)n < cap && mkdtemp(folder) != NULL;
}

/* Write a generated model: make_model of the build under test, params as JSON text. */
static inline bool generate_model(const char *params, const char *path) {
    const char *build = getenv("SILICEO_BUILD");
    char program[512];
    (void)snprintf(program, sizeof program, "%s/make_model", build != NULL ? build : "build");
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(127);
        (void)execl(program, program, "--params", params, "--out", path, (char *)NULL);
        _exit(127);
    }
    int result = -1;
    return child > 0 && waitpid(child, &result, 0) == child && result == 0;
}

#endif
