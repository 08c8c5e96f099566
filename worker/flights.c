/* flights.c - a small table searched from end to end: it has no more places than
 * sequences and their queue. */
#include "worker/flights.h"

#include <stdlib.h>
#include <string.h>

status flights_init(flights *f, size_t n_places, error *err) {
    memset(f, 0, sizeof *f);
    f->places = calloc(n_places, sizeof *f->places);
    if (f->places == NULL) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu requests", n_places);
    }
    f->n_places = n_places;
    return STATUS_OK;
}

void flights_release(flights *f) {
    free(f->places);
    memset(f, 0, sizeof *f);
}

bool flights_is_stale(const flights *f, size_t peer, uint64_t request, uint64_t epoch) {
    for (size_t i = 0; i < f->n_places; i++) {
        const flight *p = &f->places[i];
        if (p->key != 0 && !p->muted && p->peer == peer && p->request == request &&
            p->epoch >= epoch) {
            return true;
        }
    }
    size_t n = f->n_ended < FLIGHTS_REMEMBERED ? f->n_ended : FLIGHTS_REMEMBERED;
    for (size_t i = 0; i < n; i++) {
        if (f->ended[i].peer == peer && f->ended[i].request == request &&
            f->ended[i].epoch >= epoch) {
            return true;
        }
    }
    return false;
}

flight *flights_add(flights *f, size_t peer, uint64_t request, uint64_t epoch) {
    for (size_t i = 0; i < f->n_places; i++) {
        flight *p = &f->places[i];
        if (p->key != 0) continue;
        *p = (flight){.key = ++f->last_key, .peer = peer, .request = request, .epoch = epoch};
        f->n_used++;
        return p;
    }
    return NULL;
}

void flights_end(flights *f, flight *ended) {
    if (!ended->muted) { /* a muted one may be of a process whose numbers mean nothing now */
        size_t at = f->n_ended++ % FLIGHTS_REMEMBERED;
        f->ended[at].peer = ended->peer;
        f->ended[at].request = ended->request;
        f->ended[at].epoch = ended->epoch;
    }
    memset(ended, 0, sizeof *ended);
    f->n_used--;
}

flight *flights_by_key(flights *f, uint64_t key) {
    for (size_t i = 0; i < f->n_places; i++) {
        if (f->places[i].key == key) return key == 0 ? NULL : &f->places[i];
    }
    return NULL;
}

flight *flights_by_request(flights *f, size_t peer, uint64_t request) {
    for (size_t i = 0; i < f->n_places; i++) {
        flight *p = &f->places[i];
        if (p->key != 0 && !p->muted && p->peer == peer && p->request == request) return p;
    }
    return NULL;
}

size_t flights_of_peer(const flights *f, size_t peer) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_places; i++)
        n += f->places[i].key != 0 && f->places[i].peer == peer;
    return n;
}

void flights_forget(flights *f, size_t peer) {
    for (size_t i = 0; i < FLIGHTS_REMEMBERED; i++) {
        if (f->ended[i].peer == peer) memset(&f->ended[i], 0, sizeof f->ended[i]);
    }
}

void credit_split(uint64_t total, credit_share *shares, size_t n_shares) {
    uint64_t n_connected = 0, n_working = 0, spare = 0, given = 0;
    for (size_t i = 0; i < n_shares; i++) {
        n_connected += shares[i].connected;
        n_working += shares[i].connected && !shares[i].idle;
    }
    for (size_t i = 0; i < n_shares; i++) {
        credit_share *s = &shares[i];
        s->grant = 0;
        if (!s->connected || total == 0) continue;
        s->grant = total / n_connected + (given++ < total % n_connected);
        if (s->grant == 0) s->grant = 1;
        if (s->idle && n_working > 0) {
            spare += s->grant - 1;
            s->grant = 1;
        }
    }
    given = 0;
    for (size_t i = 0; i < n_shares && n_working > 0; i++) {
        if (!shares[i].connected || shares[i].idle || total == 0) continue;
        shares[i].grant += spare / n_working + (given++ < spare % n_working);
    }
}
