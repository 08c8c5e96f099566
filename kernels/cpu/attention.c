/* attention.c - the oracle of kernels/attention.h, and the choice of the tier. */
#include "kernels/attention.h"
#include "kernels/attention_prepare.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/tier_ops.h"

/* The running softmax of one query. */
typedef struct softmax_state {
    float largest;
    float sum;
} softmax_state;

/* Turn n scores of one page into weights; the value is the factor of what came before. */
static float softmax_page(softmax_state *state, float *scores, size_t n) {
    float largest = state->largest, lanes[16] = {0};
    for (size_t p = 0; p < n; p++)
        if (scores[p] > largest) largest = scores[p];
    const float factor = math_exp(state->largest - largest);
    for (size_t p = 0; p < n; p++) {
        scores[p] = math_exp(scores[p] - largest);
        lanes[p % 16] += scores[p];
    }
    state->sum = fmaf(state->sum, factor, math_tree16(lanes));
    state->largest = largest;
    return factor;
}

/* One query against the first n positions of a page. */
static void attend_page(const attention_args *args, const unsigned char *keys,
                        const unsigned char *values, size_t n, const float *q,
                        softmax_state *state, float *out) {
    const uint32_t dim = args->kv.head_dim, type = args->kv.type;
    float scores[KV_PAGE_TOKENS], row[ATTENTION_MAX_HEAD_DIM];
    for (uint32_t p = 0; p < n; p++) {
        kv_row_read(type, keys, dim, p, row);
        scores[p] = math_dot(q, row, dim) * args->scale;
    }
    const float factor = softmax_page(state, scores, n);
    for (uint32_t i = 0; i < dim; i++)
        out[i] *= factor;
    for (uint32_t p = 0; p < n; p++) {
        kv_row_read(type, values, dim, p, row);
        for (uint32_t i = 0; i < dim; i++)
            out[i] = fmaf(scores[p], row[i], out[i]);
    }
}

static void attend(const attention_args *args, size_t row, uint32_t kv_head, uint32_t head) {
    const uint32_t dim = args->kv.head_dim;
    const batch_run *run = &args->batch.runs[args->batch.row_run[row]];
    const uint32_t n_positions = run->position + (uint32_t)row - run->first_row + 1;
    const uint32_t *pages = args->batch.pages + run->first_page;
    const float *q = args->qg + row * args->qg_stride + (size_t)head * 2 * dim;
    const float *gate = q + dim;
    float *out = args->out + row * args->out_stride + (size_t)head * dim;
    softmax_state state = {.largest = -INFINITY, .sum = 0.0f};
    memset(out, 0, dim * sizeof(float));
    for (uint32_t p = 0; p < n_positions; p += KV_PAGE_TOKENS) {
        const uint32_t page = pages[p / KV_PAGE_TOKENS], rest = n_positions - p;
        attend_page(args, kv_key_block(&args->kv, page, kv_head),
                    kv_value_block(&args->kv, page, kv_head),
                    rest < KV_PAGE_TOKENS ? rest : KV_PAGE_TOKENS, q, &state, out);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = out[i] / state.sum * math_sigmoid(gate[i]);
}

void attention_scalar(const attention_args *args, size_t first, size_t end, void *scratch) {
    (void)scratch;
    const uint32_t group = args->n_heads / args->kv.n_kv_heads;
    for (size_t item = first; item < end; item++) {
        const uint32_t kv_head = (uint32_t)(item / args->batch.n_rows);
        for (uint32_t i = 0; i < group; i++)
            attend(args, item % args->batch.n_rows, kv_head, kv_head * group + i);
    }
}

size_t attention_scratch_bytes(uint32_t head_dim) {
    const size_t bytes = sizeof(attention_scratch) + ATTENTION_KEYS * head_dim * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

void attention_items(cpu_tier tier, const attention_args *args, size_t first, size_t end,
                     void *scratch) {
    TIER_CALL(tier, attention, args, first, end, scratch);
}
