/* ledger_sqlite.c - the ledger in a file of SQLite, in WAL mode so that readers do not stop it. */
#include "coordinator/ledger_store.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct sqlite_store {
    ledger_store base;
    sqlite3 *db;
    sqlite3_stmt *insert;
    const char *path; /* SQLite's own copy */
} sqlite_store;

/* Step i leads from version i to i + 1. */
static const char *const steps[LEDGER_SCHEMA_VERSION] = {
    "CREATE TABLE requests(instance INTEGER NOT NULL, number INTEGER NOT NULL,"
    " received_ms INTEGER NOT NULL, request_id TEXT NOT NULL, key_name TEXT NOT NULL,"
    " model TEXT NOT NULL, node TEXT NOT NULL, priority INTEGER NOT NULL, ended TEXT NOT NULL,"
    " http_status INTEGER NOT NULL, attempts INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,"
    " cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
    " reasoning_tokens INTEGER NOT NULL, queued_ms REAL NOT NULL, first_token_ms REAL,"
    " total_ms REAL NOT NULL, PRIMARY KEY(instance, number)) WITHOUT ROWID;"
    "CREATE INDEX requests_received ON requests(received_ms)",
    "CREATE TABLE api_keys(name TEXT PRIMARY KEY, line TEXT NOT NULL)",
    "CREATE TABLE api_use(name TEXT NOT NULL, instance INTEGER NOT NULL, requests INTEGER NOT "
    "NULL,"
    " tokens INTEGER NOT NULL, PRIMARY KEY(name, instance))",
};

static status fail(const sqlite_store *s, const char *what, error *err) {
    int code = sqlite3_errcode(s->db);
    status rc = code == SQLITE_BUSY || code == SQLITE_LOCKED ? STATUS_UNAVAILABLE : STATUS_IO;
    return error_set(err, rc, "ledger: %s: %s: %s", s->path == NULL ? "" : s->path, what,
                     sqlite3_errmsg(s->db));
}

static status run(const sqlite_store *s, const char *sql, error *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK
                                                                   : fail(s, "SQL", err);
}

static status read_version(const sqlite_store *s, int *version, error *err) {
    sqlite3_stmt *query = NULL;
    if (sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &query, NULL) != SQLITE_OK ||
        sqlite3_step(query) != SQLITE_ROW) {
        (void)sqlite3_finalize(query);
        return fail(s, "version", err);
    }
    *version = sqlite3_column_int(query, 0);
    (void)sqlite3_finalize(query);
    return STATUS_OK;
}

static status migrate(const sqlite_store *s, error *err) {
    int version = 0;
    status rc = run(s, "BEGIN IMMEDIATE", err);
    if (rc == STATUS_OK) rc = read_version(s, &version, err);
    if (rc == STATUS_OK && (version < 0 || version > LEDGER_SCHEMA_VERSION)) {
        rc = error_set(err, STATUS_BAD_INPUT,
                       "ledger: %s: its schema has version %d; this program knows up to %d",
                       s->path, version, LEDGER_SCHEMA_VERSION);
    }
    for (int v = version; rc == STATUS_OK && v < LEDGER_SCHEMA_VERSION; v++) {
        char mark[64];
        (void)snprintf(mark, sizeof mark, "PRAGMA user_version = %d", v + 1);
        rc = run(s, steps[v], err);
        if (rc == STATUS_OK) rc = run(s, mark, err);
    }
    if (rc == STATUS_OK) return run(s, "COMMIT", err);
    (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static void store_close(ledger_store *base) {
    sqlite_store *s = (sqlite_store *)base;
    (void)sqlite3_finalize(s->insert);
    (void)sqlite3_close(s->db);
    free(s);
}

/* ------------------------------------------------------------ rows */

static int bind_row(sqlite3_stmt *q, const ledger_row *r) {
    int rc = SQLITE_OK, at = 0;
    const uint64_t ints[] = {r->priority,        r->http_status,   r->attempts,
                             r->prompt_tokens,   r->cached_tokens, r->completion_tokens,
                             r->reasoning_tokens};
    const char *const texts[] = {r->request_id, r->key_name, r->model, r->node, r->ended};
    rc |= sqlite3_bind_int64(q, ++at, (sqlite3_int64)r->instance);
    rc |= sqlite3_bind_int64(q, ++at, (sqlite3_int64)r->number);
    rc |= sqlite3_bind_int64(q, ++at, (sqlite3_int64)r->received_ms);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        rc |= sqlite3_bind_text(q, ++at, texts[i], -1, SQLITE_STATIC);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        rc |= sqlite3_bind_int64(q, ++at, (sqlite3_int64)ints[i]);
    rc |= sqlite3_bind_double(q, ++at, r->queued_ms);
    rc |= r->first_token_ms < 0 ? sqlite3_bind_null(q, ++at)
                                : sqlite3_bind_double(q, ++at, r->first_token_ms);
    rc |= sqlite3_bind_double(q, ++at, r->total_ms);
    return rc;
}

static status store_insert(ledger_store *base, ledger_row *const *rows, size_t n, error *err) {
    sqlite_store *s = (sqlite_store *)base;
    status rc = run(s, "BEGIN IMMEDIATE", err);
    if (rc != STATUS_OK) return rc;
    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        bool ok =
            bind_row(s->insert, rows[i]) == SQLITE_OK && sqlite3_step(s->insert) == SQLITE_DONE;
        if (!ok) rc = fail(s, "insert", err);
        (void)sqlite3_reset(s->insert);
    }
    if (rc == STATUS_OK) rc = run(s, "COMMIT", err);
    if (rc != STATUS_OK) (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static status store_usage(ledger_store *base, ledger_by by, uint64_t since_ms, void *context,
                          void (*line)(void *context, const ledger_usage *usage), error *err) {
    static const char *const groups[] = {
        "key_name", "model", "node", "strftime('%Y-%m-%d', received_ms / 1000, 'unixepoch')",
        "ended"};
    sqlite_store *s = (sqlite_store *)base;
    char sql[900];
    (void)snprintf(sql, sizeof sql,
                   "SELECT %s AS grp, COUNT(*), SUM(http_status >= 400 AND http_status <> 499),"
                   " SUM(prompt_tokens), SUM(cached_tokens), SUM(completion_tokens),"
                   " SUM(reasoning_tokens), AVG(first_token_ms), AVG(total_ms) FROM requests"
                   " WHERE received_ms >= ?1 GROUP BY grp ORDER BY SUM(prompt_tokens +"
                   " completion_tokens) DESC, grp",
                   groups[by]);
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK ||
        sqlite3_bind_int64(q, 1, (sqlite3_int64)since_ms) != SQLITE_OK) {
        (void)sqlite3_finalize(q);
        return fail(s, "usage", err);
    }
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        ledger_usage u = {.requests = (uint64_t)sqlite3_column_int64(q, 1),
                          .failed = (uint64_t)sqlite3_column_int64(q, 2),
                          .prompt_tokens = (uint64_t)sqlite3_column_int64(q, 3),
                          .cached_tokens = (uint64_t)sqlite3_column_int64(q, 4),
                          .completion_tokens = (uint64_t)sqlite3_column_int64(q, 5),
                          .reasoning_tokens = (uint64_t)sqlite3_column_int64(q, 6),
                          .mean_first_token_ms = sqlite3_column_type(q, 7) == SQLITE_NULL
                                                     ? -1
                                                     : sqlite3_column_double(q, 7),
                          .mean_total_ms = sqlite3_column_double(q, 8)};
        const unsigned char *name = sqlite3_column_text(q, 0);
        (void)snprintf(u.name, sizeof u.name, "%s", name == NULL ? "" : (const char *)name);
        line(context, &u);
    }
    status result = rc == SQLITE_DONE ? STATUS_OK : fail(s, "usage", err);
    (void)sqlite3_finalize(q);
    return result;
}

/* ------------------------------------------------------------ keys */

static status store_put_key(ledger_store *base, const char *name, const char *line,
                            error *err) {
    sqlite_store *s = (sqlite_store *)base;
    sqlite3_stmt *q = NULL;
    const char *sql = line == NULL ? "DELETE FROM api_keys WHERE name = ?1"
                                   : "INSERT INTO api_keys VALUES(?1, ?2) ON CONFLICT(name) DO"
                                     " UPDATE SET line = excluded.line";
    bool ok = sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK &&
              sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC) == SQLITE_OK &&
              (line == NULL || sqlite3_bind_text(q, 2, line, -1, SQLITE_STATIC) == SQLITE_OK) &&
              sqlite3_step(q) == SQLITE_DONE;
    status rc = ok ? STATUS_OK : fail(s, "key", err);
    (void)sqlite3_finalize(q);
    if (rc == STATUS_OK && line == NULL && sqlite3_changes(s->db) == 0)
        rc = error_set(err, STATUS_BAD_INPUT, "ledger: there is no key '%s'", name);
    return rc;
}

static status store_put_use(ledger_store *base, uint64_t instance, const ledger_use *use,
                            size_t n, error *err) {
    sqlite_store *s = (sqlite_store *)base;
    sqlite3_stmt *q = NULL;
    status rc = run(s, "BEGIN IMMEDIATE", err);
    if (rc != STATUS_OK) return rc;
    bool ok = sqlite3_prepare_v2(
                  s->db,
                  "INSERT INTO api_use VALUES(?1, ?2, ?3, ?4) ON CONFLICT(name, instance)"
                  " DO UPDATE SET requests = excluded.requests, tokens ="
                  " excluded.tokens",
                  -1, &q, NULL) == SQLITE_OK;
    for (size_t i = 0; i < n && ok; i++) {
        ok = sqlite3_bind_text(q, 1, use[i].name, -1, SQLITE_STATIC) == SQLITE_OK &&
             sqlite3_bind_int64(q, 2, (sqlite3_int64)instance) == SQLITE_OK &&
             sqlite3_bind_int64(q, 3, (sqlite3_int64)use[i].requests) == SQLITE_OK &&
             sqlite3_bind_int64(q, 4, (sqlite3_int64)use[i].tokens) == SQLITE_OK &&
             sqlite3_step(q) == SQLITE_DONE;
        (void)sqlite3_reset(q);
    }
    if (!ok) rc = fail(s, "use", err);
    (void)sqlite3_finalize(q);
    if (rc == STATUS_OK) rc = run(s, "COMMIT", err);
    if (rc != STATUS_OK) (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static status store_uses(ledger_store *base, uint64_t instance, void *context,
                         void (*line)(void *context, const ledger_use *use), error *err) {
    sqlite_store *s = (sqlite_store *)base;
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(
            s->db,
            "SELECT name, SUM(requests), SUM(tokens) FROM api_use WHERE instance <> ?1"
            " GROUP BY name",
            -1, &q, NULL) != SQLITE_OK ||
        sqlite3_bind_int64(q, 1, (sqlite3_int64)instance) != SQLITE_OK) {
        (void)sqlite3_finalize(q);
        return fail(s, "use", err);
    }
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        ledger_use use = {.requests = (uint64_t)sqlite3_column_int64(q, 1),
                          .tokens = (uint64_t)sqlite3_column_int64(q, 2)};
        const unsigned char *name = sqlite3_column_text(q, 0);
        (void)snprintf(use.name, sizeof use.name, "%s", name == NULL ? "" : (const char *)name);
        line(context, &use);
    }
    status result = rc == SQLITE_DONE ? STATUS_OK : fail(s, "use", err);
    (void)sqlite3_finalize(q);
    return result;
}

static status store_keys(ledger_store *base, void *context,
                         void (*line)(void *context, const char *line), error *err) {
    sqlite_store *s = (sqlite_store *)base;
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, "SELECT line FROM api_keys ORDER BY name", -1, &q, NULL) !=
        SQLITE_OK) {
        return fail(s, "keys", err);
    }
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        const unsigned char *text = sqlite3_column_text(q, 0);
        if (text != NULL) line(context, (const char *)text);
    }
    status result = rc == SQLITE_DONE ? STATUS_OK : fail(s, "keys", err);
    (void)sqlite3_finalize(q);
    return result;
}

/* ------------------------------------------------------------ opening */

static const ledger_store_ops ops = {.close = store_close,
                                     .insert = store_insert,
                                     .usage = store_usage,
                                     .put_key = store_put_key,
                                     .put_use = store_put_use,
                                     .uses = store_uses,
                                     .keys = store_keys};

static status prepare(sqlite_store *s, error *err) {
    (void)sqlite3_busy_timeout(s->db, 2000);
    status rc = run(s, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL", err);
    if (rc == STATUS_OK) rc = migrate(s, err);
    if (rc != STATUS_OK) return rc;
    static const char sql[] = "INSERT OR IGNORE INTO requests(" LEDGER_COLUMN_NAMES ")"
                              " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
    if (sqlite3_prepare_v2(s->db, sql, -1, &s->insert, NULL) != SQLITE_OK)
        return fail(s, "insert", err);
    return STATUS_OK;
}

status ledger_sqlite_open(ledger_store **out, const char *path, bool create, error *err) {
    *out = NULL;
    sqlite_store *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "ledger: no memory");
    s->base.ops = &ops;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (create ? SQLITE_OPEN_CREATE : 0);
    status rc = STATUS_OK;
    if (sqlite3_open_v2(path, &s->db, flags, NULL) != SQLITE_OK) {
        rc = error_set(err, STATUS_IO, "ledger: %s: %s", path, sqlite3_errmsg(s->db));
    } else {
        s->path = sqlite3_db_filename(s->db, "main");
        rc = prepare(s, err);
    }
    if (rc != STATUS_OK) {
        store_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return STATUS_OK;
}
