/* ledger_store.h - the database behind the ledger: SQLite, or PostgreSQL where several
 * coordinators share one.
 *
 * The url is a path (SQLite; the file is made when it is not there) or
 * postgresql://... (only where the program was built with libpq).  The schema has a
 * version: an older one is brought up to date when opened, a newer one is refused.
 * A row is told by instance and number, so writing it twice is writing it once.
 * One thread at a time; the process may open several.
 */
#ifndef SILICEO_COORDINATOR_LEDGER_STORE_H
#define SILICEO_COORDINATOR_LEDGER_STORE_H

#include "common/error.h"
#include "coordinator/ledger.h"

enum { LEDGER_SCHEMA_VERSION = 3, LEDGER_COLUMNS = 18 };

/* The columns of a row, in the order in which both kinds bind them. */
#define LEDGER_COLUMN_NAMES                                                                    \
    "instance, number, received_ms, request_id, key_name, model, node, ended, priority,"       \
    " http_status, attempts, prompt_tokens, cached_tokens, completion_tokens,"                 \
    " reasoning_tokens, queued_ms, first_token_ms, total_ms"

typedef enum ledger_by {
    LEDGER_BY_KEY,
    LEDGER_BY_MODEL,
    LEDGER_BY_NODE,
    LEDGER_BY_DAY,
    LEDGER_BY_ENDED
} ledger_by;

typedef struct ledger_usage { /* one line of a sum */
    char name[WIRE_MAX_NAME + 1];
    uint64_t requests, failed; /* failed: those that ended neither well nor by their client */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    double mean_first_token_ms; /* negative: none had one */
    double mean_total_ms;
} ledger_usage;

typedef struct ledger_use { /* of one key, in all */
    char name[AUTH_NAME_SIZE];
    uint64_t requests, tokens;
} ledger_use;

typedef struct ledger_store ledger_store;
typedef struct ledger_store_ops {
    void (*close)(ledger_store *s);
    status (*insert)(ledger_store *s, ledger_row *const *rows, size_t n, error *err);
    status (*usage)(ledger_store *s, ledger_by by, uint64_t since_ms, void *context,
                    void (*line)(void *context, const ledger_usage *usage), error *err);
    status (*put_key)(ledger_store *s, const char *name, const char *line, error *err);
    status (*put_use)(ledger_store *s, uint64_t instance, const ledger_use *use, size_t n,
                      error *err);
    status (*uses)(ledger_store *s, uint64_t instance, void *context,
                   void (*line)(void *context, const ledger_use *use), error *err);
    status (*keys)(ledger_store *s, void *context,
                   void (*line)(void *context, const char *line), error *err);
} ledger_store_ops;
struct ledger_store { /* each kind begins with this */
    const ledger_store_ops *ops;
};

/* On failure *out is NULL.  create false: what is not there is an error. */
status ledger_store_open(ledger_store **out, const char *url, bool create, error *err);
void ledger_store_close(ledger_store *s); /* accepts NULL */
/* All rows or none. */
status ledger_store_insert(ledger_store *s, ledger_row *const *rows, size_t n, error *err);
/* Sums of rows received at or after since_ms, largest first. */
status ledger_store_usage(ledger_store *s, ledger_by by, uint64_t since_ms, void *context,
                          void (*line)(void *context, const ledger_usage *usage), error *err);
/* What this coordinator's keys have used since it began, and what they have used at the others. */
status ledger_store_put_use(ledger_store *s, uint64_t instance, const ledger_use *use, size_t n,
                            error *err);
status ledger_store_uses(ledger_store *s, uint64_t instance, void *context,
                         void (*line)(void *context, const ledger_use *use), error *err);
/* API keys that coordinators share: lines as in the key file, one a name; line NULL takes it away. */
status ledger_store_put_key(ledger_store *s, const char *name, const char *line, error *err);
status ledger_store_keys(ledger_store *s, void *context,
                         void (*line)(void *context, const char *line), error *err);

status ledger_sqlite_open(ledger_store **out, const char *path, bool create, error *err);
status ledger_postgres_open(ledger_store **out, const char *url, bool create, error *err);
/* Is this the url of a PostgreSQL server? */
bool ledger_is_postgres(const char *url);

#endif
