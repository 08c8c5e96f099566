#include "common/quant_type.h"

#include <string.h>

static const quant_traits traits[QUANT_LIMIT] = {
    [QUANT_F32] = {"F32", 1, 4},         [QUANT_F16] = {"F16", 1, 2},
    [QUANT_Q4_0] = {"Q4_0", 32, 18},     [QUANT_Q4_1] = {"Q4_1", 32, 20},
    [QUANT_Q5_0] = {"Q5_0", 32, 22},     [QUANT_Q5_1] = {"Q5_1", 32, 24},
    [QUANT_Q8_0] = {"Q8_0", 32, 34},     [QUANT_Q2_K] = {"Q2_K", 256, 84},
    [QUANT_Q3_K] = {"Q3_K", 256, 110},   [QUANT_Q4_K] = {"Q4_K", 256, 144},
    [QUANT_Q5_K] = {"Q5_K", 256, 176},   [QUANT_Q6_K] = {"Q6_K", 256, 210},
    [QUANT_IQ4_NL] = {"IQ4_NL", 32, 18}, [QUANT_IQ4_XS] = {"IQ4_XS", 256, 136},
    [QUANT_BF16] = {"BF16", 1, 2},       [QUANT_MXFP4] = {"MXFP4", 32, 17},
};
static const quant_traits unknown = {NULL, 0, 0};

const quant_traits *quant_traits_of(uint32_t type_id) {
    return type_id < QUANT_LIMIT ? &traits[type_id] : &unknown;
}

bool quant_type_by_name(const char *name, quant_type *out) {
    for (uint32_t i = 0; i < QUANT_LIMIT; i++) {
        if (traits[i].name != NULL && strcmp(traits[i].name, name) == 0) {
            *out = (quant_type)i;
            return true;
        }
    }
    return false;
}
