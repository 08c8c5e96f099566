/* node_models.c - which models of a node are loaded, by its beats, and how long the others take. */
#include "coordinator/node_table.h"

/* Before a loading was seen. */
enum { ASSUMED_LOAD_S = 10 };

static bool told_loaded(const node *n, size_t i) {
    if (!n->has_beat || i >= 64) return true;
    return (n->beat.unloaded_models >> i & 1) == 0;
}

void node_models_follow(node *n, uint64_t now_ms) {
    for (size_t i = 0; i < n->n_models; i++) {
        node_model *m = &n->models[i];
        bool was_absent = m->absent;
        m->absent = !told_loaded(n, i);
        if (was_absent && !m->absent) {
            m->loaded_ms = now_ms;
            if (m->loading_since_ms != 0)
                m->load_s = (double)(now_ms - m->loading_since_ms) * 1e-3;
        }
        bool loads = m->absent && n->beat.loading_model == i + 1;
        if (!loads) m->loading_since_ms = 0;
        if (loads && m->loading_since_ms == 0) m->loading_since_ms = now_ms;
    }
}

double node_model_load_s(const node *n, const node_model *m, uint64_t now_ms) {
    if (!m->absent) return 0;
    double whole_s = m->load_s > 0 ? m->load_s : ASSUMED_LOAD_S;
    if (m->loading_since_ms == 0) return whole_s;
    double age_s = now_ms > n->last_heard_ms ? (double)(now_ms - n->last_heard_ms) * 1e-3 : 0;
    double left_s = n->beat.loading_left_ms > 0
                        ? (double)n->beat.loading_left_ms * 1e-3
                        : whole_s * (1 - (double)n->beat.loading_permille * 1e-3);
    return left_s > age_s ? left_s - age_s : 0;
}

const char *node_model_state_name(const node_model *m) {
    if (!m->absent) return "loaded";
    return m->loading_since_ms != 0 ? "loading" : "unloaded";
}
