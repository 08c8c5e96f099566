/* The chat template against 105 chats rendered by the official Jinja templates.
 *
 * How the values were made stands in tests/golden/data/README.md. */
#include "common/json.h"
#include "worker/text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *read_golden(void) {
    const char *path = "tests/golden/data/template.json";
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s: run from the root of the project", path);
    json_text text = {0};
    char buffer[65536];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, file)) > 0)
        json_text_add(&text, buffer, n);
    (void)fclose(file);
    cJSON *golden = NULL;
    error err = {0};
    if (json_parse(&golden, text.bytes, text.length, path, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
    json_text_release(&text);
    return golden;
}

/* The switches of an entry stand beside its messages; a request has them in an object. */
static void gather_switches(cJSON *entry) {
    static const char *const names[] = {"enable_thinking", "add_vision_id"};
    cJSON *kwargs = cJSON_AddObjectToObject(entry, "chat_template_kwargs");
    for (size_t i = 0; i < 2; i++) {
        cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(entry, names[i]);
        if (item != NULL) cJSON_AddItemToObject(kwargs, names[i], item);
    }
}

static const char *word(const cJSON *entry, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, key));
}

static void check_entry(cJSON *entry) {
    gather_switches(entry);
    bool nothink = strcmp(word(entry, "template"), "nothink") == 0;
    prompt p = {0};
    error err = {0};
    status rc = chat_template_render(entry, nothink ? CHAT_NOTHINK : CHAT_THINK, &p, &err);
    const char *name = word(entry, "name"), *expected = word(entry, "prompt");
    if (expected != NULL) {
        if (rc != STATUS_OK) fail_msg("%s: %s", name, err.text);
        if (strcmp(p.text.bytes, expected) != 0) {
            fail_msg("%s:\n%s\nexpected:\n%s", name, p.text.bytes, expected);
        }
    } else {
        if (rc != STATUS_BAD_INPUT) fail_msg("%s: rendered, an error expected", name);
        bool own_words = strcmp(word(entry, "error_by"), "template") == 0;
        if (own_words && strstr(err.text, word(entry, "error")) == NULL) {
            fail_msg("%s: %s\nexpected: %s", name, err.text, word(entry, "error"));
        }
    }
    prompt_release(&p);
}

static void template_renders_all_golden_chats(void **state) {
    (void)state;
    cJSON *golden = read_golden();
    int n_checked = 0;
    cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(golden, "chats")) {
        check_entry(entry);
        n_checked++;
    }
    assert_int_equal(n_checked, 105);
    cJSON_Delete(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_renders_all_golden_chats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
