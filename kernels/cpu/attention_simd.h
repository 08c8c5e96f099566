/* attention_simd.h - kernels/attention.h over vectors; see tier_ops.h.
 *
 * Up to 64 queries (the heads of a KV head, for one or more neighbouring rows of a run) go
 * through the pages together.  Keys are converted four positions at a time and meet all
 * queries; values likewise by 64 columns.  Which queries are together changes no bit: each
 * score and each output element is a chain of its own.
 */
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/kv_simd.h"
#include "kernels/cpu/tier_ops.h"

/* Rows of one run against one KV head. */
typedef struct query_group {
    const float *q[ATTENTION_QUERIES];
    float *out[ATTENTION_QUERIES];
    uint32_t n_positions[ATTENTION_QUERIES]; /* that the query sees; not decreasing */
    float largest[ATTENTION_QUERIES];
    float sum[ATTENTION_QUERIES];
    uint32_t n;
} query_group;

/* Of the 64 positions from base on, how many query i sees. */
static inline uint32_t seen(const query_group *g, uint32_t i, uint32_t base) {
    const uint32_t n = g->n_positions[i];
    return n <= base ? 0 : n - base < KV_PAGE_TOKENS ? n - base : KV_PAGE_TOKENS;
}

/* scores[i][p] = q_i . k_p for the first n positions of a page, queries from .. g->n - 1. */
static void score_page(const attention_args *args, const query_group *g, uint32_t from,
                       const unsigned char *keys, uint32_t n, attention_scratch *s) {
    const uint32_t dim = args->kv.head_dim, last = g->n - 1;
    for (uint32_t p = 0; p < n; p += TILE_DOT) {
        const float *k = (const float *)(const void *)keys + (size_t)p * dim;
        /* The last tile may be short: it then repeats the last key, whose scores are not used. */
        if (args->kv.type != KV_F32 || p + TILE_DOT > n) {
            for (uint32_t b = 0; b < TILE_DOT; b++)
                kv_read(args->kv.type, keys, dim, p + b < n ? p + b : n - 1, 0, dim,
                        s->keys + (size_t)b * dim);
            k = s->keys;
        }
        for (uint32_t i = from; i < g->n; i += TILE_DOT) {
            const float *q[TILE_DOT];
            for (uint32_t a = 0; a < TILE_DOT; a++)
                q[a] = g->q[i + a < last ? i + a : last];
            tile_dot(q, k, dim, dim, s->scores + (size_t)i * KV_PAGE_TOKENS + p,
                     KV_PAGE_TOKENS);
        }
    }
}

/* Scores of one query to weights; earlier output is scaled to the new maximum. */
static void soften_page(const attention_args *args, query_group *g, uint32_t i, uint32_t n,
                        float *scores) {
    const v16 scale = v_set(args->scale);
    v16 lanes = v_set(g->largest[i]);
    for (uint32_t p = n; p < (n + 15) / 16 * 16; p++)
        scores[p] = -INFINITY;
    for (uint32_t p = 0; p < n; p += 16) {
        const v16 score = v_mul(v_load(scores + p), scale);
        v_store(scores + p, score);
        lanes = v_max(score, lanes); /* keeps the old one against NaN */
    }
    const float largest = v_largest(lanes);
    v16 sum = v_zero();
    for (uint32_t p = 0; p < n; p += 16) {
        const v16 weight = v_exp(v_sub(v_load(scores + p), v_set(largest)));
        v_store(scores + p, weight);
        sum = v_add(sum, weight);
    }
    const float factor = math_exp(g->largest[i] - largest);
    g->sum[i] = fmaf(g->sum[i], factor, v_tree(sum));
    if (largest != g->largest[i])
        for (uint32_t d = 0; d < args->kv.head_dim; d += 16)
            v_store(g->out[i] + d, v_mul(v_load(g->out[i] + d), v_set(factor)));
    g->largest[i] = largest;
}

/* out_i += sum over p of weight_ip v_p for `rows` queries and 16 * vectors columns. */
static inline __attribute__((always_inline)) void mix(float *const out[], const float *weights,
                                                      uint32_t from, uint32_t to,
                                                      const float *v, size_t v_stride, int rows,
                                                      int vectors) {
    v16 acc[TILE_MIX_ROWS][TILE_MIX_VECTORS];
    UNROLL
    for (int a = 0; a < rows; a++)
        UNROLL
    for (int c = 0; c < vectors; c++)
        acc[a][c] = v_load(out[a] + 16 * c);
    for (uint32_t p = from; p < to; p++) {
        v16 value[TILE_MIX_VECTORS];
        UNROLL
        for (int c = 0; c < vectors; c++)
            value[c] = v_load(v + p * v_stride + 16 * (size_t)c);
        UNROLL
        for (int a = 0; a < rows; a++) {
            const v16 weight = v_set(weights[a * KV_PAGE_TOKENS + (int)p]);
            UNROLL
            for (int c = 0; c < vectors; c++)
                acc[a][c] = v_fma(weight, value[c], acc[a][c]);
        }
    }
    UNROLL
    for (int a = 0; a < rows; a++)
        UNROLL
    for (int c = 0; c < vectors; c++)
        v_store(out[a] + 16 * c, acc[a][c]);
}

/* mix() for any number of columns that is a multiple of 16. */
static void mix_columns(float *const out[], const float *weights, uint32_t from, uint32_t to,
                        const float *v, size_t v_stride, int rows, uint32_t columns) {
    float *at[TILE_MIX_ROWS];
    uint32_t step = 16;
    for (uint32_t c = 0; c < columns; c += step) {
        for (int a = 0; a < rows; a++)
            at[a] = out[a] + c;
        step = columns - c >= 16 * TILE_MIX_VECTORS ? 16 * TILE_MIX_VECTORS : 16;
        if (rows == TILE_MIX_ROWS && step > 16) {
            mix(at, weights, from, to, v + c, v_stride, TILE_MIX_ROWS, TILE_MIX_VECTORS);
        } else if (rows == TILE_MIX_ROWS) {
            mix(at, weights, from, to, v + c, v_stride, TILE_MIX_ROWS, 1);
        } else if (step > 16) {
            mix(at, weights, from, to, v + c, v_stride, 1, TILE_MIX_VECTORS);
        } else {
            mix(at, weights, from, to, v + c, v_stride, 1, 1);
        }
    }
}

/* Queries from .. g->n - 1 against columns of the values; each sees its own positions only. */
static void mix_page(const query_group *g, uint32_t from, uint32_t base, const float *v,
                     size_t v_stride, uint32_t column, uint32_t columns, const float *weights) {
    float *out[TILE_MIX_ROWS];
    for (uint32_t i = from; i < g->n;) {
        const uint32_t rows = g->n - i >= TILE_MIX_ROWS ? TILE_MIX_ROWS : 1;
        const uint32_t common = seen(g, i, base);
        const float *w = weights + (size_t)i * KV_PAGE_TOKENS;
        for (uint32_t a = 0; a < rows; a++)
            out[a] = g->out[i + a] + column;
        mix_columns(out, w, 0, common, v, v_stride, (int)rows, columns);
        for (uint32_t a = 1; a < rows; a++)
            mix_columns(out + a, w + a * KV_PAGE_TOKENS, common, seen(g, i + a, base), v,
                        v_stride, 1, columns);
        i += rows;
    }
}

static void attend_page(const attention_args *args, query_group *g, uint32_t base,
                        const unsigned char *keys, const unsigned char *values,
                        attention_scratch *s) {
    const uint32_t dim = args->kv.head_dim, n = seen(g, g->n - 1, base);
    uint32_t from = 0; /* queries before it see nothing of this page */
    while (seen(g, from, base) == 0)
        from++;
    score_page(args, g, from, keys, n, s);
    for (uint32_t i = from; i < g->n; i++)
        soften_page(args, g, i, seen(g, i, base), s->scores + (size_t)i * KV_PAGE_TOKENS);
    for (uint32_t c = 0; c < dim; c += ATTENTION_COLUMNS) {
        const uint32_t columns = dim - c < ATTENTION_COLUMNS ? dim - c : ATTENTION_COLUMNS;
        if (args->kv.type == KV_F32) {
            mix_page(g, from, base, (const float *)(const void *)values + c, dim, c, columns,
                     s->scores);
            continue;
        }
        for (uint32_t p = 0; p < n; p++)
            kv_read(args->kv.type, values, dim, p, c, columns,
                    s->values + (size_t)p * ATTENTION_COLUMNS);
        mix_page(g, from, base, s->values, ATTENTION_COLUMNS, c, columns, s->scores);
    }
}

static void attend(const attention_args *args, query_group *g, const batch_run *run,
                   uint32_t kv_head, attention_scratch *s) {
    const uint32_t dim = args->kv.head_dim;
    const uint32_t *pages = args->batch.pages + run->first_page;
    for (uint32_t i = 0; i < g->n; i++) {
        memset(g->out[i], 0, dim * sizeof(float));
        g->largest[i] = -INFINITY;
        g->sum[i] = 0.0f;
    }
    for (uint32_t base = 0; base < g->n_positions[g->n - 1]; base += KV_PAGE_TOKENS) {
        const uint32_t page = pages[base / KV_PAGE_TOKENS];
        attend_page(args, g, base, kv_key_block(&args->kv, page, kv_head),
                    kv_value_block(&args->kv, page, kv_head), s);
    }
    for (uint32_t i = 0; i < g->n; i++) {
        const float *gate = g->q[i] + dim;
        for (uint32_t d = 0; d < dim; d += 16) {
            const v16 mean = v_div(v_load(g->out[i] + d), v_set(g->sum[i]));
            v_store(g->out[i] + d, v_mul(mean, v_sigmoid(v_load(gate + d))));
        }
    }
}

void TIER(attention)(const attention_args *args, size_t first, size_t end, void *scratch) {
    const batch_view *batch = &args->batch;
    const uint32_t dim = args->kv.head_dim, heads = args->n_heads / args->kv.n_kv_heads;
    query_group g;
    for (size_t item = first; item < end;) {
        const uint32_t kv_head = (uint32_t)(item / batch->n_rows);
        const size_t row = item % batch->n_rows;
        const batch_run *run = &batch->runs[batch->row_run[row]];
        const size_t rest = run->first_row + run->n_rows - row;
        size_t n_rows = rest < end - item ? rest : end - item;
        if (n_rows * heads > ATTENTION_QUERIES)
            n_rows = heads < ATTENTION_QUERIES ? ATTENTION_QUERIES / heads : 1;
        for (size_t head = 0; head < heads; head += ATTENTION_QUERIES) {
            g.n = 0;
            for (size_t r = row; r < row + n_rows; r++) {
                for (size_t h = head; h < heads && h < head + ATTENTION_QUERIES; h++, g.n++) {
                    const size_t at = (kv_head * heads + h) * dim;
                    g.q[g.n] = args->qg + r * args->qg_stride + 2 * at;
                    g.out[g.n] = args->out + r * args->out_stride + at;
                    g.n_positions[g.n] = run->position + (uint32_t)(r - run->first_row) + 1;
                }
            }
            attend(args, &g, run, kv_head, scratch);
        }
        item += n_rows;
    }
}
