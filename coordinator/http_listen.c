#include "coordinator/http_listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static status bind_any(int *out, const char *address, const struct addrinfo *list, error *err) {
    int why = 0;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int one = 1;
        if (fd < 0) {
            why = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) {
            *out = fd;
            return STATUS_OK;
        }
        why = errno;
        (void)close(fd);
    }
    return error_set_errno(err, STATUS_IO, why, "http: cannot listen on '%s'", address);
}

status http_listen(int *fd, const char *address, char *real, size_t cap_real, error *err) {
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t length = colon == NULL ? sizeof host : (size_t)(colon - address);
    const char *begin = address;
    if (length >= 2 && length < sizeof host && begin[0] == '[' && begin[length - 1] == ']') {
        begin++;
        length -= 2;
    }
    if (length >= sizeof host) {
        return error_set(err, STATUS_BAD_INPUT, "http: '%s' is not HOST:PORT", address);
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(length == 0 ? NULL : host, colon + 1, &hints, &list);
    if (code != 0) {
        return error_set(err, STATUS_IO, "http: '%s': %s", address, gai_strerror(code));
    }
    status rc = bind_any(fd, address, list, err);
    freeaddrinfo(list);
    if (rc != STATUS_OK) return rc;
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char port[16] = "0";
    if (getsockname(*fd, (struct sockaddr *)&at, &size) == 0) {
        (void)getnameinfo((struct sockaddr *)&at, size, NULL, 0, port, sizeof port,
                          NI_NUMERICSERV);
    }
    (void)snprintf(real, cap_real, "%.*s:%s", (int)(colon - address), address, port);
    return STATUS_OK;
}
