#include "coordinator/tls_identity.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CHAIN = 16 };

typedef struct pair {
    struct pair *older;
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned int n_chain;
    gnutls_privkey_t key;
} pair;

struct tls_identity {
    char *cert_file, *key_file;
    pair *now;
};

static pair *current; /* the callback has no context: the newest of the one identity there is */

static void pair_free(pair *p) {
    for (unsigned int i = 0; i < p->n_chain; i++)
        gnutls_pcert_deinit(&p->chain[i]);
    if (p->key != NULL) gnutls_privkey_deinit(p->key);
    free(p);
}

static status check_mode(const char *path, error *err) {
    struct stat info;
    if (stat(path, &info) != 0) return error_set_errno(err, STATUS_IO, errno, "%s", path);
    if ((info.st_mode & S_IRWXO) == 0) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT,
                     "%s: mode %03o lets others read a private key; chmod 600 it", path,
                     (unsigned)(info.st_mode & 0777));
}

static status read_key(pair *p, const char *path, error *err) {
    gnutls_datum_t bytes = {NULL, 0};
    status rc = check_mode(path, err);
    if (rc != STATUS_OK) return rc;
    int code = gnutls_load_file(path, &bytes);
    if (code == 0) code = gnutls_privkey_init(&p->key);
    if (code == 0)
        code = gnutls_privkey_import_x509_raw(p->key, &bytes, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (bytes.data != NULL) explicit_bzero(bytes.data, bytes.size);
    gnutls_free(bytes.data);
    return code == 0 ? STATUS_OK
                     : error_set(err, STATUS_BAD_INPUT, "%s: %s", path, gnutls_strerror(code));
}

static status read_chain(pair *p, const char *path, error *err) {
    gnutls_datum_t bytes = {NULL, 0};
    p->n_chain = 0;
    unsigned int n = MAX_CHAIN;
    int code = gnutls_load_file(path, &bytes);
    if (code == 0)
        code = gnutls_pcert_list_import_x509_raw(p->chain, &n, &bytes, GNUTLS_X509_FMT_PEM,
                                                 GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    if (code >= 0) p->n_chain = n;
    gnutls_free(bytes.data);
    if (code < 0)
        return error_set(err, STATUS_BAD_INPUT, "%s: %s", path, gnutls_strerror(code));
    if (p->n_chain == 0)
        return error_set(err, STATUS_BAD_INPUT, "%s: holds no certificate", path);
    return STATUS_OK;
}

/* A key that is another certificate's would fail every handshake. */
static status check_pair(const pair *p, const char *key_file, error *err) {
    gnutls_pubkey_t own = NULL;
    unsigned char of_key[64], of_cert[64];
    size_t n_key = sizeof of_key, n_cert = sizeof of_cert;
    int code = gnutls_pubkey_init(&own);
    if (code == 0) code = gnutls_pubkey_import_privkey(own, p->key, 0, 0);
    if (code == 0)
        code = gnutls_pubkey_get_key_id(own, GNUTLS_KEYID_USE_SHA256, of_key, &n_key);
    if (code == 0)
        code = gnutls_pubkey_get_key_id(p->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_cert,
                                        &n_cert);
    gnutls_pubkey_deinit(own);
    if (code != 0)
        return error_set(err, STATUS_BAD_INPUT, "%s: %s", key_file, gnutls_strerror(code));
    if (n_key != n_cert || memcmp(of_key, of_cert, n_key) != 0)
        return error_set(err, STATUS_BAD_INPUT, "%s: is not the certificate's key", key_file);
    return STATUS_OK;
}

status tls_identity_reload(tls_identity *t, error *err) {
    pair *p = calloc(1, sizeof *p);
    if (p == NULL) return error_set(err, STATUS_NO_MEMORY, "TLS: no memory");
    status rc = read_chain(p, t->cert_file, err);
    if (rc == STATUS_OK) rc = read_key(p, t->key_file, err);
    if (rc == STATUS_OK) rc = check_pair(p, t->key_file, err);
    if (rc != STATUS_OK) {
        pair_free(p);
        return rc;
    }
    p->older = t->now;
    t->now = current = p;
    return STATUS_OK;
}

status tls_identity_open(tls_identity **out, const char *cert_file, const char *key_file,
                         error *err) {
    *out = NULL;
    tls_identity *t = calloc(1, sizeof *t);
    if (t == NULL) return error_set(err, STATUS_NO_MEMORY, "TLS: no memory");
    t->cert_file = strdup(cert_file);
    t->key_file = strdup(key_file);
    status rc = t->cert_file == NULL || t->key_file == NULL
                    ? error_set(err, STATUS_NO_MEMORY, "TLS: no memory")
                    : tls_identity_reload(t, err);
    if (rc != STATUS_OK) {
        tls_identity_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

void tls_identity_close(tls_identity *t) {
    if (t == NULL) return;
    if (current == t->now) current = NULL;
    while (t->now != NULL) {
        pair *older = t->now->older;
        pair_free(t->now);
        t->now = older;
    }
    free(t->cert_file);
    free(t->key_file);
    free(t);
}

static int choose(gnutls_session_t session, const gnutls_datum_t *authorities,
                  int n_authorities, const gnutls_pk_algorithm_t *algorithms, int n_algorithms,
                  gnutls_pcert_st **certificates, unsigned int *n_certificates,
                  gnutls_privkey_t *key) {
    (void)session, (void)authorities, (void)n_authorities, (void)algorithms, (void)n_algorithms;
    if (current == NULL) return -1;
    *certificates = current->chain;
    *n_certificates = current->n_chain;
    *key = current->key;
    return 0;
}

tls_identity_callback *tls_identity_get_callback(const tls_identity *t) {
    return t == NULL ? NULL : choose;
}
