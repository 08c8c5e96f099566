#include "coordinator/forecast.h"

double forecast_prompt_tokens(const request *r, const node_model *m) {
    return 8 + r->prompt_bytes / m->speed.bytes_per_token;
}

double forecast_held_tokens(const request *r, const node_model *m) {
    size_t n = prefix_set_longest(&m->held, r->chain.hashes, r->chain.n);
    return n == 0 ? 0 : (double)r->chain.bytes[n - 1] / m->speed.bytes_per_token;
}

/* What was given elsewhere runs again here, and the rest is to come. */
double forecast_output_tokens(const request *r, const node_model *m) {
    double given = (double)r->given.n_ids;
    return given + lengths_expect(m->answers, given, r->max_output);
}

router_job forecast_job(const request *r, const node_model *m) {
    return (router_job){forecast_prompt_tokens(r, m), forecast_held_tokens(r, m),
                        forecast_output_tokens(r, m)};
}

/* One that says nothing for longer than expected is expected to go on for as long as it is
 * late, so that a node that hangs does not look as if it were about to be free. */
double forecast_left_s(const request *r, node *n, uint64_t now_ns) {
    const node_model *m = node_find_model(n, r->model);
    if (m == NULL) return 0;
    double decode = rates_decode(&m->speed, n->in_flight);
    bool decodes = r->state == REQUEST_RUNNING && r->tokens > 0;
    uint64_t since_ns = decodes ? r->last_token_ns : r->sent_ns;
    double silent_s = now_ns > since_ns ? (double)(now_ns - since_ns) * 1e-9 : 0;
    if (decodes) {
        double left_s = lengths_expect(m->answers, (double)r->tokens, r->max_output) / decode;
        double late_s = silent_s - 4 / decode;
        return late_s > 0 ? left_s + late_s : left_s;
    }
    double prompt = forecast_prompt_tokens(r, m) - forecast_held_tokens(r, m);
    double prefill_s = (prompt > 0 ? prompt : 0) / rates_prefill(&m->speed) - silent_s;
    return (prefill_s > 0 ? prefill_s : -prefill_s) + forecast_output_tokens(r, m) / decode;
}
