/* test_models_made.c - make_model writes every model of models.json to the byte.
 *
 * Runs the program as the other tests do and compares size and SHA-256; a second
 * run with other thread counts must give the same file.  Mistakes in the
 * parameters are errors that name the field.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sodium.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/files.h"

extern char **environ;

static char folder[128];
static char model_path[192];
static char errors_path[192];

static int make_folder(void **state) {
    (void)state;
    if (!make_temporary(folder, sizeof folder)) return -1;
    (void)snprintf(model_path, sizeof model_path, "%s/m.gguf", folder);
    (void)snprintf(errors_path, sizeof errors_path, "%s/errors", folder);
    return 0;
}

/* Fails when anything else was left behind, such as a partial file. */
static int remove_folder(void **state) {
    (void)state;
    (void)unlink(errors_path);
    return rmdir(folder);
}

/* Run make_model; the value is its exit code, its stderr is in errors_path. */
static int run_make_model(const char *params, const char *out, const char *threads) {
    const char *build = getenv("SILICEO_BUILD");
    char program[256];
    (void)snprintf(program, sizeof program, "%s/make_model", build != NULL ? build : "build");
    char *words[] = {program,     (char[]){"--params"},  strdup(params),  (char[]){"--out"},
                     strdup(out), (char[]){"--threads"}, strdup(threads), NULL};
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0),
                     0);
    assert_int_equal(posix_spawn_file_actions_addopen(&actions, 2, errors_path,
                                                      O_WRONLY | O_CREAT | O_TRUNC, 0600),
                     0);
    pid_t pid;
    int rc = posix_spawn(&pid, program, &actions, NULL, words, environ);
    if (rc != 0) fail_msg("%s: %s (build it first)", program, strerror(rc));
    (void)posix_spawn_file_actions_destroy(&actions);
    int status_word = 0;
    while (waitpid(pid, &status_word, 0) < 0)
        assert_int_equal(errno, EINTR);
    free(words[2]);
    free(words[4]);
    free(words[6]);
    assert_true(WIFEXITED(status_word));
    return WEXITSTATUS(status_word);
}

static void hash_model(char hex[65], size_t *n_bytes) {
    unsigned char hash[crypto_hash_sha256_BYTES];
    char *bytes = read_file(model_path, n_bytes);
    (void)crypto_hash_sha256(hash, (const unsigned char *)bytes, *n_bytes);
    free(bytes);
    (void)sodium_bin2hex(hex, 65, hash, sizeof hash);
}

static void check_model(const char *name, const char *params, const char *threads,
                        const cJSON *model) {
    char hex[65];
    size_t n_bytes = 0;
    if (run_make_model(params, model_path, threads) != 0)
        fail_msg("%s: make_model failed", name);
    hash_model(hex, &n_bytes);
    assert_int_equal(unlink(model_path), 0);
    const char *expected = cJSON_GetObjectItem(model, "sha256")->valuestring;
    double size = cJSON_GetObjectItem(model, "size")->valuedouble;
    if ((double)n_bytes != size) fail_msg("%s: %zu bytes, expected %.0f", name, n_bytes, size);
    if (strcmp(hex, expected) != 0)
        fail_msg("%s: SHA-256 %s, expected %s", name, hex, expected);
}

static void every_model_has_the_recorded_bytes(void **state) {
    (void)state;
    cJSON *root = read_json("tests/golden/data/models.json");
    int n_models = 0;
    const cJSON *model;
    cJSON_ArrayForEach(model, cJSON_GetObjectItem(root, "models")) {
        char *params = cJSON_PrintUnformatted(cJSON_GetObjectItem(model, "params"));
        assert_non_null(params);
        const char *name = cJSON_GetObjectItem(model, "name")->valuestring;
        check_model(name, params, "1", model);
        check_model(name, params, "3", model);
        free(params);
        n_models++;
    }
    cJSON_Delete(root);
    assert_int_equal(n_models, 29);
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *params, *field, *value;
    } cases[] = {
        {"{\"hiden\":64}", "'hiden'", "not known"},
        {"{\"layers\":\"2\"}", "'layers'", "whole number"},
        {"{\"layers\":2.5}", "'layers'", "whole number"},
        {"{\"layers\":0}", "'layers'", "0 is not"},
        {"{\"layers\":1e99}", "'layers'", "e+98"},
        {"{\"hidden\":-1}", "'hidden'", "-1 is not"},
        {"{\"vocab\":270}", "'vocab'", "270"},
        {"{\"seed\":4294967296}", "'seed'", "4294967296"},
        {"{\"router_skew\":17}", "'router_skew'", "17"},
        {"{\"tied\":1}", "'tied'", "true or false"},
        {"{\"type\":\"Q9\"}", "'type'", "Q9"},
        {"{\"type\":7}", "'type'", "string"},
        {"{\"expert_type\":\"Q4_K_M\"}", "'expert_type'", "Q4_K_M"},
        {"{\"arch\":\"llama\"}", "'arch'", "llama"},
        {"{\"heads\":3,\"kv_heads\":2}", "'kv_heads'", "2 does not divide heads 3"},
        {"{\"k_heads\":3}", "'k_heads'", "3 does not divide v_heads 4"},
        {"{\"rope\":63}", "'rope'", "63"},
        {"{\"rope\":512}", "'rope'", "512"},
        {"{\"topk\":9}", "'topk'", "9"},
        {"{\"align\":48}", "'align'", "48"},
        {"{\"preset\":\"70b\"}", "'preset'", "70b"},
        {"{\"preset\":\"9b:0\"}", "'preset'", "'0'"},
        {"{\"preset\":\"9b:x\"}", "'preset'", "'x'"},
        {"[]", "parameters", "object"},
        {"{", "parameters", "byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(run_make_model(cases[i].params, model_path, "1"), 1);
        assert_int_not_equal(access(model_path, F_OK), 0);
        size_t n = 0;
        char *text = read_file(errors_path, &n);
        if (strstr(text, cases[i].field) == NULL || strstr(text, cases[i].value) == NULL) {
            fail_msg("%s: '%s' lacks %s or %s", cases[i].params, text, cases[i].field,
                     cases[i].value);
        }
        free(text);
    }
    assert_int_equal(run_make_model("{}", "/dev/null", "1"), 1);
    assert_int_equal(run_make_model("{}", model_path, "0"), 2);
}

/* A limit on file size stands for the full disk; remove_folder() fails when the
 * partial file is still there. */
static void a_failed_write_leaves_nothing(void **state) {
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = {1 << 16, before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN); /* inherited: the write fails instead */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int code = run_make_model("{}", model_path, "2");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(code, 1);
    size_t n = 0;
    char *text = read_file(errors_path, &n);
    assert_non_null(strstr(text, model_path));
    free(text);
    assert_int_not_equal(access(model_path, F_OK), 0);
}

int main(void) {
    if (sodium_init() < 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_has_the_recorded_bytes),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_failed_write_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
