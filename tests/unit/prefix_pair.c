#include "tests/unit/prefix_pair.h"

#include <stdio.h>

enum { N_ANSWERS = 64 };
#ifdef SILICEO_DEBUG /* sanitizers see the same paths sooner in a small dense model */
#define MODEL "deploy/models/draft.gguf"
#else
#define MODEL "deploy/models/demo.gguf"
#endif

engine_run pair_plain;
cJSON *pair_chats[PAIR_CHATS];
static struct {
    char *body;
    run_answer answer;
} answers[N_ANSWERS]; /* of the plain engine */

engine_params pair_params(void) {
    engine_params params = run_params();
    params.model_path = MODEL;
    if (getenv("SILICEO_TEST_BACKEND") != NULL) params.backend = BACKEND_CUDA;
    return params;
}

int pair_open(void **state) {
    (void)state;
    engine_params params = pair_params();
    run_open(&pair_plain, &params);
    FILE *f = fopen("tests/golden/data/conversations.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    assert_non_null(f);
    while (n < PAIR_CHATS && getline(&line, &cap, f) > 0) {
        cJSON *chat = cJSON_Parse(line);
        cJSON *messages = cJSON_DetachItemFromObject(chat, "messages");
        cJSON_Delete(chat);
        if (cJSON_GetArraySize(messages) >= 6) {
            pair_chats[n++] = messages;
        } else {
            cJSON_Delete(messages);
        }
    }
    assert_int_equal(n, PAIR_CHATS);
    free(line);
    (void)fclose(f);
    return 0;
}

int pair_close(void **state) {
    (void)state;
    for (int i = 0; i < PAIR_CHATS; i++)
        cJSON_Delete(pair_chats[i]);
    for (int i = 0; i < N_ANSWERS; i++)
        free(answers[i].body);
    run_close(&pair_plain);
    return 0;
}

const char PAIR_SYSTEM[] =
    "You are the assistant of a small library at the harbour. The library opens at nine and "
    "closes at six, on Sundays at one. Readers may take five books for three weeks. Maps and "
    "newspapers stay in the house. The garden has a table with two chairs under the old tree. "
    "Answer in one sentence, name the shelf where a book stands, and never promise what the "
    "library does not have. The red shelf holds stories, the blue shelf holds history, the "
    "green shelf holds plants and animals, and the white shelf holds everything about numbers.";

char *pair_write_body(const pair_ask *a) {
    cJSON *root = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(root, "messages");
    if (a->system != NULL) {
        cJSON *m = cJSON_CreateObject();
        cJSON_AddStringToObject(m, "role", "system");
        cJSON_AddStringToObject(m, "content", a->system);
        cJSON_AddItemToArray(messages, m);
    }
    const char *first = a->first;
    for (int i = 0; i < a->n_messages; i++) {
        cJSON *m = cJSON_Duplicate(cJSON_GetArrayItem(a->chat, i), true);
        const char *role = cJSON_GetStringValue(cJSON_GetObjectItem(m, "role"));
        if (a->system != NULL && strcmp(role, "system") == 0) {
            cJSON_Delete(m);
            continue;
        }
        if (first != NULL && strcmp(role, "user") == 0) {
            cJSON_ReplaceItemInObject(m, "content", cJSON_CreateString(first));
            first = NULL;
        }
        cJSON_AddItemToArray(messages, m);
    }
    char *text = cJSON_PrintUnformatted(root);
    size_t n = strlen(text), more = a->more != NULL ? strlen(a->more) : 0;
    char *body = malloc(n + more + 64);
    assert_non_null(body);
    (void)sprintf(body, "%.*s,\"temperature\":0,\"max_tokens\":12%s}", (int)n - 1, text,
                  a->more != NULL ? a->more : "");
    free(text);
    cJSON_Delete(root);
    return body;
}

const run_answer *pair_expect(const char *body) {
    int i = 0;
    while (i < N_ANSWERS - 1 && answers[i].body != NULL && strcmp(answers[i].body, body) != 0)
        i++;
    if (answers[i].body != NULL && strcmp(answers[i].body, body) == 0)
        return &answers[i].answer;
    free(answers[i].body);
    answers[i].body = strdup(body);
    answers[i].answer = *run_one(&pair_plain, WIRE_CHAT, body);
    assert_int_equal(answers[i].answer.usage.cached_tokens, 0);
    return &answers[i].answer;
}

static uint64_t names[RUN_MAX_HELD];

void pair_submit(engine_run *r, const pair_ask *a, const wire_resume *resume) {
    char *body = pair_write_body(a);
    wire_submit s = {.kind = WIRE_CHAT,
                     .body = wire_text(body, strlen(body)),
                     .priority = a->background,
                     .boundaries = names,
                     .n_boundaries = (size_t)a->n_messages};
    cJSON *first = cJSON_GetArrayItem(a->chat, 0);
    bool adds = a->system != NULL &&
                strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(first, "role")), "system") != 0;
    s.n_boundaries += adds ? 1 : 0;
    for (size_t i = 0; i < RUN_MAX_HELD; i++)
        names[i] = 1000 + i;
    if (resume != NULL) s.resume = *resume;
    run_forget(r);
    run_submit_wire(r, &s);
    free(body);
}

void pair_assert_same(const run_answer *a, const run_answer *b) {
    assert_true(a->done && b->done);
    assert_int_equal(a->usage.prompt_tokens, b->usage.prompt_tokens);
    for (int i = 0; i < RUN_MAX_CHOICES; i++) {
        assert_int_equal(a->choices[i].n_ids, b->choices[i].n_ids);
        assert_memory_equal(a->choices[i].ids, b->choices[i].ids,
                            a->choices[i].n_ids * sizeof(int32_t));
        assert_string_equal(a->choices[i].content, b->choices[i].content);
    }
}

uint64_t pair_both(engine_run *r, const pair_ask *a) {
    char *body = pair_write_body(a);
    const run_answer *expected = pair_expect(body);
    pair_submit(r, a, NULL);
    run_all(r);
    pair_assert_same(expected, &r->answers[0]);
    free(body);
    uint64_t cached = r->answers[0].usage.cached_tokens;
    assert_int_equal(cached % BLOCK, 0);
    assert_true(cached < r->answers[0].usage.prompt_tokens);
    return cached;
}
