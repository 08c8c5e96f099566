/* make_routing.c - the synthetic routing trace of `siliceo-worker bench --routing`.
 *
 *   make_routing LAW.json [SEED [TOKENS [STACKS]]] > TRACE     40 layers x 256 experts x top 8
 *   make_routing --replay N < TRACE                   hit rate of LRU caches, N experts a layer
 *
 * LAW.json is tests/golden/data/routing.json: LRU stack distances measured on a public
 * trace of a real model.  Each layer has a stack of its experts, the most recently used
 * first; each pick draws a depth by the law's weights, again while it would name an expert
 * that the token has already, and moves that expert to the front.  The random numbers are
 * those of Python's random.Random(SEED), so that a script of a dozen lines makes the same trace.
 * Traces of several users begin with the same stacks, those that the seed STACKS gives for as
 * many tokens, and draw by seeds of their own.
 *
 * The replay starts from empty caches and counts tokens 60 and later.  Format of a trace:
 * worker/routing_trace.h.  Source of the generator: Matsumoto and Nishimura, MT19937 (1998).
 */
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 40, EXPERTS = 256, USED = 8, TOKENS = 600, COUNTED_FROM = 60 };

/* MT19937, seeded with an array of one word as Python seeds small integers. */
enum { MT_N = 624, MT_M = 397 };
static uint32_t mt[MT_N];
static int mt_at = MT_N;

static void mt_seed(uint32_t seed) {
    mt[0] = 19650218u;
    for (uint32_t i = 1; i < MT_N; i++)
        mt[i] = 1812433253u * (mt[i - 1] ^ mt[i - 1] >> 30) + i;
    uint32_t i = 1;
    for (int k = 0; k < MT_N; k++) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1664525u) + seed;
        if (++i == MT_N) mt[0] = mt[MT_N - 1], i = 1;
    }
    for (int k = 0; k < MT_N - 1; k++) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1566083941u) - i;
        if (++i == MT_N) mt[0] = mt[MT_N - 1], i = 1;
    }
    mt[0] = 0x80000000u;
}

static uint32_t mt_next(void) {
    if (mt_at == MT_N) {
        for (int i = 0; i < MT_N; i++) {
            uint32_t y = (mt[i] & 0x80000000u) | (mt[(i + 1) % MT_N] & 0x7fffffffu);
            mt[i] = mt[(i + MT_M) % MT_N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        mt_at = 0;
    }
    uint32_t y = mt[mt_at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static double random_unit(void) {
    uint32_t a = mt_next() >> 5, b = mt_next() >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

static uint32_t random_below(uint32_t n) {
    int bits = 0;
    while (n >> bits != 0)
        bits++;
    uint32_t r = mt_next() >> (32 - bits);
    while (r >= n)
        r = mt_next() >> (32 - bits);
    return r;
}

/* Running sums of the law's weights. */
static bool read_law(const char *path, double sums[EXPERTS]) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    char *text = NULL;
    size_t cap = 0;
    ssize_t n = getdelim(&text, &cap, '\0', f);
    (void)fclose(f);
    cJSON *root = n > 0 ? cJSON_ParseWithLength(text, (size_t)n) : NULL;
    const cJSON *draw = cJSON_GetObjectItem(root, "draw_256_top8");
    const cJSON *weights = cJSON_GetObjectItem(draw, "weight");
    bool whole = cJSON_GetArraySize(weights) == EXPERTS;
    double sum = 0;
    int i = 0;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, weights) {
        if (i == EXPERTS) break;
        sum += item->valuedouble;
        sums[i++] = sum;
    }
    cJSON_Delete(root);
    free(text);
    return whole;
}

/* A depth that j experts of this token do not lie at. */
static int draw_depth(const double sums[EXPERTS], int j) {
    for (;;) {
        double at = random_unit() * sums[EXPERTS - 1];
        int low = 0, high = EXPERTS;
        while (low < high) {
            int middle = (low + high) / 2;
            if (at < sums[middle])
                high = middle;
            else
                low = middle + 1;
        }
        if (low >= j && low < EXPERTS) return low;
    }
}

static int to_front(int *stack, int depth) {
    int expert = stack[depth];
    memmove(stack + 1, stack, (size_t)depth * sizeof *stack);
    stack[0] = expert;
    return expert;
}

static void shuffle(int *stack) {
    for (int i = 0; i < EXPERTS; i++)
        stack[i] = i;
    for (int i = EXPERTS - 1; i > 0; i--) {
        int j = (int)random_below((uint32_t)i + 1), kept = stack[i];
        stack[i] = stack[j];
        stack[j] = kept;
    }
}

/* All picks of a seed.  first: the stacks that layers begin with, taken where they are given,
 * else noted. */
static void draw(const double sums[EXPERTS], uint32_t seed, int n_tokens,
                 int first[LAYERS][EXPERTS], bool given, int *picks) {
    mt_seed(seed);
    for (int layer = 0; layer < LAYERS; layer++) {
        int stack[EXPERTS];
        shuffle(stack);
        if (given)
            memcpy(stack, first[layer], sizeof stack);
        else
            memcpy(first[layer], stack, sizeof stack);
        for (int t = 0; t < n_tokens; t++) {
            for (int j = 0; j < USED; j++)
                picks[(t * LAYERS + layer) * USED + j] = to_front(stack, draw_depth(sums, j));
        }
    }
}

static int make(const char *law, uint32_t seed, int n_tokens, uint32_t stacks_seed) {
    static int stacks[LAYERS][EXPERTS];
    double sums[EXPERTS] = {0};
    int *picks = calloc((size_t)LAYERS * (size_t)n_tokens * USED, sizeof *picks);
    if (picks == NULL || !read_law(law, sums)) {
        (void)fprintf(stderr, "make_routing: %s: no 256 weights at draw_256_top8.weight\n",
                      law);
        free(picks);
        return 1;
    }
    draw(sums, stacks_seed, n_tokens, stacks, false, picks);
    if (seed != stacks_seed) draw(sums, seed, n_tokens, stacks, true, picks);
    (void)printf("siliceo-routing 1 %d %d %d %d\n", n_tokens, LAYERS, EXPERTS, USED);
    for (int i = 0; i < n_tokens * LAYERS * USED; i++)
        (void)printf("%d%c", picks[i], i % USED == USED - 1 ? '\n' : ' ');
    free(picks);
    return 0;
}

static int replay(int n_held) {
    int n_tokens = 0, n_layers = 0, n_experts = 0, n_used = 0;
    if (scanf("siliceo-routing 1 %d %d %d %d", &n_tokens, &n_layers, &n_experts, &n_used) !=
            4 ||
        n_layers < 1 || n_layers > LAYERS || n_held < 1 || n_held > EXPERTS) {
        (void)fprintf(stderr, "make_routing: no trace of at most %d layers\n", LAYERS);
        return 1;
    }
    static int held[LAYERS][EXPERTS + 1], n[LAYERS];
    uint64_t hits = 0, looks = 0;
    for (int t = 0; t < n_tokens; t++) {
        for (int i = 0; i < n_layers * n_used; i++) {
            int layer = i / n_used, expert = 0, at = 0;
            if (scanf("%d", &expert) != 1) return 1;
            while (at < n[layer] && held[layer][at] != expert)
                at++;
            bool hit = at < n[layer];
            hits += hit && t >= COUNTED_FROM;
            looks += t >= COUNTED_FROM;
            if (!hit) held[layer][at = n[layer]++] = expert;
            (void)to_front(held[layer], at);
            if (n[layer] > n_held) n[layer] = n_held;
        }
    }
    (void)printf("%.4f\n", looks > 0 ? (double)hits / (double)looks : 0);
    return 0;
}

int main(int argc, char *argv[]) {
    if (argc == 3 && strcmp(argv[1], "--replay") == 0) return replay(atoi(argv[2]));
    if (argc < 2 || argc > 5) {
        (void)fprintf(stderr, "usage: make_routing LAW.json [SEED [TOKENS [STACKS]]] > TRACE\n"
                              "       make_routing --replay N < TRACE\n");
        return 2;
    }
    uint32_t seed = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1;
    int n_tokens = argc > 3 ? atoi(argv[3]) : TOKENS;
    uint32_t stacks = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : seed;
    return n_tokens > 0 ? make(argv[1], seed, n_tokens, stacks) : 2;
}
