/* backend_cuda_graph.c - decoding steps as graphs: a launch a segment instead of hundreds.
 *
 * Everything that changes from step to step (tokens, positions, pages, slots) is device
 * memory that the kernels read when they run, so a recorded graph stays valid.  A step is
 * recorded the second time that its shape is seen; kernels are loaded by then.
 *
 * A step that is recorded runs by plain launches, and each of them goes a second time to a stream
 * that only captures.  So the driver may refuse a graph at any time, for want of memory or else,
 * and the step knows nothing of it: no more graphs are made then, which the log says.  One that
 * cannot be launched has run nothing either: from there on the step, and all after it, are plain.
 */
#include "worker/backend_cuda.h"

#include "common/log.h"
#include <stdlib.h>
#include <string.h>

static cuda_step_shape shape_of(const backend_cuda *b) {
    const batch *step = &b->batch;
    return (cuda_step_shape){.n_rows = step->view.n_rows,
                             .n_runs = step->view.n_runs,
                             .n_outputs = step->n_outputs,
                             .best_of = step->best != NULL ? step->best_of : 0,
                             .routed = step->routed != NULL,
                             .in_segments = b->experts.cache != NULL && !b->experts.fetches};
}

static cuda_recording *find_recording(backend_cuda *b) {
    const cuda_step_shape shape = shape_of(b);
    for (size_t i = 0; i < CUDA_MOST_RECORDINGS; i++) {
        cuda_recording *r = &b->recordings[i];
        if (!r->seen) r->shape = shape;
        if (memcmp(&r->shape, &shape, sizeof shape) == 0) return r;
    }
    return NULL;
}

/* Those of segments that were recorded before leave room for this one: memory/plan.c. */
static bool has_room(const backend_cuda *b, const cuda_recording *r) {
    size_t most = b->experts.lane != NULL ? 2 : 1, n = 0;
    if (!r->shape.in_segments || r->segments != NULL) return true;
    for (size_t i = 0; i < CUDA_MOST_RECORDINGS; i++)
        n += b->recordings[i].shape.in_segments && b->recordings[i].segments != NULL;
    return n < most;
}

/* All rows decode, their experts are gathered at once, and nobody looks inside or wants rows that
 * a recording does not have. */
static bool can_record(const backend_cuda *b) {
    bool always_fits = b->experts.cache == NULL || b->experts.fetches ||
                       cuda_gathers_at_once(b, b->batch.view.n_rows) == b->batch.view.n_rows;
    return !b->batch.watched && b->batch.n_hidden == 0 && b->batch.n_outputs > 0 &&
           b->n_spans == 1 && b->spans[0].decodes && always_fits;
}

bool cuda_will_record(backend_cuda *b) {
    if (b->no_graphs || b->no_recordings || !can_record(b)) return false;
    const cuda_recording *r = find_recording(b);
    return r != NULL && r->seen && !r->whole;
}

static void drop_segments(const backend_cuda *b, cuda_recording *r) {
    for (uint32_t i = 0; r->segments != NULL && i <= b->config->n_layers; i++) {
        if (r->segments[i] != NULL) (void)b->driver->cuGraphExecDestroy(r->segments[i]);
        r->segments[i] = NULL;
    }
}

static cuda_result end_capture(backend_cuda *b, cuda_graph *out) {
    *out = NULL;
    b->capturing = false;
    return b->driver->cuStreamEndCapture(b->recorder, out);
}

static void drop_capture(backend_cuda *b) {
    cuda_graph graph = NULL;
    if (b->capturing) (void)end_capture(b, &graph);
    if (graph != NULL) (void)b->driver->cuGraphDestroy(graph);
}

static void tell_refusal(const backend_cuda *b, cuda_result result, const char *call,
                         const char *effect) {
    error why = {0};
    (void)cuda_check(b->driver, result, call, &why);
    log_warn("cuda-graphs", "effect=\"%s\" error=\"%s\"", effect, why.text);
}

/* What was recorded before is replayed as long as it goes. */
static void stop_recording(backend_cuda *b, cuda_result result, const char *call) {
    drop_capture(b);
    drop_segments(b, b->recording);
    b->mode = MODE_PLAIN;
    b->no_recordings = true;
    tell_refusal(b, result, call, "decoding steps of other shapes than until now are plain");
}

/* Nothing else is enqueued before the segment's end, so a replay need not wait for the host to walk
 * through it. */
static void replay_segment(backend_cuda *b) {
    if (b->failed != STATUS_OK) return;
    CHECK_HOT(b->segment < b->recording->n_segments);
    cuda_result result =
        b->driver->cuGraphLaunch(b->recording->segments[b->segment++], b->compute);
    if (result == CUDA_OK) return;
    b->mode = MODE_PLAIN;
    b->no_graphs = true;
    tell_refusal(b, result, "cuGraphLaunch", "decoding steps are plain");
}

void cuda_begin_segment(backend_cuda *b) {
    if (b->mode == MODE_REPLAY) replay_segment(b);
    if (b->mode != MODE_RECORD || b->failed != STATUS_OK || b->capturing) return;
    /* Relaxed: what goes to other streams meanwhile is the step itself, and none of it captured. */
    cuda_result result = b->driver->cuStreamBeginCapture(b->recorder, CUDA_CAPTURE_RELAXED);
    b->capturing = result == CUDA_OK;
    if (!b->capturing) stop_recording(b, result, "cuStreamBeginCapture");
}

void cuda_choose_mode(backend_cuda *b) {
    b->segment = 0;
    if (b->failed != STATUS_OK || b->no_graphs || !can_record(b)) return;
    cuda_recording *r = find_recording(b);
    if (r == NULL) return;
    if (!r->seen) {
        r->seen = true;
        return;
    }
    if (!r->whole && (b->no_recordings || !has_room(b, r))) return;
    if (r->segments == NULL)
        r->segments = calloc(b->config->n_layers + 1, sizeof(cuda_graph_run));
    if (r->segments == NULL) return;
    b->recording = r;
    b->mode = r->whole ? MODE_REPLAY : MODE_RECORD;
    if (r->whole) b->launches += r->launches;
    r->launches = r->whole ? r->launches : b->launches;
    cuda_begin_segment(b);
}

void cuda_record_launch(backend_cuda *b, cuda_launch_config config, cuda_function function,
                        void **parameters) {
    if (!b->capturing) return;
    config.stream = b->recorder;
    cuda_result result = b->driver->cuLaunchKernelEx(&config, function, parameters, NULL);
    if (result != CUDA_OK) stop_recording(b, result, "cuLaunchKernelEx");
}

void cuda_copy_to_host(backend_cuda *b, void *to, cuda_pointer from, size_t n) {
    if (b->mode == MODE_REPLAY) return;
    (void)CUDA_DO(b, cuMemcpyDtoHAsync, to, from, n, b->compute);
    if (!b->capturing) return;
    cuda_result result = b->driver->cuMemcpyDtoHAsync(to, from, n, b->recorder);
    if (result != CUDA_OK) stop_recording(b, result, "cuMemcpyDtoHAsync");
}

/* The captured launches become a graph that can run. */
void cuda_end_segment(backend_cuda *b) {
    const cuda_driver *d = b->driver;
    if (b->mode != MODE_RECORD || b->failed != STATUS_OK) return;
    CHECK_HOT(b->segment <= b->config->n_layers);
    cuda_graph graph = NULL;
    const char *call = "cuStreamEndCapture";
    cuda_result result = end_capture(b, &graph);
    if (result == CUDA_OK) {
        call = "cuGraphInstantiate";
        result = d->cuGraphInstantiate(&b->recording->segments[b->segment], graph, 0);
    }
    if (graph != NULL) (void)d->cuGraphDestroy(graph);
    if (result != CUDA_OK)
        stop_recording(b, result, call);
    else
        b->segment++;
}

/* A step that failed while it was recorded leaves nothing of the recording. */
void cuda_end_step(backend_cuda *b) {
    drop_capture(b);
    if (b->mode == MODE_RECORD) {
        cuda_recording *r = b->recording;
        r->n_segments = b->segment;
        r->launches = b->launches - r->launches;
        r->whole = b->failed == STATUS_OK;
        if (!r->whole) {
            drop_segments(b, r);
            b->no_graphs = true;
        }
    }
    b->mode = MODE_PLAIN;
}

void cuda_release_recordings(backend_cuda *b) {
    for (size_t i = 0; i < CUDA_MOST_RECORDINGS; i++) {
        drop_segments(b, &b->recordings[i]);
        free(b->recordings[i].segments);
        b->recordings[i].segments = NULL;
    }
}
