/* json_pattern.c - reads a pattern by recursive descent and builds it from its end. */
#include "worker/text/json_pattern.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 256, MAX_GROUPS = 16, MAX_TIMES = 10000 };

typedef struct reader {
    json_grammar *grammar;
    const char *all; /* for errors */
    uint32_t depth;
    error *err;
} reader;

/* One atom and how often it stands there. */
typedef struct item {
    const char *from, *to;
    uint32_t min, max;
} item;

typedef struct char_set {
    json_bytes ascii;
    bool beyond; /* and what is no ASCII */
} char_set;

static status build(reader *r, const char *from, const char *to, uint32_t next, uint32_t *out);

static status refuse(const reader *r, const char *at, const char *what) {
    return error_set(r->err, STATUS_BAD_INPUT, "%s at character %zu is not supported", what,
                     (size_t)(at - r->all));
}

/* --- sets of characters --- */

static void add_text(json_bytes *set, const char *members) {
    for (; *members != '\0'; members++)
        json_bytes_add(set, (unsigned char)*members, (unsigned char)*members);
}

static void invert(json_bytes *set) {
    for (size_t i = 0; i < 2; i++)
        set->bits[i] = ~set->bits[i];
}

/* \d \w \s and their negations; false: another escape. */
static bool add_named(json_bytes *set, char name) {
    json_bytes named = {{0}};
    switch (name | 0x20) {
    case 'd':
        json_bytes_add(&named, '0', '9');
        break;
    case 'w':
        json_bytes_add(&named, '0', '9');
        json_bytes_add(&named, 'a', 'z');
        json_bytes_add(&named, 'A', 'Z');
        json_bytes_add(&named, '_', '_');
        break;
    case 's':
        add_text(&named, " \t\n\v\f\r");
        break;
    default:
        return false;
    }
    if (name < 'a') invert(&named);
    for (size_t i = 0; i < 2; i++)
        set->bits[i] |= named.bits[i];
    return true;
}

/* The character that an escape stands for; 0: not one that is known. */
static char escaped(char c) {
    static const char names[] = "nrtfv", values[] = "\n\r\t\f\v";
    const char *at = c == '\0' ? NULL : strchr(names, c);
    if (at != NULL) return values[at - names];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || (unsigned char)c >= 0x80 ? '\0' : c;
}

/* Raw where JSON allows it, else its escape; control characters without a letter never. */
static status emit_set(reader *r, const char_set *set, const char *at, uint32_t next,
                       uint32_t *out) {
    static const char special[] = "\"\\\n\r\t", letters[] = "\"\\nrt";
    json_grammar *g = r->grammar;
    uint32_t entry = UINT32_MAX;
    json_bytes raw = set->ascii;
    raw.bits[0] &= ~(uint64_t)0xFFFFFFFF & ~((uint64_t)1 << '"');
    raw.bits[1] &= ~((uint64_t)1 << ('\\' - 64)) & ~((uint64_t)1 << 63);
    raw.bits[2] = raw.bits[3] = 0;
    if ((raw.bits[0] | raw.bits[1]) != 0) entry = json_grammar_class(g, &raw, next);
    for (size_t i = 0; i + 1 < sizeof special; i++) {
        if (!json_bytes_has(&set->ascii, (unsigned char)special[i])) continue;
        const char pair[2] = {'\\', letters[i]};
        uint32_t way = json_grammar_literal(g, pair, 2, next);
        entry = entry == UINT32_MAX ? way : json_grammar_either(g, entry, way);
    }
    if (set->beyond) {
        uint32_t way = json_grammar_beyond_ascii(g, true, next);
        entry = entry == UINT32_MAX ? way : json_grammar_either(g, entry, way);
    }
    if (entry == UINT32_MAX) return refuse(r, at, "a class without a printable character");
    *out = entry;
    return STATUS_OK;
}

/* One member of a class, an escape or a character; *single: not a named set. */
static status class_member(const reader *r, const char **at, const char *to, json_bytes *set,
                           char *single, bool *named) {
    char c = **at;
    *single = c;
    if ((unsigned char)c >= 0x80) return refuse(r, *at, "a character beyond ASCII in a class");
    if (c != '\\') {
        (*at)++;
        return STATUS_OK;
    }
    if (*at + 1 >= to) return refuse(r, *at, "a backslash at the end");
    *single = escaped((*at)[1]);
    if (add_named(set, (*at)[1])) {
        *single = '\0';
        *named = true;
    } else if (*single == '\0') {
        return refuse(r, *at, "this escape");
    }
    *at += 2;
    return STATUS_OK;
}

/* from is on '[', to behind ']'. */
static status read_class(const reader *r, const char *from, const char *to, char_set *out) {
    const char *at = from + 1, *end = to - 1;
    bool negated = at < end && *at == '^', named = false;
    memset(out, 0, sizeof *out);
    at += negated;
    while (at < end) {
        char first = 0, last = 0;
        const char *begun = at;
        status rc = class_member(r, &at, end, &out->ascii, &first, &named);
        if (rc != STATUS_OK) return rc;
        if (first == '\0') continue;
        last = first;
        if (at + 1 < end && *at == '-') {
            at++;
            rc = class_member(r, &at, end, &out->ascii, &last, &named);
            if (rc != STATUS_OK) return rc;
            if (last < first) return refuse(r, begun, "this range");
        }
        json_bytes_add(&out->ascii, (unsigned char)first, (unsigned char)last);
    }
    if (!negated) return STATUS_OK;
    invert(&out->ascii);
    out->beyond = !named;
    return STATUS_OK;
}

/* --- atoms --- */

/* Behind the atom that begins at from. */
static status skip_atom(const reader *r, const char *from, const char *to, const char **out) {
    const char *at = from;
    uint32_t depth = 0;
    bool in_class = false;
    do {
        if (*at == '\\') {
            if (at + 1 >= to) return refuse(r, at, "a backslash at the end");
            at++;
        } else if (in_class) {
            in_class = *at != ']';
        } else if (*at == '[') {
            in_class = true;
        } else if (*at == '(') {
            depth++;
        } else if (*at == ')') {
            if (depth == 0) return refuse(r, at, "a ')' without its '('");
            depth--;
        }
        at++;
        while (at < to && ((unsigned char)*at & 0xC0) == 0x80)
            at++;
    } while (at < to && (in_class || depth > 0));
    if (in_class || depth > 0) return refuse(r, from, "a bracket without its end");
    *out = at;
    return STATUS_OK;
}

static bool read_times(const char **at, const char *to, uint32_t *out) {
    const char *from = *at;
    for (*out = 0; *at < to && **at >= '0' && **at <= '9' && *out <= MAX_TIMES; (*at)++)
        *out = *out * 10 + (uint32_t)(**at - '0');
    return *at > from && *out <= MAX_TIMES;
}

static status read_quantifier(const reader *r, const char **at, const char *to, item *out) {
    const char *from = *at;
    out->min = out->max = 1;
    if (from >= to || strchr("?*+{", *from) == NULL) return STATUS_OK;
    (*at)++;
    out->min = *from == '+';
    out->max = *from == '?' ? 1 : JSON_UNBOUNDED;
    if (*from == '{') {
        if (!read_times(at, to, &out->min)) return refuse(r, from, "this quantifier");
        out->max = out->min;
        if (*at < to && **at == ',') {
            (*at)++;
            out->max = JSON_UNBOUNDED;
            if (*at < to && **at != '}' && !read_times(at, to, &out->max))
                return refuse(r, from, "this quantifier");
        }
        if (*at >= to || **at != '}' || out->max < out->min)
            return refuse(r, from, "this quantifier");
        (*at)++;
    }
    if (*at < to && **at == '?') (*at)++; /* lazy: the same strings */
    return STATUS_OK;
}

static status build_group(reader *r, const item *it, uint32_t next, uint32_t *out) {
    const char *from = it->from + 1;
    if (*from == '?') {
        if (from[1] != ':') return refuse(r, it->from, "a group of this kind");
        from += 2;
    }
    if (r->depth == MAX_GROUPS) return refuse(r, it->from, "so deep a nesting");
    r->depth++;
    status rc = build(r, from, it->to - 1, next, out);
    r->depth--;
    return rc;
}

static status build_atom(reader *r, const item *it, uint32_t next, uint32_t *out) {
    char_set set = {.beyond = false};
    char c = *it->from;
    status rc = STATUS_OK;
    if (c == '(') return build_group(r, it, next, out);
    if (c == '[') {
        rc = read_class(r, it->from, it->to, &set);
    } else if (c == '.') {
        json_bytes_add(&set.ascii, 0x20, 0x7E);
        set.beyond = true;
    } else if (c == '\\') {
        char value = escaped(it->from[1]);
        if (value != '\0')
            json_bytes_add(&set.ascii, (unsigned char)value, (unsigned char)value);
        else if (!add_named(&set.ascii, it->from[1]))
            return refuse(r, it->from, "this escape");
    } else if ((unsigned char)c >= 0x80) {
        *out = json_grammar_literal(r->grammar, it->from, (size_t)(it->to - it->from), next);
        return STATUS_OK;
    } else if (strchr("^$*+?{}]|", c) != NULL) {
        return refuse(r, it->from, "this sign in this place");
    } else {
        json_bytes_add(&set.ascii, (unsigned char)c, (unsigned char)c);
    }
    return rc == STATUS_OK ? emit_set(r, &set, it->from, next, out) : rc;
}

static status build_item(reader *r, const item *it, uint32_t *entry) {
    if (it->min == 1 && it->max == 1) return build_atom(r, it, *entry, entry);
    uint32_t rule = json_grammar_rule(r->grammar), body = JSON_RETURN;
    status rc = build_atom(r, it, JSON_RETURN, &body);
    if (rc != STATUS_OK) return rc;
    json_grammar_enter(r->grammar, rule, body);
    *entry = json_grammar_repeat(r->grammar, rule, it->min, it->max, *entry);
    return STATUS_OK;
}

/* --- sequences and alternatives --- */

static status build_sequence(reader *r, const char *from, const char *to, uint32_t next,
                             uint32_t *out) {
    item items[MAX_ITEMS];
    size_t n = 0;
    for (const char *at = from; at < to;) {
        if (n == MAX_ITEMS) return refuse(r, at, "so long a pattern");
        items[n].from = at;
        status rc = skip_atom(r, at, to, &items[n].to);
        if (rc != STATUS_OK) return rc;
        at = items[n].to;
        rc = read_quantifier(r, &at, to, &items[n++]);
        if (rc != STATUS_OK) return rc;
    }
    uint32_t entry = next;
    while (n-- > 0) {
        status rc = build_item(r, &items[n], &entry);
        if (rc != STATUS_OK) return rc;
    }
    *out = entry;
    return STATUS_OK;
}

/* The next '|' that is in no group or class, or to. */
static status find_bar(const reader *r, const char *from, const char *to, const char **out) {
    const char *at = from;
    while (at < to && *at != '|') {
        status rc = skip_atom(r, at, to, &at);
        if (rc != STATUS_OK) return rc;
    }
    *out = at;
    return STATUS_OK;
}

static status build(reader *r, const char *from, const char *to, uint32_t next, uint32_t *out) {
    uint32_t entry = UINT32_MAX;
    for (const char *bar = from;; from = bar + 1) {
        uint32_t way = next;
        status rc = find_bar(r, from, to, &bar);
        if (rc == STATUS_OK) rc = build_sequence(r, from, bar, next, &way);
        if (rc != STATUS_OK) return rc;
        entry = entry == UINT32_MAX ? way : json_grammar_either(r->grammar, entry, way);
        if (bar == to) break;
    }
    *out = entry;
    return STATUS_OK;
}

/* A '$' at the end, behind no or an even number of backslashes. */
static bool ends_with_anchor(const char *from, const char *to) {
    if (to == from || to[-1] != '$') return false;
    const char *at = to - 1;
    while (at > from && at[-1] == '\\')
        at--;
    return (to - 1 - at) % 2 == 0;
}

status json_pattern_compile(json_grammar *g, const char *pattern, uint32_t next, uint32_t *out,
                            error *err) {
    reader r = {.grammar = g, .all = pattern, .err = err};
    size_t length = strlen(pattern);
    if (length > JSON_PATTERN_MAX_BYTES) {
        return error_set(err, STATUS_BAD_INPUT, "has %zu bytes, at most %d are supported",
                         length, JSON_PATTERN_MAX_BYTES);
    }
    const char *from = pattern, *to = pattern + length, *bar = NULL;
    bool begins = from < to && *from == '^';
    from += begins;
    bool ends = ends_with_anchor(from, to);
    to -= ends;
    status rc = find_bar(&r, from, to, &bar);
    if (rc != STATUS_OK) return rc;
    if (bar != to && (begins || ends))
        return refuse(&r, bar, "a '|' beside ^ or $ without a group");
    uint32_t any = json_grammar_rule(g), body = JSON_RETURN;
    const item dot = {.from = ".", .to = ".", .min = 1, .max = 1};
    rc = build_atom(&r, &dot, JSON_RETURN, &body);
    if (rc != STATUS_OK) return rc;
    json_grammar_enter(g, any, body);
    uint32_t entry = json_grammar_literal(g, "\"", 1, next);
    if (!ends) entry = json_grammar_repeat(g, any, 0, JSON_UNBOUNDED, entry);
    rc = build(&r, from, to, entry, &entry);
    if (rc != STATUS_OK) return rc;
    if (!begins) entry = json_grammar_repeat(g, any, 0, JSON_UNBOUNDED, entry);
    *out = json_grammar_literal(g, "\"", 1, entry);
    return STATUS_OK;
}
