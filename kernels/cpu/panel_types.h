/* panel_types.h - a function for each type that unpacks a panel, in whatever tier includes this
 * behind its unpack_panel_32() and unpack_panel_256(), which take the type as a constant. */
#ifndef SILICEO_KERNELS_CPU_PANEL_TYPES_H
#define SILICEO_KERNELS_CPU_PANEL_TYPES_H

#include "kernels/cpu/matmul_impl.h"

typedef void (*panel_kernel)(matmul_panel *p);

#define UNPACK(block, name, type)                                                              \
    static void name##_unpack(matmul_panel *p) {                                               \
        unpack_panel_##block(p, type);                                                         \
    }
QUANTIZED_TYPES(UNPACK)
#undef UNPACK

#endif
