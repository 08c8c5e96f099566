#include "coordinator/history.h"

void history_tick(history *h, uint64_t now_ms, double n_tokens) {
    if (h->sampled_ms == 0) {
        h->sampled_ms = now_ms;
        h->tokens = n_tokens;
        return;
    }
    if (now_ms < h->sampled_ms + HISTORY_STEP_MS) return;
    double rate = (n_tokens - h->tokens) / ((double)(now_ms - h->sampled_ms) / 1000);
    h->tokens_per_s[h->next] = rate > 0 ? (float)rate : 0;
    h->next = (h->next + 1) % HISTORY_SAMPLES;
    if (h->n_samples < HISTORY_SAMPLES) h->n_samples++;
    h->sampled_ms = now_ms;
    h->tokens = n_tokens;
}

void history_print(const history *h, json_text *out) {
    json_text_format(out, "{\"step_s\":1,\"samples\":%d,\"tokens_per_s\":[", HISTORY_SAMPLES);
    size_t first = h->n_samples < HISTORY_SAMPLES ? 0 : h->next;
    for (size_t i = 0; i < h->n_samples; i++) {
        json_text_format(out, i > 0 ? ",%.4g" : "%.4g",
                         (double)h->tokens_per_s[(first + i) % HISTORY_SAMPLES]);
    }
    json_text_format(out, "]}");
}
