/* mesh_security.h - how a worker may speak to a coordinator: CURVE, or plain text near by.
 *
 * Plain text is for loopback, ipc and inproc addresses; elsewhere only when the
 * settings say so.  With a secret key everything is CURVE.
 */
#ifndef SILICEO_WORKER_MESH_SECURITY_H
#define SILICEO_WORKER_MESH_SECURITY_H

#include "common/error.h"
#include <stdbool.h>

enum { MESH_KEY_CHARS = 40 }; /* Z85 of 32 bytes */

typedef struct mesh_security {
    bool curve;
    bool allow_plain;
    char secret_key[MESH_KEY_CHARS + 1];
    char public_key[MESH_KEY_CHARS + 1];
    char server_key[MESH_KEY_CHARS + 1];
} mesh_security;

/* secret_file is what `siliceo-coordinator keygen` writes: the key on a line
 * of its own, and comments that begin with '# '; server_key is the coordinator's public key.  Both or
 * neither; empty and NULL are the same.  A file that others may read is refused. */
status mesh_security_init(mesh_security *s, const char *secret_file, const char *server_key,
                          bool allow_plain, error *err);
void mesh_security_clear(mesh_security *s); /* wipes the keys */

/* May this address be connected to? */
status mesh_security_check(const mesh_security *s, const char *address, error *err);
/* Set the keys of a socket that is not yet connected. */
status mesh_security_apply(const mesh_security *s, void *socket, error *err);

#endif
