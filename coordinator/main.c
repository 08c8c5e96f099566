/* main.c - siliceo-coordinator. */
#include <stdio.h>

int main(void) {
    (void)fprintf(stderr, "siliceo-coordinator: not built in this version\n");
    return 1;
}
