/* json_grammar.h - what a constrained answer may look like, as a small machine of bytes.
 *
 * A grammar is a graph of nodes that is built from the end to the beginning: each builder
 * takes the node that follows and gives the one to enter.  Rules are entered by a call and
 * left by the node JSON_RETURN, so that schemas may be recursive.  The graph may be
 * ambiguous; json_automaton follows all readings at once.
 *
 *   bytes   one byte of a class, then next
 *   split   next or other
 *   call    rule `other`, then next
 *   repeat  rule `other` from min to max times, then next; the count lives in the stack
 *   gate    next, where the stack is not deep yet: keeps free JSON from nesting for ever
 *
 * Building never fails in the middle: `fault` is set, nodes become JSON_RETURN, and
 * json_grammar_finish() reports it.  After that nothing changes; any thread may read.
 */
#ifndef SILICEO_WORKER_TEXT_JSON_GRAMMAR_H
#define SILICEO_WORKER_TEXT_JSON_GRAMMAR_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_RETURN = 0, /* the node that leaves a rule */
    JSON_GRAMMAR_MAX_NODES = 65536,
    JSON_GRAMMAR_MAX_RULES = 16384,
    JSON_GRAMMAR_MAX_CLASSES = 1024,
    JSON_GRAMMAR_MAX_DEPTH = 128,     /* frames; what a gate lets through */
    JSON_GRAMMAR_MAX_COUNT = 1 << 20, /* of a repeat */
    JSON_GRAMMAR_NEVER = 1 << 28      /* bytes to the end where there is none */
};
static const uint32_t JSON_UNBOUNDED = UINT32_MAX;

typedef enum json_node_kind {
    JSON_NODE_RETURN,
    JSON_NODE_BYTES,
    JSON_NODE_SPLIT,
    JSON_NODE_CALL,
    JSON_NODE_REPEAT,
    JSON_NODE_GATE
} json_node_kind;

typedef struct json_bytes {
    uint64_t bits[4];
} json_bytes;

typedef struct json_node {
    json_node_kind kind;
    uint32_t next;
    uint32_t other;    /* split: a node; call, repeat: a rule */
    uint32_t min, max; /* repeat */
    uint32_t class;    /* bytes */
    uint32_t close;    /* fewest bytes from here to the end of the rule */
} json_node;

typedef struct json_grammar {
    json_node *nodes;
    uint32_t n_nodes, cap_nodes;
    uint32_t *rules; /* entry nodes; rule 0 is the document */
    uint32_t n_rules, cap_rules;
    json_bytes *classes; /* the first 256 are single bytes */
    uint32_t n_classes;
    status fault;
    /* shared pieces, UINT32_MAX until somebody needs them: rules */
    uint32_t character, digit, blank, any;
} json_grammar;

status json_grammar_new(json_grammar **out, error *err);
void json_grammar_free(json_grammar *g); /* accepts NULL */
/* Find the shortest ways; refuses what was too large and what has no end. */
status json_grammar_finish(json_grammar *g, error *err);

/* --- builders --- */

uint32_t json_grammar_class(json_grammar *g, const json_bytes *set, uint32_t next);
uint32_t json_grammar_literal(json_grammar *g, const char *bytes, size_t n, uint32_t next);
uint32_t json_grammar_either(json_grammar *g, uint32_t one, uint32_t other);
uint32_t json_grammar_call(json_grammar *g, uint32_t rule, uint32_t next);
uint32_t json_grammar_repeat(json_grammar *g, uint32_t rule, uint32_t min, uint32_t max,
                             uint32_t next);
/* A rule, and later its entry. */
uint32_t json_grammar_rule(json_grammar *g);
void json_grammar_enter(json_grammar *g, uint32_t rule, uint32_t entry);

void json_bytes_add(json_bytes *set, unsigned char from, unsigned char to);
static inline bool json_bytes_has(const json_bytes *set, unsigned char byte) {
    return (set->bits[byte >> 6] >> (byte & 63)) & 1;
}

/* --- pieces of JSON --- */

/* Nothing, a space, or a line end with up to 20 spaces. */
uint32_t json_grammar_space(json_grammar *g, uint32_t next);
/* Some code point beyond ASCII; no_lines: without U+2000 to U+203F, where the line ends of
 * Unicode are. */
uint32_t json_grammar_beyond_ascii(json_grammar *g, bool no_lines, uint32_t next);
/* A string of min to max code points, each written raw or escaped. */
uint32_t json_grammar_string(json_grammar *g, uint32_t min, uint32_t max, uint32_t next);
uint32_t json_grammar_digits(json_grammar *g, uint32_t min, uint32_t max, uint32_t next);
/* Numbers that a double holds: up to 15 digits on either side, two of an exponent. */
uint32_t json_grammar_number(json_grammar *g, bool integer, uint32_t next);
/* Decimal numbers of exactly n_decimals (0 to 15) digits after the point whose value without
 * the point is from lo to hi (0 <= lo <= hi < 10^16), and where n_more > 0 up to that many
 * digits more. */
uint32_t json_grammar_range(json_grammar *g, uint64_t lo, uint64_t hi, uint32_t n_decimals,
                            uint32_t n_more, uint32_t next);
/* "[" item ("," item)* "]" with min to max items; item is a rule. */
uint32_t json_grammar_array(json_grammar *g, uint32_t item, uint32_t min, uint32_t max,
                            uint32_t next);
/* "{" key ":" value ... "}" with free keys. */
uint32_t json_grammar_map(json_grammar *g, uint32_t value, uint32_t min, uint32_t max,
                          uint32_t next);
/* The rule of any JSON value. */
uint32_t json_grammar_any(json_grammar *g);

#endif
