#include "coordinator/router.h"

#include <string.h>

router_cost router_estimate(const router_node *node, const router_job *job) {
    router_cost cost = {
        .round_trip_s = node->round_trip_s, .path_s = node->path_s, .load_s = node->load_s};
    size_t ahead = node->n_finish;
    cost.occupancy = (uint32_t)ahead + 1;
    if (ahead >= node->places) {
        /* Of the n requests there, n - places + 1 must end before this one begins. */
        cost.wait_s = node->finish_s[ahead - node->places];
        cost.occupancy = node->places;
    }
    double held =
        node->held_tokens < job->prompt_tokens ? node->held_tokens : job->prompt_tokens;
    cost.prefill_tok_per_s = rates_prefill(node->speed);
    cost.decode_tok_per_s = rates_decode(node->speed, cost.occupancy);
    cost.prefill_s = (job->prompt_tokens - held) / cost.prefill_tok_per_s;
    cost.decode_s = job->output_tokens / cost.decode_tok_per_s;
    /* It loads while the request waits for a place. */
    double begins_s = cost.wait_s > cost.load_s ? cost.wait_s : cost.load_s;
    cost.total_s = begins_s + cost.prefill_s + cost.decode_s + cost.round_trip_s + cost.path_s;
    return cost;
}

int router_choose(const router_node *nodes, size_t n_nodes, const bool *may,
                  const router_job *job, router_cost *cost) {
    int best = -1;
    for (size_t i = 0; i < n_nodes; i++) {
        if (nodes[i].places == 0 || (may != NULL && !may[i])) continue;
        router_cost here = router_estimate(&nodes[i], job);
        if (best >= 0 && here.total_s >= cost->total_s) continue;
        best = (int)i;
        *cost = here;
    }
    return best;
}

void router_reserve(router_node *node, double finish_s) {
    if (node->cap_finish == 0) return;
    if (node->n_finish == node->cap_finish) {
        memmove(node->finish_s, node->finish_s + 1,
                (node->n_finish - 1) * sizeof *node->finish_s);
        node->n_finish--;
    }
    size_t at = node->n_finish++;
    while (at > 0 && node->finish_s[at - 1] > finish_s) {
        node->finish_s[at] = node->finish_s[at - 1];
        at--;
    }
    node->finish_s[at] = finish_s;
}
