/* backend_cuda_box.c - the CPU lane's part of decoding steps that are one graph.
 *
 * In such a step nothing waits for a look of the host: the router's launch leaves some of a
 * layer's missing experts to the lane and says so in pinned memory, and the launch of the layer's
 * experts takes the outputs from there (kernels/cuda/lane.h).  Between, the engine thread, which
 * would only wait for the GPU, computes them with the lane's threads.  Those stay awake as long as
 * the step runs, since an operation is worth less than waking them up.
 *
 * The first of a layer's experts on the lane comes into a slot, while the GPU goes on, over the
 * stream h2d; the next step begins when the last of them is there.  Where it would have to wait for
 * that, fewer do from then on.
 *
 * A step that is replayed is served before the host waits for it; one of plain launches layer by
 * layer, or the driver's queue might be full of launches behind one that waits for the host.  One
 * that is being recorded has no part for the lane.
 */
#include "worker/backend_cuda_experts.h"

#include "common/clock.h"
#include "kernels/cuda/experts.h"
#include <immintrin.h>
#include <string.h>

/* Between two questions to the driver whether the step still runs. */
static const uint64_t LOOK_NS = 1000000;

static uint64_t load_word(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void answer(const backend_cuda *b, uint32_t layers) {
    const cuda_experts *x = &b->experts;
    __atomic_store_n(&x->box->answer, LANE_WORD(x->n_fetching_steps, layers), __ATOMIC_RELEASE);
}

/* Every layer's missing experts are brought by the launch of its experts. */
static bool all_come(const backend_cuda *b) {
    bool come = true;
    for (uint32_t i = 0; i < b->config->n_layers; i++)
        come = come && cuda_comes_in_turns(b, &b->weights->layers[i]);
    return come;
}

status cuda_box_init(backend_cuda *b, error *err) {
    cuda_experts *x = &b->experts;
    if (!cuda_lane_in_steps(b) || !all_come(b)) return STATUS_OK;
    status rc = cuda_pin(b, &x->box, sizeof *x->box, err);
    if (rc == STATUS_OK) memset(x->box, 0, sizeof *x->box);
    x->n_fills = FETCH_FILLS_OF;
    return rc;
}

bool cuda_box_fits(const backend_cuda *b) {
    return b->experts.box != NULL && b->n_spans == 1 && b->spans[0].decodes &&
           b->spans[0].n_rows <= FETCH_MAX_ROWS;
}

/* To load a kernel, or to make a graph, the driver may wait for kernels that run, which must not
 * wait for us then: in the first step, and where one is recorded. */
static bool driver_may_wait(backend_cuda *b) {
    return b->experts.n_fetching_steps == 1 || cuda_will_record(b);
}

void cuda_box_begin(backend_cuda *b, fetch_step *step) {
    cuda_experts *x = &b->experts;
    const size_t n = (size_t)b->spans[0].n_rows * b->config->n_experts_used;
    step->fills = step->late = 0;
    x->serves =
        cuda_box_fits(b) && !driver_may_wait(b) && cuda_lane_shares(b, n, step->on_lane);
    if (!x->serves) memset(step->on_lane, 0, sizeof step->on_lane);
    if (x->box == NULL) return;
    x->served = 0;
    x->box->late = 0;
    if (b->params.lane != CPU_LANE_ALL) step->fills = x->n_fills;
    answer(b, 0);
}

void cuda_box_wake(backend_cuda *b) {
    if (b->experts.serves) cuda_lane_hold(b, true);
}

/* The records of experts that get a slot go there; nobody reads it before the next step. */
static void fill_slots(backend_cuda *b, uint32_t layer, const fetch_note *notes, size_t n) {
    cuda_experts *x = &b->experts;
    for (size_t i = 0; i < n; i++) {
        if (notes[i].slot >= FETCH_ON_LANE) continue;
        const size_t at = (size_t)layer * b->config->n_experts + (size_t)notes[i].expert;
        (void)CUDA_DO(b, cuMemcpyHtoDAsync,
                      cuda_slot_at(b, (uint32_t)FETCH_FILLS(notes[i].slot)),
                      x->all + at * b->layout.slot_bytes,
                      layer_expert_bytes(&b->weights->layers[layer]), b->h2d);
        (void)CUDA_DO(b, cuEventRecord, x->filled, b->h2d);
        x->filling = true;
        x->filling_layer = layer;
    }
}

static void serve_layer(backend_cuda *b, uint32_t layer) {
    const size_t n_rows = b->spans[0].n_rows, n = n_rows * b->config->n_experts_used;
    const fetch_note *notes = b->experts.notes + layer * n;
    cuda_lane_mark(b, notes, n);
    cuda_lane_run(b, &b->weights->layers[layer], n_rows);
    if (b->failed != STATUS_OK) return;
    answer(b, layer + 1);
    fill_slots(b, layer, notes, n);
}

/* How many layers the next post is of, or 0 when the stream runs dry without one. */
static uint32_t await_post(backend_cuda *b) {
    const cuda_experts *x = &b->experts;
    const uint64_t least = LANE_WORD(x->n_fetching_steps, x->served + 1);
    uint64_t looked = clock_monotonic_ns();
    for (bool dry = false;; _mm_pause()) {
        const uint64_t post = load_word(&x->box->post);
        if (post >= least) return (uint32_t)post;
        if (dry) return 0;
        if (b->mode != MODE_PLAIN && clock_monotonic_ns() - looked < LOOK_NS) continue;
        const cuda_result result = b->driver->cuStreamQuery(b->compute);
        looked = clock_monotonic_ns();
        dry = result == CUDA_OK;
        if (!dry && result != CUDA_NOT_READY && !cuda_went(b, result, "cuStreamQuery"))
            return 0;
    }
}

void cuda_box_serve(backend_cuda *b, uint32_t end_layer) {
    cuda_experts *x = &b->experts;
    while (x->serves && x->served < end_layer && b->failed == STATUS_OK) {
        const uint32_t layers = await_post(b);
        x->served = layers > 0 ? layers : end_layer;
        if (layers > 0 && b->failed == STATUS_OK) serve_layer(b, layers - 1);
    }
}

/* The GPU took what was there when it had waited too long. */
static void check_late(backend_cuda *b) {
    const cuda_experts *x = &b->experts;
    if (b->failed != STATUS_OK || load_word(&x->box->late) != x->n_fetching_steps) return;
    b->failed = error_set(&b->failure, STATUS_TIMEOUT,
                          "cuda: the GPU waited too long for experts of the CPU lane");
}

/* As many as the bus brings beside the rest, found as the window of a sender is. */
void cuda_box_learn(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    if (!x->filling || x->box == NULL) return;
    if (b->driver->cuEventQuery(x->filled) == CUDA_OK)
        x->n_fills += x->n_fills < FETCH_FILLS_OF;
    else
        x->n_fills -= x->n_fills / 4;
}

void cuda_box_end(backend_cuda *b) {
    cuda_experts *x = &b->experts;
    if (!x->serves) return;
    answer(b, LANE_GIVEN_UP);
    if (b->failed != STATUS_OK) /* it is still running, perhaps */
        (void)b->driver->cuStreamSynchronize(b->compute);
    check_late(b);
    cuda_lane_hold(b, false);
    x->serves = false;
}

bool cuda_finish(backend_cuda *b) {
    cuda_box_serve(b, b->config->n_layers);
    return CUDA_DO(b, cuStreamSynchronize, b->compute);
}
