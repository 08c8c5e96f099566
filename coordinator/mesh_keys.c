#include "coordinator/mesh_keys.h"

#include "common/log.h"
#include "common/thread.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

enum { KEY_TEXT = 40, KEY_BYTES = 32, MAX_ALLOWED = 10000 };

typedef struct allowed {
    unsigned char key[KEY_BYTES];
    char name[MESH_NAME_SIZE];
} allowed;

struct mesh_keys {
    char secret[KEY_TEXT + 1];
    pthread_mutex_t lock; /* of the list: `io` changes it, `zap` reads it */
    allowed *list;
    size_t n_list;
};

/* The words of a line; a comment or blank line gives n = 0.  '#' may stand in a key. */
static int split(char *line, char *words[3]) {
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '#' && (line[1] == ' ' || line[1] == '\0')) return 0;
    int n = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL && n < 3;
         word = strtok_r(NULL, " \t", &rest)) {
        words[n++] = word;
    }
    return n;
}

static status take_secret(mesh_keys *keys, const char *path, int number, char *words[3], int n,
                          error *err) {
    unsigned char raw[KEY_BYTES];
    bool ok = n == 1 && keys->secret[0] == '\0' && strlen(words[0]) == KEY_TEXT &&
              zmq_z85_decode(raw, words[0]) != NULL;
    explicit_bzero(raw, sizeof raw);
    if (!ok) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s:%d: expected one secret key, 40 characters of Z85", path, number);
    }
    memcpy(keys->secret, words[0], KEY_TEXT + 1);
    return STATUS_OK;
}

static status take_allowed(mesh_keys *keys, const char *path, int number, char *words[3], int n,
                           error *err) {
    allowed *list = realloc(keys->list, (keys->n_list + 1) * sizeof *list);
    if (list == NULL) return error_set(err, STATUS_NO_MEMORY, "%s: no memory", path);
    keys->list = list;
    allowed *a = &list[keys->n_list];
    if (n != 2 || strlen(words[0]) != KEY_TEXT || zmq_z85_decode(a->key, words[0]) == NULL ||
        strlen(words[1]) >= MESH_NAME_SIZE || keys->n_list >= MAX_ALLOWED) {
        return error_set(err, STATUS_BAD_INPUT,
                         "%s:%d: expected `KEY NODE-NAME` with a key of 40 characters of Z85",
                         path, number);
    }
    (void)snprintf(a->name, sizeof a->name, "%s", words[1]);
    keys->n_list++;
    return STATUS_OK;
}

static status read_lines(mesh_keys *keys, const char *path, bool secret,
                         status (*take)(mesh_keys *, const char *, int, char *[3], int,
                                        error *),
                         error *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    struct stat info;
    if (secret && fstat(fileno(file), &info) == 0 && (info.st_mode & S_IRWXO) != 0) {
        (void)fclose(file);
        return error_set(err, STATUS_BAD_INPUT,
                         "%s: mode %03o lets others read a secret key; chmod 600 it", path,
                         (unsigned)(info.st_mode & 0777));
    }
    char line[400];
    status rc = STATUS_OK;
    for (int number = 1; rc == STATUS_OK && fgets(line, sizeof line, file) != NULL; number++) {
        char *words[3];
        int n = split(line, words);
        if (n > 0) rc = take(keys, path, number, words, n, err);
    }
    explicit_bzero(line, sizeof line);
    (void)fclose(file);
    return rc;
}

status mesh_keys_read(mesh_keys **out, const char *secret_file, const char *allow_file,
                      error *err) {
    *out = NULL;
    mesh_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL) return error_set(err, STATUS_NO_MEMORY, "mesh: no memory");
    (void)pthread_mutex_init(&keys->lock, NULL); /* cannot fail with these attributes */
    status rc = read_lines(keys, secret_file, true, take_secret, err);
    if (rc == STATUS_OK && keys->secret[0] == '\0') {
        rc = error_set(err, STATUS_BAD_INPUT, "%s: holds no key", secret_file);
    }
    if (rc == STATUS_OK) rc = read_lines(keys, allow_file, false, take_allowed, err);
    if (rc != STATUS_OK) {
        mesh_keys_free(keys);
        return rc;
    }
    *out = keys;
    return STATUS_OK;
}

void mesh_keys_free(mesh_keys *keys) {
    if (keys == NULL) return;
    explicit_bzero(keys->secret, sizeof keys->secret);
    free(keys->list);
    (void)pthread_mutex_destroy(&keys->lock);
    free(keys);
}

status mesh_keys_apply(const mesh_keys *keys, void *socket, error *err) {
    int server = 1;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &server, sizeof server) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, KEY_TEXT + 1) != 0) {
        return error_set(err, STATUS_IO, "mesh: CURVE: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

bool mesh_keys_lookup(mesh_keys *keys, const unsigned char key[32], char name[MESH_NAME_SIZE]) {
    bool found = false;
    (void)pthread_mutex_lock(&keys->lock);
    for (size_t i = 0; i < keys->n_list && !found; i++) {
        found = memcmp(keys->list[i].key, key, KEY_BYTES) == 0;
        if (found) memcpy(name, keys->list[i].name, MESH_NAME_SIZE);
    }
    (void)pthread_mutex_unlock(&keys->lock);
    return found;
}

bool mesh_keys_allow(mesh_keys *keys, const char *name) {
    for (size_t i = 0; i < keys->n_list; i++) { /* in `io`, which alone changes the list */
        if (strcmp(keys->list[i].name, name) == 0) return true;
    }
    return false;
}

static bool holds(const mesh_keys *keys, const allowed *a) {
    for (size_t i = 0; i < keys->n_list; i++) {
        if (memcmp(keys->list[i].key, a->key, KEY_BYTES) == 0 &&
            strcmp(keys->list[i].name, a->name) == 0) {
            return true;
        }
    }
    return false;
}

status mesh_keys_reload(mesh_keys *keys, const char *allow_file, void *context,
                        void (*on_removed)(void *context, const char *name), error *err) {
    mesh_keys fresh = {.n_list = 0};
    status rc = read_lines(&fresh, allow_file, false, take_allowed, err);
    if (rc != STATUS_OK) {
        free(fresh.list);
        return rc;
    }
    mesh_keys old = {.list = keys->list, .n_list = keys->n_list};
    (void)pthread_mutex_lock(&keys->lock);
    keys->list = fresh.list;
    keys->n_list = fresh.n_list;
    (void)pthread_mutex_unlock(&keys->lock);
    for (size_t i = 0; i < old.n_list; i++) {
        if (!holds(keys, &old.list[i])) on_removed(context, old.list[i].name);
    }
    free(old.list);
    return STATUS_OK;
}

/* ------------------------------------------------------------ the gate */

struct mesh_gate {
    thread thread;
    void *context;
    void *socket;
    mesh_keys *keys;
};

enum { ZAP_FRAMES = 7, ZAP_FRAME_SIZE = 256 };

/* Version, request id, domain, address, identity, mechanism, credential. */
static int receive_request(void *socket, char frames[ZAP_FRAMES][ZAP_FRAME_SIZE],
                           int lengths[ZAP_FRAMES]) {
    int n = 0;
    for (;;) {
        char spare[ZAP_FRAME_SIZE];
        char *into = n < ZAP_FRAMES ? frames[n] : spare;
        int length = zmq_recv(socket, into, ZAP_FRAME_SIZE, 0);
        if (length < 0) return -1;
        if (n < ZAP_FRAMES) lengths[n] = length > ZAP_FRAME_SIZE ? ZAP_FRAME_SIZE : length;
        n++;
        int more = 0;
        size_t size = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0 || more == 0) return n;
    }
}

static void answer(void *socket, const char *request_id, int id_length, const char *name) {
    const char *code = name != NULL ? "200" : "400";
    const char *text = name != NULL ? "OK" : "not on the allow-list";
    const char *user = name != NULL ? name : "";
    (void)zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    (void)zmq_send(socket, request_id, (size_t)id_length, ZMQ_SNDMORE);
    (void)zmq_send(socket, code, 3, ZMQ_SNDMORE);
    (void)zmq_send(socket, text, strlen(text), ZMQ_SNDMORE);
    (void)zmq_send(socket, user, strlen(user), ZMQ_SNDMORE);
    (void)zmq_send(socket, "", 0, 0);
}

static void gate_body(void *argument) {
    mesh_gate *gate = argument;
    thread_ready();
    char frames[ZAP_FRAMES][ZAP_FRAME_SIZE];
    int lengths[ZAP_FRAMES] = {0};
    int n;
    while ((n = receive_request(gate->socket, frames, lengths)) >= 0) {
        char found[MESH_NAME_SIZE];
        const char *name = NULL;
        if (n == ZAP_FRAMES && lengths[5] == 5 && memcmp(frames[5], "CURVE", 5) == 0 &&
            lengths[6] == KEY_BYTES &&
            mesh_keys_lookup(gate->keys, (const unsigned char *)frames[6], found)) {
            name = found;
        }
        if (name == NULL) {
            log_warn("mesh-refused", "address=%.*s reason=\"key is not on the allow-list\"",
                     n > 3 ? lengths[3] : 0, frames[3]);
        }
        answer(gate->socket, frames[1], n > 1 ? lengths[1] : 0, name);
    }
    (void)zmq_close(gate->socket);
}

status mesh_gate_open(mesh_gate **out, void *zmq_context, mesh_keys *keys, error *err) {
    *out = NULL;
    mesh_gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL) return error_set(err, STATUS_NO_MEMORY, "mesh: no memory");
    gate->context = zmq_context;
    gate->keys = keys;
    gate->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (gate->socket == NULL || zmq_bind(gate->socket, "inproc://zeromq.zap.01") != 0) {
        status rc = error_set(err, STATUS_IO, "mesh: ZAP: %s", zmq_strerror(errno));
        if (gate->socket != NULL) (void)zmq_close(gate->socket);
        free(gate);
        return rc;
    }
    status rc = thread_start(&gate->thread, "zap", gate_body, gate, err);
    if (rc != STATUS_OK) {
        (void)zmq_close(gate->socket);
        free(gate);
        return rc;
    }
    *out = gate;
    return STATUS_OK;
}

void mesh_gate_close(mesh_gate *gate) {
    if (gate == NULL) return;
    (void)zmq_ctx_shutdown(gate->context);
    thread_join(&gate->thread);
    free(gate);
}
