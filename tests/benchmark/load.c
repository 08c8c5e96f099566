/* load.c - a load program for what streams tokens over HTTP, and a plain server of such streams.
 *
 *     load streams HOST:PORT N RATE SECONDS      N streams of RATE * SECONDS tokens each
 *     load requests HOST:PORT N SECONDS [PER-S]  small requests on N kept connections, as fast as
 *                                                they go or PER-S a second, evenly spaced
 *     load serve HOST:PORT                       the plain server: what a proxy stands before
 *
 * A token's text is <NS>, the monotonic time of its sending, so that both ends must be on
 * one machine.  `serve` reads max_tokens and rate from the request and streams the same
 * way; a request with "stream":false is answered at once.  Prints one JSON object: tokens_lost
 * are all that did not come, tokens_lost_silently those of streams that ended with [DONE].
 * One thread, one epoll.
 */
#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, MAX_SAMPLES = 4 << 20, TEXT = 16384, MAX_EVENTS = 256 };

typedef struct connection {
    int fd;
    size_t n_in;
    char in[TEXT + 1];
    uint64_t asked_ns, last_sent_ns, last_seen_ns, next_ns;
    unsigned n_tokens, wanted;
    bool waiting, done;
    /* Of a stream: where in its reply it is, and what is left of that. */
    enum { IN_HEAD, IN_SIZE, IN_CHUNK } part;
    size_t left;
} connection;

static connection *connections[MAX_CONNECTIONS];
static float *latency_us, *gap_us;
static size_t n_latency, n_gap;
static int epoll_fd;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void add(float *samples, size_t *n, double us) {
    if (*n < MAX_SAMPLES) samples[(*n)++] = (float)us;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double quantile(float *samples, size_t n, double q) {
    if (n == 0) return 0;
    qsort(samples, n, sizeof *samples, by_size);
    return (double)samples[(size_t)(q * (double)(n - 1))];
}

static struct sockaddr_in address_of(const char *text) {
    char host[64];
    const char *colon = strrchr(text, ':');
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (colon == NULL || (size_t)(colon - text) >= sizeof host) fail(text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) fail(text);
    return to;
}

static void watch(connection *c, int fd) {
    int one = 1;
    c->fd = fd;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll");
}

static void dial(connection *c, const char *address) {
    struct sockaddr_in to = address_of(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) fail(address);
    watch(c, fd);
}

static void open_connections(const char *address, int n) {
    for (int i = 0; i < n; i++) {
        connections[i] = calloc(1, sizeof(connection));
        if (connections[i] == NULL) fail("memory");
        dial(connections[i], address);
    }
}

static void send_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t n = send(fd, text, length, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return;
        if (n > 0) {
            text += n;
            length -= (size_t)n;
        }
    }
}

static void ask(connection *c, bool stream, unsigned n_tokens, int rate) {
    char body[300], out[600];
    int n = snprintf(body, sizeof body,
                     "{\"model\":\"fake-model\",\"stream\":%s,\"max_tokens\":%u,\"messages\":[{"
                     "\"role\":\"user\",\"content\":\"rate=%d\"}]}",
                     stream ? "true" : "false", n_tokens, rate);
    n = snprintf(out, sizeof out,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                 "application/json\r\nContent-Length: %d\r\n\r\n%s",
                 n, body);
    c->asked_ns = clock_monotonic_ns();
    c->waiting = true;
    c->n_in = 0;
    send_all(c->fd, out, (size_t)n);
}

/* Whole stamps in what has come are tokens that arrived now; the rest is kept. */
static void take_tokens(connection *c) {
    uint64_t now = clock_monotonic_ns();
    char *from = c->in, *end = NULL;
    c->in[c->n_in] = '\0';
    for (char *at = strchr(from, '<'); at != NULL; at = strchr(from, '<')) {
        uint64_t sent = strtoull(at + 1, &end, 10);
        if (*end == '\0') break;
        from = end;
        if (*end != '>') continue;
        add(latency_us, &n_latency, (double)(now - sent) / 1000);
        if (c->n_tokens++ > 0) {
            double gap = (double)(now - c->last_seen_ns) - (double)(sent - c->last_sent_ns);
            add(gap_us, &n_gap, gap > 0 ? gap / 1000 : 0);
        }
        c->last_sent_ns = sent;
        c->last_seen_ns = now;
    }
    if (strstr(from, "[DONE]") != NULL) c->done = true;
    char *keep = strrchr(from, '\n'); /* half a line waits for its other half */
    size_t left = keep == NULL ? strlen(from) : strlen(keep);
    memmove(c->in, c->in + c->n_in - left, left);
    c->n_in = left;
}

/* The content of a stream without its head and the framing of its chunks, which may stand in the
 * midst of a token.  left counts the line breaks of the head, a chunk's size, or its bytes with
 * the line break behind them. */
static void take_body(connection *c, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char b = bytes[i];
        if (c->part == IN_HEAD) {
            if (b != '\r') c->left = b == '\n' ? c->left + 1 : 0;
            if (c->left < 2) continue;
            c->part = IN_SIZE;
            c->left = 0;
        } else if (c->part == IN_SIZE) {
            if (b == '\n' && c->left > 0) {
                c->part = IN_CHUNK;
                c->left += 2;
            } else if (b > ' ') {
                c->left = c->left * 16 + (size_t)(b <= '9' ? b - '0' : (b | 32) - 'a' + 10);
            }
        } else {
            if (c->left > 2 && c->n_in < TEXT) c->in[c->n_in++] = b;
            if (--c->left == 0) c->part = IN_SIZE;
        }
    }
}

/* Room for what half a line leaves and what comes at once. */
static bool receive_stream(connection *c) {
    char bytes[TEXT / 2];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    take_body(c, bytes, (size_t)n);
    return true;
}

/* False: the other side is gone. */
static bool receive(connection *c) {
    ssize_t n = recv(c->fd, c->in + c->n_in, TEXT - c->n_in, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    c->n_in += (size_t)n;
    c->in[c->n_in] = '\0';
    return true;
}

static void leave(connection *c) {
    (void)close(c->fd);
    c->fd = -1;
    c->done = true;
}

static void streams(const char *address, int n, int rate, int seconds) {
    struct epoll_event events[MAX_EVENTS];
    unsigned wanted = (unsigned)(rate * seconds);
    open_connections(address, n);
    uint64_t begin = clock_monotonic_ms(), limit = begin + (uint64_t)seconds * 2000 + 20000;
    int asked = 0, over = 0, whole = 0;
    long silent = 0; /* of streams that say they are whole */
    while (over < n && clock_monotonic_ms() < limit) {
        /* They begin over a second, as people do not all press a key at once. */
        while (asked < n &&
               (clock_monotonic_ms() - begin) * (uint64_t)n >= (uint64_t)asked * 1000)
            ask(connections[asked++], true, wanted, rate);
        int k = epoll_wait(epoll_fd, events, MAX_EVENTS, asked < n ? 1 : 100);
        for (int i = 0; i < k; i++) {
            connection *c = events[i].data.ptr;
            bool alive = receive_stream(c);
            take_tokens(c);
            whole += c->done;
            if (c->done) silent += (long)wanted - (long)c->n_tokens;
            if (!alive || c->done) {
                leave(c);
                over++;
            }
        }
    }
    unsigned long tokens = 0;
    for (int i = 0; i < n; i++)
        tokens += connections[i]->n_tokens;
    (void)printf("{\"streams\":%d,\"whole\":%d,\"tokens\":%lu,\"tokens_lost\":%ld,"
                 "\"tokens_lost_silently\":%ld,\"token_p50_ms\":%.3f,"
                 "\"token_p99_ms\":%.3f,\"added_gap_p99_ms\":%.3f}\n",
                 n, whole, tokens, (long)n * (long)wanted - (long)tokens, silent,
                 quantile(latency_us, n_latency, 0.5) / 1000,
                 quantile(latency_us, n_latency, 0.99) / 1000,
                 quantile(gap_us, n_gap, 0.99) / 1000);
}

/* A reply with Content-Length is whole. */
static bool is_whole(const connection *c) {
    const char *head = strstr(c->in, "\r\n\r\n");
    const char *length = strcasestr(c->in, "content-length:");
    if (head == NULL || length == NULL || length > head) return false;
    return c->n_in - (size_t)(head + 4 - c->in) >= strtoul(length + 15, NULL, 10);
}

static void requests(const char *address, int n, int seconds, int per_s) {
    struct epoll_event events[MAX_EVENTS];
    unsigned long done = 0, failed = 0;
    open_connections(address, n);
    uint64_t begin = clock_monotonic_ns(), end = begin + (uint64_t)seconds * 1000000000u;
    uint64_t step = per_s > 0 ? 1000000000u / (uint64_t)per_s : 0, due = begin;
    for (int i = 0; i < n && per_s == 0; i++)
        ask(connections[i], false, 1, 0);
    for (int turn = 0; clock_monotonic_ns() < end;) {
        for (; per_s > 0 && clock_monotonic_ns() >= due; due += step) {
            connection *c = connections[turn++ % n];
            if (c->waiting) failed++; /* too slow for this pace */
            if (!c->waiting) ask(c, false, 1, 0);
        }
        uint64_t now = clock_monotonic_ns(), nap = per_s == 0  ? 10000000u
                                                   : due > now ? due - now
                                                               : 0;
        struct timespec until = {0, (long)nap};
        int k = epoll_pwait2(epoll_fd, events, MAX_EVENTS, &until, NULL);
        for (int i = 0; i < k; i++) {
            connection *c = events[i].data.ptr;
            if (!receive(c)) { /* counted, and replaced */
                failed++;
                (void)close(c->fd);
                dial(c, address);
                c->waiting = false;
                if (per_s == 0) ask(c, false, 1, 0);
                continue;
            }
            if (!is_whole(c)) continue;
            add(latency_us, &n_latency, (double)(clock_monotonic_ns() - c->asked_ns) / 1000);
            if (strncmp(c->in, "HTTP/1.1 200", 12) != 0) failed++;
            done++;
            c->waiting = false;
            if (per_s == 0) ask(c, false, 1, 0);
        }
    }
    double took = (double)(clock_monotonic_ns() - begin) * 1e-9;
    (void)printf(
        "{\"requests\":%lu,\"failed\":%lu,\"per_s\":%.0f,\"p50_ms\":%.3f,\"p99_ms\":%.3f}\n",
        done, failed, (double)done / took, quantile(latency_us, n_latency, 0.5) / 1000,
        quantile(latency_us, n_latency, 0.99) / 1000);
}

/* ------------------------------------------------------------ the plain server */

static uint64_t rate_of(const char *text) {
    const char *at = strstr(text, "rate=");
    uint64_t rate = at != NULL ? strtoull(at + 5, NULL, 10) : 0;
    return rate > 0 ? rate : 20;
}

static void take_request(connection *c) {
    if (strstr(c->in, "]}") == NULL) return; /* the end of its body */
    if (strstr(c->in, "\"stream\":false") != NULL) {
        static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                    "Content-Length: 15\r\n\r\n{\"text\":\"t0 \"}\n";
        send_all(c->fd, reply, sizeof reply - 1);
    } else {
        static const char head[] =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n";
        const char *max = strstr(c->in, "\"max_tokens\":");
        c->wanted = max != NULL ? (unsigned)strtoul(max + 13, NULL, 10) : 16;
        c->n_tokens = 0;
        c->last_sent_ns = 1000000000u / rate_of(c->in);
        c->next_ns = clock_monotonic_ns();
        send_all(c->fd, head, sizeof head - 1);
        c->waiting = true;
    }
    c->n_in = 0;
}

static void send_token(connection *c) {
    char event[400], out[500];
    int n = snprintf(
        event, sizeof event,
        "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"fake-model\",\"choices\":[{\"index\":0,"
        "\"delta\":{\"content\":\"<%llu>\"},\"finish_reason\":null}]}\n\n%s",
        (unsigned long long)clock_monotonic_ns(),
        ++c->n_tokens == c->wanted ? "data: [DONE]\n\n" : "");
    int m = snprintf(out, sizeof out, "%x\r\n%s\r\n%s", (unsigned)n, event,
                     c->n_tokens == c->wanted ? "0\r\n\r\n" : "");
    send_all(c->fd, out, (size_t)m);
    c->next_ns += c->last_sent_ns;
    if (c->n_tokens == c->wanted) c->waiting = false;
}

static void serve(const char *address) {
    struct sockaddr_in at = address_of(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, n = 0;
    struct epoll_event events[MAX_EVENTS], event = {.events = EPOLLIN};
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (const struct sockaddr *)&at, sizeof at) != 0 ||
        listen(listener, 4096) != 0 ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event) != 0) {
        fail(address);
    }
    (void)printf("ready\n");
    (void)fflush(stdout);
    for (;;) {
        int k = epoll_wait(epoll_fd, events, MAX_EVENTS, 1);
        for (int i = 0; i < k; i++) {
            connection *c = events[i].data.ptr;
            if (c == NULL) {
                int fd = accept(listener, NULL, NULL);
                if (fd < 0 || n == MAX_CONNECTIONS) continue;
                connections[n] = calloc(1, sizeof(connection));
                if (connections[n] == NULL) fail("memory");
                watch(connections[n++], fd);
            } else if (!receive(c)) {
                leave(c);
                c->waiting = false;
            } else {
                take_request(c);
            }
        }
        uint64_t now = clock_monotonic_ns();
        for (int i = 0; i < n; i++) {
            if (connections[i]->waiting && now >= connections[i]->next_ns)
                send_token(connections[i]);
        }
    }
}

int main(int argc, char *argv[]) {
    struct rlimit files = {16384, 16384};
    (void)setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    latency_us = calloc(MAX_SAMPLES, sizeof(float));
    gap_us = calloc(MAX_SAMPLES, sizeof(float));
    if (latency_us == NULL || gap_us == NULL) fail("memory");
    if (argc == 6 && strcmp(argv[1], "streams") == 0)
        streams(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (argc >= 5 && strcmp(argv[1], "requests") == 0)
        requests(argv[2], atoi(argv[3]), atoi(argv[4]), argc > 5 ? atoi(argv[5]) : 0);
    else if (argc == 3 && strcmp(argv[1], "serve") == 0)
        serve(argv[2]);
    else
        return 2;
    return 0;
}
