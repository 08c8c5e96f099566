/* all.cu - every kernel in one translation unit, so that one module holds them all. */
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/conv1d.cu"
#include "kernels/cuda/delta_net.cu"
#include "kernels/cuda/experts.cu"
#include "kernels/cuda/matmul.cu"
#include "kernels/cuda/matvec.cu"
#include "kernels/cuda/router.cu"
#include "kernels/cuda/rows.cu"
