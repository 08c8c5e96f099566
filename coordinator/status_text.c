#include "coordinator/status.h"

#include "common/clock.h"
#include <stdio.h>
#include <string.h>

uint32_t status_running(const node *n) {
    if (n->state == NODE_DOWN) return 0;
    return n->max_sequences > 0 && n->in_flight > n->max_sequences ? (uint32_t)n->max_sequences
                                                                   : n->in_flight;
}

uint32_t status_waiting(const node *n) {
    return n->state == NODE_DOWN ? 0 : n->in_flight - status_running(n);
}

double status_prefill(const node *n) {
    return n->n_models > 0 ? rates_prefill(&n->models[0].speed) : 0;
}

double status_decode(const node *n) {
    return n->n_models > 0 ? rates_decode(&n->models[0].speed, 1) : 0;
}

double status_prefix_share(const node *n) {
    if (!n->has_beat || n->beat.prefix_asked_tokens == 0) return -1;
    return (double)n->beat.prefix_tokens / (double)n->beat.prefix_asked_tokens;
}

enum { CELL = 24 };

/* A name as one word, without its maker, or "-". */
static void word(char cell[CELL], const char *text) {
    static const char *const makers[] = {"NVIDIA ", "GeForce "};
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        if (strncmp(text, makers[i], strlen(makers[i])) == 0) text += strlen(makers[i]);
    }
    (void)snprintf(cell, CELL, "%.*s", CELL - 1, text[0] != '\0' ? text : "-");
    for (char *p = cell; *p != '\0'; p++) {
        if (*p == ' ') *p = '-';
    }
}

static void figure(char cell[CELL], bool known, int decimals, double value) {
    if (known)
        (void)snprintf(cell, CELL, "%.*f", decimals, value);
    else
        (void)snprintf(cell, CELL, "-");
}

static void node_line(const coordinator *c, const node *n, uint64_t now_ms, json_text *out) {
    char gpu[CELL], vram[CELL] = "-", temperature[CELL], slots[CELL] = "-", hits[CELL];
    char held[CELL], prefill[CELL], decode[CELL], rtt[CELL], beat[CELL];
    node_verdicts verdicts;
    node_judge_parts(n, &c->nodes.limits, now_ms, &verdicts);
    const wire_beat *b = &n->beat;
    word(gpu, n->gpu[0] != '\0' ? n->gpu : n->backend);
    if (n->has_beat && b->vram_total_mib > 0) {
        (void)snprintf(vram, CELL, "%llu/%llu", (unsigned long long)b->vram_used_mib,
                       (unsigned long long)b->vram_total_mib);
    }
    if (n->experts_total > 0) {
        (void)snprintf(slots, CELL, "%llu/%llu", (unsigned long long)n->slots,
                       (unsigned long long)n->experts_total);
    }
    figure(temperature, n->has_beat && b->temperature_c >= 0, 0, b->temperature_c);
    figure(hits, n->has_beat && b->hit_rate >= 0, 1, b->hit_rate * 100);
    figure(held, status_prefix_share(n) >= 0, 1, status_prefix_share(n) * 100);
    figure(prefill, status_prefill(n) > 0, 1, status_prefill(n));
    figure(decode, status_decode(n) > 0, 1, status_decode(n));
    figure(rtt, node_round_trip_s(n) > 0, 1, node_round_trip_s(n) * 1e3);
    figure(beat, n->has_beat, 1, (double)(now_ms - n->last_heard_ms) / 1000);
    json_text_format(
        out, "%-16s %-11s %-8s %-14s %13s %4s %11s %5s %7s %9s %8s %4u %4u  %-8s %6s %6s  %s\n",
        n->name, node_state_name(n->state), verdicts.engine.word, gpu, vram, temperature, slots,
        hits, held, prefill, decode, status_running(n), status_waiting(n), node_path_name(n),
        rtt, beat, n->reason[0] != '\0' ? n->reason : "-");
}

void status_text(const coordinator *c, json_text *out) {
    uint64_t now_ms = clock_monotonic_ms();
    json_text_format(out,
                     "%-16s %-11s %-8s %-14s %13s %4s %11s %5s %7s %9s %8s %4s %4s  %-8s "
                     "%6s %6s  %s\n",
                     "NODE", "STATE", "ENGINE", "GPU", "VRAM-MiB", "C", "SLOTS", "HIT%",
                     "PREFIX%", "PREFILL/S", "DECODE/S", "RUN", "WAIT", "PATH", "RTT-ms",
                     "BEAT-s", "REASON");
    for (const node *n = c->nodes.first; n != NULL; n = n->next)
        node_line(c, n, now_ms, out);
    const counters *k = &c->counters;
    json_text_format(out,
                     "queue %zu of %zu waiting; %u running; %.0f finished, %.0f failed, "
                     "%.0f cancelled, %.0f refused\n",
                     c->queue.n_waiting, c->queue.max_waiting, c->n_running,
                     metric_value(k->finished), metric_value(k->failed),
                     metric_value(k->cancelled), metric_value(k->refused));
}
