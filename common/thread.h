/* thread.h - named threads that own their data, and a check that one runs where it should.
 *
 * A constructor that starts a thread returns when the thread is ready, a
 * destructor when it is gone: thread_start() waits for the first thread_ready()
 * inside the body.
 */
#ifndef SILICEO_COMMON_THREAD_H
#define SILICEO_COMMON_THREAD_H

#include "common/error.h"
#include <pthread.h>
#include <stdbool.h>

typedef struct thread {
    pthread_t handle;
    bool started;
    char name[16];
    void (*body)(void *argument);
    void *argument;
    struct thread_gate *gate;
} thread;

/* Start `body` under a name (<= 15 bytes) and wait until it calls
 * thread_ready().  On failure nothing runs. */
status thread_start(thread *t, const char *name, void (*body)(void *), void *argument,
                    error *err);
/* Called once by the body: construction is over. */
void thread_ready(void);
/* Wait for the end.  Accepts a zeroed thread and a second call. */
void thread_join(thread *t);

/* Is the caller the thread that was started as t? */
bool thread_is_current(const thread *t);
/* Name the calling thread (main). */
void thread_name_current(const char *name);

#endif
