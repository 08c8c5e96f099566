/* tls_identity.h - the server's certificate and private key, replaceable while it runs.
 *
 * GnuTLS asks for them at each handshake through a callback that gets no context of ours, so
 * a process has one identity at a time.  What a reload replaces lives on until the
 * end, because a handshake may still be using it.  `io` thread, in which libmicrohttpd runs too.
 */
#ifndef SILICEO_COORDINATOR_TLS_IDENTITY_H
#define SILICEO_COORDINATOR_TLS_IDENTITY_H

#include "common/error.h"
#include <gnutls/abstract.h>

typedef struct tls_identity tls_identity;
typedef int tls_identity_callback(gnutls_session_t session, const gnutls_datum_t *authorities,
                                  int n_authorities, const gnutls_pk_algorithm_t *algorithms,
                                  int n_algorithms, gnutls_pcert_st **certificates,
                                  unsigned int *n_certificates, gnutls_privkey_t *key);

/* PEM files; the key's must not be readable by others.  err names the file. */
status tls_identity_open(tls_identity **out, const char *cert_file, const char *key_file,
                         error *err);
/* Read both again; on failure the old ones stay. */
status tls_identity_reload(tls_identity *t, error *err);
void tls_identity_close(tls_identity *t); /* after the last connection; accepts NULL */
/* For MHD_OPTION_HTTPS_CERT_CALLBACK; accepts NULL. */
tls_identity_callback *tls_identity_get_callback(const tls_identity *t);

#endif
