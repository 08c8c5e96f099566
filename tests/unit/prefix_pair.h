/* prefix_pair.h - an engine that remembers nothing, for tests of those that remember prompts.
 *
 * Two engines on the demo model get the same conversations: their ids must be equal whatever one of
 * them skipped.  The plain one is open from pair_open() to pair_close(), the group's beginning and
 * end, and computes an answer once; the other is the test's.
 */
#ifndef SILICEO_TESTS_UNIT_PREFIX_PAIR_H
#define SILICEO_TESTS_UNIT_PREFIX_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/engine_run.h"
#include "worker/model/model.h"
#include <stdbool.h>

enum { PAIR_CHATS = 6, BLOCK = MODEL_CHUNK_TOKENS };

extern engine_run pair_plain;
extern cJSON
    *pair_chats[PAIR_CHATS];     /* messages of the corpus, the longest of its first ones */
extern const char PAIR_SYSTEM[]; /* a long one */

/* A request, for twelve greedy tokens. */
typedef struct pair_ask {
    const cJSON *chat;
    int n_messages;     /* the first so many */
    const char *system; /* before them; NULL: none but theirs */
    const char *first;  /* instead of what the first user said */
    const char *more;   /* fields of the request: `,"n":2` */
    bool background;
} pair_ask;

int pair_open(void **state);
int pair_close(void **state);
/* On a machine with a GPU, SILICEO_TEST_BACKEND=cuda runs all of it there. */
engine_params pair_params(void);

/* For free(). */
char *pair_write_body(const pair_ask *a);
/* What the plain engine answers. */
const run_answer *pair_expect(const char *body);
void pair_assert_same(const run_answer *a, const run_answer *b);
/* Submit it as request 0; message i's end is named 1000 + i. */
void pair_submit(engine_run *r, const pair_ask *a, const wire_resume *resume);
/* Both engines answer alike; the tokens that r skipped. */
uint64_t pair_both(engine_run *r, const pair_ask *a);

#endif
