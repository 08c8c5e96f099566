/* command_usage.c - `siliceo-coordinator usage`: what the ledger says, summed by key, model, node,
 * day or end. */
#include "common/clock.h"
#include "common/json.h"
#include "coordinator/commands.h"
#include "coordinator/ledger_store.h"
#include "coordinator/options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct usage_words {
    const char *since, *by;
    bool json, help;
} usage_words;

static const char *const by_names[] = {"key", "model", "node", "day", "ended"};
enum { N_BY = sizeof by_names / sizeof by_names[0] };

/* Takes --since, --by and --json out of argv; the settings' own flags stay. */
static int take_words(usage_words *w, int argc, char *argv[]) {
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            w->json = true;
        else if (strcmp(argv[i], "--help") == 0)
            w->help = true;
        else if (strcmp(argv[i], "--since") == 0 && i + 1 < argc)
            w->since = argv[++i];
        else if (strcmp(argv[i], "--by") == 0 && i + 1 < argc)
            w->by = argv[++i];
        else
            argv[kept++] = argv[i];
    }
    return kept;
}

/* 90m, 24h, 7d, or a date of UTC; NULL: from the beginning. */
static status parse_since(uint64_t *ms, const char *text, error *err) {
    *ms = 0;
    if (text == NULL) return STATUS_OK;
    char *end = NULL;
    double n = strtod(text, &end);
    double unit = end == text             ? 0
                  : strcmp(end, "m") == 0 ? 60
                  : strcmp(end, "h") == 0 ? 3600
                  : strcmp(end, "d") == 0 ? 86400
                                          : 0;
    if (unit > 0 && n > 0 && n < 1e6) {
        uint64_t back = (uint64_t)(n * unit * 1000), now = clock_wall_ms();
        *ms = now > back ? now - back : 0;
        return STATUS_OK;
    }
    struct tm day = {0};
    const char *rest = strptime(text, "%Y-%m-%d", &day);
    if (rest == NULL || *rest != '\0') {
        return error_set(
            err, STATUS_BAD_INPUT,
            "--since: '%s' is neither a date like 2026-11-01 nor like 90m, 24h or 7d", text);
    }
    *ms = (uint64_t)timegm(&day) * 1000;
    return STATUS_OK;
}

static status parse_by(ledger_by *by, const char *text, error *err) {
    for (size_t i = 0; i < N_BY; i++) {
        if (text != NULL && strcmp(text, by_names[i]) != 0) continue;
        *by = (ledger_by)i;
        return STATUS_OK;
    }
    return error_set(err, STATUS_BAD_INPUT,
                     "--by: '%s' is none of key, model, node, day, ended", text);
}

typedef struct printer {
    bool json;
    const char *by;
    unsigned n;
} printer;

static void print_json(const printer *p, const ledger_usage *u) {
    json_text name = {0};
    json_text_string(&name, u->name, strlen(u->name));
    (void)printf("%s{\"%s\":%s,\"requests\":%llu,\"failed\":%llu,\"prompt_tokens\":%llu,"
                 "\"cached_tokens\":%llu,\"completion_tokens\":%llu,\"reasoning_tokens\":%llu,"
                 "\"mean_total_ms\":%.1f,\"mean_first_token_ms\":",
                 p->n == 0 ? "" : ",\n ", p->by, name.failed ? "null" : name.bytes,
                 (unsigned long long)u->requests, (unsigned long long)u->failed,
                 (unsigned long long)u->prompt_tokens, (unsigned long long)u->cached_tokens,
                 (unsigned long long)u->completion_tokens,
                 (unsigned long long)u->reasoning_tokens, u->mean_total_ms);
    if (u->mean_first_token_ms < 0)
        (void)printf("null}");
    else
        (void)printf("%.1f}", u->mean_first_token_ms);
    json_text_release(&name);
}

static void on_line(void *context, const ledger_usage *u) {
    printer *p = context;
    if (p->json)
        print_json(p, u);
    else
        (void)printf("%-24s %9llu %7llu %12llu %12llu %12llu %12llu %9.0f %9.0f\n",
                     u->name[0] != '\0' ? u->name : "-", (unsigned long long)u->requests,
                     (unsigned long long)u->failed, (unsigned long long)u->prompt_tokens,
                     (unsigned long long)u->cached_tokens,
                     (unsigned long long)u->completion_tokens,
                     (unsigned long long)u->reasoning_tokens,
                     u->mean_first_token_ms < 0 ? 0 : u->mean_first_token_ms, u->mean_total_ms);
    p->n++;
}

static status print_usage(const options *o, const usage_words *w, error *err) {
    uint64_t since_ms;
    ledger_by by;
    status rc = parse_since(&since_ms, w->since, err);
    if (rc == STATUS_OK) rc = parse_by(&by, w->by, err);
    if (rc == STATUS_OK && o->ledger_url[0] == '\0')
        rc = error_set(err, STATUS_BAD_INPUT, "ledger.url: is not set, so there is no ledger");
    ledger_store *s = NULL;
    if (rc == STATUS_OK) rc = ledger_store_open(&s, o->ledger_url, false, err);
    if (rc != STATUS_OK) return rc;
    printer p = {.json = w->json, .by = by_names[by]};
    if (w->json)
        (void)printf("[");
    else
        (void)printf("%-24s %9s %7s %12s %12s %12s %12s %9s %9s\n", by_names[by], "requests",
                     "failed", "prompt", "cached", "completion", "reasoning", "first ms",
                     "total ms");
    rc = ledger_store_usage(s, by, since_ms, &p, on_line, err);
    if (w->json) (void)printf("]\n");
    ledger_store_close(s);
    return rc;
}

int command_usage(int argc, char *argv[]) {
    config c = {0};
    options o;
    error err = {0};
    usage_words words = {0};
    argc = take_words(&words, argc, argv);
    if (words.help) {
        (void)printf(
            "usage: siliceo-coordinator usage [--config FILE | --ledger-url URL] "
            "[--since DATE|90m|24h|7d]\n           [--by key|model|node|day|ended] [--json]\n");
        return 0;
    }
    status rc = options_init(&c, &o, &err);
    if (rc == STATUS_OK) rc = config_read(&c, argc, argv, &err);
    if (rc == STATUS_OK) rc = print_usage(&o, &words, &err);
    if (rc != STATUS_OK) (void)fprintf(stderr, "siliceo-coordinator: usage: %s\n", err.text);
    config_release(&c);
    return rc == STATUS_OK ? 0 : rc == STATUS_BAD_INPUT ? 2 : 1;
}
