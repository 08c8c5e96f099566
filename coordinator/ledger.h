/* ledger.h - every request that ended, on its way to the database.
 *
 * Rows go over a bounded ring to the thread `ledger`, which writes them in
 * transactions; `io` never waits for a disk.  While the database is slow or gone rows wait in
 * memory, up to a bound at which new requests are refused (ledger_is_full()): none
 * is lost silently.  What could not be written at the very end is counted and logged.
 * Everything but the thread's own work is called in `io`.
 */
#ifndef SILICEO_COORDINATOR_LEDGER_H
#define SILICEO_COORDINATOR_LEDGER_H

#include "common/error.h"
#include "common/wire.h"
#include "coordinator/auth.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ledger ledger;

typedef struct ledger_row {
    struct ledger_row *next; /* the ledger's own, as instance and number are */
    uint64_t instance;       /* of the coordinator process; with number it makes a row unique */
    uint64_t number;
    uint64_t received_ms; /* wall clock */
    uint64_t priority;
    uint64_t http_status;
    uint64_t attempts;
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    double queued_ms;
    double first_token_ms; /* from its arrival; negative: none came */
    double total_ms;
    char request_id[72];
    char key_name[AUTH_NAME_SIZE];
    char model[WIRE_MAX_NAME + 1];
    char node[WIRE_MAX_NAME + 1];
    char ended[WIRE_MAX_NAME +
               1]; /* stop, length, tool_calls, client_closed, or an error's code */
} ledger_row;

typedef struct ledger_stats {
    uint64_t waiting; /* rows not yet in the database */
    uint64_t written;
    uint64_t lost;
    bool failing; /* the last attempt to write failed */
} ledger_stats;

/* Opens the database (ledger_store.h says which url is which) and starts the thread. */
status ledger_open(ledger **out, const char *url, uint64_t instance, size_t max_waiting,
                   uint32_t retry_ms, error *err);
/* Copies the row.  NULL: there is no ledger, nothing happens. */
void ledger_write(ledger *l, const ledger_row *row);
/* So many rows wait that nothing more should begin.  Accepts NULL. */
bool ledger_is_full(const ledger *l);
/* Moves rows on that had no place in the ring; some times a second.  Accepts NULL. */
void ledger_tick(ledger *l);
ledger_stats ledger_get_stats(const ledger *l); /* accepts NULL */
/* --- keys that several coordinators share: they stand in the database, and so does what each of them
 * has given to a key, so that the rates hold over all of them (the second or so that this takes
 * to go round aside) */
/* All keys, as lines of a key file; at the start, before the loop.  The caller frees. */
status ledger_read_keys(const char *url, char **lines, error *err);
/* Tell what the keys have used, and ask for the others' use and the keys; io, each second. */
void ledger_share(ledger *l, const auth *a);
/* What came of it: uses are taken into account; NULL or the keys' lines, which the caller frees. */
char *ledger_take_news(ledger *l, auth *a, uint64_t now_ms);

/* Waits until all rows are written, or writing has failed for a few seconds.  Accepts NULL. */
void ledger_close(ledger *l);

#endif
