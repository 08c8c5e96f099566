/* engine_shared.h - an engine on the demo model that the tests of a program share, and what it
 * can be asked.
 *
 * All on one engine where the test does not need another, so that what one test leaves behind
 * is seen by the next.  Needs cmocka.h before it.
 */
#ifndef SILICEO_TESTS_UNIT_ENGINE_SHARED_H
#define SILICEO_TESTS_UNIT_ENGINE_SHARED_H

#include "tests/engine_run.h"

static engine_run shared;

static inline int open_shared(void **state) {
    (void)state;
    engine_params params = run_params();
    run_open(&shared, &params);
    return 0;
}

static inline int close_shared(void **state) {
    (void)state;
    run_close(&shared);
    return 0;
}

#define MESSAGE(question) "{\"messages\":[{\"role\":\"user\",\"content\":\"" question "\"}]"
#define ASK(question)     MESSAGE(question) ",\"temperature\":0"
#define FOX               MESSAGE("Tell me a story about a fox and a lamp.")
#define ROSE              ASK("Who wrote The Name of the Rose?")
#define PRODUCT           ASK("What is 17 × 23?")
#define NAPOLEON          ASK("In what year was Napoleon born?")
#define STORY             ASK("Tell me a story about a fox and a lamp.")
#define COUNT             ASK("Count from 1 to 40.")

#endif
