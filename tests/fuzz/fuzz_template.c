/* fuzz_template.c - any JSON as a chat request: rendered as it is, then normalised and rendered.
 *
 * Spans must cover the prompt, bounds ascend, and both styles agree on an error.
 */
#include "common/chat_request.h"
#include "worker/text/chat_template.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const prompt *p) {
    size_t at = 0;
    for (size_t i = 0; i < p->n_spans; i++) {
        if (p->spans[i].end <= at) abort();
        at = p->spans[i].end;
    }
    if (at != p->text.length || strlen(p->text.bytes) != at) abort();
    for (size_t i = 0; i < p->n_bounds; i++) {
        if (p->bounds[i].at > at || (i > 0 && p->bounds[i].at <= p->bounds[i - 1].at)) abort();
    }
}

static status render(const cJSON *request, chat_style style) {
    prompt p = {0};
    error err;
    status rc = chat_template_render(request, style, &p, &err);
    if (rc == STATUS_OK) check(&p);
    prompt_release(&p);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cJSON *request;
    error err;
    char param[CHAT_PARAM_SIZE];
    if (json_parse(&request, (const char *)data, size, "fuzz", &err) != STATUS_OK) return 0;
    if (render(request, CHAT_THINK) != render(request, CHAT_NOTHINK)) abort();
    if (chat_normalise(request, param, &err) == STATUS_OK) {
        (void)render(request, CHAT_THINK);
    } else if (cJSON_IsObject(request) && param[0] == '\0') {
        abort(); /* every mistake has a place */
    }
    cJSON_Delete(request);
    return 0;
}
