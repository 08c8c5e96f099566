/* thread.c - pthreads with a gate: the starter waits until the body is ready. */
#include "common/thread.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the starter waits at.  It lives until the body is ready or over. */
typedef struct thread_gate {
    sem_t opened;
    bool ready; /* written before opened is posted */
} thread_gate;

static _Thread_local thread_gate *own_gate;
static _Thread_local const thread *own_thread; /* NULL on main */

static void open_gate(bool ready) {
    thread_gate *gate = own_gate;
    if (gate == NULL) return;
    own_gate = NULL;
    gate->ready = ready;
    (void)sem_post(&gate->opened); /* the starter frees the gate from here on */
}

static void *thread_main(void *argument) {
    thread *t = argument;
    void (*body)(void *) = t->body;
    void *body_argument = t->argument;
    own_gate = t->gate;
    own_thread = t;
    thread_name_current(t->name);
    body(body_argument);
    open_gate(false);
    return NULL;
}

status thread_start(thread *t, const char *name, void (*body)(void *), void *argument,
                    error *err) {
    memset(t, 0, sizeof *t);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->body = body;
    t->argument = argument;
    thread_gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL) return error_set(err, STATUS_NO_MEMORY, "thread %s: no memory", name);
    (void)sem_init(&gate->opened, 0, 0); /* cannot fail with these arguments */
    t->gate = gate;
    status rc = STATUS_OK;
    int errnum = pthread_create(&t->handle, NULL, thread_main, t);
    if (errnum != 0) {
        rc = error_set_errno(err, STATUS_NO_MEMORY, errnum, "thread %s", name);
    } else {
        t->started = true;
        while (sem_wait(&gate->opened) != 0)
            continue; /* a signal came */
        if (!gate->ready) {
            thread_join(t);
            rc =
                error_set(err, STATUS_UNAVAILABLE, "thread %s ended before it was ready", name);
        }
    }
    (void)sem_destroy(&gate->opened);
    free(gate);
    t->gate = NULL;
    return rc;
}

void thread_ready(void) {
    open_gate(true);
}

void thread_join(thread *t) {
    if (!t->started) return;
    (void)pthread_join(t->handle, NULL);
    t->started = false;
}

bool thread_is_current(const thread *t) {
    return own_thread == t;
}

void thread_name_current(const char *name) {
    char cut[16];
    (void)snprintf(cut, sizeof cut, "%.15s", name);
    (void)pthread_setname_np(pthread_self(), cut);
}
