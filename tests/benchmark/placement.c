/* placement.c - the coordinator's placement in simulated time, beside a yardstick.
 *
 *     placement [--seeds N] [--requests N] [--json FILE]
 *
 * On 2 and 8 unequal nodes, at 50, 80 and 95 % load, the same random traces are placed by
 *   greedy      the yardstick: knows each answer's length and each node's true rates and
 *               sends each request, as it comes, where it would end first
 *   siliceo     the coordinator's own code (admission, dispatch, router, learning) with the
 *               workers' rough measurements as priors; answers' lengths are not known to it
 *   round-robin, least-connections, static weights (by true decode rate): as a plain proxy
 * and the mean time from arrival to end is compared.  Nothing but time is simulated on the
 * coordinator's side: requests wait in its queue and are attached, learned from and
 * detached as in the process.
 */
#include "common/json.h"
#include "coordinator/dispatch.h"
#include "coordinator/learning.h"
#include "coordinator/request_parts.h"
#include "tests/benchmark/placement_sim.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JOBS = 20000, N_LOADS = 3, N_POLICIES = 5, TICK_MS = 250 };
enum { POLICY_GREEDY, POLICY_SILICEO, POLICY_ROUND_ROBIN, POLICY_LEAST, POLICY_WEIGHTS };
static const char *const policy_names[N_POLICIES] = {"greedy", "siliceo", "round-robin",
                                                     "least-connections", "static-weights"};
static const double loads[N_LOADS] = {0.50, 0.80, 0.95};

typedef struct fleet {
    const char *name;
    size_t n;
    sim_spec specs[SIM_MAX_NODES]; /* prefill, decode, crowding, places */
} fleet;

/* The pair has the published rates of the two machines; one request at a time, as there. */
static const fleet fleets[] = {
    {"2 nodes", 2, {{8, 15.4, 0.3, 1}, {28, 53.7, 0.3, 1}}},
    {"8 nodes",
     8,
     {{8, 15.4, 0.3, 1},
      {28, 53.7, 0.3, 2},
      {60, 20, 0.6, 2},
      {300, 90, 0.15, 4},
      {120, 35, 0.25, 4},
      {20, 8, 0.5, 1},
      {500, 60, 0.2, 4},
      {40, 25, 0.4, 1}}},
};
enum { N_FLEETS = sizeof fleets / sizeof fleets[0] };

typedef struct world {
    const fleet *fleet;
    sim_node nodes[SIM_MAX_NODES];
    sim_job *jobs;
    size_t n_jobs;
    double now_s;
    uint64_t random;
    size_t turn;                  /* of round-robin */
    double credit[SIM_MAX_NODES]; /* of the weighted turns */
    coordinator *c;               /* of siliceo */
    node *members[SIM_MAX_NODES]; /* its nodes */
} world;

static sim_job jobs[MAX_JOBS];
static world w;

/* ------------------------------------------------------------ plain policies */

static int place_greedy(const sim_job *job) {
    int best = 0;
    double least = HUGE_VAL;
    for (size_t i = 0; i < w.fleet->n; i++) {
        double ends = sim_foretell_s(&w.nodes[i], job, w.now_s);
        if (ends >= least) continue;
        least = ends;
        best = (int)i;
    }
    return best;
}

static int place_least(void) {
    int best = 0;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < w.fleet->n; i++) {
        size_t n = w.nodes[i].n_running + w.nodes[i].n_waiting;
        if (n >= least) continue;
        least = n;
        best = (int)i;
    }
    return best;
}

/* Smooth weighted turns, as nginx has them. */
static int place_by_weight(void) {
    double sum = 0;
    size_t best = 0;
    for (size_t i = 0; i < w.fleet->n; i++) {
        const sim_spec *spec = &w.fleet->specs[i];
        double weight =
            spec->decode * spec->places / (1 + spec->crowding * ((double)spec->places - 1));
        w.credit[i] += weight;
        sum += weight;
        if (w.credit[i] > w.credit[best]) best = i;
    }
    w.credit[best] -= sum;
    return (int)best;
}

static int place_plainly(int policy, const sim_job *job) {
    if (policy == POLICY_GREEDY) return place_greedy(job);
    if (policy == POLICY_LEAST) return place_least();
    if (policy == POLICY_WEIGHTS) return place_by_weight();
    return (int)(w.turn++ % w.fleet->n);
}

/* ------------------------------------------------------------ siliceo */

static uint64_t now_ns(void) {
    return 1000000000000u + (uint64_t)(w.now_s * 1e9);
}

static wire_bytes text(const char *s) {
    return wire_text(s, strlen(s));
}

/* The worker's own short measurement: right within 15 %. */
static double measured(double rate) {
    return rate * (0.85 + 0.3 * sim_random(&w.random));
}

static void join(size_t i) {
    char name[16];
    const sim_spec *spec = &w.fleet->specs[i];
    (void)snprintf(name, sizeof name, "node-%zu", i);
    wire_model model = {.name = text("m"), .hash = text("h"), .context_tokens = 8192};
    wire_hello hello = {.node = text(name),
                        .instance = i + 1,
                        .max_sequences = spec->places,
                        .credit = spec->places,
                        .prior_prefill_tok_per_s = measured(spec->prefill),
                        .prior_decode_tok_per_s = measured(spec->decode),
                        .models = &model,
                        .n_models = 1};
    wire_beat beat = {.instance = i + 1, .state = WIRE_READY, .credit = spec->places};
    error err = {0};
    if (node_table_hello(&w.c->nodes, name, strlen(name), -1, &hello, now_ns() / 1000000u,
                         &w.members[i], &err) != STATUS_OK) {
        (void)fprintf(stderr, "placement: %s\n", err.text);
        exit(1);
    }
    node_table_beat(&w.c->nodes, w.members[i], &beat, now_ns() / 1000000u);
}

static void open_coordinator(config *settings, options *o) {
    error err = {0};
    w.c = calloc(1, sizeof *w.c);
    if (w.c == NULL || options_init(settings, o, &err) != STATUS_OK ||
        auth_open(&w.c->auth, "", NULL, &err) != STATUS_OK)
        exit(1);
    w.c->options = o;
    w.c->queue.max_waiting = MAX_JOBS;
    w.c->nodes.limits = (node_limits){.suspect_ms = UINT64_MAX, .down_ms = UINT64_MAX};
    for (size_t i = 0; i < w.fleet->n; i++)
        join(i);
}

static void submit(sim_job *job) {
    request_sink nobody = {.context = job};
    request *r = request_new(&nobody, w.c->auth.open);
    if (r == NULL) exit(1);
    (void)snprintf(r->model, sizeof r->model, "m");
    r->received_ns = r->queued_ns = now_ns();
    r->state = REQUEST_QUEUED;
    r->prompt_bytes = job->prompt * (3.5 + sim_random(&w.random)); /* languages differ */
    job->request = r;
    (void)admission_add(&w.c->queue, r);
}

static bool place_on(coordinator *c, request *r, node *n, uint64_t at_ns) {
    sim_job *job = r->sink.context;
    size_t i = 0;
    while (w.members[i] != n)
        i++;
    request_attach(c, r, n, at_ns);
    job->node = (int)i;
    sim_give(&w.nodes[i], job, w.now_s);
    return true;
}

/* What has come of an answer since the last time. */
static void tell_tokens(const sim_job *job) {
    request *r = job->request;
    if (job->prompt_left > 0) return;
    double given = job->output - (job->output_left > 0 ? job->output_left : 0);
    uint64_t n = (uint64_t)(given + 1e-6);
    if (n <= r->tokens) return;
    bool is_first = r->state == REQUEST_SENT;
    learning_tokens(r, n - r->tokens, is_first, now_ns());
    r->state = REQUEST_RUNNING;
    r->last_token_ns = now_ns();
    r->tokens = n;
}

static void tell_end(sim_job *job) {
    request *r = job->request;
    tell_tokens(job);
    wire_done done = {.prompt_tokens = (uint64_t)job->prompt,
                      .completion_tokens = (uint64_t)job->output,
                      .prefill_ms = (job->first_s - job->started_s) * 1e3};
    learning_done(r, &done, now_ns());
    request_detach(w.c, r);
    request_discard(r);
    job->request = NULL;
}

static void close_coordinator(config *settings) {
    node_table_release(&w.c->nodes);
    auth_close(&w.c->auth);
    free(w.c);
    w.c = NULL;
    config_release(settings);
}

/* ------------------------------------------------------------ time */

static double next_event_s(size_t next_job) {
    double least = next_job < w.n_jobs ? w.jobs[next_job].arrives_s - w.now_s : HUGE_VAL;
    for (size_t i = 0; i < w.fleet->n; i++) {
        double s = sim_next_s(&w.nodes[i]);
        if (s >= 0 && s < least) least = s;
    }
    if (w.c != NULL && least > TICK_MS * 1e-3) least = TICK_MS * 1e-3;
    return least > 0 ? least : 0;
}

static size_t let_pass(double dt_s) {
    size_t ended = 0;
    for (size_t i = 0; i < w.fleet->n; i++)
        sim_advance(&w.nodes[i], w.now_s, dt_s);
    w.now_s += dt_s;
    for (size_t i = 0; i < w.fleet->n; i++) {
        for (size_t k = 0; w.c != NULL && k < w.nodes[i].n_running; k++)
            tell_tokens(w.nodes[i].running[k]);
        for (sim_job *job; (job = sim_take_ended(&w.nodes[i], w.now_s)) != NULL; ended++) {
            if (w.c != NULL) tell_end(job);
        }
    }
    return ended;
}

typedef struct outcome {
    double mean_s, p95_s;
} outcome;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static outcome judge(void) {
    static double took[MAX_JOBS];
    double sum = 0;
    for (size_t i = 0; i < w.n_jobs; i++) {
        took[i] = w.jobs[i].ends_s - w.jobs[i].arrives_s;
        sum += took[i];
    }
    qsort(took, w.n_jobs, sizeof took[0], by_size);
    return (outcome){sum / (double)w.n_jobs, took[w.n_jobs * 95 / 100]};
}

static outcome play(const fleet *f, double load, size_t n_jobs, uint64_t seed, int policy) {
    config settings = {0};
    options o = {0};
    memset(&w, 0, sizeof w);
    w.fleet = f;
    w.jobs = jobs;
    w.n_jobs = n_jobs;
    w.random = seed + 12345;
    for (size_t i = 0; i < f->n; i++)
        w.nodes[i].spec = &f->specs[i];
    sim_trace(jobs, n_jobs, f->specs, f->n, load, seed);
    if (policy == POLICY_SILICEO) open_coordinator(&settings, &o);
    size_t next = 0, ended = 0;
    while (ended < n_jobs) {
        ended += let_pass(next_event_s(next));
        for (; next < n_jobs && jobs[next].arrives_s <= w.now_s + 1e-12; next++) {
            if (w.c != NULL)
                submit(&jobs[next]);
            else
                sim_give(&w.nodes[place_plainly(policy, &jobs[next])], &jobs[next], w.now_s);
        }
        if (w.c != NULL) dispatch_plan(w.c, now_ns(), place_on);
    }
    if (w.c != NULL) close_coordinator(&settings);
    return judge();
}

/* ------------------------------------------------------------ the table */

typedef struct cell {
    double mean_s, p95_s, ratio, worst; /* over the seeds; ratio to greedy */
} cell;

static void play_all(const fleet *f, double load, size_t n_jobs, size_t n_seeds,
                     cell out[N_POLICIES]) {
    memset(out, 0, N_POLICIES * sizeof out[0]);
    for (size_t s = 0; s < n_seeds; s++) {
        double yardstick = 0;
        for (int p = 0; p < N_POLICIES; p++) {
            outcome o = play(f, load, n_jobs, s + 1, p);
            if (p == POLICY_GREEDY) yardstick = o.mean_s;
            double ratio = o.mean_s / yardstick;
            out[p].mean_s += o.mean_s / (double)n_seeds;
            out[p].p95_s += o.p95_s / (double)n_seeds;
            out[p].ratio += ratio / (double)n_seeds;
            if (ratio > out[p].worst) out[p].worst = ratio;
        }
    }
}

static void print_cell(json_text *json, const fleet *f, double load, const cell *cells) {
    json_text_format(json, "{\"fleet\":\"%s\",\"load\":%.2f,\"policies\":{", f->name, load);
    for (int p = 0; p < N_POLICIES; p++) {
        (void)printf("%-8s  %3.0f %%  %-18s %10.2f %10.2f %9.3f %9.3f\n", f->name, load * 100,
                     policy_names[p], cells[p].mean_s, cells[p].p95_s, cells[p].ratio,
                     cells[p].worst);
        json_text_format(json,
                         "%s\"%s\":{\"mean_s\":%.4f,\"p95_s\":%.4f,\"ratio\":%.4f,"
                         "\"worst_seed\":%.4f}",
                         p > 0 ? "," : "", policy_names[p], cells[p].mean_s, cells[p].p95_s,
                         cells[p].ratio, cells[p].worst);
    }
    json_text_format(json, "}}");
    (void)fflush(stdout);
}

/* Within 10 % of the yardstick at 50 and 80 % load, 20 % at 95 %, and ahead of the others. */
static bool is_kept(double load, const cell *cells) {
    bool kept = cells[POLICY_SILICEO].ratio <= (load > 0.9 ? 1.20 : 1.10);
    for (int p = POLICY_ROUND_ROBIN; p < N_POLICIES; p++)
        kept = kept && cells[POLICY_SILICEO].mean_s < cells[p].mean_s;
    return kept;
}

static bool write_file(const char *path, const json_text *json) {
    FILE *file = fopen(path, "we");
    if (file == NULL) return false;
    bool ok = fwrite(json->bytes, 1, json->length, file) == json->length;
    return fclose(file) == 0 && ok;
}

int main(int argc, char *argv[]) {
    size_t n_seeds = 10, n_jobs = 2000;
    const char *path = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seeds") == 0) n_seeds = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--requests") == 0) n_jobs = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--json") == 0) path = argv[i + 1];
    }
    if (n_seeds < 1 || n_jobs < 20 || n_jobs > MAX_JOBS) {
        (void)fprintf(stderr, "placement: --seeds from 1, --requests from 20 to %d\n",
                      MAX_JOBS);
        return 2;
    }
    json_text json = {0};
    bool kept = true;
    json_text_format(&json, "{\"seeds\":%zu,\"requests\":%zu,\"rows\":[", n_seeds, n_jobs);
    (void)printf("%-8s %6s  %-18s %10s %10s %9s %9s\n", "FLEET", "LOAD", "POLICY", "MEAN s",
                 "P95 s", "RATIO", "WORST");
    for (size_t i = 0; i < N_FLEETS; i++) {
        for (size_t l = 0; l < N_LOADS; l++) {
            cell cells[N_POLICIES];
            play_all(&fleets[i], loads[l], n_jobs, n_seeds, cells);
            if (i + l > 0) json_text_format(&json, ",");
            print_cell(&json, &fleets[i], loads[l], cells);
            kept = kept && is_kept(loads[l], cells);
        }
    }
    json_text_format(&json, "],\"kept\":%s}\n", kept ? "true" : "false");
    (void)printf("%s\n", kept ? "kept: within 10 % (20 % at 95 % load), ahead of the others"
                              : "NOT kept");
    if (path != NULL && !write_file(path, &json)) {
        (void)fprintf(stderr, "placement: cannot write '%s'\n", path);
        kept = false;
    }
    json_text_release(&json);
    return kept ? 0 : 1;
}
