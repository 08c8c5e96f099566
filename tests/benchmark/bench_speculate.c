/* bench_speculate.c - what guesses bring on texts of some kinds: the same requests with and
 * without, an answer each in turn in one process, so that a busy machine slows both alike.  Who is
 * first changes from pair to pair.  (Not step by step: the second of two finds in the caches what
 * the first has read from the same file, which was worth up to a tenth to it.)
 *
 *     bench_speculate MODEL DRAFT THREADS REPEATS
 *     bench_speculate MODEL THREADS                only what rows cost
 *
 * What rows verified together cost: the least time of a step of some numbers of them, all
 * remembered (model.h) and all right.
 *
 * One JSON a line for each text and kind of guesses: share of guesses that came true, tokens a
 * step, the medians of both rates over the pairs and of their quotient, with its quartiles.  The
 * kind "none" has no guesses on either side: how far its quotient is from 1 is what the machine's
 * own noise makes of such a figure.  Time is that from the first token to the last, whole steps
 * with guessing and sampling.  The ids of both must be the same, or it fails.
 */
#include "common/clock.h"
#include "worker/engine.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_IDS = 4096, MAX_REPEATS = 64 };

typedef struct text_case {
    const char *kind;
    wire_kind wire;
    const char *body;
} text_case;

#define CHAT(words, n)                                                                         \
    "{\"messages\":[" words "],\"temperature\":0,\"max_tokens\":" #n                           \
    ",\"chat_template_kwargs\":{\"enable_thinking\":false}}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAID(text) ",{\"role\":\"assistant\",\"content\":\"" text "\"},"
#define WORDS      "ring goat wolf clock forest mountain yellow lamp mirror heron silver market"
#define ADD                                                                                    \
    "Here is the function:\\n\\n```c\\nint add(int a, int b)\\n{\\n    return a + b;\\n}\\n"   \
    "```\\n\\nIt adds its two arguments."
#define COUNTED                                                                                \
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 "           \
    "30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 "           \
    "56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 "           \
    "82 83 84 85 86 87 88 89 90"
#define STORY                                                                                  \
    "Once there was a hungry fox named Ada who lived near the harbour. One day Ada found a "   \
    "lamp under a stone. \\\"Whose lamp is this?\\\" asked Ada. A cat named Ada came by and "  \
    "said, \\\"It is mine. I lost it in the harbour.\\\" Ada gave the lamp back, and Ada was " \
    "very happy. From that day on, Ada and Ada were friends, and the lamp shone over the "     \
    "harbour every night."

/* Copying, counted and told are asked for again what the conversation has already.  In noise every token is one of eight, almost alike in likelihood: what came before is always
 * found and hardly ever tells what comes. */
static const text_case cases[] = {
    {"counting", WIRE_CHAT, CHAT(USER("Count from 1 to 90."), 256)},
    {"copying", WIRE_CHAT,
     CHAT(USER("Repeat exactly: " WORDS) SAID(WORDS) USER("Repeat exactly: " WORDS), 64)},
    {"code", WIRE_CHAT,
     CHAT(USER("Write a C function that adds two integers.") SAID(ADD)
              USER("Write a C function that adds two integers."),
          64)},
    {"counted", WIRE_CHAT,
     CHAT(USER("Count from 1 to 90.") SAID(COUNTED) USER("Count from 1 to 90."), 256)},
    {"told", WIRE_CHAT,
     CHAT(USER("Tell me a story about a fox and a lamp.") SAID(STORY)
              USER("Tell me a story about a fox and a lamp."),
          256)},
    {"prose", WIRE_CHAT, CHAT(USER("Tell me a story about a fox and a lamp."), 256)},
    {"noise", WIRE_COMPLETION,
     "{\"prompt\":\"1 2 3 4 5 6 7 8\",\"temperature\":2,\"top_k\":0,\"top_p\":1,"
     "\"seed\":7,\"max_tokens\":512,\"ignore_eos\":true,\"logit_bias\":{\"100\":100,"
     "\"101\":100,\"102\":100,\"103\":100,\"104\":100,\"105\":100,\"106\":100,"
     "\"107\":100}}"},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct run {
    int32_t ids[MAX_IDS];
    size_t n_ids;
    uint64_t took_ns;
    bool failed, done;
} run;

typedef struct side {
    engine *e;
    run now;
} side;

static void take_tokens(void *context, const wire_tokens *t) {
    run *r = &((side *)context)->now;
    for (size_t i = 0; i < t->n_ids && r->n_ids < MAX_IDS; i++)
        r->ids[r->n_ids++] = t->ids[i];
}

static void take_done(void *context, const wire_done *d) {
    (void)d;
    ((side *)context)->now.done = true;
}

static void take_error(void *context, const wire_error *e) {
    ((side *)context)->now.failed = true;
    (void)fprintf(stderr, "bench_speculate: %.*s\n", (int)e->text.length, e->text.bytes);
}

static int open_side(side *out, const char *path, const char *draft, uint32_t n_threads,
                     speculate_wish wish, uint32_t fixed) {
    error err = {0};
    const engine_params params = {.model_path = path,
                                  .backend = BACKEND_CPU,
                                  .n_threads = n_threads,
                                  .n_context = 1024,
                                  .n_sequences = 1,
                                  .chunk_tokens = 256,
                                  .kv = KV_F16,
                                  .activations = ACTIVATIONS_INT8,
                                  .n_slots = -1,
                                  .inserts_per_layer = 4,
                                  .seed = 1,
                                  .speculate = wish,
                                  .draft_path = draft,
                                  .draft_tokens = fixed,
                                  .fixed_depth = fixed > 0};
    const engine_sink sink = {out, take_tokens, take_done, take_error};
    if (engine_open(&out->e, &params, &sink, &err) == STATUS_OK) return 0;
    (void)fprintf(stderr, "bench_speculate: %s\n", err.text);
    return -1;
}

static uint64_t now_ns(bool by_cpu) {
    struct timespec t;
    if (!by_cpu) return clock_monotonic_ns();
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A step, its time counted from the first token to the end of the answer.  False when there is
 * nothing left to do. */
static bool step(side *s, bool by_cpu) {
    error err = {0};
    bool working = false, counts = s->now.n_ids > 0 && !s->now.done;
    uint64_t begun = now_ns(by_cpu);
    if (engine_step(s->e, &working, &err) != STATUS_OK) {
        (void)fprintf(stderr, "bench_speculate: %s\n", err.text);
        s->now.failed = true;
    }
    if (counts) s->now.took_ns += now_ns(by_cpu) - begun;
    return working && !s->now.failed;
}

static void begin(side *s, const text_case *c) {
    error err = {0};
    const wire_submit submit = {
        .request = 1, .kind = c->wire, .body = wire_text(c->body, strlen(c->body))};
    memset(&s->now, 0, sizeof s->now);
    if (engine_submit(s->e, &submit, &err) == STATUS_OK) return;
    (void)fprintf(stderr, "bench_speculate: %s\n", err.text);
    s->now.failed = true;
}

/* The answer, and what is done for the next one when it has ended. */
static void run_case(side *s, const text_case *c, bool by_cpu) {
    begin(s, c);
    while (step(s, by_cpu)) {
    }
}

/* Tokens a second after the first; 0: it failed. */
static double rate_of(const run *r) {
    if (r->failed || r->n_ids < 2 || r->took_ns == 0) return 0;
    return (double)(r->n_ids - 1) * 1e9 / (double)r->took_ns;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The value that a share of them is not above; of an even number the mean of the middle two. */
static double quantile(double *values, int n, double share) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    double at = share * (n - 1);
    int below = (int)at, above = below + 1 < n ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

static void read_guesses(const side *s, speculate_stats *out, uint64_t *steps) {
    engine_stats stats;
    engine_read_stats(s->e, &stats);
    *out = stats.guesses;
    *steps = stats.model.steps;
}

static int compare(side *plain, side *guessing, const text_case *c, const char *name,
                   int repeats, bool by_cpu) {
    double off[MAX_REPEATS] = {0}, on[MAX_REPEATS] = {0}, ratio[MAX_REPEATS] = {0};
    speculate_stats before, after;
    uint64_t steps_before = 0, steps_after = 0, drafted = 0, accepted = 0, draft_ns = 0;
    size_t n_tokens = 0;
    read_guesses(guessing, &before, &steps_before);
    for (int i = 0; i < repeats; i++) {
        run_case(i % 2 == 0 ? plain : guessing, c, by_cpu);
        run_case(i % 2 == 0 ? guessing : plain, c, by_cpu);
        off[i] = rate_of(&plain->now);
        on[i] = rate_of(&guessing->now);
        if (off[i] <= 0 || on[i] <= 0) return -1;
        ratio[i] = on[i] / off[i];
        n_tokens += guessing->now.n_ids;
        if (plain->now.n_ids != guessing->now.n_ids ||
            memcmp(plain->now.ids, guessing->now.ids, plain->now.n_ids * sizeof(int32_t)) !=
                0) {
            (void)fprintf(stderr, "bench_speculate: %s, %s: other ids\n", c->kind, name);
            return -1;
        }
    }
    read_guesses(guessing, &after, &steps_after);
    for (int k = 0; k < DRAFTER_KINDS; k++) {
        drafted += after.drafted[k] - before.drafted[k];
        accepted += after.accepted[k] - before.accepted[k];
        draft_ns += after.draft_ns[k] - before.draft_ns[k];
    }
    double rows = (double)(after.rows_steps - before.rows_steps);
    (void)printf("{\"text\":\"%s\",\"guesses\":\"%s\",\"tokens\":%zu,\"drafted\":%llu,"
                 "\"accepted_share\":%.4f,\"tokens_per_step\":%.4f,\"off_tok_per_s\":%.1f,"
                 "\"on_tok_per_s\":%.1f,\"speed_up\":%.4f,\"quartiles\":[%.4f,%.4f],"
                 "\"us_per_guess\":%.1f}\n",
                 c->kind, name, n_tokens / (size_t)repeats, (unsigned long long)drafted,
                 drafted > 0 ? (double)accepted / (double)drafted : 0,
                 rows > 0 ? (rows + (double)accepted) / rows : 1, quantile(off, repeats, 0.5),
                 quantile(on, repeats, 0.5), quantile(ratio, repeats, 0.5),
                 quantile(ratio, repeats, 0.25), quantile(ratio, repeats, 0.75),
                 drafted > 0 ? (double)draft_ns / 1e3 / (double)drafted : 0);
    return 0;
}

/* Of some numbers of rows the least time of a step that verifies them. */
static int rows_cost(const char *path, uint32_t n_threads) {
    static const uint32_t numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 64};
    enum {
        MOST = 64,
        ROUNDS = 25,
        LEAST_ROUNDS = 3,
        LONG_S = 20,
        PROMPT = 256,
        N = sizeof numbers / sizeof numbers[0]
    };
    gguf_file *file = NULL;
    model *m = NULL;
    error err = {0};
    const model_params p = {.backend = BACKEND_CPU,
                            .n_threads = n_threads,
                            .kv = KV_F16,
                            .n_pages = 8,
                            .n_states = 2,
                            .n_remembered = MOST,
                            .max_rows = PROMPT,
                            .max_outputs = MOST,
                            .inserts_per_layer = 4};
    static const uint32_t pages[] = {0, 1, 2, 3, 4, 5, 6, 7}, after[] = {1};
    int32_t ids[PROMPT + MOST + ROUNDS];
    double least[1 + MOST] = {0};
    status rc = gguf_open(&file, path, &err);
    if (rc == STATUS_OK) rc = model_open(&m, file, &p, &err);
    uint32_t n_vocab = rc == STATUS_OK ? model_configuration(m)->n_vocab : 1;
    float *logits = calloc((size_t)MOST * n_vocab, sizeof *logits);
    for (uint32_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        ids[i] = (int32_t)(i * 7919u % n_vocab);
    model_segment s = {.tokens = ids, .n_tokens = PROMPT, .pages = pages};
    if (rc == STATUS_OK) model_state_clear(m, 0);
    if (rc == STATUS_OK) rc = model_step(m, &s, 1, logits, &err);
    uint64_t started = clock_monotonic_ns(), limit = LONG_S * 1000000000ull;
    for (uint32_t i = 0; i < ROUNDS * N && rc == STATUS_OK; i++) {
        if (i >= LEAST_ROUNDS * N && clock_monotonic_ns() - started > limit) break;
        uint32_t n = numbers[i % N];
        s = (model_segment){.position = PROMPT,
                            .tokens = ids + PROMPT + i / N,
                            .n_tokens = n,
                            .n_outputs = n,
                            .pages = pages,
                            .states_after = after,
                            .remembered = true};
        uint64_t begun = now_ns(n_threads == 1);
        rc = model_step(m, &s, 1, logits, &err);
        double ms = (double)(now_ns(n_threads == 1) - begun) / 1e6;
        if (least[n] == 0 || ms < least[n]) least[n] = ms;
    }
    for (size_t i = 0; i < N && rc == STATUS_OK; i++)
        (void)printf("{\"rows\":%u,\"ms\":%.3f,\"cost\":%.3f}\n", numbers[i], least[numbers[i]],
                     least[numbers[i]] / least[1]);
    if (rc != STATUS_OK) (void)fprintf(stderr, "bench_speculate: %s\n", err.text);
    free(logits);
    model_close(m);
    gguf_close(file);
    return rc == STATUS_OK ? 0 : 1;
}

int main(int argc, char *argv[]) {
    static const struct {
        const char *name;
        speculate_wish wish;
        uint32_t fixed;
    } kinds[] = {{"none", SPECULATE_OFF, 0},
                 {"lookup", SPECULATE_LOOKUP, 0},
                 {"draft", SPECULATE_DRAFT, 0},
                 {"auto", SPECULATE_AUTO, 0},
                 {"lookup always 4", SPECULATE_LOOKUP, 4},
                 {"draft always 4", SPECULATE_DRAFT, 4}};
    if (argc == 3) return rows_cost(argv[1], (uint32_t)strtoul(argv[2], NULL, 10));
    if (argc != 5) {
        (void)fprintf(stderr, "usage: bench_speculate MODEL DRAFT THREADS REPEATS\n");
        return 2;
    }
    uint32_t n_threads = (uint32_t)strtoul(argv[3], NULL, 10);
    int repeats = (int)strtoul(argv[4], NULL, 10), rc = 0;
    if (repeats < 1 || repeats > MAX_REPEATS) repeats = 5;
    side *plain = calloc(1, sizeof *plain), *guessing = calloc(1, sizeof *guessing);
    if (plain == NULL || guessing == NULL ||
        open_side(plain, argv[1], NULL, n_threads, SPECULATE_OFF, 0) != 0)
        rc = 1;
    for (size_t k = 0; rc == 0 && k < sizeof kinds / sizeof kinds[0]; k++) {
        if (open_side(guessing, argv[1], argv[2], n_threads, kinds[k].wish, kinds[k].fixed) !=
            0)
            rc = 1;
        for (int i = 0; rc == 0 && i < N_CASES; i++)
            if (compare(plain, guessing, &cases[i], kinds[k].name, repeats, n_threads == 1) !=
                0)
                rc = 1;
        engine_close(guessing->e);
    }
    if (plain != NULL) engine_close(plain->e);
    free(guessing);
    free(plain);
    return rc;
}
