/* Tests of worker/text/loop_guard: circles are seen, progress is not mistaken for one. */
#include "worker/text/loop_guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LEAST = 96 };

/* How many tokens until the guard speaks; 0: it stays silent for n. */
static uint32_t speaks_after(int32_t (*token)(uint32_t i), uint32_t n) {
    loop_guard g;
    loop_guard_init(&g, LEAST);
    for (uint32_t i = 0; i < n; i++) {
        if (loop_guard_push(&g, token(i))) return i + 1;
    }
    return 0;
}

static int32_t same(uint32_t i) {
    (void)i;
    return 7;
}
static int32_t block_of_10(uint32_t i) {
    return (int32_t)(i % 10);
}
static int32_t block_of_100(uint32_t i) {
    return (int32_t)(i % 100);
}
static int32_t block_of_256(uint32_t i) {
    return (int32_t)(i % 256);
}
static int32_t block_of_257(uint32_t i) {
    return (int32_t)(i % 257);
}
static int32_t begins_then_circles(uint32_t i) {
    return i < 50 ? (int32_t)(1000 + i) : (int32_t)(i % 30);
}
/* "12, 13, 14": digits, comma, space; every turn has a number that was not there before. */
static int32_t counting(uint32_t i) {
    static const int32_t comma = 500, space = 501;
    uint32_t turn = i / 4, at = i % 4;
    return at == 2 ? comma : at == 3 ? space : (int32_t)(at == 0 ? turn / 10 % 10 : turn % 10);
}
/* A table: the same bars, other cells. */
static int32_t table(uint32_t i) {
    return i % 3 == 0 ? 600 : (int32_t)((i * 2654435761U) >> 20);
}

static void loop_guard_sees_a_block_repeated_to_the_letter(void **state) {
    (void)state;
    assert_int_equal(speaks_after(same, 1000), LEAST);
    assert_int_equal(speaks_after(block_of_10, 1000), LEAST);
    assert_int_equal(speaks_after(block_of_100, 1000), 4 * 100);
    assert_int_equal(speaks_after(block_of_256, 2000), 4 * 256);
    assert_int_equal(speaks_after(begins_then_circles, 1000), 50 + 4 * 30);
}

static void loop_guard_leaves_alone_what_moves_on(void **state) {
    (void)state;
    assert_int_equal(speaks_after(counting, 396), 0); /* up to 99, then it is a circle */
    assert_int_equal(speaks_after(table, 4000), 0);
    assert_int_equal(speaks_after(block_of_257, 4000), 0);
}

static void loop_guard_of_zero_tokens_never_speaks(void **state) {
    (void)state;
    loop_guard g;
    loop_guard_init(&g, 0);
    for (int i = 0; i < 1000; i++)
        assert_false(loop_guard_push(&g, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_guard_sees_a_block_repeated_to_the_letter),
        cmocka_unit_test(loop_guard_leaves_alone_what_moves_on),
        cmocka_unit_test(loop_guard_of_zero_tokens_never_speaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
