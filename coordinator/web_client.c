#include "coordinator/web_client.h"

#include "common/log.h"
#include "common/ring.h"
#include "common/thread.h"
#include <curl/curl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING_ITEMS = 4096, POLL_MS = 1000, PRESSED_MS = 2 };

typedef struct web_order {
    struct web_order *next;
    web_call *call; /* NULL: cancel */
    uint64_t cancel_id;
} web_order;

struct web_client {
    ring orders, events;
    thread thread;
    void *io_context;
    uint32_t connect_ms;
    atomic_bool stop;
    /* io's: orders that found the ring full */
    web_order *spill, **spill_end;
    /* the thread's */
    CURLM *multi;
    web_call *calls;
    web_event *held, **held_end; /* events that found the ring full */
};

/* ------------------------------------------------------------ the thread: events */

static bool push_held(web_client *c) {
    while (c->held != NULL) {
        web_event *event = c->held, *next = event->next;
        if (!ring_push(&c->events, event)) return false;
        c->held = next;
    }
    c->held_end = &c->held;
    return true;
}

void web_client_post(web_client *c, web_event *event) {
    event->next = NULL;
    if (push_held(c) && ring_push(&c->events, event)) return;
    *c->held_end = event;
    c->held_end = &event->next;
}

long web_call_status(const web_call *call) {
    long code = 0;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* ------------------------------------------------------------ the thread: calls */

static size_t on_bytes(char *bytes, size_t size, size_t n, void *context) {
    web_call *call = context;
    return call->on_data(call, bytes, size * n) ? size * n : 0;
}

static void end_call(web_client *c, web_call *call, const web_result *result) {
    if (call->easy != NULL) {
        (void)curl_multi_remove_handle(c->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    for (web_call **at = &c->calls; *at != NULL; at = &(*at)->next) {
        if (*at != call) continue;
        *at = call->next;
        break;
    }
    free(call->url);
    free(call->body);
    call->on_end(call, result);
}

static bool add_header(web_call *call, const char *line) {
    struct curl_slist *list = curl_slist_append(call->headers, line);
    if (list != NULL) call->headers = list;
    return list != NULL;
}

static bool set_up(web_call *call) {
    CURL *easy = call->easy;
    bool ok = add_header(call, "Expect:");
    if (call->authorization != NULL) ok = ok && add_header(call, call->authorization);
    if (call->forwarded) ok = ok && add_header(call, WEB_FORWARDED ": 1");
    if (call->body != NULL) {
        ok = ok && add_header(call, "Content-Type: application/json");
        ok = ok && curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                                    (curl_off_t)call->n_body) == CURLE_OK;
        ok = ok && curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body) == CURLE_OK;
    }
    if (call->unix_socket != NULL)
        ok = ok &&
             curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, call->unix_socket) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_URL, call->url) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                                (long)call->client->connect_ms) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->limit_ms) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_PRIVATE, call) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEDATA, call) == CURLE_OK;
    return ok && curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes) == CURLE_OK;
}

static void begin_call(web_client *c, web_call *call) {
    error err = {0};
    call->next = c->calls;
    c->calls = call;
    call->client = c;
    bool ok = call->on_start == NULL || call->on_start(call, &err);
    if (ok) {
        call->easy = curl_easy_init();
        ok = call->easy != NULL && set_up(call) &&
             curl_multi_add_handle(c->multi, call->easy) == CURLM_OK;
        if (!ok) (void)error_set(&err, STATUS_NO_MEMORY, "libcurl does not begin");
    }
    if (ok) return;
    web_result result = {.error_text = err.text};
    end_call(c, call, &result);
}

static void cancel_call(web_client *c, uint64_t id) {
    for (web_call *call = c->calls; call != NULL; call = call->next) {
        if (call->cancel_id != id) continue;
        web_result result = {.cancelled = true, .error_text = "cancelled"};
        end_call(c, call, &result);
        return;
    }
}

static void take_orders(web_client *c) {
    for (web_order *o; (o = ring_pop(&c->orders)) != NULL;) {
        if (o->call != NULL)
            begin_call(c, o->call);
        else
            cancel_call(c, o->cancel_id);
        free(o);
    }
}

static void take_ends(web_client *c) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE) continue;
        web_call *call = NULL;
        CURLcode code = m->data.result;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        web_result result = {.http_status = web_call_status(call),
                             .refused = code == CURLE_COULDNT_CONNECT ||
                                        code == CURLE_COULDNT_RESOLVE_HOST,
                             .error_text = code == CURLE_OK ? NULL : curl_easy_strerror(code)};
        end_call(c, call, &result);
    }
}

static void curl_body(void *argument) {
    web_client *c = argument;
    thread_ready();
    while (!atomic_load(&c->stop)) {
        bool pressed = !push_held(c);
        take_orders(c);
        int running = 0;
        if (!pressed) (void)curl_multi_perform(c->multi, &running);
        take_ends(c);
        struct curl_waitfd wait = {.fd = c->orders.event_fd, .events = CURL_WAIT_POLLIN};
        int ready = 0;
        if (pressed) {
            /* Only `io` can help: look again in a moment, and read from no server till then. */
            struct timespec moment = {.tv_nsec = PRESSED_MS * 1000000L};
            (void)nanosleep(&moment, NULL);
        } else {
            (void)curl_multi_poll(c->multi, &wait, 1, c->held != NULL ? PRESSED_MS : POLL_MS,
                                  &ready);
        }
        ring_clear_event(&c->orders);
    }
    take_orders(c);
    web_result result = {.cancelled = true, .error_text = "the coordinator ends"};
    while (c->calls != NULL)
        end_call(c, c->calls, &result);
}

/* ------------------------------------------------------------ io */

static bool push_spilled(web_client *c) {
    while (c->spill != NULL) {
        web_order *o = c->spill, *next = o->next;
        if (!ring_push(&c->orders, o)) return false;
        c->spill = next;
    }
    c->spill_end = &c->spill;
    return true;
}

static bool give(web_client *c, web_call *call, uint64_t cancel_id) {
    web_order *o = calloc(1, sizeof *o);
    if (o == NULL) return false;
    o->call = call;
    o->cancel_id = cancel_id;
    if (push_spilled(c) && ring_push(&c->orders, o)) return true;
    *c->spill_end = o;
    c->spill_end = &o->next;
    return true;
}

bool web_client_start(web_client *c, web_call *call) {
    return give(c, call, 0);
}

void web_client_cancel(web_client *c, uint64_t cancel_id) {
    if (!give(c, NULL, cancel_id))
        log_error("web-cancel-lost", "call=%llu error=\"no memory\"",
                  (unsigned long long)cancel_id);
}

status web_client_open(web_client **out, void *io_context, uint32_t connect_ms, error *err) {
    *out = NULL;
    _Static_assert(sizeof(web_client) % alignof(web_client) == 0, "aligned_alloc's condition");
    web_client *c = aligned_alloc(alignof(web_client), sizeof *c);
    if (c == NULL) return error_set(err, STATUS_NO_MEMORY, "web client: no memory");
    memset(c, 0, sizeof *c);
    c->io_context = io_context;
    c->connect_ms = connect_ms;
    c->orders.event_fd = c->events.event_fd = -1;
    c->spill_end = &c->spill;
    c->held_end = &c->held;
    status rc = STATUS_OK;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || (c->multi = curl_multi_init()) == NULL)
        rc = error_set(err, STATUS_NO_MEMORY, "web client: libcurl does not start");
    if (rc == STATUS_OK) rc = ring_init(&c->orders, RING_ITEMS, err);
    if (rc == STATUS_OK) rc = ring_init(&c->events, RING_ITEMS, err);
    if (rc == STATUS_OK) rc = thread_start(&c->thread, "curl", curl_body, c, err);
    if (rc != STATUS_OK) {
        web_client_close(c);
        return rc;
    }
    *out = c;
    return STATUS_OK;
}

int web_client_fd(const web_client *c) {
    return c->events.event_fd;
}

void web_client_drain(web_client *c) {
    if (c == NULL) return;
    (void)push_spilled(c);
    ring_clear_event(&c->events);
    for (web_event *event; (event = ring_pop(&c->events)) != NULL;)
        event->deliver(c->io_context, event);
}

static void drop_events(web_client *c) {
    for (web_event *event; (event = ring_pop(&c->events)) != NULL;)
        event->drop(event);
    while (c->held != NULL) {
        web_event *event = c->held;
        c->held = event->next;
        event->drop(event);
    }
}

void web_client_close(web_client *c) {
    if (c == NULL) return;
    if (c->thread.started) {
        /* What is still spilled is started only to be ended, which frees it. */
        while (!push_spilled(c)) {
            struct timespec moment = {.tv_nsec = 1000000};
            (void)nanosleep(&moment, NULL);
        }
        atomic_store(&c->stop, true);
        ring_wake(&c->orders);
        thread_join(&c->thread);
        drop_events(c);
    }
    if (c->multi != NULL) (void)curl_multi_cleanup(c->multi);
    curl_global_cleanup();
    ring_release(&c->orders);
    ring_release(&c->events);
    free(c);
}
