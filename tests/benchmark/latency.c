/* latency.c - what the coordinator adds to the way of a token, in microseconds.
 *
 *     latency http HOST:PORT MESH REQUESTS TOKENS [PER-S]  through a running coordinator
 *     latency direct REQUESTS TOKENS [PER-S]               the same worker, spoken to directly
 *
 * One request after another, or PER-S a second, evenly spaced.
 *
 * A thread plays a worker that speaks the real protocol and answers each request
 * with TOKENS tokens, the first at once and the others 2 ms apart; a token's text
 * is the monotonic time of its sending.  The main thread is the client: over
 * HTTP, or over a ROUTER of its own.  So both runs measure the same thing, and
 * the difference is the coordinator with its HTTP.  Prints one JSON object.
 */
#include "common/clock.h"
#include "common/wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { TOKEN_GAP_NS = 2000000, MAX_SAMPLES = 1 << 20 };

typedef struct samples {
    double *us;
    size_t n;
} samples;

typedef struct bench {
    void *zmq;
    char mesh[128];
    int n_tokens;
    uint64_t step_ns; /* from request to request; 0: as soon as the last one is over */
    uint64_t due_ns;
    atomic_bool stop;
    samples ttft, token;
} bench;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void add_sample(samples *s, double us) {
    if (s->n < MAX_SAMPLES) s->us[s->n++] = us;
}

static wire_bytes text_of(const char *text) {
    return wire_text(text, strlen(text));
}

static void send_message(void *socket, wire_frame *frame, const wire_message *message) {
    error err = {0};
    if (wire_encode(frame, message, &err) != STATUS_OK) {
        (void)fprintf(stderr, "latency: %s\n", err.text);
        exit(1);
    }
    if (zmq_send(socket, frame->bytes, frame->length, 0) < 0) fail("zmq_send");
}

static void send_hello(void *socket, wire_frame *frame) {
    const wire_model model = {.name = text_of("probe"),
                              .hash = text_of("00000000000000000000000000000000"),
                              .arch = text_of("qwen35"),
                              .numerics = text_of("probe"),
                              .context_tokens = 100000};
    const wire_message hello = {.type = WIRE_HELLO,
                                .hello = {.node = text_of("probe"),
                                          .instance = 1,
                                          .build = text_of("latency"),
                                          .backend = text_of("cpu"),
                                          .max_sequences = 64,
                                          .credit = 64,
                                          .prior_prefill_tok_per_s = 10000,
                                          .prior_decode_tok_per_s = 500,
                                          .models = &model,
                                          .n_models = 1}};
    send_message(socket, frame, &hello);
}

static void send_beat(void *socket, wire_frame *frame, uint64_t number) {
    const wire_message beat = {.type = WIRE_BEAT,
                               .beat = {.number = number,
                                        .instance = 1,
                                        .state = WIRE_READY,
                                        .free_sequences = 64,
                                        .kv_pages_total = 1000,
                                        .kv_pages_free = 1000,
                                        .credit = 64,
                                        .hit_rate = -1,
                                        .temperature_c = -1,
                                        .power_w = -1}};
    send_message(socket, frame, &beat);
}

static void answer(bench *b, void *socket, wire_frame *frame, const wire_submit *submit) {
    uint64_t next = clock_monotonic_ns();
    for (int i = 0; i < b->n_tokens; i++, next += TOKEN_GAP_NS) {
        struct timespec at = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        char stamp[32];
        (void)snprintf(stamp, sizeof stamp, "<%llu>", (unsigned long long)clock_monotonic_ns());
        const int32_t id = i;
        wire_message tokens = {.type = WIRE_TOKENS,
                               .tokens = {.request = submit->request,
                                          .epoch = submit->epoch,
                                          .number = (uint64_t)i,
                                          .ids = &id,
                                          .n_ids = 1,
                                          .text = text_of(stamp)}};
        if (i == b->n_tokens - 1) tokens.tokens.finish = WIRE_FINISH_STOP;
        send_message(socket, frame, &tokens);
    }
    const wire_message done = {.type = WIRE_DONE,
                               .done = {.request = submit->request,
                                        .epoch = submit->epoch,
                                        .number = (uint64_t)b->n_tokens,
                                        .prompt_tokens = 10,
                                        .completion_tokens = (uint64_t)b->n_tokens,
                                        .hit_rate = -1}};
    send_message(socket, frame, &done);
}

static void *play_worker(void *argument) {
    bench *b = argument;
    void *socket = zmq_socket(b->zmq, ZMQ_DEALER);
    int linger = 0, timeout_ms = 200;
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    if (zmq_connect(socket, b->mesh) != 0) fail(b->mesh);
    wire_frame frame = {0};
    send_hello(socket, &frame);
    uint64_t beats = 0, last_beat_ms = 0;
    while (!atomic_load(&b->stop)) {
        if (clock_monotonic_ms() - last_beat_ms >= 500) {
            last_beat_ms = clock_monotonic_ms();
            send_beat(socket, &frame, beats++);
        }
        zmq_msg_t in;
        (void)zmq_msg_init(&in);
        int n = zmq_msg_recv(&in, socket, 0);
        wire_message message;
        error err = {0};
        if (n > 0 && wire_decode(&message, zmq_msg_data(&in), (size_t)n, &err) == STATUS_OK) {
            if (message.type == WIRE_SUBMIT) answer(b, socket, &frame, &message.submit);
            wire_release(&message);
        }
        (void)zmq_msg_close(&in);
    }
    wire_frame_release(&frame);
    (void)zmq_close(socket);
    return NULL;
}

/* Every stamp <ns> in new bytes is a token that has arrived now. */
static int take_stamps(bench *b, const char *text, uint64_t start_ns, bool first) {
    int n = 0;
    uint64_t now = clock_monotonic_ns();
    for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
        char *end = NULL;
        uint64_t stamp = strtoull(at + 1, &end, 10);
        if (*end != '>') continue;
        if (first && n == 0) {
            add_sample(&b->ttft, (double)(now - start_ns) / 1000);
        } else {
            add_sample(&b->token, (double)(now - stamp) / 1000);
        }
        n++;
    }
    return n;
}

static void await_turn(bench *b) {
    if (b->step_ns == 0) return;
    if (b->due_ns == 0) b->due_ns = clock_monotonic_ns();
    struct timespec at = {(time_t)(b->due_ns / 1000000000u), (long)(b->due_ns % 1000000000u)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    b->due_ns += b->step_ns;
}

static int connect_http(const char *address) {
    char host[64];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host) fail("address");
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || inet_pton(AF_INET, host, &to.sin_addr) != 1) fail(address);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) fail(address);
    return fd;
}

/* One streamed request on a kept-alive connection. */
static void ask_http(bench *b, int fd) {
    static const char body[] = "{\"model\":\"probe\",\"stream\":true,\"messages\":[{\"role\":"
                               "\"user\",\"content\":\"x\"}]}";
    char out[512];
    int n = snprintf(out, sizeof out,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    uint64_t start = clock_monotonic_ns();
    if (write(fd, out, (size_t)n) != n) fail("write");
    int tokens = 0;
    char in[65536];
    size_t kept = 0;
    for (bool over = false; !over;) {
        ssize_t got = read(fd, in + kept, sizeof in - 1 - kept);
        if (got <= 0) fail("read");
        in[kept + (size_t)got] = '\0';
        tokens += take_stamps(b, in, start, tokens == 0);
        over = strstr(in, "[DONE]") != NULL && strstr(in, "\r\n0\r\n\r\n") != NULL;
        if (tokens == 0 && strstr(in, "\r\n\r\n") != NULL && strstr(in, " 200 ") == NULL) {
            (void)fprintf(stderr, "latency: %s\n", in);
            exit(1);
        }
        /* Keep a tail in which no whole stamp stands, so that the end is seen. */
        size_t length = kept + (size_t)got;
        kept = length > 24 ? 24 : length;
        memmove(in, in + length - kept, kept);
        for (size_t i = 0; i < kept; i++) {
            if (in[i] == '<') in[i] = ' ';
        }
    }
}

static void ask_direct(bench *b, void *router, const char *peer, size_t peer_length,
                       wire_frame *frame, uint64_t request) {
    const wire_message submit = {.type = WIRE_SUBMIT,
                                 .submit = {.request = request,
                                            .kind = WIRE_CHAT,
                                            .request_id = text_of("x"),
                                            .model = text_of("probe"),
                                            .body = text_of("{}")}};
    uint64_t start = clock_monotonic_ns();
    if (zmq_send(router, peer, peer_length, ZMQ_SNDMORE) < 0) fail("zmq_send");
    send_message(router, frame, &submit);
    for (int tokens = 0;;) {
        char id[64];
        zmq_msg_t in;
        (void)zmq_msg_init(&in);
        if (zmq_recv(router, id, sizeof id, 0) < 0) fail("zmq_recv");
        int n = zmq_msg_recv(&in, router, 0);
        wire_message message;
        error err = {0};
        if (n < 0 || wire_decode(&message, zmq_msg_data(&in), (size_t)n, &err) != STATUS_OK) {
            fail(err.text);
        }
        wire_type type = message.type;
        if (type == WIRE_TOKENS) {
            char text[64] = "";
            memcpy(text, message.tokens.text.bytes, message.tokens.text.length);
            tokens += take_stamps(b, text, start, tokens == 0);
        }
        wire_release(&message);
        (void)zmq_msg_close(&in);
        if (type == WIRE_DONE) return;
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(samples *s, double share) {
    qsort(s->us, s->n, sizeof *s->us, compare);
    return s->n == 0 ? 0 : s->us[(size_t)(share * (double)(s->n - 1))];
}

static void run_direct(bench *b, int n_requests, pthread_t *worker) {
    void *router = zmq_socket(b->zmq, ZMQ_ROUTER);
    size_t size = sizeof b->mesh;
    if (zmq_bind(router, "tcp://127.0.0.1:*") != 0) fail("bind");
    if (zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, b->mesh, &size) != 0) fail("endpoint");
    if (pthread_create(worker, NULL, play_worker, b) != 0) fail("thread");
    char peer[64];
    zmq_msg_t in;
    int peer_length = zmq_recv(router, peer, sizeof peer, 0);
    (void)zmq_msg_init(&in);
    if (peer_length < 0 || zmq_msg_recv(&in, router, 0) < 0) fail("hello");
    (void)zmq_msg_close(&in);
    wire_frame frame = {0};
    for (int i = 0; i < n_requests; i++) {
        await_turn(b);
        ask_direct(b, router, peer, (size_t)peer_length, &frame, (uint64_t)i + 1);
    }
    wire_frame_release(&frame);
    (void)zmq_close(router);
}

static void run_http(bench *b, const char *address, int n_requests, pthread_t *worker) {
    if (pthread_create(worker, NULL, play_worker, b) != 0) fail("thread");
    for (bool ready = false; !ready;) { /* until the coordinator has seen the worker's beat */
        static const char ask[] =
            "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        int fd = connect_http(address);
        char in[1024] = "";
        if (write(fd, ask, sizeof ask - 1) < 0) fail("write");
        ready = read(fd, in, sizeof in - 1) > 0 && strstr(in, " 200 ") != NULL;
        (void)close(fd);
    }
    int fd = connect_http(address);
    for (int i = 0; i < n_requests; i++) {
        await_turn(b);
        ask_http(b, fd);
    }
    (void)close(fd);
}

int main(int argc, char *argv[]) {
    bool http = argc > 1 && strcmp(argv[1], "http") == 0;
    int first = http ? 4 : 2;
    if ((!http && (argc < 2 || strcmp(argv[1], "direct") != 0)) || argc < first + 2 ||
        argc > first + 3) {
        (void)fprintf(stderr, "usage: latency http HOST:PORT MESH REQUESTS TOKENS [PER-S]\n"
                              "       latency direct REQUESTS TOKENS [PER-S]\n");
        return 2;
    }
    bench b = {.zmq = zmq_ctx_new(), .n_tokens = (int)strtol(argv[first + 1], NULL, 10)};
    long per_s = argc > first + 2 ? strtol(argv[first + 2], NULL, 10) : 0;
    if (per_s > 0) b.step_ns = 1000000000u / (uint64_t)per_s;
    b.ttft.us = calloc(MAX_SAMPLES, sizeof(double));
    b.token.us = calloc(MAX_SAMPLES, sizeof(double));
    if (b.zmq == NULL || b.ttft.us == NULL || b.token.us == NULL) fail("memory");
    int n_requests = (int)strtol(argv[first], NULL, 10);
    pthread_t worker;
    if (http) {
        (void)snprintf(b.mesh, sizeof b.mesh, "%s", argv[3]);
        run_http(&b, argv[2], n_requests, &worker);
    } else {
        run_direct(&b, n_requests, &worker);
    }
    atomic_store(&b.stop, true);
    (void)pthread_join(worker, NULL);
    (void)printf("{\"requests\": %d, \"tokens\": %zu, \"ttft_p50_us\": %.1f, \"ttft_p99_us\": "
                 "%.1f, \"token_p50_us\": %.1f, \"token_p99_us\": %.1f}\n",
                 n_requests, b.token.n, percentile(&b.ttft, 0.5), percentile(&b.ttft, 0.99),
                 percentile(&b.token, 0.5), percentile(&b.token, 0.99));
    free(b.ttft.us);
    free(b.token.us);
    (void)zmq_ctx_term(b.zmq);
    return 0;
}
