#include "worker/engine_rates.h"

#include <string.h>

static const uint64_t MS = 1000000;

void engine_rates_add(engine_rates *r, const engine_rates_step *step) {
    rates_window *w = &r->now;
    if (w->begun_ns != 0 && step->ended_ns - w->begun_ns > RATES_WINDOW_MS * MS) {
        r->before = *w;
        memset(w, 0, sizeof *w);
    }
    if (w->begun_ns == 0) w->begun_ns = step->ended_ns - step->took_ns;
    w->ended_ns = step->ended_ns;
    w->expert_lookups += step->expert_lookups;
    w->expert_hits += step->expert_hits;
    /* A step with a piece of a prompt is mostly that: decoding is judged by the others. */
    if (step->n_prompt > 0 || step->is_slice) {
        w->prompt_ns += step->took_ns;
        w->n_prompt += step->n_prompt + step->n_decoded;
    } else {
        w->decode_ns += step->took_ns;
        w->n_decoded += step->n_decoded;
    }
}

static void add_window(rates_window *sum, const rates_window *w, uint64_t now_ns) {
    if (w->begun_ns == 0 || now_ns - w->ended_ns > RATES_KEEP_MS * MS) return;
    sum->n_prompt += w->n_prompt;
    sum->n_decoded += w->n_decoded;
    sum->prompt_ns += w->prompt_ns;
    sum->decode_ns += w->decode_ns;
    sum->expert_lookups += w->expert_lookups;
    sum->expert_hits += w->expert_hits;
}

static double per_second(uint64_t n, uint64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

void engine_rates_read(const engine_rates *r, uint64_t now_ns, engine_stats *out) {
    rates_window sum = {0};
    add_window(&sum, &r->now, now_ns);
    add_window(&sum, &r->before, now_ns);
    uint64_t n_tokens = sum.n_prompt + sum.n_decoded;
    out->prefill_tok_per_s = per_second(sum.n_prompt, sum.prompt_ns);
    out->decode_tok_per_s = per_second(sum.n_decoded, sum.decode_ns);
    out->hit_rate =
        sum.expert_lookups > 0 ? (double)sum.expert_hits / (double)sum.expert_lookups : -1;
    out->misses_per_token =
        n_tokens > 0 ? (double)(sum.expert_lookups - sum.expert_hits) / (double)n_tokens : 0;
}
