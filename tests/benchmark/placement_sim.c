#include "tests/benchmark/placement_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double nothing = 1e-9; /* tokens that are left by rounding */

double sim_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static double normal(uint64_t *state) {
    double u = 1 - sim_random(state), v = sim_random(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static double clamp(double value, double least, double most) {
    return value < least ? least : value > most ? most : value;
}

/* Requests a second that the fleet serves with all places taken. */
static double capacity(const sim_spec *specs, size_t n_specs, double prompt, double output) {
    double sum = 0;
    for (size_t i = 0; i < n_specs; i++) {
        double places = specs[i].places;
        double each = specs[i].decode / (1 + specs[i].crowding * (places - 1));
        sum += places / (prompt / specs[i].prefill + output / each);
    }
    return sum;
}

void sim_trace(sim_job *jobs, size_t n, const sim_spec *specs, size_t n_specs, double load,
               uint64_t seed) {
    uint64_t state = seed * 7919 + 17;
    double prompts = 0, outputs = 0, now = 0;
    for (size_t i = 0; i < n; i++) {
        double prompt = floor(clamp(60 * exp(0.8 * normal(&state)), 4, 2000));
        double output = floor(clamp(150 * exp(0.8 * normal(&state)), 1, 2048));
        jobs[i] = (sim_job){.prompt = prompt, .output = output, .node = -1};
        prompts += prompt;
        outputs += output;
    }
    double a_second = load * capacity(specs, n_specs, prompts / (double)n, outputs / (double)n);
    for (size_t i = 0; i < n; i++) {
        now += -log(1 - sim_random(&state)) / a_second;
        jobs[i].arrives_s = now;
        jobs[i].prompt_left = jobs[i].prompt;
        jobs[i].output_left = jobs[i].output;
    }
}

static size_t n_in_prefill(const sim_node *n) {
    size_t count = 0;
    for (size_t i = 0; i < n->n_running; i++)
        count += n->running[i]->prompt_left > nothing;
    return count;
}

double sim_decode_rate(const sim_node *n) {
    double others = n->n_running > 0 ? (double)n->n_running - 1 : 0;
    return n->spec->decode / (1 + n->spec->crowding * others);
}

static void start(sim_node *n, sim_job *job, double now_s) {
    job->started_s = now_s;
    n->running[n->n_running++] = job;
}

void sim_give(sim_node *n, sim_job *job, double now_s) {
    if (n->n_running < n->spec->places) {
        start(n, job, now_s);
        return;
    }
    if (n->n_waiting == SIM_MAX_ON_NODE) abort();
    n->waiting[n->n_waiting++] = job;
}

double sim_next_s(const sim_node *n) {
    double least = -1, decode = sim_decode_rate(n);
    double prefill = n->spec->prefill / (double)(n_in_prefill(n) > 0 ? n_in_prefill(n) : 1);
    for (size_t i = 0; i < n->n_running; i++) {
        const sim_job *job = n->running[i];
        double s =
            job->prompt_left > nothing ? job->prompt_left / prefill : job->output_left / decode;
        if (least < 0 || s < least) least = s;
    }
    return least;
}

void sim_advance(sim_node *n, double from_s, double dt_s) {
    double decode = sim_decode_rate(n);
    double prefill = n->spec->prefill / (double)(n_in_prefill(n) > 0 ? n_in_prefill(n) : 1);
    for (size_t i = 0; i < n->n_running; i++) {
        sim_job *job = n->running[i];
        if (job->prompt_left > nothing) {
            job->prompt_left -= prefill * dt_s;
            if (job->prompt_left <= nothing * prefill + nothing) job->prompt_left = 0;
            if (job->prompt_left <= nothing) job->first_s = from_s + dt_s;
        } else {
            job->output_left -= decode * dt_s;
        }
    }
}

sim_job *sim_take_ended(sim_node *n, double now_s) {
    for (size_t i = 0; i < n->n_running; i++) {
        sim_job *job = n->running[i];
        if (job->prompt_left > nothing || job->output_left > 1e-6) continue;
        job->ends_s = now_s;
        n->running[i] = n->running[--n->n_running];
        if (n->n_waiting > 0) {
            start(n, n->waiting[0], now_s);
            memmove(n->waiting, n->waiting + 1, --n->n_waiting * sizeof(sim_job *));
        }
        return job;
    }
    return NULL;
}

double sim_foretell_s(const sim_node *n, const sim_job *job, double now_s) {
    static sim_node copy; /* large, and one thread */
    static sim_job jobs[SIM_MAX_ON_NODE + 65];
    size_t used = 0;
    copy.spec = n->spec;
    copy.n_running = n->n_running;
    copy.n_waiting = n->n_waiting;
    for (size_t i = 0; i < n->n_running; i++) {
        jobs[used] = *n->running[i];
        copy.running[i] = &jobs[used++];
    }
    for (size_t i = 0; i < n->n_waiting; i++) {
        jobs[used] = *n->waiting[i];
        copy.waiting[i] = &jobs[used++];
    }
    jobs[used] = *job;
    sim_job *mine = &jobs[used];
    sim_give(&copy, mine, now_s);
    for (;;) {
        double dt = sim_next_s(&copy);
        sim_advance(&copy, now_s, dt);
        now_s += dt;
        for (sim_job *ended; (ended = sim_take_ended(&copy, now_s)) != NULL;) {
            if (ended == mine) return now_s;
        }
    }
}
