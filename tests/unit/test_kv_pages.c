/* test_kv_pages.c - pages are given once, shared by count and come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/kv_pages.h"
#include <string.h>

enum { N_PAGES = 37 };

static kv_pages *new_pages(uint32_t n) {
    kv_pages *pages = NULL;
    error err = {0};
    assert_int_equal(kv_pages_new(&pages, n, &err), STATUS_OK);
    return pages;
}

/* What the tests believe about each page must be what the object says. */
static void assert_matches(const kv_pages *pages, const uint32_t *owners) {
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        assert_int_equal(kv_pages_owners(pages, i), owners[i]);
        n_free += owners[i] == 0;
    }
    assert_int_equal(kv_pages_available(pages), n_free);
    assert_int_equal(kv_pages_total(pages), N_PAGES);
}

static void every_page_is_given_once(void **state) {
    (void)state;
    kv_pages *pages = new_pages(N_PAGES);
    bool seen[N_PAGES] = {false};
    uint32_t page = 0;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        assert_true(kv_pages_take(pages, &page));
        assert_true(page < N_PAGES && !seen[page]);
        seen[page] = true;
    }
    assert_false(kv_pages_take(pages, &page));
    kv_pages_free(pages);
}

static void a_shared_page_is_free_after_its_last_owner(void **state) {
    (void)state;
    kv_pages *pages = new_pages(1);
    uint32_t page = 9;
    assert_true(kv_pages_take(pages, &page));
    kv_pages_share(pages, page);
    kv_pages_release(pages, page);
    assert_int_equal(kv_pages_available(pages), 0);
    kv_pages_release(pages, page);
    assert_int_equal(kv_pages_available(pages), 1);
    kv_pages_free(pages);
}

static void counts_stay_true_over_a_random_run(void **state) {
    (void)state;
    kv_pages *pages = new_pages(N_PAGES);
    uint32_t owners[N_PAGES] = {0};
    uint64_t random = 12345;
    for (int step = 0; step < 20000; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t pick = (uint32_t)(random >> 33) % N_PAGES, page = 0;
        switch ((random >> 60) & 3) {
        case 0:
        case 1:
            if (kv_pages_take(pages, &page)) owners[page]++;
            break;
        case 2:
            if (owners[pick] > 0) kv_pages_share(pages, pick), owners[pick]++;
            break;
        default:
            if (owners[pick] > 0) kv_pages_release(pages, pick), owners[pick]--;
            break;
        }
        assert_matches(pages, owners);
    }
    kv_pages_free(pages);
}

static void no_pages_at_all_are_legal(void **state) {
    (void)state;
    kv_pages *pages = new_pages(0);
    uint32_t page = 0;
    assert_false(kv_pages_take(pages, &page));
    assert_int_equal(kv_pages_owners(pages, 0), 0);
    kv_pages_free(pages);
    kv_pages_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_is_given_once),
        cmocka_unit_test(a_shared_page_is_free_after_its_last_owner),
        cmocka_unit_test(counts_stay_true_over_a_random_run),
        cmocka_unit_test(no_pages_at_all_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
