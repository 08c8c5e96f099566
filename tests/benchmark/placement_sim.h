/* placement_sim.h - nodes, requests and time of the placement benchmark.
 *
 * A node serves up to `places` requests at once: prompts at its prefill rate (shared by
 * those in prefill), answers at a rate a sequence that falls with the number served,
 * decode / (1 + crowding * (n - 1)).  What does not fit waits on the node in order.
 * Everything is a function of a seed; one thread.
 */
#ifndef SILICEO_TESTS_PLACEMENT_SIM_H
#define SILICEO_TESTS_PLACEMENT_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_MAX_NODES = 8, SIM_MAX_ON_NODE = 4096 };

typedef struct sim_job {
    double arrives_s, ends_s;
    double prompt, output;           /* tokens */
    double prompt_left, output_left; /* tokens */
    double started_s, first_s;       /* on its node; first token */
    int node;                        /* -1: not placed */
    struct request *request;         /* of the coordinator, while it has it */
} sim_job;

typedef struct sim_spec { /* of a node */
    double prefill, decode, crowding;
    uint32_t places;
} sim_spec;

typedef struct sim_node {
    const sim_spec *spec;
    sim_job *running[64];
    size_t n_running;
    sim_job *waiting[SIM_MAX_ON_NODE];
    size_t n_waiting;
} sim_node;

/* n jobs that come at random (Poisson) so that the fleet's capacity is used to `load`. */
void sim_trace(sim_job *jobs, size_t n, const sim_spec *specs, size_t n_specs, double load,
               uint64_t seed);

double sim_random(uint64_t *state); /* uniform in [0, 1) */
double sim_decode_rate(const sim_node *n);
/* Behind those that wait there; starts at once where a place is free. */
void sim_give(sim_node *n, sim_job *job, double now_s);
/* Seconds until something on the node ends or begins, by the present rates; < 0: never. */
double sim_next_s(const sim_node *n);
/* Let time pass, not beyond sim_next_s(). */
void sim_advance(sim_node *n, double from_s, double dt_s);
/* Take out one that has ended and start who waits; NULL: none has. */
sim_job *sim_take_ended(sim_node *n, double now_s);
/* When a job given to the node now would end, if nobody came after it. */
double sim_foretell_s(const sim_node *n, const sim_job *job, double now_s);

#endif
