/* ledger_postgres.c - the ledger on a PostgreSQL server that several coordinators share.
 *
 * The schema stands in the first schema of the search path; its version in
 * siliceo_schema.  An advisory lock keeps two coordinators from bringing it up to date at
 * once.  Where the program was built without libpq there is only the error that says so.
 */
#include "coordinator/ledger_store.h"

#ifdef SILICEO_LIBPQ

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_SIZE = 32 };

typedef struct postgres_store {
    ledger_store base;
    PGconn *db;
} postgres_store;

static const char *const steps[LEDGER_SCHEMA_VERSION] = {
    "CREATE TABLE requests(instance BIGINT NOT NULL, number BIGINT NOT NULL,"
    " received_ms BIGINT NOT NULL, request_id TEXT NOT NULL, key_name TEXT NOT NULL,"
    " model TEXT NOT NULL, node TEXT NOT NULL, ended TEXT NOT NULL, priority BIGINT NOT NULL,"
    " http_status BIGINT NOT NULL, attempts BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL,"
    " cached_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL,"
    " reasoning_tokens BIGINT NOT NULL, queued_ms DOUBLE PRECISION NOT NULL,"
    " first_token_ms DOUBLE PRECISION, total_ms DOUBLE PRECISION NOT NULL,"
    " PRIMARY KEY(instance, number));"
    "CREATE INDEX requests_received ON requests(received_ms)",
    "CREATE TABLE api_keys(name TEXT PRIMARY KEY, line TEXT NOT NULL)",
    "CREATE TABLE api_use(name TEXT NOT NULL, instance BIGINT NOT NULL, requests BIGINT NOT "
    "NULL,"
    " tokens BIGINT NOT NULL, PRIMARY KEY(name, instance))",
};

static status fail(const postgres_store *s, const char *what, const PGresult *result,
                   error *err) {
    const char *text = result != NULL ? PQresultErrorMessage(result) : PQerrorMessage(s->db);
    return error_set(err, STATUS_IO, "ledger: PostgreSQL: %s: %.*s", what,
                     (int)strcspn(text, "\n"), text);
}

static status run(const postgres_store *s, const char *sql, error *err) {
    PGresult *result = PQexec(s->db, sql);
    ExecStatusType kind = PQresultStatus(result);
    status rc = kind == PGRES_COMMAND_OK || kind == PGRES_TUPLES_OK
                    ? STATUS_OK
                    : fail(s, "SQL", result, err);
    PQclear(result);
    return rc;
}

static status read_version(const postgres_store *s, int *version, error *err) {
    PGresult *result = PQexec(s->db, "SELECT COALESCE(MAX(version), 0) FROM siliceo_schema");
    status rc = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1
                    ? STATUS_OK
                    : fail(s, "version", result, err);
    if (rc == STATUS_OK) *version = (int)strtol(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return rc;
}

static status migrate(const postgres_store *s, error *err) {
    int version = 0;
    status rc = run(s,
                    "BEGIN; SELECT pg_advisory_xact_lock(7365746);"
                    " CREATE TABLE IF NOT EXISTS siliceo_schema(version INTEGER PRIMARY KEY)",
                    err);
    if (rc == STATUS_OK) rc = read_version(s, &version, err);
    if (rc == STATUS_OK && (version < 0 || version > LEDGER_SCHEMA_VERSION)) {
        rc = error_set(
            err, STATUS_BAD_INPUT,
            "ledger: PostgreSQL: the schema has version %d; this program knows up to %d",
            version, LEDGER_SCHEMA_VERSION);
    }
    for (int v = version; rc == STATUS_OK && v < LEDGER_SCHEMA_VERSION; v++) {
        char mark[80];
        (void)snprintf(mark, sizeof mark, "INSERT INTO siliceo_schema VALUES(%d)", v + 1);
        rc = run(s, steps[v], err);
        if (rc == STATUS_OK) rc = run(s, mark, err);
    }
    if (rc == STATUS_OK) return run(s, "COMMIT", err);
    PQclear(PQexec(s->db, "ROLLBACK"));
    return rc;
}

static void store_close(ledger_store *base) {
    postgres_store *s = (postgres_store *)base;
    if (s->db != NULL) PQfinish(s->db);
    free(s);
}

/* ------------------------------------------------------------ rows */

/* Columns as text; those that are numbers are written into numbers[]. */
static void fill(const ledger_row *r, const char *values[LEDGER_COLUMNS],
                 char numbers[LEDGER_COLUMNS][NUMBER_SIZE]) {
    const uint64_t heads[] = {r->instance, r->number, r->received_ms};
    const char *const texts[] = {r->request_id, r->key_name, r->model, r->node, r->ended};
    const uint64_t counts[] = {r->priority,        r->http_status,   r->attempts,
                               r->prompt_tokens,   r->cached_tokens, r->completion_tokens,
                               r->reasoning_tokens};
    const double reals[] = {r->queued_ms, r->first_token_ms, r->total_ms};
    int at = 0;
    for (size_t i = 0; i < 3; i++, at++) {
        (void)snprintf(numbers[at], NUMBER_SIZE, "%lld", (long long)heads[i]);
        values[at] = numbers[at];
    }
    for (size_t i = 0; i < 5; i++)
        values[at++] = texts[i];
    for (size_t i = 0; i < 7; i++, at++) {
        (void)snprintf(numbers[at], NUMBER_SIZE, "%lld", (long long)counts[i]);
        values[at] = numbers[at];
    }
    for (size_t i = 0; i < 3; i++, at++) {
        (void)snprintf(numbers[at], NUMBER_SIZE, "%.3f", reals[i]);
        values[at] = i == 1 && r->first_token_ms < 0 ? NULL : numbers[at];
    }
}

static status store_insert(ledger_store *base, ledger_row *const *rows, size_t n, error *err) {
    postgres_store *s = (postgres_store *)base;
    status rc = run(s, "BEGIN", err);
    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        const char *values[LEDGER_COLUMNS];
        char numbers[LEDGER_COLUMNS][NUMBER_SIZE];
        fill(rows[i], values, numbers);
        PGresult *result =
            PQexecPrepared(s->db, "insert_row", LEDGER_COLUMNS, values, NULL, NULL, 0);
        if (PQresultStatus(result) != PGRES_COMMAND_OK) rc = fail(s, "insert", result, err);
        PQclear(result);
    }
    if (rc == STATUS_OK) rc = run(s, "COMMIT", err);
    if (rc != STATUS_OK) PQclear(PQexec(s->db, "ROLLBACK"));
    return rc;
}

static uint64_t count_at(const PGresult *result, int row, int column) {
    return strtoull(PQgetvalue(result, row, column), NULL, 10);
}

static status store_usage(ledger_store *base, ledger_by by, uint64_t since_ms, void *context,
                          void (*line)(void *context, const ledger_usage *usage), error *err) {
    static const char *const groups[] = {
        "key_name", "model", "node",
        "to_char(to_timestamp(received_ms / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD')", "ended"};
    postgres_store *s = (postgres_store *)base;
    char sql[1000], since[NUMBER_SIZE];
    (void)snprintf(
        sql, sizeof sql,
        "SELECT %s AS grp, COUNT(*), COUNT(*) FILTER (WHERE http_status >= 400 AND"
        " http_status <> 499), SUM(prompt_tokens)::bigint, SUM(cached_tokens)::bigint,"
        " SUM(completion_tokens)::bigint, SUM(reasoning_tokens)::bigint,"
        " AVG(first_token_ms), AVG(total_ms) FROM requests WHERE received_ms >= $1"
        " GROUP BY grp ORDER BY SUM(prompt_tokens + completion_tokens) DESC, grp",
        groups[by]);
    (void)snprintf(since, sizeof since, "%lld", (long long)since_ms);
    const char *const values[] = {since};
    PGresult *result = PQexecParams(s->db, sql, 1, NULL, values, NULL, NULL, 0);
    status rc =
        PQresultStatus(result) == PGRES_TUPLES_OK ? STATUS_OK : fail(s, "usage", result, err);
    for (int i = 0; rc == STATUS_OK && i < PQntuples(result); i++) {
        ledger_usage u = {.requests = count_at(result, i, 1),
                          .failed = count_at(result, i, 2),
                          .prompt_tokens = count_at(result, i, 3),
                          .cached_tokens = count_at(result, i, 4),
                          .completion_tokens = count_at(result, i, 5),
                          .reasoning_tokens = count_at(result, i, 6),
                          .mean_first_token_ms = PQgetisnull(result, i, 7)
                                                     ? -1
                                                     : strtod(PQgetvalue(result, i, 7), NULL),
                          .mean_total_ms = strtod(PQgetvalue(result, i, 8), NULL)};
        (void)snprintf(u.name, sizeof u.name, "%s", PQgetvalue(result, i, 0));
        line(context, &u);
    }
    PQclear(result);
    return rc;
}

/* ------------------------------------------------------------ keys */

static status store_put_key(ledger_store *base, const char *name, const char *line,
                            error *err) {
    postgres_store *s = (postgres_store *)base;
    const char *const values[] = {name, line};
    const char *sql = line == NULL ? "DELETE FROM api_keys WHERE name = $1"
                                   : "INSERT INTO api_keys VALUES($1, $2) ON CONFLICT(name) DO"
                                     " UPDATE SET line = excluded.line";
    PGresult *result =
        PQexecParams(s->db, sql, line == NULL ? 1 : 2, NULL, values, NULL, NULL, 0);
    status rc =
        PQresultStatus(result) == PGRES_COMMAND_OK ? STATUS_OK : fail(s, "key", result, err);
    if (rc == STATUS_OK && line == NULL && strcmp(PQcmdTuples(result), "0") == 0)
        rc = error_set(err, STATUS_BAD_INPUT, "ledger: there is no key '%s'", name);
    PQclear(result);
    return rc;
}

static status store_put_use(ledger_store *base, uint64_t instance, const ledger_use *use,
                            size_t n, error *err) {
    postgres_store *s = (postgres_store *)base;
    status rc = run(s, "BEGIN", err);
    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        char numbers[3][NUMBER_SIZE];
        (void)snprintf(numbers[0], NUMBER_SIZE, "%lld", (long long)instance);
        (void)snprintf(numbers[1], NUMBER_SIZE, "%lld", (long long)use[i].requests);
        (void)snprintf(numbers[2], NUMBER_SIZE, "%lld", (long long)use[i].tokens);
        const char *const values[] = {use[i].name, numbers[0], numbers[1], numbers[2]};
        PGresult *result = PQexecParams(
            s->db,
            "INSERT INTO api_use VALUES($1, $2, $3, $4) ON CONFLICT(name, instance) DO"
            " UPDATE SET requests = excluded.requests, tokens = excluded.tokens",
            4, NULL, values, NULL, NULL, 0);
        if (PQresultStatus(result) != PGRES_COMMAND_OK) rc = fail(s, "use", result, err);
        PQclear(result);
    }
    if (rc == STATUS_OK) rc = run(s, "COMMIT", err);
    if (rc != STATUS_OK) PQclear(PQexec(s->db, "ROLLBACK"));
    return rc;
}

static status store_uses(ledger_store *base, uint64_t instance, void *context,
                         void (*line)(void *context, const ledger_use *use), error *err) {
    postgres_store *s = (postgres_store *)base;
    char number[NUMBER_SIZE];
    (void)snprintf(number, sizeof number, "%lld", (long long)instance);
    const char *const values[] = {number};
    PGresult *result = PQexecParams(
        s->db,
        "SELECT name, SUM(requests)::bigint, SUM(tokens)::bigint FROM api_use WHERE"
        " instance <> $1 GROUP BY name",
        1, NULL, values, NULL, NULL, 0);
    status rc =
        PQresultStatus(result) == PGRES_TUPLES_OK ? STATUS_OK : fail(s, "use", result, err);
    for (int i = 0; rc == STATUS_OK && i < PQntuples(result); i++) {
        ledger_use use = {.requests = count_at(result, i, 1), .tokens = count_at(result, i, 2)};
        (void)snprintf(use.name, sizeof use.name, "%s", PQgetvalue(result, i, 0));
        line(context, &use);
    }
    PQclear(result);
    return rc;
}

static status store_keys(ledger_store *base, void *context,
                         void (*line)(void *context, const char *line), error *err) {
    postgres_store *s = (postgres_store *)base;
    PGresult *result = PQexec(s->db, "SELECT line FROM api_keys ORDER BY name");
    status rc =
        PQresultStatus(result) == PGRES_TUPLES_OK ? STATUS_OK : fail(s, "keys", result, err);
    for (int i = 0; rc == STATUS_OK && i < PQntuples(result); i++)
        line(context, PQgetvalue(result, i, 0));
    PQclear(result);
    return rc;
}

/* ------------------------------------------------------------ opening */

static const ledger_store_ops ops = {.close = store_close,
                                     .insert = store_insert,
                                     .usage = store_usage,
                                     .put_key = store_put_key,
                                     .put_use = store_put_use,
                                     .uses = store_uses,
                                     .keys = store_keys};

static void be_silent(void *context, const char *message) {
    (void)context;
    (void)message;
}

static status prepare(const postgres_store *s, bool create, error *err) {
    (void)PQsetNoticeProcessor(s->db, be_silent, NULL);
    /* A server that hangs must not hold the thread for ever. */
    status rc = run(s, "SET statement_timeout = '10s'", err);
    if (rc == STATUS_OK && create) rc = migrate(s, err);
    if (rc != STATUS_OK) return rc;
    static const char sql[] =
        "INSERT INTO requests(" LEDGER_COLUMN_NAMES ")"
        " VALUES($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18)"
        " ON CONFLICT DO NOTHING";
    PGresult *result = PQprepare(s->db, "insert_row", sql, LEDGER_COLUMNS, NULL);
    rc =
        PQresultStatus(result) == PGRES_COMMAND_OK ? STATUS_OK : fail(s, "insert", result, err);
    PQclear(result);
    return rc;
}

status ledger_postgres_open(ledger_store **out, const char *url, bool create, error *err) {
    *out = NULL;
    postgres_store *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "ledger: no memory");
    s->base.ops = &ops;
    const char *const names[] = {"dbname", "connect_timeout", "application_name", NULL};
    const char *const values[] = {url, "5", "siliceo-coordinator", NULL};
    s->db = PQconnectdbParams(names, values, 1);
    status rc = PQstatus(s->db) == CONNECTION_OK ? prepare(s, create, err)
                                                 : fail(s, "cannot connect", NULL, err);
    if (rc != STATUS_OK) {
        store_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return STATUS_OK;
}

#else

status ledger_postgres_open(ledger_store **out, const char *url, bool create, error *err) {
    (void)url;
    (void)create;
    *out = NULL;
    return error_set(
        err, STATUS_BAD_INPUT,
        "ledger.url: this program was built without libpq and knows no PostgreSQL");
}

#endif
