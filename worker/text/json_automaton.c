/* json_automaton.c - stacks, sets of stacks, and the steps between them. */
#include "worker/text/json_automaton.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MAX_STACKS = 1 << 16,
    FIRST_INDEX = 1 << 10,
    MAX_STATES = 4096,
    MAX_MEMBERS = 1 << 18, /* of all sets together */
    MAX_READINGS = 2048,
    MAX_WORK = 1 << 15,
    BOTTOM = 0, /* the stack of a whole document */
    NONE = UINT16_MAX,
    FIRST_STATE = JSON_DEAD + 1
};

/* A frame and what lies below it. */
typedef struct stack {
    uint32_t node, count, parent;
    uint32_t depth;
    uint32_t close; /* fewest bytes until it is empty */
    uint32_t seen;  /* the closure that saw it last */
} stack;

typedef struct state {
    uint32_t first, n; /* its stacks, ascending */
    uint32_t close;
    uint32_t shortest; /* the stack with the shortest way */
    bool complete;
    uint16_t next[256]; /* 0: not known yet */
} state;
_Static_assert(MAX_STATES + FIRST_STATE < NONE, "states are 16 bits");

/* Everything that tidy replaces. */
typedef struct pools {
    char *bytes; /* [POOLS_BYTES], where all of these are */
    stack *stacks;
    uint32_t n_stacks;
    uint32_t *stack_index; /* [2 * MAX_STACKS], of which size_index are in use: id + 1 */
    uint32_t size_index;   /* a power of two, at least twice n_stacks */
    state *states;
    uint32_t n_states;
    uint16_t *state_index; /* [2 * MAX_STATES] */
    uint32_t *members;
    uint32_t n_members;
} pools;

struct json_automaton {
    const json_grammar *grammar;
    pools p;
    uint32_t n_closures;
    uint64_t n_left; /* frames that may be looked at; see json_automaton_limit() */
    /* of the closure at work */
    uint32_t *work;
    uint32_t n_work;
    uint32_t set[MAX_READINGS];
    uint32_t n_set;
    uint32_t best; /* the member with the shortest way */
    bool full;
};

/* --- memory --- */

enum {
    STACKS_BYTES = MAX_STACKS * sizeof(stack),
    STACK_INDEX_BYTES = 2 * MAX_STACKS * sizeof(uint32_t),
    STATES_BYTES = MAX_STATES * sizeof(state),
    MEMBERS_BYTES = MAX_MEMBERS * sizeof(uint32_t),
    STATE_INDEX_BYTES = 2 * MAX_STATES * sizeof(uint16_t),
    POOLS_BYTES =
        STACKS_BYTES + STACK_INDEX_BYTES + STATES_BYTES + MEMBERS_BYTES + STATE_INDEX_BYTES
};
_Static_assert(STACKS_BYTES % 8 == 0 && STACK_INDEX_BYTES % 8 == 0 && STATES_BYTES % 8 == 0,
               "each pool begins where its items may lie");

static void pools_release(pools *p) {
    if (p->bytes != NULL) (void)munmap(p->bytes, POOLS_BYTES);
    *p = (pools){0};
}

/* Pages of its own, from the system: those that are never touched cost nothing, while calloc
 * writes zeros over 5 MiB that have been used before. */
static bool pools_init(pools *p) {
    *p = (pools){0};
    void *bytes =
        mmap(NULL, POOLS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return false;
    p->bytes = bytes;
    p->stacks = bytes;
    p->stack_index = (uint32_t *)(p->bytes + STACKS_BYTES);
    p->states = (state *)(p->bytes + STACKS_BYTES + STACK_INDEX_BYTES);
    p->members = (uint32_t *)(p->bytes + STACKS_BYTES + STACK_INDEX_BYTES + STATES_BYTES);
    p->state_index = (uint16_t *)(p->bytes + POOLS_BYTES - STATE_INDEX_BYTES);
    p->n_stacks = 1; /* BOTTOM */
    p->size_index = FIRST_INDEX;
    p->n_states = FIRST_STATE;
    return true;
}

/* --- stacks --- */

static uint32_t mix(uint32_t hash, uint32_t value) {
    hash = (hash ^ value) * 0x9E3779B1u;
    return hash ^ hash >> 15;
}

static uint32_t sum(uint64_t a, uint64_t b) {
    return a + b >= JSON_GRAMMAR_NEVER ? JSON_GRAMMAR_NEVER : (uint32_t)(a + b);
}

static uint32_t close_of(const json_grammar *g, uint32_t node, uint32_t count) {
    const json_node *n = &g->nodes[node];
    if (n->kind != JSON_NODE_REPEAT || count == 0) return n->close;
    uint32_t left = n->min > count ? n->min - count : 0;
    uint64_t body = g->nodes[g->rules[n->other]].close;
    return sum(g->nodes[n->next].close, left * body);
}

static uint32_t index_of(const pools *p, uint32_t node, uint32_t count, uint32_t parent) {
    return mix(mix(mix(1, node), count), parent) & (p->size_index - 1);
}

/* Most answers need a small part of the index: scattered over all of it, each stack would touch
 * a page of its own. */
static void grow_index(pools *p) {
    memset(p->stack_index, 0, p->size_index * sizeof *p->stack_index);
    p->size_index *= 2;
    for (uint32_t i = 1; i < p->n_stacks; i++) {
        const stack *s = &p->stacks[i];
        uint32_t at = index_of(p, s->node, s->count, s->parent);
        while (p->stack_index[at] != 0)
            at = (at + 1) & (p->size_index - 1);
        p->stack_index[at] = i + 1;
    }
}

/* The one stack of this frame on parent; BOTTOM when memory is short or it never ends. */
static uint32_t stack_of(json_automaton *a, uint32_t node, uint32_t count, uint32_t parent) {
    pools *p = &a->p;
    uint32_t at = index_of(p, node, count, parent);
    for (; p->stack_index[at] != 0; at = (at + 1) & (p->size_index - 1)) {
        const stack *s = &p->stacks[p->stack_index[at] - 1];
        if (s->node == node && s->count == count && s->parent == parent)
            return p->stack_index[at] - 1;
    }
    uint32_t close = sum(close_of(a->grammar, node, count), p->stacks[parent].close);
    if (close >= JSON_GRAMMAR_NEVER) return BOTTOM;
    if (p->n_stacks == MAX_STACKS) {
        a->full = true;
        return BOTTOM;
    }
    p->stacks[p->n_stacks] = (stack){.node = node,
                                     .count = count,
                                     .parent = parent,
                                     .depth = p->stacks[parent].depth + 1,
                                     .close = close};
    p->stack_index[at] = ++p->n_stacks;
    if (2 * p->n_stacks > p->size_index && p->size_index < 2 * MAX_STACKS) grow_index(p);
    return p->n_stacks - 1;
}

/* --- closure: from where a byte led to all places where one is read --- */

static void visit(json_automaton *a, uint32_t node, uint32_t count, uint32_t parent) {
    uint32_t id = stack_of(a, node, count, parent);
    if (id == BOTTOM || a->p.stacks[id].seen == a->n_closures) return;
    if (a->n_work == MAX_WORK || a->n_left == 0) {
        a->full = true;
        return;
    }
    a->n_left--;
    a->p.stacks[id].seen = a->n_closures;
    a->work[a->n_work++] = id;
}

static void add_member(json_automaton *a, uint32_t id) {
    const stack *stacks = a->p.stacks;
    bool better = a->n_set == 0 || stacks[id].close < stacks[a->best].close;
    if (a->n_set < MAX_READINGS)
        a->set[a->n_set++] = id;
    else if (better)
        a->set[MAX_READINGS - 1] = id; /* never lose the shortest way */
    if (better) a->best = id;
}

static void repeat(json_automaton *a, const stack *s, const json_node *n) {
    if (s->count < n->max) {
        uint32_t count = s->count + 1;
        if (n->max == JSON_UNBOUNDED && count > n->min) count = n->min;
        uint32_t back = stack_of(a, s->node, count, s->parent);
        if (back != BOTTOM) visit(a, a->grammar->rules[n->other], 0, back);
    }
    if (s->count >= n->min) visit(a, n->next, 0, s->parent);
}

static void expand(json_automaton *a, uint32_t id) {
    const stack s = a->p.stacks[id];
    const json_node *n = &a->grammar->nodes[s.node];
    const stack *below = &a->p.stacks[s.parent];
    switch (n->kind) {
    case JSON_NODE_RETURN:
        if (s.parent != BOTTOM) {
            visit(a, below->node, below->count, below->parent);
        } else if (a->p.stacks[BOTTOM].seen != a->n_closures) {
            a->p.stacks[BOTTOM].seen = a->n_closures;
            add_member(a, BOTTOM);
        }
        break;
    case JSON_NODE_BYTES:
        add_member(a, id);
        break;
    case JSON_NODE_SPLIT:
        visit(a, n->next, 0, s.parent);
        visit(a, n->other, 0, s.parent);
        break;
    case JSON_NODE_CALL: {
        /* A call at the end leaves no frame, so that $ref to $ref cannot pile them up. */
        bool last = n->next == JSON_RETURN;
        uint32_t back = last ? s.parent : stack_of(a, n->next, 0, s.parent);
        if (last || back != BOTTOM) visit(a, a->grammar->rules[n->other], 0, back);
        break;
    }
    case JSON_NODE_REPEAT:
        repeat(a, &s, n);
        break;
    case JSON_NODE_GATE:
        if (s.depth <= JSON_GRAMMAR_MAX_DEPTH) visit(a, n->next, 0, s.parent);
        break;
    }
}

static void begin_closure(json_automaton *a) {
    a->n_closures++;
    a->n_work = a->n_set = 0;
    a->full = false;
}

/* In place: qsort() may allocate.  Sets are small and nearly sorted. */
static void sort_set(uint32_t *set, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        uint32_t id = set[i], j = i;
        for (; j > 0 && set[j - 1] > id; j--)
            set[j] = set[j - 1];
        set[j] = id;
    }
}

/* The one state of the set at work; JSON_DEAD when there is nothing in it. */
static uint32_t state_of_set(json_automaton *a) {
    pools *p = &a->p;
    if (a->n_set == 0) return JSON_DEAD;
    sort_set(a->set, a->n_set);
    uint32_t hash = 7;
    for (uint32_t i = 0; i < a->n_set; i++)
        hash = mix(hash, a->set[i]);
    uint32_t at = hash % (2 * MAX_STATES);
    for (; p->state_index[at] != 0; at = (at + 1) % (2 * MAX_STATES)) {
        const state *s = &p->states[p->state_index[at]];
        if (s->n == a->n_set &&
            memcmp(&p->members[s->first], a->set, a->n_set * sizeof a->set[0]) == 0) {
            return p->state_index[at];
        }
    }
    if (p->n_states == MAX_STATES || MAX_MEMBERS - p->n_members < a->n_set) {
        a->full = true;
        return JSON_DEAD;
    }
    state *s = &p->states[p->n_states];
    s->first = p->n_members;
    s->n = a->n_set;
    s->shortest = a->best;
    s->close = p->stacks[a->best].close;
    s->complete = a->set[0] == BOTTOM;
    memcpy(&p->members[s->first], a->set, a->n_set * sizeof a->set[0]);
    p->n_members += a->n_set;
    p->state_index[at] = (uint16_t)p->n_states;
    return p->n_states++;
}

static uint32_t end_closure(json_automaton *a) {
    while (a->n_work > 0)
        expand(a, a->work[--a->n_work]);
    return state_of_set(a);
}

/* --- the automaton --- */

uint32_t json_automaton_start(json_automaton *a) {
    begin_closure(a);
    visit(a, a->grammar->rules[0], 0, BOTTOM);
    return end_closure(a);
}

status json_automaton_new(json_automaton **out, const json_grammar *g, error *err) {
    *out = NULL;
    json_automaton *a = calloc(1, sizeof *a);
    if (a == NULL) goto no_memory;
    a->grammar = g;
    a->n_left = UINT64_MAX;
    a->work = calloc(MAX_WORK, sizeof *a->work);
    if (a->work == NULL || !pools_init(&a->p)) goto no_memory;
    if (json_automaton_start(a) != JSON_DEAD && !a->full) {
        *out = a;
        return STATUS_OK;
    }
    json_automaton_free(a);
    return error_set(err, STATUS_BAD_INPUT, "leaves more ways open than can be followed");
no_memory:
    json_automaton_free(a);
    return error_set(err, STATUS_NO_MEMORY, "no memory for an automaton");
}

void json_automaton_free(json_automaton *a) {
    if (a == NULL) return;
    pools_release(&a->p);
    free(a->work);
    free(a);
}

static uint32_t compute_step(json_automaton *a, uint32_t from, unsigned char byte) {
    const json_grammar *g = a->grammar;
    begin_closure(a);
    for (uint32_t i = 0; i < a->p.states[from].n; i++) {
        uint32_t id = a->p.members[a->p.states[from].first + i];
        const stack *s = &a->p.stacks[id];
        if (id == BOTTOM) continue;
        const json_node *n = &g->nodes[s->node];
        if (json_bytes_has(&g->classes[n->class], byte)) visit(a, n->next, 0, s->parent);
    }
    return end_closure(a);
}

uint32_t json_automaton_step(json_automaton *a, uint32_t from, unsigned char byte) {
    if (from == JSON_DEAD) return JSON_DEAD;
    uint32_t to = a->p.states[from].next[byte];
    if (to != 0) return to;
    to = compute_step(a, from, byte);
    if (a->full && a->n_left == 0) return JSON_DEAD;
    if (!a->full) a->p.states[from].next[byte] = (uint16_t)to;
    return to;
}

void json_automaton_limit(json_automaton *a, uint64_t n_frames) {
    a->n_left = n_frames;
}

bool json_automaton_is_complete(const json_automaton *a, uint32_t at) {
    return at != JSON_DEAD && a->p.states[at].complete;
}

uint32_t json_automaton_close_bytes(const json_automaton *a, uint32_t at) {
    return at == JSON_DEAD ? (uint32_t)JSON_GRAMMAR_NEVER : a->p.states[at].close;
}

unsigned char json_automaton_close_byte(const json_automaton *a, uint32_t at) {
    const stack *s = &a->p.stacks[a->p.states[at].shortest];
    const json_bytes *set = &a->grammar->classes[a->grammar->nodes[s->node].class];
    if (json_bytes_has(set, 'a')) return 'a';
    unsigned byte = 0;
    while (byte < 255 && !json_bytes_has(set, (unsigned char)byte))
        byte++;
    return (unsigned char)byte;
}

static uint64_t mix64(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* A count, or where it makes no difference within reach one number for all of these:
 * still below the least, or between the least and the most. */
static uint64_t count_class(const json_node *n, uint32_t count, uint32_t reach) {
    enum { BELOW, BETWEEN, EXACT };
    if ((uint64_t)count + reach < n->min) return BELOW;
    if (count >= n->min && (n->max == JSON_UNBOUNDED || (uint64_t)count + reach <= n->max))
        return BETWEEN;
    return (uint64_t)EXACT + count;
}

uint64_t json_automaton_likeness(const json_automaton *a, uint32_t at, uint32_t reach) {
    const state *s = &a->p.states[at];
    uint64_t all = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t id = a->p.members[s->first + i];
        const stack *top = &a->p.stacks[id], *below = &a->p.stacks[top->parent];
        const json_node *n = &a->grammar->nodes[below->node];
        uint64_t hash = mix64(mix64(7, id == BOTTOM), top->node);
        if (id != BOTTOM && top->parent != BOTTOM && n->kind == JSON_NODE_REPEAT) {
            hash = mix64(mix64(hash, below->node), count_class(n, below->count, reach));
            hash = mix64(mix64(hash, 1), below->parent);
        } else {
            hash = mix64(mix64(hash, 2), top->parent);
        }
        all += mix64(hash, 3); /* the order of the stacks says nothing */
    }
    return all;
}

/* --- room --- */

/* The stack of the old pools in the new ones: frames from the bottom up. */
static uint32_t move_stack(json_automaton *a, const pools *old, uint32_t id) {
    uint32_t n = 0, moved = BOTTOM;
    for (; id != BOTTOM && n < MAX_WORK; id = old->stacks[id].parent)
        a->work[n++] = id;
    while (n-- > 0) {
        const stack *s = &old->stacks[a->work[n]];
        moved = stack_of(a, s->node, s->count, moved);
    }
    return moved;
}

bool json_automaton_tidy(json_automaton *a, uint32_t *at) {
    const pools *p = &a->p;
    if (p->n_stacks < MAX_STACKS / 2 && p->n_states < MAX_STATES / 2 &&
        p->n_members < MAX_MEMBERS / 2) {
        return false;
    }
    pools old = a->p;
    if (!pools_init(&a->p)) {
        a->p = old;
        return false;
    }
    const state *s = &old.states[*at];
    a->n_closures = 1;
    a->n_set = 0;
    a->full = false;
    for (uint32_t i = 0; i < s->n; i++)
        add_member(a, move_stack(a, &old, old.members[s->first + i]));
    *at = state_of_set(a);
    pools_release(&old);
    return true;
}
