/* fatbin.S - the compiled CUDA kernels as bytes of the program.
 *
 * kernels_fatbin is what cuModuleLoadData takes; kernels_fatbin_size (uint64_t) is 0 in a build
 * without nvcc, which makes a worker that runs on the CPU alone.
 */
    .section .rodata
    .global kernels_fatbin
    .global kernels_fatbin_size
    .balign 64
kernels_fatbin:
#ifdef FATBIN_FILE
    .incbin FATBIN_FILE
#endif
1:
    .balign 8
kernels_fatbin_size:
    .quad 1b - kernels_fatbin
    .type kernels_fatbin, %object
    .type kernels_fatbin_size, %object
    .section .note.GNU-stack, "", %progbits
