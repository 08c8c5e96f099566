/* test_recall.c - codes are recalled from notes with smaller KV pages and in long contexts.
 *
 * The notes of the corpus's conversations, and longer ones made as deploy/models/made/corpus.py
 * makes them: a handful of codes among sentences that say nothing, and a question for one
 * of the codes.  Greedy, without thinking, as the worker runs by default (int8 activations).
 *
 * What the demo model learnt: it was trained with notes of up to 280 sentences, some 2,000
 * tokens, and recalls beyond.  With half floats 11 of 12 codes were right at 1,098 tokens, 12 of
 * 12 at 4,196 and 12 of 12 at 8,307; Q8 and Q4 pages gave the same.  The notes here are the
 * first of those.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include <stdio.h>

enum { AT_ONCE = 4, MAX_NOTES = 64, MAX_FACTS = 5 };

typedef struct note {
    char *body;
    char answer[128];
} note;

typedef struct note_list {
    note notes[MAX_NOTES];
    int n;
} note_list;

static void add_note(note_list *list, const char *messages, const char *answer) {
    json_text body = {0};
    note *next = &list->notes[list->n++];
    json_text_format(&body,
                     "{\"messages\":%s,\"temperature\":0,\"max_tokens\":32,"
                     "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                     messages);
    assert_false(body.failed);
    next->body = body.bytes;
    (void)snprintf(next->answer, sizeof next->answer, "%s", answer);
}

static void free_notes(note_list *list) {
    for (int i = 0; i < list->n; i++)
        free(list->notes[i].body);
    list->n = 0;
}

/* --- notes of the corpus --- */

static void add_if_note(note_list *list, const cJSON *conversation) {
    const cJSON *messages = cJSON_GetObjectItem(conversation, "messages");
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    const char *asked = cJSON_GetStringValue(cJSON_GetObjectItem(last, "content"));
    if (strncmp(asked, "Read this note.", 15) != 0 || list->n == MAX_NOTES) return;
    char *text = cJSON_PrintUnformatted(messages);
    add_note(list, text, cJSON_GetStringValue(cJSON_GetObjectItem(conversation, "answer")));
    cJSON_free(text);
}

static void read_corpus(note_list *list) {
    static char line[1 << 16];
    FILE *f = fopen("tests/golden/data/conversations.jsonl", "rb");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        cJSON *conversation = cJSON_Parse(line);
        assert_non_null(conversation);
        add_if_note(list, conversation);
        cJSON_Delete(conversation);
    }
    (void)fclose(f);
}

/* --- longer notes --- */

static const char *const colors[] = {"red",    "blue",   "green",  "white",  "black",
                                     "yellow", "silver", "purple", "orange", "grey"};
static const char *const things[] = {"door",   "box",    "safe",  "gate",
                                     "drawer", "locker", "chest", "cabinet"};
static const char *const filler[] = {
    "The morning train was late again.",    "A small bird sat on the fence.",
    "Rain fell on the roof all night.",     "The baker opened the shop at six.",
    "Nobody had seen the old map.",         "The river was calm and cold.",
    "Two children played near the bridge.", "The clock on the wall had stopped.",
    "A letter arrived without a name.",     "The workshop smelled of oil and iron.",
    "Someone had left the lights on.",      "The market was full of people.",
    "The cat slept under the table.",       "The road climbed toward the hills.",
    "The window was open to the sea.",      "The soup was still warm.",
    "A dog barked in the distance.",        "The lamp burned until midnight.",
};
enum { N_COLORS = 10, N_THINGS = 8, N_FILLER = 18, TOKENS_A_SENTENCE = 7 };

static uint32_t draw(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* Some three to five codes at random places of a note of about n_tokens. */
static void make_note(note_list *list, uint32_t n_tokens, uint64_t seed) {
    char facts[MAX_FACTS][80];
    uint32_t places[MAX_FACTS], names[MAX_FACTS];
    uint32_t n_facts = 3 + draw(&seed, 3), n_lines = n_tokens / TOKENS_A_SENTENCE;
    uint32_t first_color = draw(&seed, N_COLORS);
    for (uint32_t i = 0; i < n_facts; i++) { /* another color for each */
        names[i] = (first_color + i) % N_COLORS * N_THINGS + draw(&seed, N_THINGS);
        places[i] = draw(&seed, n_lines);
        (void)snprintf(facts[i], sizeof facts[i], "The code of the %s %s is %u.",
                       colors[names[i] / N_THINGS], things[names[i] % N_THINGS],
                       1000 + draw(&seed, 9000));
    }
    json_text text = {0};
    json_text_format(&text, "[{\"role\":\"user\",\"content\":\"Read this note.");
    for (uint32_t line = 0; line < n_lines; line++) {
        for (uint32_t i = 0; i < n_facts; i++) {
            if (places[i] == line) json_text_format(&text, " %s", facts[i]);
        }
        json_text_format(&text, " %s", filler[draw(&seed, N_FILLER)]);
    }
    uint32_t asked = draw(&seed, n_facts);
    json_text_format(&text, " What is the code of the %s %s?\"}]",
                     colors[names[asked] / N_THINGS], things[names[asked] % N_THINGS]);
    assert_false(text.failed);
    add_note(list, text.bytes, facts[asked]);
    json_text_release(&text);
}

/* --- how many are right --- */

static int count_right(engine_run *run, const note_list *list, uint64_t *mean_tokens) {
    int right = 0;
    *mean_tokens = 0;
    run_forget(run);
    for (int i = 0; i < list->n; i++)
        run_submit(run, (uint64_t)i, WIRE_CHAT, list->notes[i].body);
    run_all(run);
    for (int i = 0; i < list->n; i++) {
        const run_answer *a = &run->answers[i];
        if (!a->done) fail_msg("%s", a->error);
        *mean_tokens += a->usage.prompt_tokens / (uint64_t)list->n;
        if (strcmp(a->choices[0].content, list->notes[i].answer) == 0) right++;
    }
    return right;
}

typedef struct kv_name {
    kv_type type;
    const char *name;
} kv_name;

static void open_with(engine_run *run, kv_type kv, uint32_t n_context) {
    engine_params params = run_params();
    params.kv = kv;
    params.n_context = n_context;
    params.n_sequences = AT_ONCE;
    run_open(run, &params);
}

static void codes_of_the_corpus_are_recalled_with_small_pages(void **state) {
    (void)state;
    const kv_name kinds[] = {{KV_Q8, "q8"}, {KV_Q4, "q4"}};
    note_list list = {.n = 0};
    uint64_t n_tokens = 0;
    read_corpus(&list);
    assert_true(list.n >= 30);
    for (int k = 0; k < 2; k++) {
        engine_run run = {0};
        open_with(&run, kinds[k].type, 2048);
        int right = count_right(&run, &list, &n_tokens);
        print_message("KV %s: %d of %d right, %u tokens on average\n", kinds[k].name, right,
                      list.n, (unsigned)n_tokens);
        assert_true(right * 100 >= list.n * 95);
        run_close(&run);
    }
    free_notes(&list);
}

static void codes_are_recalled_from_long_notes(void **state) {
    (void)state;
    const kv_name kinds[] = {{KV_Q8, "q8"}, {KV_Q4, "q4"}};
    const struct {
        uint32_t n_tokens;
        int n_notes;
    } depths[] = {{1000, 4}, {4000, 2}, {8000, 1}};
    for (int k = 0; k < 2; k++) {
        engine_run run = {0};
        open_with(&run, kinds[k].type, 10240);
        for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
            note_list list = {.n = 0};
            uint64_t n_tokens = 0;
            for (int i = 0; i < depths[d].n_notes; i++)
                make_note(&list, depths[d].n_tokens, 100 * d + (uint64_t)i);
            int right = count_right(&run, &list, &n_tokens);
            print_message("KV %s: %d of %d right at %u tokens\n", kinds[k].name, right, list.n,
                          (unsigned)n_tokens);
            assert_int_equal(right, list.n);
            free_notes(&list);
        }
        run_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_the_corpus_are_recalled_with_small_pages),
        cmocka_unit_test(codes_are_recalled_from_long_notes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
