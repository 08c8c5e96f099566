/* test_poison.c - nothing that was given back is read again: NaN in it changes no text.
 *
 * Every free KV page, recurrent state and expert slot is filled with NaN.  Texts of a busy
 * engine with few pages and a quarter of the slots, where requests are cancelled, preempted,
 * parked and forked, and go on from prompts' beginnings, are those of an engine without poison,
 * each alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "worker/engine_parts.h" /* looks at what is free */
#include <stdio.h>

enum { N_KEPT = 8, N_VICTIMS = 4, FIRST_VICTIM = 20 };

#define USER(text) "{\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}],"
#define CALM                                                                                   \
    "The river was calm and cold. The soup was still warm. The cat slept under the table. "
#define OTHER "The window was open to the sea. The road climbed toward the hills. "
#define NOTE                                                                                   \
    "Read this note. " CALM OTHER "The code of the blue safe is 4711. " CALM                   \
    "The code of the red door is 8250. " OTHER CALM CALM OTHER

static const char *const bodies[N_KEPT] = {
    USER("Who wrote The Name of the Rose?") "\"temperature\":0}",
    USER(NOTE "What is the code of the blue safe?") "\"temperature\":0}",
    USER("Count from 1 to 80.") "\"temperature\":0,\"max_tokens\":250}",
    USER("Tell me a story about a fox and a lamp.") "\"temperature\":1.1,\"seed\":5,"
                                                    "\"n\":3,\"max_tokens\":160}",
    "{\"prompt\":\"Once there was a tired owl\",\"temperature\":0,\"max_tokens\":200}",
    USER(NOTE "What is the code of the red door?") "\"temperature\":0}",
    USER("Tell me a story about a bear and a ring.") "\"temperature\":1.2,\"seed\":9,"
                                                     "\"max_tokens\":300,\"ignore_eos\":true}",
    USER("Count from 40 to 120.") "\"temperature\":0,\"max_tokens\":300,\"ignore_eos\":true}",
};

static const char *const victims[N_VICTIMS] = {
    USER("Tell me a story about a crow and a bell.") "\"temperature\":1,\"max_tokens\":400}",
    USER("Count from 1 to 200.") "\"temperature\":0,\"n\":2}",
    USER("Tell me a story about a hare and a map.") "\"temperature\":1,\"max_tokens\":400}",
    USER("Count from 3 to 180.") "\"temperature\":0}",
};

static void submit(engine_run *run, uint64_t number, const char *body) {
    const wire_submit s = {.request = number,
                           .kind =
                               strstr(body, "\"prompt\"") != NULL ? WIRE_COMPLETION : WIRE_CHAT,
                           .priority = number % 3 == 2, /* some in the background */
                           .body = wire_text(body, strlen(body))};
    run_submit_wire(run, &s);
}

static engine_params small_params(void) {
    engine_params params = run_params();
    params.n_context = 640;
    params.n_sequences = 5;
    params.chunk_tokens = 64;
    return params;
}

static bool all_ones(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0xFF) return false;
    }
    return true;
}

/* Everything is free now, but for pages of prompts' beginnings, and so everything is NaN. */
static void assert_all_poisoned(const engine *e) {
    size_t page = model_page_bytes(e->model);
    size_t state = (size_t)model_config_state_bytes(model_configuration(e->model));
    unsigned char *bytes = malloc(page > state ? page : state);
    assert_non_null(bytes);
    for (uint32_t i = 0; i < e->plan.n_pages; i++) {
        if (kv_pages_owners(e->pages, i) > 0) continue;
        model_page_save(e->model, i, bytes);
        assert_true(all_ones(bytes, page));
    }
    for (uint32_t i = 0; i < e->plan.n_states; i++) {
        model_state_save(e->model, i, bytes);
        assert_true(all_ones(bytes, state));
    }
    free(bytes);
}

/* Everyone at once, some of them late; victims go while they run, wait or are parked. */
static void run_busy(engine_run *run) {
    error err = {0};
    bool working = true;
    for (int step = 0; working || step < 60; step++) {
        if (step % 4 == 0 && step / 4 < N_KEPT)
            submit(run, (uint64_t)step / 4, bodies[step / 4]);
        if (step % 8 == 2 && step / 8 < N_VICTIMS)
            submit(run, FIRST_VICTIM + (uint64_t)step / 8, victims[step / 8]);
        if (step % 11 == 10 && step / 11 < N_VICTIMS)
            (void)engine_cancel(run->e, FIRST_VICTIM + (uint64_t)step / 11, 0);
        if (engine_step(run->e, &working, &err) != STATUS_OK) fail_msg("%s", err.text);
    }
}

static void assert_same_text(const run_answer *a, const run_answer *b, int number) {
    assert_true(a->done && b->done);
    for (int c = 0; c < RUN_MAX_CHOICES; c++) {
        const run_choice *x = &a->choices[c], *y = &b->choices[c];
        if (x->n_ids != y->n_ids || memcmp(x->ids, y->ids, x->n_ids * sizeof *x->ids) != 0)
            fail_msg("request %d, choice %d: '%s' is not '%s'", number, c, x->content,
                     y->content);
    }
}

static void what_is_free_is_never_read(void **state) {
    (void)state;
    static const kv_type types[] = {KV_Q8, KV_Q4};
    for (int t = 0; t < 2; t++) {
        engine_params params = small_params();
        engine_run alone = {0}, busy = {0};
        bool parks = t < 1; /* else who was preempted runs its tokens again */
        params.kv = types[t];
        run_open(&alone, &params);
        params.poison = true;
        params.park_mib = parks ? 6 : 0;
        params.prefix_ram_mib = parks ? 0 : 8;
        params.prefix_every_tokens = 64;
        params.prefix_states = parks ? 0 : 2;
        params.n_slots = 64; /* of 256 */
        params.chunk_tokens = 128;
        params.max_step_ms = 1; /* prompts beside others are cut by layers */
        run_open_narrow(&busy, &params);
        assert_all_poisoned(busy.e);
        run_busy(&busy);
        for (int i = 0; i < N_VICTIMS; i++)
            assert_true(busy.answers[FIRST_VICTIM + i].failed);
        assert_true((parked_store_count(busy.e->parked).kept > 0) == parks);
        engine_stats stats;
        engine_read_stats(busy.e, &stats);
        assert_true((stats.prefixes.hits > 0) != parks);
        assert_true(stats.model.slices > 0);
        assert_all_poisoned(busy.e);
        for (int i = 0; i < N_KEPT; i++) {
            run_forget(&alone);
            submit(&alone, (uint64_t)i, bodies[i]);
            run_all(&alone);
            assert_same_text(&busy.answers[i], &alone.answers[i], i);
        }
        run_close(&busy);
        run_close(&alone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_free_is_never_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
