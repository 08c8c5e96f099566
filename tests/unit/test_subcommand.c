/* test_subcommand.c - the first word starts what it names, and the rest goes on to it. */
#include "common/subcommand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *started;

/* argv begins with the word that was named, or with the program where there was none. */
static int note(const char *name, const char *first, int argc, char *argv[]) {
    started = name;
    assert_string_equal(argv[0], first);
    return 40 + argc;
}

static int serve(int argc, char *argv[]) {
    return note("serve", "program", argc, argv);
}

static int plan(int argc, char *argv[]) {
    return note("plan", "plan", argc, argv);
}

static const subcommand commands[] = {{"serve", serve, "runs"}, {"plan", plan, "says"}};
static const subcommand_list list = {"siliceo-test", commands, 2, "the hint"};

/* second, third: the words behind the program's name; NULL: there is none. */
static int run(const char *second, const char *third) {
    char words[3][16] = {"program"};
    char *argv[4] = {words[0], words[1], third != NULL ? words[2] : NULL, NULL};
    (void)snprintf(words[1], sizeof words[1], "%s", second);
    (void)snprintf(words[2], sizeof words[2], "%s", third != NULL ? third : "");
    started = NULL;
    return subcommand_run(&list, third != NULL ? 3 : 2, argv);
}

static void a_word_starts_what_it_names_with_the_rest(void **state) {
    (void)state;
    assert_int_equal(run("plan", "--help"), 42);
    assert_string_equal(started, "plan");
}

static void keys_at_once_are_the_first_ones(void **state) {
    (void)state;
    assert_int_equal(run("--ctx", "7"), 43);
    assert_string_equal(started, "serve");
}

static void other_words_start_nothing(void **state) {
    (void)state;
    assert_int_equal(run("pla", NULL), 2);
    assert_null(started);
}

static void help_lists_all_and_the_hint_last(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    subcommand_help(&list, out);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "usage: siliceo-test [SUBCOMMAND] [--help] [--key value]...\n\n"
                              "  serve        runs\n  plan         says\n\nthe hint\n");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_starts_what_it_names_with_the_rest),
        cmocka_unit_test(keys_at_once_are_the_first_ones),
        cmocka_unit_test(other_words_start_nothing),
        cmocka_unit_test(help_lists_all_and_the_hint_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
