/* fake_worker.c - nodes that speak the real protocol over real ZeroMQ and compute nothing.
 *
 *     fake_worker --coordinator tcp://H:P [--name N] [--nodes K] [--model M] [--context T]
 *                 [--slots S] [--prefill TOK/S] [--decode TOK/S] [--beat-ms MS]
 *                 [--load-ms MS] [--dead-ms MS] [--cache yes] [--hash H] [--numerics N] [--fault KIND] [--fault-at TOKEN] [--curve SERVER-KEY --secret-file FILE]
 *
 * For faults and scale only: a request of max_tokens N (or, without, one that says
 * "answer-tokens=N"; default 16) gets N tokens
 * "t0 t1 ...", at the set rates; one that resumes goes on where it broke off.  Faults:
 * hang (takes requests, answers nothing), drop (goes silent at token N), die (exits at token N), error (500), refuse (503,
 * retryable), bad (400), gap (skips a number at token N), garbage (sends nonsense
 * first), fail (500 at token N), toolcall (opens a tool call at token N, then silent),
 * stall (its engine's loop does not come round), lie (says that it holds prompts and
 * skips nothing), mute (no beats after the first), load (never gets ready), deaf (ignores CANCEL),
 * twin (all nodes are links of one process under one name), future (speaks wire version 2).
 * With --load-ms it loads first and tells how long; a path silent for --dead-ms is left; with --cache it holds the beginnings of
 * prompts that it has seen and skips them.
 * Events go to stdout as JSON lines with the wall clock in milliseconds.
 */
#include "common/clock.h"
#include "common/json.h"
#include "common/wire.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum {
    MAX_NODES = 1024,
    MAX_JOBS = 4096,
    HELLO_AGAIN_MS = 500,
    MAX_HELD = 1024,
    MAX_ENDS = 16
};

typedef struct settings {
    const char *coordinator, *name, *model, *hash, *numerics, *fault, *curve, *secret_file;
    int nodes, slots, fault_at, beat_ms, load_ms, dead_ms;
    bool cache, stamp;
    uint64_t context;
    double prefill, decode;
} settings;

typedef struct job {
    uint64_t request, epoch, number;
    uint64_t n_prompt, n_tokens, sent;
    uint64_t begun_ns, next_ns, first_ns;
    int node;
    bool called;                     /* a tool call is open */
    uint64_t cached, ends[MAX_ENDS]; /* of its prompt: tokens skipped, beginnings */
    size_t n_ends;
} job;

typedef struct fake {
    void *socket;
    char name[64];
    uint64_t instance, beats, last_ack, running, waiting;
    uint64_t next_beat_ms;
    uint64_t next_hello_ms;  /* until it is welcome */
    uint64_t held[MAX_HELD]; /* beginnings of prompts, a ring */
    size_t n_held;
} fake;

static settings set = {.coordinator = NULL,
                       .name = "fake",
                       .model = "fake-model",
                       .hash = "00112233445566778899aabbccddeeff",
                       .numerics = "fake",
                       .fault = "none",
                       .nodes = 1,
                       .slots = 4,
                       .fault_at = 5,
                       .beat_ms = 0,
                       .dead_ms = 2000,
                       .context = 32768,
                       .prefill = 10000,
                       .decode = 100};
static fake fakes[MAX_NODES];
static job jobs[MAX_JOBS];
static size_t n_jobs;
static wire_frame frame;

static bool fault(const char *kind) {
    return strcmp(set.fault, kind) == 0;
}

static void say(const char *event, const fake *f, uint64_t request) {
    (void)printf("{\"event\":\"%s\",\"node\":\"%s\",\"request\":%llu,\"ms\":%llu}\n", event,
                 f->name, (unsigned long long)request, (unsigned long long)clock_wall_ms());
    (void)fflush(stdout);
}

static void send_message(fake *f, const wire_message *m) {
    error err = {0};
    if (wire_encode(&frame, m, &err) != STATUS_OK) {
        (void)fprintf(stderr, "fake_worker: %s\n", err.text);
        exit(1);
    }
    /* The version stands behind the array's head of one byte or three. */
    if (fault("future")) frame.bytes[(unsigned char)frame.bytes[0] == 0xdc ? 3 : 1] = 2;
    (void)zmq_send(f->socket, frame.bytes, frame.length, ZMQ_DONTWAIT);
}

static wire_bytes text(const char *s) {
    return wire_text(s, strlen(s));
}

static void send_hello(fake *f) {
    wire_model model = {text(set.model), text(set.hash), text("fake"), text(set.numerics),
                        set.context};
    wire_message m = {.type = WIRE_HELLO};
    m.hello = (wire_hello){.node = text(f->name),
                           .instance = f->instance,
                           .build = text("fake"),
                           .profile = text("none"),
                           .backend = text("fake"),
                           .max_sequences = (uint64_t)set.slots,
                           .credit = (uint64_t)set.slots,
                           .prior_prefill_tok_per_s = set.prefill,
                           .prior_decode_tok_per_s = set.decode,
                           .models = &model,
                           .n_models = 1};
    send_message(f, &m);
    f->next_hello_ms = clock_monotonic_ms() + HELLO_AGAIN_MS;
}

/* Milliseconds until it is loaded. */
static uint64_t load_left_ms(void) {
    static uint64_t begun_ms;
    uint64_t now_ms = clock_monotonic_ms();
    if (begun_ms == 0) begun_ms = now_ms;
    uint64_t end_ms = begun_ms + (uint64_t)set.load_ms;
    return end_ms > now_ms ? end_ms - now_ms : 0;
}

static void send_beat(fake *f) {
    wire_message m = {.type = WIRE_BEAT};
    uint64_t left_ms = load_left_ms();
    bool loads = fault("load") || left_ms > 0;
    uint64_t whole_ms = set.load_ms > 0 ? (uint64_t)set.load_ms : 1;
    m.beat =
        (wire_beat){.number = ++f->beats,
                    .instance = f->instance,
                    .state = loads ? WIRE_LOADING : WIRE_READY,
                    .loading_permille = left_ms > 0 ? 1000 - 1000 * left_ms / whole_ms : 500,
                    .loading_left_ms = left_ms,
                    .engine_age_ms = fault("stall") ? 1000000 : 0,
                    .running = f->running,
                    .free_sequences = (uint64_t)set.slots - f->running,
                    .credit = loads ? 0 : (uint64_t)set.slots,
                    .hit_rate = 0.75,
                    .misses_per_token = 2,
                    .temperature_c = 61,
                    .power_w = 180,
                    .vram_used_mib = 9216,
                    .vram_total_mib = 12288,
                    .ram_used_mib = 2048,
                    .prefix_tokens = 600,
                    .prefix_asked_tokens = 800,
                    .prefix_snapshots = 9,
                    .prefix_pages = 40,
                    .prefix_mib = 12,
                    .prefix_disk_mib = 2048,
                    .prefix_hits = 6,
                    .prefix_hits_in_place = 4,
                    .displaced = 3,
                    .guesses = 50,
                    .guesses_true = 30};
    send_message(f, &m);
}

static void send_error(fake *f, const wire_submit *s, uint64_t http_status, const char *code,
                       bool retryable) {
    wire_message m = {.type = WIRE_ERROR};
    m.error = (wire_error){.request = s->request,
                           .epoch = s->epoch,
                           .http_status = http_status,
                           .code = text(code),
                           .param = text(http_status == 400 ? "messages" : ""),
                           .text = text("the fake worker says no"),
                           .retryable = retryable};
    send_message(f, &m);
}

static uint64_t wanted_tokens(const wire_submit *s) {
    cJSON *body = NULL;
    error err = {0};
    if (json_parse(&body, s->body.bytes, s->body.length, "body", &err) != STATUS_OK) return 16;
    const cJSON *max = cJSON_GetObjectItemCaseSensitive(body, "max_tokens");
    uint64_t n = max != NULL ? (uint64_t)max->valuedouble : 16;
    /* What the coordinator cannot know beforehand, as of a real answer. */
    static const char word[] = "answer-tokens=";
    const char *said = memmem(s->body.bytes, s->body.length, word, sizeof word - 1);
    if (max == NULL && said != NULL) n = strtoull(said + sizeof word - 1, NULL, 10);
    cJSON_Delete(body);
    return n;
}

static bool holds(const fake *f, uint64_t hash) {
    for (size_t i = 0; i < f->n_held && i < MAX_HELD; i++) {
        if (f->held[i] == hash) return true;
    }
    return false;
}

/* Which beginning of the prompt is held, and which will be: the last few are told. */
static void look_up(fake *f, const wire_submit *s, job *j) {
    if (!set.cache && !fault("lie")) return;
    size_t n = s->n_boundaries, known = n;
    while (known > 0 && !holds(f, s->boundaries[known - 1]))
        known--;
    if (set.cache && n > 0) j->cached = j->n_prompt * known / n;
    if (j->cached >= j->n_prompt && j->cached > 0) j->cached = j->n_prompt - 1;
    for (size_t i = n > MAX_ENDS ? n - MAX_ENDS : 0; i < n; i++) {
        j->ends[j->n_ends++] = s->boundaries[i];
        if (!holds(f, s->boundaries[i])) f->held[f->n_held++ % MAX_HELD] = s->boundaries[i];
    }
}

static void on_submit(fake *f, const wire_submit *s) {
    say("submit", f, s->request);
    uint64_t n_prompt = s->body.length / 4;
    if (fault("error"))
        send_error(f, s, 500, "broken", false);
    else if (fault("refuse"))
        send_error(f, s, 503, "unavailable", true);
    else if (fault("bad"))
        send_error(f, s, 400, "invalid_value", false);
    else if (n_prompt > set.context)
        send_error(f, s, 400, "context_length_exceeded", false);
    else if (f->running >= (uint64_t)set.slots || n_jobs == MAX_JOBS)
        send_error(f, s, 503, "busy", true);
    else {
        uint64_t now = clock_monotonic_ns();
        double replay_s = (double)s->resume.n_ids / set.decode;
        job *j = &jobs[n_jobs++];
        *j = (job){.node = (int)(f - fakes),
                   .request = s->request,
                   .epoch = s->epoch,
                   .n_prompt = n_prompt,
                   .n_tokens = wanted_tokens(s),
                   .sent = s->resume.n_ids,
                   .begun_ns = now};
        look_up(f, s, j);
        double prefill_s = (double)(n_prompt - j->cached) / set.prefill;
        j->next_ns = now + (uint64_t)((prefill_s + replay_s) * 1e9);
        f->running++;
    }
}

static void end_job(size_t i) {
    fakes[jobs[i].node].running--;
    jobs[i] = jobs[--n_jobs];
}

static void on_cancel(fake *f, const wire_cancel *cancel) {
    say("cancel", f, cancel->request);
    if (fault("deaf")) return;
    for (size_t i = 0; i < n_jobs; i++) {
        if (jobs[i].node != (int)(f - fakes) || jobs[i].request != cancel->request ||
            jobs[i].epoch != cancel->epoch)
            continue;
        wire_submit s = {.request = cancel->request, .epoch = cancel->epoch};
        send_error(f, &s, 499, "cancelled", false);
        end_job(i);
        return;
    }
}

static void on_message(fake *f, const wire_message *m) {
    if (m->type == WIRE_SUBMIT)
        on_submit(f, &m->submit);
    else if (m->type == WIRE_CANCEL)
        on_cancel(f, &m->cancel);
    else if (m->type == WIRE_WELCOME) {
        if (set.beat_ms == 0) set.beat_ms = (int)m->welcome.beat_interval_ms;
        say("welcome", f, 0);
        f->next_beat_ms = 0;
        f->next_hello_ms = UINT64_MAX;
    } else if (m->type == WIRE_DRAIN)
        say(m->drain.resume ? "resume" : "drain", f, 0);
    else if (m->type == WIRE_ACK)
        f->last_ack = m->ack.number;
    else if (m->type == WIRE_ERROR && m->error.request == 0) {
        say("refused", f, 0);
        f->next_hello_ms = UINT64_MAX;
    }
}

static void receive(fake *f) {
    for (;;) {
        zmq_msg_t part;
        (void)zmq_msg_init(&part);
        if (zmq_msg_recv(&part, f->socket, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&part);
            return;
        }
        wire_message m;
        error err = {0};
        if (wire_decode(&m, zmq_msg_data(&part), zmq_msg_size(&part), &err) == STATUS_OK) {
            on_message(f, &m);
            wire_release(&m);
        } else {
            (void)fprintf(stderr, "fake_worker: %s\n", err.text);
        }
        (void)zmq_msg_close(&part);
    }
}

static void send_token(fake *f, job *j) {
    char word[32];
    if (set.stamp) /* the time of its sending, for those who measure */
        (void)snprintf(word, sizeof word, "<%llu>", (unsigned long long)clock_monotonic_ns());
    else
        (void)snprintf(word, sizeof word, "t%llu ", (unsigned long long)j->sent);
    int32_t id = (int32_t)j->sent;
    wire_message m = {.type = WIRE_TOKENS};
    m.tokens = (wire_tokens){.request = j->request,
                             .epoch = j->epoch,
                             .number = j->number++,
                             .ids = &id,
                             .n_ids = 1,
                             .text = text(word),
                             .prompt_tokens = j->n_prompt,
                             .cached_tokens = j->cached,
                             .finish = j->sent + 1 == j->n_tokens ? WIRE_FINISH_LENGTH
                                                                  : WIRE_FINISH_NONE,
                             .draws = j->sent + 1};
    send_message(f, &m);
    j->sent++;
}

/* The beginning of a tool call, and no more of it. */
static void send_call(fake *f, job *j) {
    const int32_t id = 1;
    wire_message m = {.type = WIRE_TOKENS};
    m.tokens = (wire_tokens){.request = j->request,
                             .epoch = j->epoch,
                             .number = j->number++,
                             .channel = WIRE_TOOL_CALL,
                             .ids = &id,
                             .n_ids = 1,
                             .text = wire_text("{\"a\":", 5),
                             .call_name = wire_text("f", 1)};
    send_message(f, &m);
    j->called = true;
}

static void send_done(fake *f, const job *j, uint64_t now_ns) {
    wire_message m = {.type = WIRE_DONE};
    m.done = (wire_done){.request = j->request,
                         .epoch = j->epoch,
                         .number = j->number,
                         .prompt_tokens = j->n_prompt,
                         .cached_tokens = j->cached,
                         .boundaries = j->ends,
                         .n_boundaries = j->n_ends,
                         .completion_tokens = j->sent,
                         .prefill_ms = (double)(j->first_ns - j->begun_ns) * 1e-6,
                         .decode_ms = (double)(now_ns - j->first_ns) * 1e-6,
                         .hit_rate = 0.75,
                         .misses_per_token = 2};
    send_message(f, &m);
}

static void send_finish(fake *f, job *j) {
    wire_message m = {.type = WIRE_TOKENS};
    m.tokens = (wire_tokens){.request = j->request,
                             .epoch = j->epoch,
                             .number = j->number++,
                             .finish = WIRE_FINISH_LENGTH};
    send_message(f, &m);
}

/* True: the job is over. */
static bool step(job *j, uint64_t now_ns) {
    fake *f = &fakes[j->node];
    if (fault("hang")) return false;
    bool here = j->sent == (uint64_t)set.fault_at;
    if (here && fault("die")) _exit(9);
    if (here && (fault("drop") || (fault("toolcall") && j->called))) return false;
    if (here && fault("fail")) {
        wire_submit s = {.request = j->request, .epoch = j->epoch};
        send_error(f, &s, 500, "broken", false);
        return true;
    }
    if (here && fault("gap")) j->number++;
    if (j->first_ns == 0) j->first_ns = now_ns;
    if (j->sent >= j->n_tokens) { /* a resume of what was over but for its DONE */
        send_finish(f, j);
        send_done(f, j, now_ns);
        return true;
    }
    if (here && fault("toolcall")) {
        send_call(f, j);
        return false;
    }
    send_token(f, j);
    j->next_ns += (uint64_t)(1e9 / set.decode);
    if (j->sent < j->n_tokens) return false;
    send_done(f, j, now_ns);
    return true;
}

static void work(void) {
    uint64_t now_ns = clock_monotonic_ns();
    for (size_t i = 0; i < n_jobs;) {
        if (now_ns >= jobs[i].next_ns && step(&jobs[i], now_ns))
            end_job(i);
        else
            i++;
    }
    uint64_t now_ms = now_ns / 1000000u;
    for (int i = 0; i < set.nodes; i++) {
        if (now_ms >= fakes[i].next_hello_ms) send_hello(&fakes[i]);
        if (now_ms < fakes[i].next_beat_ms || (fault("mute") && fakes[i].beats > 0)) continue;
        send_beat(&fakes[i]);
        /* Unanswered beats: the coordinator, or the way to it, is another one. */
        if (fakes[i].beats > fakes[i].last_ack + 10) send_hello(&fakes[i]);
        fakes[i].next_beat_ms = now_ms + (uint64_t)(set.beat_ms > 0 ? set.beat_ms : 1000);
    }
}

static long wait_ms(void) {
    uint64_t now_ns = clock_monotonic_ns(), least = now_ns + 50000000u;
    for (size_t i = 0; i < n_jobs; i++) {
        if (!fault("hang") && jobs[i].next_ns < least) least = jobs[i].next_ns;
    }
    return least <= now_ns ? 0 : (long)((least - now_ns + 999999) / 1000000);
}

static void use_curve(void *socket) {
    FILE *file = fopen(set.secret_file, "re");
    char line[100], public_key[41] = "", secret_key[41] = "";
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (line[0] != '#' || line[1] != ' ') (void)sscanf(line, "%40s", secret_key);
    }
    if (file != NULL) (void)fclose(file);
    if (zmq_curve_public(public_key, secret_key) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, set.curve, 41) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key, 41) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key, 41) != 0) {
        (void)fprintf(stderr, "fake_worker: bad keys\n");
        exit(2);
    }
}

static void open_fakes(void *context) {
    for (int i = 0; i < set.nodes; i++) {
        fake *f = &fakes[i];
        int zero = 0;
        f->socket = zmq_socket(context, ZMQ_DEALER);
        if (f->socket == NULL) exit(1);
        (void)zmq_setsockopt(f->socket, ZMQ_LINGER, &zero, sizeof zero);
        /* Its tokens wait without a bound for a coordinator that is late: none may be lost here. */
        (void)zmq_setsockopt(f->socket, ZMQ_SNDHWM, &zero, sizeof zero);
        /* A dead path is left and dialled again, as the real worker does. */
        const int heartbeat_ms = set.dead_ms / 10, dead_ms = set.dead_ms;
        (void)zmq_setsockopt(f->socket, ZMQ_HEARTBEAT_IVL, &heartbeat_ms, sizeof heartbeat_ms);
        (void)zmq_setsockopt(f->socket, ZMQ_HEARTBEAT_TIMEOUT, &dead_ms, sizeof dead_ms);
        (void)zmq_setsockopt(f->socket, ZMQ_CONNECT_TIMEOUT, &dead_ms, sizeof dead_ms);
        if (set.curve != NULL) use_curve(f->socket);
        if (zmq_connect(f->socket, set.coordinator) != 0) exit(1);
        bool numbered = set.nodes > 1 && !fault("twin");
        (void)snprintf(f->name, sizeof f->name, numbered ? "%s-%d" : "%s", set.name, i);
        f->instance = clock_wall_ms() * 65536u + (uint64_t)getpid() % 65536u + (uint64_t)i;
        if (fault("twin")) f->instance = fakes[0].instance;
        f->next_beat_ms = UINT64_MAX;
        if (fault("garbage")) (void)zmq_send(f->socket, "\x93nonsense", 9, 0);
        send_hello(f);
    }
}

static void read_flags(int argc, char *argv[]) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (strcmp(key, "--coordinator") == 0)
            set.coordinator = value;
        else if (strcmp(key, "--name") == 0)
            set.name = value;
        else if (strcmp(key, "--model") == 0)
            set.model = value;
        else if (strcmp(key, "--load-ms") == 0)
            set.load_ms = atoi(value);
        else if (strcmp(key, "--cache") == 0)
            set.cache = strcmp(value, "yes") == 0;
        else if (strcmp(key, "--hash") == 0)
            set.hash = value;
        else if (strcmp(key, "--numerics") == 0)
            set.numerics = value;
        else if (strcmp(key, "--fault") == 0)
            set.fault = value;
        else if (strcmp(key, "--curve") == 0)
            set.curve = value;
        else if (strcmp(key, "--secret-file") == 0)
            set.secret_file = value;
        else if (strcmp(key, "--nodes") == 0)
            set.nodes = atoi(value);
        else if (strcmp(key, "--slots") == 0)
            set.slots = atoi(value);
        else if (strcmp(key, "--fault-at") == 0)
            set.fault_at = atoi(value);
        else if (strcmp(key, "--beat-ms") == 0)
            set.beat_ms = atoi(value);
        else if (strcmp(key, "--dead-ms") == 0)
            set.dead_ms = atoi(value);
        else if (strcmp(key, "--context") == 0)
            set.context = (uint64_t)atoll(value);
        else if (strcmp(key, "--prefill") == 0)
            set.prefill = atof(value);
        else if (strcmp(key, "--decode") == 0)
            set.decode = atof(value);
        else if (strcmp(key, "--stamp") == 0)
            set.stamp = strcmp(value, "yes") == 0;
        else {
            (void)fprintf(stderr, "fake_worker: unknown flag '%s'\n", key);
            exit(2);
        }
    }
    if (set.coordinator == NULL || set.nodes < 1 || set.nodes > MAX_NODES) {
        (void)fprintf(stderr, "fake_worker: --coordinator is missing or --nodes is absurd\n");
        exit(2);
    }
}

int main(int argc, char *argv[]) {
    read_flags(argc, argv);
    void *context = zmq_ctx_new();
    if (context == NULL) return 1;
    (void)zmq_ctx_set(context, ZMQ_MAX_SOCKETS, MAX_NODES + 16);
    open_fakes(context);
    static zmq_pollitem_t items[MAX_NODES];
    for (int i = 0; i < set.nodes; i++)
        items[i] = (zmq_pollitem_t){fakes[i].socket, 0, ZMQ_POLLIN, 0};
    for (;;) {
        (void)zmq_poll(items, set.nodes, wait_ms());
        for (int i = 0; i < set.nodes; i++) {
            if (items[i].revents & ZMQ_POLLIN) receive(&fakes[i]);
        }
        work();
    }
}
