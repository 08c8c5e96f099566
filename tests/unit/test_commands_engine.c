/* test_commands_engine.c - generate, bench and plan as a user calls them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define DEMO "--model deploy/models/demo.gguf --threads 1 "

static char output[65536];

/* Run a subcommand through the shell, stderr into stdout; the exit code. */
static int run(const char *before, const char *arguments) {
    char command[2048];
    const char *build = getenv("SILICEO_BUILD");
    (void)snprintf(command, sizeof command, "%s %s/siliceo-worker %s 2>&1", before,
                   build != NULL ? build : "build", arguments);
    FILE *p = popen(command, "r"); /* NOLINT(cert-env33-c): our own command line */
    assert_non_null(p);
    size_t n = fread(output, 1, sizeof output - 1, p);
    output[n] = '\0';
    int code = pclose(p);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void assert_says(const char *words) {
    if (strstr(output, words) == NULL) fail_msg("no '%s' in: %s", words, output);
}

static void generate_prints_ids_and_then_text(void **state) {
    (void)state;
    const char *prompt =
        "2150,332,198,1091,1097,317,1545,329,259,1546,30,2151,198,2150,343,198,"
        "2156,198";
    char arguments[512];
    (void)snprintf(arguments, sizeof arguments, "generate " DEMO "--ids %s -n 48", prompt);
    assert_int_equal(run("", arguments), 0);
    char *line_end = strchr(output, '\n');
    assert_non_null(line_end);
    *line_end = '\0';
    cJSON *ids = cJSON_Parse(output);
    assert_int_equal(cJSON_GetArraySize(ids), 31); /* the recorded answer */
    assert_int_equal(cJSON_GetArrayItem(ids, 0)->valueint, 289);
    assert_int_equal(cJSON_GetArrayItem(ids, 30)->valueint, 2151);
    cJSON_Delete(ids);
    assert_non_null(strstr(line_end + 1, "</think>\n\nThe Name of the Rose was written by"));
}

static void generate_reads_text_and_can_go_past_the_end(void **state) {
    (void)state;
    assert_int_equal(run("printf 'The capital of' |", "generate " DEMO "-n 9 --ignore-eog"), 0);
    *strchr(output, '\n') = '\0';
    cJSON *ids = cJSON_Parse(output);
    assert_int_equal(cJSON_GetArraySize(ids), 9);
    cJSON_Delete(ids);
}

static void bench_prints_its_figures(void **state) {
    (void)state;
    const char *call =
        "bench " DEMO "--prompt 70 --decode 12 --batch 2 --repeat 2 --slots 25% --json";
    assert_int_equal(run("", call), 0);
    cJSON *root = cJSON_Parse(output);
    const cJSON *figures = cJSON_GetObjectItem(root, "figures");
    static const char *const names[] = {"prefill_tok_per_s",
                                        "decode_tok_per_s",
                                        "ttft_ms",
                                        "hit_rate",
                                        "misses_per_token",
                                        "slot_bytes_per_token",
                                        "pcie_bytes_per_token",
                                        "launches_per_token",
                                        "vram_peak_mib",
                                        "ram_peak_mib"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *value = cJSON_GetObjectItem(figures, names[i]);
        if (!cJSON_IsNumber(value)) fail_msg("no %s in %s", names[i], output);
    }
    assert_true(cJSON_GetObjectItem(figures, "decode_tok_per_s")->valuedouble > 0);
    assert_true(cJSON_GetObjectItem(figures, "hit_rate")->valuedouble > 0);
    assert_true(cJSON_GetObjectItem(figures, "misses_per_token")->valuedouble > 0);
    assert_int_equal(cJSON_GetObjectItem(figures, "slots")->valueint, 64);
    cJSON_Delete(root);
}

/* A trace of the demo model's shape in which all tokens want four experts from `first`. */
static void write_trace(const char *folder, int number, int first) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/trace-%d", folder, number);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fprintf(f, "siliceo-routing 1 2 8 32 4\n");
    for (int i = 0; i < 2 * 8; i++)
        (void)fprintf(f, "%d %d %d %d\n", first, first + 1, first + 2, first + 3);
    assert_int_equal(fclose(f), 0);
}

static double figure(const cJSON *root, const char *name) {
    const cJSON *value = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "figures"), name);
    if (!cJSON_IsNumber(value)) fail_msg("no %s in %s", name, output);
    return value->valuedouble;
}

/* Two users of two traces want eight experts of each layer; as many slots hold them all. */
static void bench_of_users_counts_what_they_need_together(void **state) {
    (void)state;
    char folder[200], arguments[512];
    assert_true(make_temporary(folder, sizeof folder));
    write_trace(folder, 1, 0);
    write_trace(folder, 2, 20);
    static const struct {
        int users;
        double experts;
    } cases[] = {{1, 4}, {2, 8}};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(arguments, sizeof arguments,
                       "bench " DEMO "--users %d --prompt 3 --decode 24 --skip 8 --slots 64 "
                       "--beside 70 --routing '%s/trace-{}' --json",
                       cases[i].users, folder);
        assert_int_equal(run("", arguments), 0);
        cJSON *root = cJSON_Parse(output);
        assert_int_equal(figure(root, "users"), cases[i].users);
        assert_true(figure(root, "experts_per_layer_step") == cases[i].experts);
        assert_true(figure(root, "hit_rate") == 1); /* the router's choice would miss */
        assert_true(figure(root, "total_tok_per_s") > 0);
        assert_true(figure(root, "gap_p99_ms") >= figure(root, "gap_p50_ms"));
        assert_true(figure(root, "beside_gap_max_ms") > 0);
        cJSON_Delete(root);
    }
    (void)snprintf(arguments, sizeof arguments, "rm -r %s &&", folder);
    assert_int_equal(run(arguments, "bench " DEMO "--users 2 --decode 20 --skip 19"), 1);
    assert_says("skip = 19 of 20 tokens");
}

static void plan_takes_a_profile_and_loads_nothing(void **state) {
    (void)state;
    assert_int_equal(run("SILICEO_PROFILES=deploy/profiles", "plan " DEMO "--profile quarter"),
                     0);
    assert_says("64 slots, 25.0 % of the experts");
    assert_int_equal(
        run("SILICEO_PROFILES=deploy/profiles", "plan " DEMO "--profile quarter --slots all"),
        0);
    assert_says("256 slots, 100.0 % of the experts"); /* the flag is stronger */
}

static void what_is_wrong_is_named_in_one_line(void **state) {
    (void)state;
    static const struct {
        const char *arguments, *words;
        int code;
    } cases[] = {
        {"plan " DEMO "--slots 12", "slots = 12 is below 32", 1},
        {"plan " DEMO "--ram-mib 8", "8 MiB may be used", 1},
        {"plan " DEMO "--ctx 40000", "ctx = 40000", 1},
        {"plan " DEMO "--profile none-such", "none-such", 2},
        {"generate " DEMO "--ids 1,x -n 3", "'x' is no token id", 1},
        {"generate " DEMO "--ids 1,99999 -n 3", "prompt[1]", 1},
        {"generate " DEMO "--ids 1 -n 0", "n", 2},
        {"generate --model /nowhere.gguf --ids 1", "/nowhere.gguf", 1},
        {"bench " DEMO "--prompt 40000", "40000", 1},
        {"bench " DEMO "--no-such-key 1", "no-such-key", 2},
        {"bench " DEMO "--prompts 1,x", "prompts = 1,x", 1},
        {"bench " DEMO "--users 2 --routing /nowhere/{}.txt", "/nowhere/1.txt", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = run("", cases[i].arguments);
        if (code != cases[i].code)
            fail_msg("%s: exit %d, %s", cases[i].arguments, code, output);
        assert_says(cases[i].words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_prints_ids_and_then_text),
        cmocka_unit_test(generate_reads_text_and_can_go_past_the_end),
        cmocka_unit_test(bench_prints_its_figures),
        cmocka_unit_test(bench_of_users_counts_what_they_need_together),
        cmocka_unit_test(plan_takes_a_profile_and_loads_nothing),
        cmocka_unit_test(what_is_wrong_is_named_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
