/* mesh_keys.h - CURVE keys of the mesh, the list of nodes that may connect, and the gate (ZAP).
 *
 * A key file holds the secret key (Z85, 40 characters) on a line of its own, as
 * `siliceo-coordinator keygen` writes it, and must not be readable by others.  The
 * allow-list holds a line `PUBLIC-KEY NODE-NAME` for each node; the name binds: a
 * HELLO with another is refused.
 * A line that begins with "# " is a comment in both.  Keys are never logged.
 */
#ifndef SILICEO_COORDINATOR_MESH_KEYS_H
#define SILICEO_COORDINATOR_MESH_KEYS_H

#include "common/error.h"
#include <stddef.h>

typedef struct mesh_keys mesh_keys;
typedef struct mesh_gate mesh_gate;

/* On failure *out is NULL and err names file, line and what is wrong. */
status mesh_keys_read(mesh_keys **out, const char *secret_file, const char *allow_file,
                      error *err);
void mesh_keys_free(mesh_keys *keys); /* wipes the secret; accepts NULL */
/* Make the ZeroMQ socket a CURVE server with the secret key. */
status mesh_keys_apply(const mesh_keys *keys, void *socket, error *err);
/* The node name of a key of 32 bytes; NULL when it is not on the list. */
const char *mesh_keys_lookup(const mesh_keys *keys, const unsigned char key[32]);

/* The ZAP handler: a thread of its own that answers from the list until
 * mesh_gate_close(), which shuts the context down.  Open it before binding. */
status mesh_gate_open(mesh_gate **out, void *zmq_context, const mesh_keys *keys, error *err);
void mesh_gate_close(mesh_gate *gate); /* accepts NULL */

#endif
