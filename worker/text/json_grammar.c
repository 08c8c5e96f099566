/* json_grammar.c - the graph, its shortest ways, and the pieces of JSON. */
#include "worker/text/json_grammar.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_NODES = 1024, FIRST_RULES = 64, MAX_INDENT = 20, MAX_DIGITS = 15 };

/* --- memory --- */

static bool grow(json_grammar *g, void **array, uint32_t *cap, uint32_t limit, size_t size) {
    uint32_t wanted = *cap * 2 > limit ? limit : *cap * 2;
    if (*cap >= limit) {
        if (g->fault == STATUS_OK) g->fault = STATUS_BAD_INPUT;
        return false;
    }
    void *grown = realloc(*array, wanted * size);
    if (grown == NULL) {
        g->fault = STATUS_NO_MEMORY;
        return false;
    }
    *array = grown;
    *cap = wanted;
    return true;
}

status json_grammar_new(json_grammar **out, error *err) {
    *out = NULL;
    json_grammar *g = calloc(1, sizeof *g);
    if (g == NULL) goto no_memory;
    g->cap_nodes = FIRST_NODES;
    g->cap_rules = FIRST_RULES;
    g->nodes = calloc(g->cap_nodes, sizeof *g->nodes);
    g->rules = calloc(g->cap_rules, sizeof *g->rules);
    g->classes = calloc(JSON_GRAMMAR_MAX_CLASSES, sizeof *g->classes);
    if (g->nodes == NULL || g->rules == NULL || g->classes == NULL) goto no_memory;
    g->n_nodes = 1; /* JSON_RETURN */
    g->n_classes = 256;
    for (uint32_t i = 0; i < 256; i++)
        json_bytes_add(&g->classes[i], (unsigned char)i, (unsigned char)i);
    g->character = g->digit = g->blank = g->any = UINT32_MAX;
    (void)json_grammar_rule(g);
    *out = g;
    return STATUS_OK;
no_memory:
    json_grammar_free(g);
    return error_set(err, STATUS_NO_MEMORY, "no memory for a grammar");
}

void json_grammar_free(json_grammar *g) {
    if (g == NULL) return;
    free(g->classes);
    free(g->rules);
    free(g->nodes);
    free(g);
}

static uint32_t add(json_grammar *g, json_node node) {
    if (g->fault != STATUS_OK) return JSON_RETURN;
    if (g->n_nodes == g->cap_nodes) {
        void *nodes = g->nodes;
        bool grown = grow(g, &nodes, &g->cap_nodes, JSON_GRAMMAR_MAX_NODES, sizeof node);
        g->nodes = nodes;
        if (!grown) return JSON_RETURN;
    }
    g->nodes[g->n_nodes] = node;
    return g->n_nodes++;
}

uint32_t json_grammar_rule(json_grammar *g) {
    if (g->n_rules == g->cap_rules) {
        void *rules = g->rules;
        bool grown = grow(g, &rules, &g->cap_rules, JSON_GRAMMAR_MAX_RULES, sizeof *g->rules);
        g->rules = rules;
        if (!grown) return 0;
    }
    g->rules[g->n_rules] = JSON_RETURN;
    return g->n_rules++;
}

void json_grammar_enter(json_grammar *g, uint32_t rule, uint32_t entry) {
    g->rules[rule] = entry;
}

/* --- nodes --- */

void json_bytes_add(json_bytes *set, unsigned char from, unsigned char to) {
    for (unsigned b = from; b <= to; b++)
        set->bits[b >> 6] |= (uint64_t)1 << (b & 63);
}

uint32_t json_grammar_class(json_grammar *g, const json_bytes *set, uint32_t next) {
    uint32_t i = 0;
    while (i < g->n_classes && memcmp(&g->classes[i], set, sizeof *set) != 0)
        i++;
    if (i == JSON_GRAMMAR_MAX_CLASSES) {
        if (g->fault == STATUS_OK) g->fault = STATUS_BAD_INPUT;
        return JSON_RETURN;
    }
    if (i == g->n_classes) g->classes[g->n_classes++] = *set;
    return add(g, (json_node){.kind = JSON_NODE_BYTES, .next = next, .class = i});
}

static uint32_t from_to(json_grammar *g, unsigned char from, unsigned char to, uint32_t next) {
    json_bytes set = {{0}};
    json_bytes_add(&set, from, to);
    return json_grammar_class(g, &set, next);
}

uint32_t json_grammar_literal(json_grammar *g, const char *bytes, size_t n, uint32_t next) {
    while (n-- > 0)
        next = add(g, (json_node){.kind = JSON_NODE_BYTES,
                                  .next = next,
                                  .class = (unsigned char)bytes[n]});
    return next;
}

static uint32_t text(json_grammar *g, const char *bytes, uint32_t next) {
    return json_grammar_literal(g, bytes, strlen(bytes), next);
}

uint32_t json_grammar_either(json_grammar *g, uint32_t one, uint32_t other) {
    if (one == other) return one;
    return add(g, (json_node){.kind = JSON_NODE_SPLIT, .next = one, .other = other});
}

uint32_t json_grammar_call(json_grammar *g, uint32_t rule, uint32_t next) {
    return add(g, (json_node){.kind = JSON_NODE_CALL, .next = next, .other = rule});
}

uint32_t json_grammar_repeat(json_grammar *g, uint32_t rule, uint32_t min, uint32_t max,
                             uint32_t next) {
    if (max == 0) return next;
    return add(
        g, (json_node){
               .kind = JSON_NODE_REPEAT, .next = next, .other = rule, .min = min, .max = max});
}

/* --- shortest ways --- */

static uint32_t sum(uint64_t a, uint64_t b) {
    return a + b >= JSON_GRAMMAR_NEVER ? JSON_GRAMMAR_NEVER : (uint32_t)(a + b);
}

static uint32_t shortest(const json_grammar *g, const json_node *n) {
    const json_node *nodes = g->nodes;
    uint32_t next = nodes[n->next].close, other = 0;
    switch (n->kind) {
    case JSON_NODE_RETURN:
        return 0;
    case JSON_NODE_BYTES:
        return sum(next, 1);
    case JSON_NODE_SPLIT:
        other = nodes[n->other].close;
        return next < other ? next : other;
    case JSON_NODE_CALL:
        return sum(next, nodes[g->rules[n->other]].close);
    case JSON_NODE_REPEAT:
        return sum(next, (uint64_t)n->min * nodes[g->rules[n->other]].close);
    case JSON_NODE_GATE:
        return next;
    }
    return JSON_GRAMMAR_NEVER;
}

/* Bellman's relaxation; ways only become shorter.  Nodes were added from the end to the
 * beginning, so that a pass up settles what stands in one rule, a pass down chains of rules. */
static void find_shortest(json_grammar *g) {
    for (uint32_t i = 1; i < g->n_nodes; i++)
        g->nodes[i].close = JSON_GRAMMAR_NEVER;
    bool changed = true;
    for (bool up = true; changed; up = !up) {
        changed = false;
        for (uint32_t i = 1; i < g->n_nodes; i++) {
            json_node *n = &g->nodes[up ? i : g->n_nodes - i];
            uint32_t close = shortest(g, n);
            if (close >= n->close) continue;
            n->close = close;
            changed = true;
        }
    }
}

status json_grammar_finish(json_grammar *g, error *err) {
    if (g->fault == STATUS_NO_MEMORY) {
        return error_set(err, STATUS_NO_MEMORY, "no memory for the grammar of the schema");
    }
    if (g->fault != STATUS_OK) {
        return error_set(err, STATUS_BAD_INPUT, "is too large: it needs more than %d states",
                         JSON_GRAMMAR_MAX_NODES);
    }
    find_shortest(g);
    if (g->nodes[g->rules[0]].close >= JSON_GRAMMAR_NEVER) {
        return error_set(err, STATUS_BAD_INPUT,
                         "has no value that ends: it needs itself again and again");
    }
    return STATUS_OK;
}

/* --- pieces of JSON --- */

uint32_t json_grammar_space(json_grammar *g, uint32_t next) {
    if (g->blank == UINT32_MAX) {
        g->blank = json_grammar_rule(g);
        json_grammar_enter(g, g->blank, text(g, " ", JSON_RETURN));
    }
    uint32_t line = text(g, "\n", json_grammar_repeat(g, g->blank, 0, MAX_INDENT, next));
    return json_grammar_either(g, next, json_grammar_either(g, text(g, " ", next), line));
}

/* Well-formed UTF-8 of two to four bytes: Unicode 15, table 3-7. */
uint32_t json_grammar_beyond_ascii(json_grammar *g, bool no_lines, uint32_t next) {
    uint32_t last = from_to(g, 0x80, 0xBF, next), last2 = from_to(g, 0x80, 0xBF, last);
    uint32_t last3 = from_to(g, 0x80, 0xBF, last2);
    json_bytes threes = {{0}};
    json_bytes_add(&threes, 0xE1, no_lines ? 0xE1 : 0xEC);
    if (no_lines) json_bytes_add(&threes, 0xE3, 0xEC);
    json_bytes_add(&threes, 0xEE, 0xEF);
    uint32_t ways[] = {
        from_to(g, 0xC2, 0xDF, last),
        from_to(g, 0xE0, 0xE0, from_to(g, 0xA0, 0xBF, last)),
        json_grammar_class(g, &threes, last2),
        from_to(g, 0xED, 0xED, from_to(g, 0x80, 0x9F, last)),
        from_to(g, 0xF0, 0xF0, from_to(g, 0x90, 0xBF, last2)),
        from_to(g, 0xF1, 0xF3, last3),
        from_to(g, 0xF4, 0xF4, from_to(g, 0x80, 0x8F, last2)),
    };
    uint32_t entry = ways[0];
    for (size_t i = 1; i < sizeof ways / sizeof ways[0]; i++)
        entry = json_grammar_either(g, entry, ways[i]);
    if (!no_lines) return entry;
    return json_grammar_either(g, entry, from_to(g, 0xE2, 0xE2, from_to(g, 0x81, 0xBF, last)));
}

/* \uXXXX of one UTF-16 unit that is a character: no half of a pair, not U+0000. */
static uint32_t unicode_escape(json_grammar *g) {
    json_bytes hex = {{0}}, any_lead = {{0}}, not_zero = {{0}};
    json_bytes_add(&not_zero, '1', '9');
    json_bytes_add(&not_zero, 'a', 'f');
    json_bytes_add(&not_zero, 'A', 'F');
    hex = not_zero;
    json_bytes_add(&hex, '0', '0');
    json_bytes_add(&any_lead, '1', '9');
    json_bytes_add(&any_lead, 'a', 'c');
    json_bytes_add(&any_lead, 'A', 'C');
    json_bytes_add(&any_lead, 'e', 'f');
    json_bytes_add(&any_lead, 'E', 'F');
    uint32_t one = json_grammar_class(g, &hex, JSON_RETURN);
    uint32_t two = json_grammar_class(g, &hex, one);
    uint32_t three = json_grammar_class(g, &hex, two);
    json_bytes d = {{0}};
    json_bytes_add(&d, 'd', 'd');
    json_bytes_add(&d, 'D', 'D');
    uint32_t low = json_grammar_class(g, &d, from_to(g, '0', '7', two));
    uint32_t zero = text(g, "0", json_grammar_class(g, &not_zero, two));
    uint32_t zeros = text(g, "00", json_grammar_class(g, &not_zero, one));
    uint32_t entry = json_grammar_either(g, json_grammar_class(g, &any_lead, three), low);
    return text(g, "\\u", json_grammar_either(g, entry, json_grammar_either(g, zero, zeros)));
}

static uint32_t character(json_grammar *g) {
    if (g->character != UINT32_MAX) return g->character;
    g->character = json_grammar_rule(g);
    json_bytes raw = {{0}}, escapes = {{0}};
    json_bytes_add(&raw, 0x20, 0x21);
    json_bytes_add(&raw, 0x23, 0x5B);
    json_bytes_add(&raw, 0x5D, 0x7E);
    for (const char *c = "\"\\/bfnrt"; *c != '\0'; c++)
        json_bytes_add(&escapes, (unsigned char)*c, (unsigned char)*c);
    uint32_t entry = json_grammar_class(g, &raw, JSON_RETURN);
    entry = json_grammar_either(g, entry, json_grammar_beyond_ascii(g, false, JSON_RETURN));
    uint32_t escaped = text(g, "\\", json_grammar_class(g, &escapes, JSON_RETURN));
    entry = json_grammar_either(g, entry, escaped);
    json_grammar_enter(g, g->character, json_grammar_either(g, entry, unicode_escape(g)));
    return g->character;
}

uint32_t json_grammar_string(json_grammar *g, uint32_t min, uint32_t max, uint32_t next) {
    uint32_t end = text(g, "\"", next);
    return text(g, "\"", json_grammar_repeat(g, character(g), min, max, end));
}

uint32_t json_grammar_digits(json_grammar *g, uint32_t min, uint32_t max, uint32_t next) {
    if (g->digit == UINT32_MAX) {
        g->digit = json_grammar_rule(g);
        json_grammar_enter(g, g->digit, from_to(g, '0', '9', JSON_RETURN));
    }
    return json_grammar_repeat(g, g->digit, min, max, next);
}

uint32_t json_grammar_number(json_grammar *g, bool integer, uint32_t next) {
    uint32_t tail = next;
    if (!integer) {
        json_bytes sign = {{0}}, mark = {{0}};
        json_bytes_add(&sign, '+', '+');
        json_bytes_add(&sign, '-', '-');
        json_bytes_add(&mark, 'e', 'e');
        json_bytes_add(&mark, 'E', 'E');
        uint32_t power = json_grammar_digits(g, 1, 2, next);
        power = json_grammar_either(g, power, json_grammar_class(g, &sign, power));
        tail = json_grammar_either(g, next, json_grammar_class(g, &mark, power));
        uint32_t fraction = text(g, ".", json_grammar_digits(g, 1, MAX_DIGITS, tail));
        tail = json_grammar_either(g, tail, fraction);
    }
    uint32_t whole = from_to(g, '1', '9', json_grammar_digits(g, 0, MAX_DIGITS - 1, tail));
    whole = json_grammar_either(g, text(g, "0", tail), whole);
    return json_grammar_either(g, whole, text(g, "-", whole));
}

/* --- ranges --- */

typedef struct digit_range {
    char lo[24], hi[24]; /* of the same length */
    uint32_t length, n_decimals;
} digit_range;

static bool all_are(const char *digits, char digit) {
    return digits[strspn(digits, (char[]){digit, '\0'})] == '\0';
}

/* The digits from position at on; low, high: whether lo and hi still bound them. */
static uint32_t range_from(json_grammar *g, const digit_range *r, uint32_t at, bool low,
                           bool high, uint32_t next) {
    if (at == r->length) return next;
    low = low && !all_are(&r->lo[at], '0');
    high = high && !all_are(&r->hi[at], '9');
    uint32_t entry = UINT32_MAX;
    unsigned char from = low ? (unsigned char)r->lo[at] : '0';
    unsigned char to = high ? (unsigned char)r->hi[at] : '9';
    unsigned char inner_from = from, inner_to = to;
    if (low && high && from == to) {
        entry = from_to(g, from, to, range_from(g, r, at + 1, true, true, next));
        inner_from = 1, inner_to = 0;
    } else {
        if (low) {
            entry = from_to(g, from, from, range_from(g, r, at + 1, true, false, next));
            inner_from++;
        }
        if (high) {
            uint32_t top = from_to(g, to, to, range_from(g, r, at + 1, false, true, next));
            entry = entry == UINT32_MAX ? top : json_grammar_either(g, entry, top);
            inner_to--;
        }
    }
    if (inner_from <= inner_to) {
        uint32_t middle =
            from_to(g, inner_from, inner_to, range_from(g, r, at + 1, false, false, next));
        entry = entry == UINT32_MAX ? middle : json_grammar_either(g, entry, middle);
    }
    bool point = r->n_decimals > 0 && at == r->length - r->n_decimals;
    return point ? text(g, ".", entry) : entry;
}

static void write_digits(char *out, uint64_t value, uint32_t length) {
    for (uint32_t i = length; i-- > 0; value /= 10)
        out[i] = (char)('0' + value % 10);
}

uint32_t json_grammar_range(json_grammar *g, uint64_t lo, uint64_t hi, uint32_t n_decimals,
                            uint32_t n_more, uint32_t next) {
    uint32_t entry = UINT32_MAX, length = n_decimals + 1;
    uint64_t most = 9, least = 0; /* of this length */
    for (uint32_t i = 0; i < n_decimals; i++)
        most = most * 10 + 9;
    uint32_t tail = n_more > 0 ? json_grammar_digits(g, 0, n_more, next) : next;
    for (; least <= hi; length++, least = most + 1, most = most * 10 + 9) {
        uint64_t from = lo > least ? lo : least, to = hi < most ? hi : most;
        if (from > to) continue;
        digit_range r = {.length = length, .n_decimals = n_decimals};
        write_digits(r.lo, from, length);
        write_digits(r.hi, to, length);
        uint32_t way = range_from(g, &r, 0, true, true, tail);
        entry = entry == UINT32_MAX ? way : json_grammar_either(g, entry, way);
    }
    return entry == UINT32_MAX ? JSON_RETURN : entry;
}

/* --- containers --- */

static uint32_t open_list(json_grammar *g, const char *brackets, uint32_t item, uint32_t min,
                          uint32_t max, uint32_t next) {
    char open[2] = {brackets[0]}, close[2] = {brackets[1]};
    uint32_t end = text(g, close, next);
    if (max == 0) return text(g, open, json_grammar_space(g, end));
    uint32_t more = json_grammar_rule(g);
    uint32_t then = json_grammar_call(g, item, json_grammar_space(g, JSON_RETURN));
    json_grammar_enter(g, more, text(g, ",", json_grammar_space(g, then)));
    uint32_t rest = json_grammar_repeat(g, more, min > 0 ? min - 1 : 0,
                                        max == JSON_UNBOUNDED ? max : max - 1, end);
    uint32_t first = json_grammar_call(g, item, json_grammar_space(g, rest));
    if (min == 0) first = json_grammar_either(g, end, first);
    return text(g, open, json_grammar_space(g, first));
}

uint32_t json_grammar_array(json_grammar *g, uint32_t item, uint32_t min, uint32_t max,
                            uint32_t next) {
    return open_list(g, "[]", item, min, max, next);
}

uint32_t json_grammar_map(json_grammar *g, uint32_t value, uint32_t min, uint32_t max,
                          uint32_t next) {
    uint32_t pair = json_grammar_rule(g);
    uint32_t colon =
        text(g, ":", json_grammar_space(g, json_grammar_call(g, value, JSON_RETURN)));
    json_grammar_enter(g, pair, json_grammar_string(g, 0, JSON_UNBOUNDED, colon));
    return open_list(g, "{}", pair, min, max, next);
}

uint32_t json_grammar_any(json_grammar *g) {
    if (g->any != UINT32_MAX) return g->any;
    g->any = json_grammar_rule(g);
    uint32_t array = json_grammar_array(g, g->any, 0, JSON_UNBOUNDED, JSON_RETURN);
    uint32_t map = json_grammar_map(g, g->any, 0, JSON_UNBOUNDED, JSON_RETURN);
    uint32_t nested = json_grammar_either(g, array, map);
    uint32_t entry = add(g, (json_node){.kind = JSON_NODE_GATE, .next = nested});
    uint32_t scalars[] = {
        json_grammar_string(g, 0, JSON_UNBOUNDED, JSON_RETURN),
        json_grammar_number(g, false, JSON_RETURN),
        text(g, "true", JSON_RETURN),
        text(g, "false", JSON_RETURN),
        text(g, "null", JSON_RETURN),
    };
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++)
        entry = json_grammar_either(g, entry, scalars[i]);
    json_grammar_enter(g, g->any, entry);
    return g->any;
}
