/* mesh_security.c - reads CURVE keys and decides about plain text. */
#include "worker/mesh_security.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

static bool is_key(const char *text) {
    uint8_t raw[32];
    bool good = strlen(text) == MESH_KEY_CHARS && zmq_z85_decode(raw, text) != NULL;
    sodium_memzero(raw, sizeof raw);
    return good;
}

/* '#' may stand in a key, so a comment begins with '# '. */
static status find_key(FILE *in, const char *path, char *out, error *err) {
    char line[256];
    status rc = error_set(err, STATUS_BAD_INPUT, "%s: no line with a key of %d characters",
                          path, MESH_KEY_CHARS);
    while (rc != STATUS_OK && fgets(line, sizeof line, in) != NULL) {
        if (strncmp(line, "# ", 2) == 0) continue;
        line[strcspn(line, " \t\r\n")] = '\0';
        if (!is_key(line)) continue;
        memcpy(out, line, MESH_KEY_CHARS + 1);
        rc = STATUS_OK;
    }
    sodium_memzero(line, sizeof line);
    return rc;
}

static status read_secret(const char *path, char *out, error *err) {
    FILE *in = fopen(path, "re");
    if (in == NULL) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    struct stat info;
    status rc;
    if (fstat(fileno(in), &info) != 0) {
        rc = error_set_errno(err, STATUS_IO, errno, "%s", path);
    } else if ((info.st_mode & S_IRWXO) != 0) {
        rc = error_set(err, STATUS_BAD_INPUT,
                       "%s: mode %03o lets others read a secret key; chmod 600 it", path,
                       (unsigned)(info.st_mode & 0777));
    } else {
        rc = find_key(in, path, out, err);
    }
    (void)fclose(in);
    return rc;
}

status mesh_security_init(mesh_security *s, const char *secret_file, const char *server_key,
                          bool allow_plain, error *err) {
    memset(s, 0, sizeof *s);
    s->allow_plain = allow_plain;
    bool has_secret = secret_file != NULL && *secret_file != '\0';
    bool has_server = server_key != NULL && *server_key != '\0';
    if (!has_secret && !has_server) return STATUS_OK;
    if (!has_secret || !has_server) {
        return error_set(err, STATUS_BAD_INPUT, "%s is set without %s: CURVE needs both",
                         has_secret ? "curve.secret_key_file" : "curve.server_key",
                         has_secret ? "curve.server_key" : "curve.secret_key_file");
    }
    if (zmq_has("curve") == 0) {
        return error_set(err, STATUS_UNAVAILABLE, "this libzmq was built without CURVE");
    }
    if (!is_key(server_key)) {
        return error_set(err, STATUS_BAD_INPUT,
                         "curve.server_key = '%.60s' is no public key of %d characters",
                         server_key, MESH_KEY_CHARS);
    }
    memcpy(s->server_key, server_key, MESH_KEY_CHARS + 1);
    status rc = read_secret(secret_file, s->secret_key, err);
    if (rc != STATUS_OK) return rc;
    if (zmq_curve_public(s->public_key, s->secret_key) != 0) {
        return error_set(err, STATUS_BAD_INPUT, "%s: no secret key", secret_file);
    }
    s->curve = true;
    return STATUS_OK;
}

void mesh_security_clear(mesh_security *s) {
    sodium_memzero(s, sizeof *s);
}

static bool is_local(const char *address) {
    if (strncmp(address, "ipc://", 6) == 0 || strncmp(address, "inproc://", 9) == 0)
        return true;
    if (strncmp(address, "tcp://", 6) != 0) return false;
    const char *host = address + 6;
    const char *port = strrchr(host, ':');
    char text[64];
    if (port == NULL || (size_t)(port - host) >= sizeof text) return false;
    memcpy(text, host, (size_t)(port - host));
    text[port - host] = '\0';
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return strcmp(text, "[::1]") == 0 || strcmp(text, "localhost") == 0;
}

/* ZeroMQ takes a port that does not exist and then tries for ever. */
static bool has_port(const char *address) {
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long port = colon == NULL ? 0 : strtol(colon + 1, &end, 10);
    return port > 0 && port < 65536 && *end == '\0' && colon > address + 6;
}

status mesh_security_check(const mesh_security *s, const char *address, error *err) {
    bool tcp = strncmp(address, "tcp://", 6) == 0;
    if (tcp ? !has_port(address) : !is_local(address)) {
        return error_set(err, STATUS_BAD_INPUT, "coordinator = '%s' is no tcp://HOST:PORT",
                         address);
    }
    if (s->curve || s->allow_plain || is_local(address)) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT,
                     "coordinator = '%s' is not on this machine and there are no keys: set "
                     "curve.secret_key_file and curve.server_key, or mesh.allow_plain = true",
                     address);
}

status mesh_security_apply(const mesh_security *s, void *socket, error *err) {
    if (!s->curve) return STATUS_OK;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, s->server_key, MESH_KEY_CHARS + 1) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, s->public_key, MESH_KEY_CHARS + 1) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, s->secret_key, MESH_KEY_CHARS + 1) != 0) {
        return error_set_errno(err, STATUS_IO, errno, "CURVE keys of the socket");
    }
    return STATUS_OK;
}
