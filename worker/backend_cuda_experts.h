/* backend_cuda_experts.h - what the files of the routed experts share, private to them:
 * backend_cuda_experts.c (the choice, decoding steps), backend_cuda_waves.c (prompts),
 * backend_cuda_fetch.c and backend_cuda_box.c (steps that fetch), backend_cuda_ship.c (records under
 * way), backend_cuda_ahead.c (before they are asked for), backend_cuda_tiers.c (memory).
 *
 * Thread: the engine thread.
 */
#ifndef SILICEO_WORKER_BACKEND_CUDA_EXPERTS_H
#define SILICEO_WORKER_BACKEND_CUDA_EXPERTS_H

#include "worker/backend_cuda.h"

/* A span's rows in the workspace. */
const float *cuda_hidden_rows(const backend_cuda *b, const cuda_span *s);
const void *cuda_hidden_acts(const backend_cuda *b, const cuda_span *s); /* NULL: none */
int32_t *cuda_chosen_rows(const backend_cuda *b, const cuda_span *s);
float *cuda_weight_rows(const backend_cuda *b, const cuda_span *s);
/* The device's table of a layer's records. */
cuda_pointer cuda_records_row(const backend_cuda *b, uint32_t layer);
/* Where the records of a decoding span's pairs lie, which the router's launch or the fetch tells. */
uint64_t *cuda_places_row(const backend_cuda *b, const cuda_span *s);
/* Whether steps of few rows can bring in what this layer misses in the launch of its experts. */
bool cuda_comes_in_turns(const backend_cuda *b, const layer_weights *l);
/* Bytes of one expert's matrix in a record. */
uint64_t cuda_expert_matrix_bytes(const weight_experts *w);
/* Wait for the router's choice of a span and list its experts in b->experts; false: failed. */
bool cuda_read_choice(backend_cuda *b, const cuda_span *s);
/* All of the experts' part of a prompt span. */
void cuda_run_prompt(backend_cuda *b, const cuda_span *s, const layer_weights *l,
                     uint32_t layer, bool quantized, bool shared_quantized);

/* Records under way. */
cuda_pointer cuda_slot_at(const backend_cuda *b, uint32_t slot);
cuda_pointer cuda_staging_at(const backend_cuda *b, uint32_t i);
/* A record goes to a slot, and what the slot held back to RAM. */
void cuda_ship_to_slot(backend_cuda *b, uint32_t layer, const expert_insert *insert,
                       cuda_pointer slot);
/* Those of a layer's missing experts that are on disk begin to come, all at once. */
void cuda_begin_reads(backend_cuda *b, uint32_t layer);
/* The compute stream goes on when everything shipped so far is there. */
void cuda_await_shipped(backend_cuda *b);
/* The slot that was planned to be filled for later steps gets its record, when what the running
 * step has enqueued so far is over; nobody waits for it before. */
void cuda_fill(backend_cuda *b, uint32_t layer);
/* The layer's slots are about to be read again. */
void cuda_await_filled(backend_cuda *b, uint32_t layer);
/* The layer before has run: how long its records took. */
void cuda_learn_journeys(backend_cuda *b);

/* Records that come before the router has chosen (backend_cuda_ahead.c).  slots[i] of an expert
 * that is in staging record k is EXPERT_AHEAD - k. */
enum { EXPERT_AHEAD = EXPERT_MISS - 1 };
/* After a layer's own records: some of the next one's. */
void cuda_ahead_ship(backend_cuda *b, const cuda_span *s, uint32_t layer);
/* Of the running layer's missing experts those that are on their way. */
void cuda_ahead_find(backend_cuda *b, uint32_t layer);
/* The compute stream goes on when they are there. */
void cuda_ahead_await(backend_cuda *b);

#endif
