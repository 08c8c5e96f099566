/* test_company.c - a greedy text does not depend on who else is served, nor on the cache.
 *
 * The golden prompts of demo.json, alone and all together, with no expert slots, a quarter
 * and all of them, for both types of activations: the ids are always the same, and with
 * float activations those recorded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include <stdio.h>

enum { MAX_PROMPTS = 8 };

typedef struct golden {
    char name[32];
    char *body;
    int32_t ids[256]; /* recorded */
    size_t n_ids;
} golden;

static golden prompts[MAX_PROMPTS];
static int n_prompts;
static int32_t alone[MAX_PROMPTS][256];
static size_t n_alone[MAX_PROMPTS];

static void read_prompt(golden *out, const cJSON *item) {
    json_text body = {0};
    (void)snprintf(out->name, sizeof out->name, "%s",
                   cJSON_GetObjectItem(item, "name")->valuestring);
    char *ids = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "prompt_ids"));
    const cJSON *greedy = cJSON_GetObjectItem(item, "greedy_ids");
    for (const cJSON *id = greedy->child; id != NULL; id = id->next)
        out->ids[out->n_ids++] = id->valueint;
    json_text_format(&body, "{\"temperature\":0,\"max_tokens\":%zu,\"prompt\":%s}", out->n_ids,
                     ids);
    cJSON_free(ids);
    out->body = body.bytes;
}

static int read_prompts(void **state) {
    (void)state;
    static char text[1 << 20];
    FILE *f = fopen("tests/golden/data/demo.json", "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    cJSON *list = cJSON_Parse(text);
    assert_non_null(list);
    for (const cJSON *item = list->child; item != NULL && n_prompts < MAX_PROMPTS;
         item = item->next)
        read_prompt(&prompts[n_prompts++], item);
    cJSON_Delete(list);
    return n_prompts >= 6 ? 0 : -1;
}

static int free_prompts(void **state) {
    (void)state;
    for (int i = 0; i < n_prompts; i++)
        free(prompts[i].body);
    return 0;
}

static void open_with(engine_run *run, activation_type activations, kv_type kv,
                      int64_t n_slots) {
    engine_params params = run_params();
    params.activations = activations;
    params.kv = kv;
    params.n_slots = n_slots;
    params.n_sequences = 5; /* fewer than prompts: some wait and join later */
    run_open(run, &params);
}

static void assert_ids(const run_answer *a, const char *what, int i, const int32_t *ids,
                       size_t n) {
    const run_choice *c = &a->choices[0];
    assert_true(a->done);
    if (c->n_ids != n || memcmp(c->ids, ids, n * sizeof *ids) != 0) {
        fail_msg("%s, %s: '%s'", prompts[i].name, what, c->content);
    }
}

static void run_each_alone(engine_run *run, bool recorded) {
    for (int i = 0; i < n_prompts; i++) {
        const run_answer *a = run_one(run, WIRE_COMPLETION, prompts[i].body);
        n_alone[i] = a->choices[0].n_ids;
        memcpy(alone[i], a->choices[0].ids, n_alone[i] * sizeof(int32_t));
        if (recorded) assert_ids(a, "as recorded", i, prompts[i].ids, prompts[i].n_ids);
    }
}

static void run_all_together(engine_run *run, int64_t n_slots) {
    char what[64];
    (void)snprintf(what, sizeof what, "together, %d slots", (int)n_slots);
    run_forget(run);
    for (int i = 0; i < n_prompts + 2; i++) /* two of them twice */
        run_submit(run, (uint64_t)i, WIRE_COMPLETION, prompts[i % n_prompts].body);
    run_all(run);
    for (int i = 0; i < n_prompts + 2; i++) {
        int p = i % n_prompts;
        assert_ids(&run->answers[i], what, p, alone[p], n_alone[p]);
    }
}

/* Every way of serving the prompts gives the ids of the first, alone and without slots. */
static void assert_company_changes_nothing(activation_type activations, kv_type kv,
                                           bool recorded) {
    const int64_t slots[] = {0, 64, 256};
    for (int s = 0; s < 3; s++) {
        engine_run run = {0};
        open_with(&run, activations, kv, slots[s]);
        if (s == 0) run_each_alone(&run, recorded);
        run_all_together(&run, slots[s]);
        run_close(&run);
    }
}

static void company_changes_nothing_with_float_activations(void **state) {
    (void)state;
    assert_company_changes_nothing(ACTIVATIONS_F32, KV_F32, true);
}

static void company_changes_nothing_with_int8_activations(void **state) {
    (void)state;
    assert_company_changes_nothing(ACTIVATIONS_INT8, KV_F16, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_changes_nothing_with_float_activations),
        cmocka_unit_test(company_changes_nothing_with_int8_activations),
    };
    return cmocka_run_group_tests(tests, read_prompts, free_prompts);
}
