/* test_config.c - settings from file, environment and flags, and how they fail. */
#include "common/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct options {
    const char *config, *name, *mode, *peers;
    int64_t port;
    double rate;
    bool verbose;
} options;

static const config_key keys[] = {
    {"config", CONFIG_STRING, offsetof(options, config), NULL, 0, 0, NULL, "file"},
    {"name", CONFIG_STRING, offsetof(options, name), "box", 0, 0, NULL, "name"},
    {"http.port", CONFIG_INT, offsetof(options, port), "8080", 0, 65535, NULL, "port"},
    {"rate", CONFIG_REAL, offsetof(options, rate), "1.5", 0, 0, NULL, "rate"},
    {"mode", CONFIG_CHOICE, offsetof(options, mode), "auto", 0, 0, "auto|cpu|cuda", "mode"},
    {"verbose", CONFIG_BOOL, offsetof(options, verbose), "false", 0, 0, NULL, "verbose"},
    {"peer", CONFIG_LIST, offsetof(options, peers), NULL, 0, 0, NULL, "peers"},
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

typedef struct fixture {
    config c;
    options o;
    error err;
    char path[64];
} fixture;

static fixture *begin(const char *file_text) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(config_init(&f->c, "test", keys, N_KEYS, &f->o, &f->err), STATUS_OK);
    (void)snprintf(f->path, sizeof f->path, "/tmp/siliceo-config-XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, file_text, strlen(file_text)), (ssize_t)strlen(file_text));
    (void)close(fd);
    return f;
}

static void end(fixture *f) {
    config_release(&f->c);
    (void)unlink(f->path);
    free(f);
}

static status read_words(fixture *f, int n, const char *const words[]) {
    char *argv[16] = {(char *)(uintptr_t) "test"};
    for (int i = 0; i < n; i++) {
        argv[i + 1] = (char *)(uintptr_t)words[i];
    }
    return config_read(&f->c, n + 1, argv, &f->err);
}

static void flag_beats_environment_beats_file(void **state) {
    (void)state;
    fixture *f = begin("name = file\nrate = 2\n[http]\nport = 1\n");
    assert_int_equal(setenv("SILICEO_NAME", "environment", 1), 0);
    assert_int_equal(setenv("SILICEO_HTTP_PORT", "2", 1), 0);
    const char *words[] = {"--config", f->path, "--http-port=3"};
    assert_int_equal(read_words(f, 3, words), STATUS_OK);
    assert_int_equal(f->o.port, 3);
    assert_string_equal(f->o.name, "environment");
    assert_true(f->o.rate > 1.9 && f->o.rate < 2.1);
    assert_true(config_is_set(&f->c, "rate"));
    assert_false(config_is_set(&f->c, "mode"));
    (void)unsetenv("SILICEO_NAME");
    (void)unsetenv("SILICEO_HTTP_PORT");
    end(f);
}

static void bools_and_lists_come_as_people_write_them(void **state) {
    (void)state;
    fixture *f = begin("verbose = yes\npeer = x\n");
    const char *words[] = {"--config", f->path, "--peer", "a", "--peer=b", "--no-verbose"};
    assert_int_equal(read_words(f, 6, words), STATUS_OK);
    assert_string_equal(f->o.peers, "a\nb");
    assert_false(f->o.verbose);
    end(f);
}

static void reading_again_does_not_double_a_list(void **state) {
    (void)state;
    fixture *f = begin("");
    const char *words[] = {"--peer", "a", "--peer=b"};
    assert_int_equal(read_words(f, 3, words), STATUS_OK);
    assert_int_equal(read_words(f, 3, words), STATUS_OK);
    assert_string_equal(f->o.peers, "a\nb");
    end(f);
}

static void every_mistake_names_place_key_and_value(void **state) {
    (void)state;
    static const struct {
        const char *file, *flag, *expect[3];
    } cases[] = {
        {"nmae = x\n", NULL, {":1", "nmae", "x"}},
        {"name = x\n[http]\nport = 70000\n", NULL, {":3", "http.port", "70000"}},
        {"[http]\nport = 12ab\nrate = 3\n", NULL, {":2", "http.port", "12ab"}},
        {"", "--http-port=1.5", {"http-port", "http.port", "1.5"}},
        {"", "--mode=gpu", {"mode", "gpu", "auto|cpu|cuda"}},
        {"", "--verbose=maybe", {"verbose", "maybe", "true"}},
        {"", "--rate=nan", {"rate", "nan", "number"}},
        {"", "--unknown=1", {"--unknown", "unknown flag", "--help"}},
        {"", "stray", {"stray", "unexpected", "--help"}},
        {"", "--name", {"--name", "needs", "value"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture *f = begin(cases[i].file);
        const char *words[] = {"--config", f->path, cases[i].flag};
        assert_int_equal(read_words(f, cases[i].flag != NULL ? 3 : 2, words), STATUS_BAD_INPUT);
        for (size_t k = 0; k < 3; k++) {
            if (strstr(f->err.text, cases[i].expect[k]) == NULL) {
                fail_msg("case %zu: '%s' lacks '%s'", i, f->err.text, cases[i].expect[k]);
            }
        }
        end(f);
    }
}

static void an_overlong_line_is_refused_and_not_cut(void **state) {
    (void)state;
    char text[2000];
    memset(text, 'a', sizeof text);
    memcpy(text, "name = ", 7);
    text[sizeof text - 2] = '\n';
    text[sizeof text - 1] = '\0';
    fixture *f = begin(text);
    const char *words[] = {"--config", f->path};
    status rc = read_words(f, 2, words);
    if (rc == STATUS_OK) { /* an inih built for long lines takes it whole */
        assert_int_equal(strlen(f->o.name), sizeof text - 2 - 7);
    } else {
        assert_non_null(strstr(f->err.text, "longer"));
    }
    end(f);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    fixture *f = begin("");
    const char *words[] = {"--config=/nonexistent/x.conf"};
    assert_int_equal(read_words(f, 1, words), STATUS_IO);
    assert_non_null(strstr(f->err.text, "/nonexistent/x.conf"));
    const char *folder[] = {"--config=/tmp"}; /* opens, and cannot be read */
    assert_int_equal(read_words(f, 1, folder), STATUS_IO);
    assert_non_null(strstr(f->err.text, "config /tmp: Is a directory"));
    end(f);
}

static void printing_hides_secrets(void **state) {
    (void)state;
    static const config_key secret[] = {
        {"api_key", CONFIG_STRING, 0, "hunter2", 0, 0, NULL, "key"}};
    const char *value = NULL;
    config c;
    error err;
    assert_int_equal(config_init(&c, "test", secret, 1, &value, &err), STATUS_OK);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    config_print(&c, out);
    (void)fclose(out);
    assert_null(strstr(text, "hunter2"));
    assert_non_null(strstr(text, "(hidden)"));
    free(text);
    config_release(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flag_beats_environment_beats_file),
        cmocka_unit_test(bools_and_lists_come_as_people_write_them),
        cmocka_unit_test(reading_again_does_not_double_a_list),
        cmocka_unit_test(every_mistake_names_place_key_and_value),
        cmocka_unit_test(an_overlong_line_is_refused_and_not_cut),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(printing_hides_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
