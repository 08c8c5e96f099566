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
#include <stdbool.h>
#include <stddef.h>

enum { MESH_NAME_SIZE = 129 };

typedef struct mesh_keys mesh_keys;
typedef struct mesh_gate mesh_gate;

/* On failure *out is NULL and err names file, line and what is wrong. */
status mesh_keys_read(mesh_keys **out, const char *secret_file, const char *allow_file,
                      error *err);
void mesh_keys_free(mesh_keys *keys); /* wipes the secret; accepts NULL */
/* Make the ZeroMQ socket a CURVE server with the secret key. */
status mesh_keys_apply(const mesh_keys *keys, void *socket, error *err);
/* The node name of a key of 32 bytes; false when it is not on the list. */
bool mesh_keys_lookup(mesh_keys *keys, const unsigned char key[32], char name[MESH_NAME_SIZE]);
/* Is there a key for this node? */
bool mesh_keys_allow(mesh_keys *keys, const char *name);
/* Read the allow-list again; on_removed is told each node whose key is not there any more.  On
 * failure the old list stays.  The gate's thread sees one list or the other. */
status mesh_keys_reload(mesh_keys *keys, const char *allow_file, void *context,
                        void (*on_removed)(void *context, const char *name), error *err);

/* The ZAP handler: a thread of its own that answers from the list until
 * mesh_gate_close(), which shuts the context down.  Open it before binding. */
status mesh_gate_open(mesh_gate **out, void *zmq_context, mesh_keys *keys, error *err);
void mesh_gate_close(mesh_gate *gate); /* accepts NULL */

#endif
