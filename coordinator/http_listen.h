/* http_listen.h - the listening socket of the HTTP server. */
#ifndef SILICEO_COORDINATOR_HTTP_LISTEN_H
#define SILICEO_COORDINATOR_HTTP_LISTEN_H

#include "common/error.h"
#include <stddef.h>

/* Listen on HOST:PORT ([..] round an IPv6 address); *fd is the socket, which the caller
 * closes, and real the address with the port that was taken. */
status http_listen(int *fd, const char *address, char *real, size_t cap_real, error *err);

#endif
