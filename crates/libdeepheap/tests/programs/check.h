/*
 * Check: ends a test program with status 1 when a promise does not hold, and says which. For C and
 * C++.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);         \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* As CHECK, in words. */
static inline void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static inline int is_filled(const unsigned char *bytes, size_t size, unsigned char with) {
    size_t i;
    for (i = 0; i < size; i++) {
        if (bytes[i] != with) {
            return 0;
        }
    }
    return 1;
}

#endif
