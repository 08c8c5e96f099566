/* answer_format.c - the vocabulary walked with the automaton. */
#include "worker/text/answer_format.h"

#include "worker/text/json_automaton.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_SETS = 128,
    MAX_PLAN_BYTES = 1 << 16,
    MAX_WALK_FRAMES = 1 << 19 /* 30 ms; a walk of common schemas takes a tenth */
};

/* The allowed tokens of all states that are alike, whatever the budget. */
typedef struct token_set {
    uint64_t likeness;
    bool known;
    int64_t farthest; /* how much longer than here the shortest way is behind the worst */
    uint64_t *bits;   /* [n_words], taken when first needed */
} token_set;

struct answer_format {
    json_automaton *automaton;
    const token_trie *trie;
    const tokenizer *vocab;
    uint32_t state;
    uint32_t *path;   /* [max_depth + 1]: states above the node of a walk */
    uint64_t *narrow; /* a set that a budget made smaller */
    size_t n_words;
    token_set sets[N_SETS];
    int32_t *plan; /* tokens of the shortest document */
    uint32_t n_plan, at_plan;
    bool follows_plan;
    bool said; /* more than blanks has come */
};

/* --- the shortest document in the fewest tokens --- */

/* The node of the tree below parent with this byte, or n_nodes. */
static uint32_t child_of(const token_trie *t, uint32_t first, uint32_t end,
                         unsigned char byte) {
    for (uint32_t i = first; i < end; i = t->nodes[i].end) {
        if (t->nodes[i].byte == byte) return i;
    }
    return t->n_nodes;
}

/* From the last byte to the first: best[i] is the token that begins the fewest behind i. */
static bool cover(const token_trie *t, const unsigned char *bytes, size_t n, uint32_t *count,
                  int32_t *best, uint16_t *length) {
    count[n] = 0;
    for (size_t i = n; i-- > 0;) {
        uint32_t first = 0, end = t->n_nodes;
        count[i] = UINT32_MAX;
        for (size_t j = i; j < n; j++) {
            uint32_t node = child_of(t, first, end, bytes[j]);
            if (node == t->n_nodes) break;
            uint32_t tokens = node > 0 ? t->nodes[node - 1].tokens_end : 0;
            if (t->nodes[node].tokens_end > tokens && count[j + 1] < UINT32_MAX &&
                count[j + 1] + 1 < count[i]) {
                count[i] = count[j + 1] + 1;
                best[i] = t->ids[tokens];
                length[i] = (uint16_t)(j + 1 - i);
            }
            first = node + 1;
            end = t->nodes[node].end;
        }
    }
    return count[0] < UINT32_MAX;
}

/* The bytes of the shortest document; an automaton of its own is spent on them. */
static status write_shortest(const json_grammar *g, unsigned char *out, size_t n, error *err) {
    json_automaton *a = NULL;
    status rc = json_automaton_new(&a, g, err);
    if (rc != STATUS_OK) return rc;
    uint32_t state = json_automaton_start(a);
    for (size_t i = 0; i < n && state != JSON_DEAD; i++) {
        out[i] = json_automaton_close_byte(a, state);
        state = json_automaton_step(a, state, out[i]);
        (void)json_automaton_tidy(a, &state);
    }
    bool whole = json_automaton_is_complete(a, state);
    json_automaton_free(a);
    if (whole) return STATUS_OK;
    return error_set(err, STATUS_BAD_INPUT, "leaves more ways open than can be followed");
}

static status make_plan(answer_format *f, const json_grammar *g, error *err) {
    size_t n = json_automaton_close_bytes(f->automaton, f->state);
    if (n > MAX_PLAN_BYTES) {
        return error_set(err, STATUS_BAD_INPUT, "has no document of less than %zu bytes", n);
    }
    status rc = STATUS_NO_MEMORY;
    unsigned char *bytes = calloc(n + 1, 1);
    uint32_t *count = calloc(n + 1, sizeof *count);
    uint16_t *length = calloc(n + 1, sizeof *length);
    int32_t *best = calloc(n + 1, sizeof *best);
    f->plan = calloc(n + 1, sizeof *f->plan);
    if (bytes == NULL || count == NULL || length == NULL || best == NULL || f->plan == NULL) {
        (void)error_set(err, rc, "no memory for the shortest document");
        goto done;
    }
    rc = write_shortest(g, bytes, n, err);
    if (rc != STATUS_OK) goto done;
    if (!cover(f->trie, bytes, n, count, best, length)) {
        rc = error_set(err, STATUS_BAD_INPUT, "cannot be written with this vocabulary");
        goto done;
    }
    for (size_t i = 0; i < n; i += length[i])
        f->plan[f->n_plan++] = best[i];
done:
    free(best);
    free(length);
    free(count);
    free(bytes);
    return rc;
}

/* --- life --- */

status answer_format_new(answer_format **out, const json_grammar *g, const token_trie *trie,
                         const tokenizer *vocab, error *err) {
    *out = NULL;
    status rc = STATUS_NO_MEMORY;
    answer_format *f = calloc(1, sizeof *f);
    if (f == NULL) goto no_memory;
    f->trie = trie;
    f->vocab = vocab;
    f->n_words = ((size_t)trie->n_vocab + 63) / 64;
    f->path = calloc((size_t)trie->max_depth + 1, sizeof *f->path);
    f->narrow = calloc(f->n_words, sizeof *f->narrow);
    if (f->path == NULL || f->narrow == NULL) goto no_memory;
    rc = json_automaton_new(&f->automaton, g, err);
    if (rc != STATUS_OK) goto fail;
    f->state = json_automaton_start(f->automaton);
    rc = make_plan(f, g, err);
    if (rc != STATUS_OK) goto fail;
    *out = f;
    return STATUS_OK;
no_memory:
    (void)error_set(err, rc, "no memory for the format of an answer");
fail:
    answer_format_free(f);
    return rc;
}

void answer_format_free(answer_format *f) {
    if (f == NULL) return;
    for (size_t i = 0; i < N_SETS; i++)
        free(f->sets[i].bits);
    free(f->plan);
    json_automaton_free(f->automaton);
    free(f->narrow);
    free(f->path);
    free(f);
}

/* --- one token --- */

static uint32_t state_behind(answer_format *f, int32_t id) {
    size_t length = 0;
    const char *bytes = tokenizer_bytes(f->vocab, id, &length);
    if (tokenizer_kind(f->vocab, id) != TOKEN_NORMAL || length == 0) return JSON_DEAD;
    uint32_t state = f->state;
    for (size_t i = 0; i < length && state != JSON_DEAD; i++)
        state = json_automaton_step(f->automaton, state, (unsigned char)bytes[i]);
    return state;
}

uint32_t answer_format_least(const answer_format *f) {
    return f->n_plan;
}

void answer_format_begin(answer_format *f, uint32_t n_left) {
    f->follows_plan = n_left < json_automaton_close_bytes(f->automaton, f->state);
    f->at_plan = 0;
}

void answer_format_restart(answer_format *f) {
    f->state = json_automaton_start(f->automaton);
    f->follows_plan = f->said = false;
    f->at_plan = 0;
}

bool answer_format_is_blank(const answer_format *f) {
    return !f->said;
}

bool answer_format_is_whole(const answer_format *f) {
    return json_automaton_is_complete(f->automaton, f->state);
}

bool answer_format_allows(answer_format *f, int32_t id, uint32_t n_left) {
    if (tokenizer_is_end(f->vocab, id)) return answer_format_is_whole(f);
    if (f->follows_plan) return f->at_plan < f->n_plan && f->plan[f->at_plan] == id;
    uint32_t close = json_automaton_close_bytes(f->automaton, state_behind(f, id));
    return n_left > 0 && close <= n_left - 1;
}

bool answer_format_push(answer_format *f, int32_t id) {
    if (tokenizer_is_end(f->vocab, id)) return answer_format_is_whole(f);
    uint32_t state = state_behind(f, id);
    if (state == JSON_DEAD) return false;
    size_t length = 0;
    const char *bytes = tokenizer_bytes(f->vocab, id, &length);
    for (size_t i = 0; i < length; i++)
        f->said |= bytes[i] != ' ' && bytes[i] != '\n';
    f->state = state;
    f->at_plan++;
    if (!json_automaton_tidy(f->automaton, &f->state)) return true;
    for (size_t i = 0; i < N_SETS; i++)
        f->sets[i].known = false;
    return true;
}

/* --- all tokens --- */

static void add_bit(uint64_t *bits, int32_t id) {
    bits[id >> 6] |= (uint64_t)1 << (id & 63);
}

/* The token of the first byte on the shortest way: however far a walk came, it is allowed. */
static void add_closing(const answer_format *f, uint32_t max_close, uint64_t *bits) {
    const token_trie *t = f->trie;
    uint32_t close = json_automaton_close_bytes(f->automaton, f->state);
    if (close == 0 || close - 1 > max_close) return;
    unsigned char byte = json_automaton_close_byte(f->automaton, f->state);
    uint32_t node = child_of(t, 0, t->n_nodes, byte);
    if (node == t->n_nodes) return;
    uint32_t token = node > 0 ? t->nodes[node - 1].tokens_end : 0;
    if (token < t->nodes[node].tokens_end) add_bit(bits, t->ids[token]);
}

/* The tokens behind which the end is at most max_close bytes away; the farthest of all
 * ends is returned. */
static uint32_t walk(answer_format *f, uint32_t max_close, uint64_t *bits) {
    const token_trie *t = f->trie;
    uint32_t farthest = 0;
    json_automaton_limit(f->automaton, MAX_WALK_FRAMES);
    memset(bits, 0, f->n_words * sizeof *bits);
    f->path[0] = f->state;
    for (uint32_t i = 0; i < t->n_nodes;) {
        const token_trie_node *node = &t->nodes[i];
        uint32_t state =
            json_automaton_step(f->automaton, f->path[node->depth - 1], node->byte);
        if (state == JSON_DEAD) {
            i = node->end;
            continue;
        }
        f->path[node->depth] = state;
        uint32_t token = i > 0 ? t->nodes[i - 1].tokens_end : 0;
        if (token < node->tokens_end) {
            uint32_t close = json_automaton_close_bytes(f->automaton, state);
            if (close > farthest) farthest = close;
            for (; close <= max_close && token < node->tokens_end; token++)
                add_bit(bits, t->ids[token]);
        }
        i++;
    }
    json_automaton_limit(f->automaton, UINT64_MAX);
    add_closing(f, max_close, bits);
    return farthest;
}

/* The allowed ones but for the ends of text. */
static const uint64_t *find_set(answer_format *f, uint32_t n_left) {
    uint64_t likeness = json_automaton_likeness(f->automaton, f->state, f->trie->max_depth);
    token_set *set = &f->sets[likeness % N_SETS];
    if (set->bits == NULL) set->bits = calloc(f->n_words, sizeof *set->bits);
    memset(f->narrow, 0, f->n_words * sizeof *f->narrow);
    if (n_left == 0) return f->narrow;
    if (f->follows_plan) {
        if (f->at_plan < f->n_plan) add_bit(f->narrow, f->plan[f->at_plan]);
        return f->narrow;
    }
    if (set->bits == NULL) {
        (void)walk(f, n_left - 1, f->narrow);
        return f->narrow;
    }
    int64_t close = json_automaton_close_bytes(f->automaton, f->state);
    if (!set->known || set->likeness != likeness) {
        set->farthest = walk(f, JSON_GRAMMAR_NEVER, set->bits) - close;
        set->likeness = likeness;
        set->known = true;
    }
    if (close + set->farthest <= (int64_t)n_left - 1) return set->bits;
    (void)walk(f, n_left - 1, f->narrow);
    return f->narrow;
}

void answer_format_mask(answer_format *f, float *logits, uint32_t n_vocab, uint32_t n_left) {
    const uint64_t *bits = find_set(f, n_left);
    bool whole = answer_format_is_whole(f);
    for (uint32_t first = 0; first < n_vocab; first += 64) {
        uint64_t word = first / 64 < f->n_words ? bits[first / 64] : 0;
        if (word == UINT64_MAX) continue;
        uint32_t n = n_vocab - first < 64 ? n_vocab - first : 64;
        for (uint32_t i = 0; i < n; i++) {
            if ((word >> i) & 1) continue;
            if (whole && tokenizer_is_end(f->vocab, (int32_t)(first + i))) continue;
            logits[first + i] = -INFINITY;
        }
    }
}
