#include "coordinator/ledger_store.h"

#include <string.h>

bool ledger_is_postgres(const char *url) {
    return strncmp(url, "postgresql://", 13) == 0 || strncmp(url, "postgres://", 11) == 0;
}

status ledger_store_open(ledger_store **out, const char *url, bool create, error *err) {
    return ledger_is_postgres(url) ? ledger_postgres_open(out, url, create, err)
                                   : ledger_sqlite_open(out, url, create, err);
}

void ledger_store_close(ledger_store *s) {
    if (s != NULL) s->ops->close(s);
}

status ledger_store_insert(ledger_store *s, ledger_row *const *rows, size_t n, error *err) {
    return s->ops->insert(s, rows, n, err);
}

status ledger_store_usage(ledger_store *s, ledger_by by, uint64_t since_ms, void *context,
                          void (*line)(void *context, const ledger_usage *usage), error *err) {
    return s->ops->usage(s, by, since_ms, context, line, err);
}

status ledger_store_put_key(ledger_store *s, const char *name, const char *line, error *err) {
    return s->ops->put_key(s, name, line, err);
}

status ledger_store_put_use(ledger_store *s, uint64_t instance, const ledger_use *use, size_t n,
                            error *err) {
    return s->ops->put_use(s, instance, use, n, err);
}

status ledger_store_uses(ledger_store *s, uint64_t instance, void *context,
                         void (*line)(void *context, const ledger_use *use), error *err) {
    return s->ops->uses(s, instance, context, line, err);
}

status ledger_store_keys(ledger_store *s, void *context,
                         void (*line)(void *context, const char *line), error *err) {
    return s->ops->keys(s, context, line, err);
}
