/* lane.h - experts that the host's CPU lane computes while a step runs on the device: what both
 * say to each other, in pinned host memory, without a look of the driver.
 *
 * post    router_fetch has written a layer's notes and the rows of its hidden state to host
 *         memory, if the lane has any of its experts; then this, with release: the step's number
 *         << 32 | layer + 1.  The last layer's is written in any case, so that the host knows
 *         that no more will come.
 * answer  The host has written what the layer's pairs on the lane put out; then, with release, the
 *         same word.  experts_up_coming waits until it is at least that.
 * GIVEN_UP  in the low half of an answer: the host has failed, and nobody waits for it any more
 *         in this step, whose results are worth nothing.
 * late    The number of a step that has waited for limit_ns in vain.  It goes on with what is
 *         there, to its end, and waits no more; the host must fail it.
 *
 * One word each way is enough, since a layer's answer is read before the next layer posts: so the
 * rows and the outputs have one place for all layers, too.
 */
#ifndef SILICEO_KERNELS_CUDA_LANE_H
#define SILICEO_KERNELS_CUDA_LANE_H

#include "kernels/args.h"

#define LANE_GIVEN_UP UINT32_MAX

/* What one side writes lies in a line of its own. */
typedef struct lane_box {
    uint64_t post;
    uint64_t late;
    uint64_t reserved[6];
    uint64_t answer;
    uint64_t reserved_too[7];
} lane_box;
KERNEL_ARGS_SIZE(lane_box, 128);

#define LANE_WORD(number, layers) ((uint64_t)(number) << 32 | (layers))

#endif
