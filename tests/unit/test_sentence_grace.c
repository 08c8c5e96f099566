/* Tests of worker/text/sentence_grace: where a text may end. */
#include "worker/text/sentence_grace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* In text, | marks each place where it may end. */
static void check(const char *marked, bool in_fence) {
    sentence_grace g;
    sentence_grace_init(&g);
    for (const char *at = marked; *at != '\0';) {
        sentence_grace_push(&g, at++, 1);
        bool expected = *at == '|';
        if (expected) at++;
        bool got = sentence_grace_may_end(&g, in_fence);
        if (got != expected) {
            fail_msg("\"%s\" %s end before byte %zu", marked, got ? "may" : "may not",
                     (size_t)(at - marked));
        }
    }
}

static void prose_ends_behind_a_sentence(void **state) {
    (void)state;
    check("It is done.| |Is it", false);
    check("Yes!| |No?| |So", false);
    check("He said \"no.|\"| |She", false);
    check("(It was.|)| |Then", false);
    check("**Bold.|*|*| |next", false);
    check("Wait.|.|.| |and", false);
}

static void prose_does_not_end_in_a_number_or_an_abbreviation(void **state) {
    (void)state;
    check("pi is 3.14 or", false);
    check("e.g. this", false);
    check("it was 1999.\n|", false);
}

static void prose_ends_with_its_paragraph(void **state) {
    (void)state;
    check("a heading\n\n|text", false);
    check("\n\nx", false);
}

static void other_scripts_have_their_own_ends(void **state) {
    (void)state;
    check("\xE3\x81\xAF\xE3\x81\x84\xE3\x80\x82|\xE3\x81\x9D", false);   /* はい。そ */
    check("\xD9\x85\xD8\xA7\xD8\x9F| |\xD9\x85", false);                 /* ما؟ م */
    check("\xE0\xA4\xB9\xE0\xA5\x88\xE0\xA5\xA4| |\xE0\xA4\xB9", false); /* है। ह */
    check("\xE5\xA5\xBD\xEF\xBC\x81|\xE3\x80\x8D|\xE5\xA5\xBD", false);  /* 好！」好 */
}

static void code_ends_with_a_line(void **state) {
    (void)state;
    check("a = 1.\n|b = 2!\n|\n|  ", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prose_ends_behind_a_sentence),
        cmocka_unit_test(prose_does_not_end_in_a_number_or_an_abbreviation),
        cmocka_unit_test(prose_ends_with_its_paragraph),
        cmocka_unit_test(other_scripts_have_their_own_ends),
        cmocka_unit_test(code_ends_with_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
