/* bench_cuda.h - what the files of bench_cuda share: the card, a pool of its memory, and how
 * launches are timed.
 *
 * Times are of the shapes of a 35B-A3B layer.  Whatever fails says why and ends the program.
 * One thread.
 */
#ifndef SILICEO_TESTS_BENCHMARK_BENCH_CUDA_H
#define SILICEO_TESTS_BENCHMARK_BENCH_CUDA_H

#include "kernels/args.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_layout.h"
#include "worker/cuda_driver.h"
#include <stddef.h>
#include <stdint.h>

enum { BENCH_EMBD = 2048, BENCH_FF = 512, BENCH_EXPERTS = 256, BENCH_USED = 8 };

/* ---- the card (bench_cuda_device.c) ---- */

void bench_open(double peak_gb_s);
const cuda_card *bench_card(void);
_Noreturn void bench_stop(const char *text);
void *bench_alloc(size_t bytes); /* filled with 0xff */
void bench_free(void *p);
void bench_write(void *to, const void *from, size_t bytes);
void bench_read(void *to, const void *from, size_t bytes);
void *bench_pin(size_t bytes); /* memory of the host, zeros */
void bench_unpin(void *p);
void bench_launch(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes);

/* ---- launches that are timed together (bench_cuda_device.c) ---- */

void bench_add(cuda_kernel kernel, cuda_shape shape, const void *args, size_t bytes);
#define BENCH_ADD(kernel, shape, args)                                                         \
    bench_add(CUDA_KERNEL_##kernel, (shape), &(args), sizeof(args))
/* Time what was added since the last call, `per` operations of `bytes` and `flops` each, and
 * print a line; bytes or flops of 0 are not told. */
void bench_report(const char *name, double per, double bytes, double flops);

/* ---- a pool of device memory, cut from the front (bench_cuda_pool.c) ---- */

void bench_begin(void); /* all of it is free again */
void *bench_take(size_t bytes);
/* Valid blocks of a type: one megabyte or so of random ones, again and again. */
void *bench_take_weights(uint32_t type, size_t bytes);
float *bench_take_floats(size_t n);
/* Activation rows, quantized from random floats. */
void *bench_take_acts(uint32_t n_rows, uint32_t n_cols);
/* The type that a file has for what the device may keep split. */
uint32_t bench_file_type(uint32_t type);
/* The records of BENCH_EXPERTS experts; returns their table, *down_at is where down begins. */
uint64_t *bench_take_records(uint32_t down_type, size_t *down_at);

/* ---- what is timed, in the order of the report ---- */

void bench_decode(void);  /* bench_cuda_decode.c */
void bench_prompts(void); /* bench_cuda_prompts.c */
/* bench_cuda_mixers.c: n_rows of one prompt behind `position` tokens, or one decoding row. */
void bench_delta_step(void);
void bench_delta_prompt(uint32_t n_rows);
void bench_attention_step(uint32_t position, kv_type type);
void bench_attention_prompt(uint32_t n_rows, uint32_t position, kv_type type);

#endif
