/* cuda_double.h - a test's setup: the driver double (cuda_double.c), or the machine's own GPU where
 * SILICEO_TEST_BACKEND asks for one. */
#ifndef SILICEO_TESTS_GOLDEN_CUDA_DOUBLE_H
#define SILICEO_TESTS_GOLDEN_CUDA_DOUBLE_H

#include <stdio.h>
#include <stdlib.h>

static inline int choose_driver(void **state) {
    (void)state;
    if (getenv("SILICEO_TEST_BACKEND") != NULL) return 0;
    const char *build = getenv("SILICEO_BUILD");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/libcuda_double.so",
                   build != NULL ? build : "build");
    return setenv("SILICEO_LIBCUDA", path, 1);
}

#endif
