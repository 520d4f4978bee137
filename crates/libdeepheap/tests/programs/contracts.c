/* The contracts of malloc(3), one by one, on the dh_ family. */
#include "deepheap.h"

#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int is_aligned(const void *ptr, size_t alignment) {
    return (uintptr_t)ptr % alignment == 0;
}

static void allocations_are_aligned_usable_and_apart(void) {
    enum { COUNT = 2000 };
    static unsigned char *blocks[COUNT];
    size_t i;
    for (i = 0; i < COUNT; i++) {
        const size_t size = i * 37 % 9000;
        blocks[i] = dh_malloc(size);
        CHECK(blocks[i] != NULL);
        CHECK(is_aligned(blocks[i], 16));
        memset(blocks[i], (int)(i % 251), size);
    }
    for (i = 0; i < COUNT; i++) {
        CHECK(is_filled(blocks[i], i * 37 % 9000, (unsigned char)(i % 251)));
        dh_free(blocks[i]);
    }
}

static void calloc_clears_used_memory(void) {
    int round;
    for (round = 0; round < 100; round++) {
        unsigned char *bytes = dh_calloc(300, 11);
        CHECK(bytes != NULL);
        CHECK(is_filled(bytes, 3300, 0));
        memset(bytes, 0xEE, 3300);
        dh_free(bytes);
    }
}

static void realloc_keeps_the_content(void) {
    size_t size = 1;
    unsigned char *bytes = dh_realloc(NULL, size);
    CHECK(bytes != NULL);
    bytes[0] = 7;
    while (size < (4u << 20)) {
        const size_t grown = size * 2;
        bytes = dh_realloc(bytes, grown);
        CHECK(bytes != NULL);
        CHECK(is_filled(bytes, size, 7));
        memset(bytes, 7, grown);
        size = grown;
    }
    bytes = dh_realloc(bytes, 100);
    CHECK(bytes != NULL);
    CHECK(is_filled(bytes, 100, 7));
    CHECK(dh_realloc(bytes, 0) == NULL);
}

static void alignments_are_honoured(void) {
    size_t alignment;
    for (alignment = 1; alignment <= (1u << 20); alignment *= 2) {
        void *ptr = dh_aligned_alloc(alignment, 100);
        CHECK(ptr != NULL);
        CHECK(is_aligned(ptr, alignment));
        memset(ptr, 1, 100);
        dh_free(ptr);
    }
}

static void failures_set_errno(void) {
    /* Not a constant, or the compiler would warn of what is tested here. */
    volatile size_t huge = SIZE_MAX / 2;
    void *ptr;
    errno = 0;
    ptr = dh_malloc(huge);
    CHECK(ptr == NULL && errno == ENOMEM);
    errno = 0;
    ptr = dh_calloc(huge, 4);
    CHECK(ptr == NULL && errno == ENOMEM);
    errno = 0;
    ptr = dh_aligned_alloc(3, 100);
    CHECK(ptr == NULL && errno == EINVAL);
    errno = 0;
    ptr = dh_aligned_alloc(0, 100);
    CHECK(ptr == NULL && errno == EINVAL);

    ptr = dh_malloc(10);
    CHECK(ptr != NULL);
    memset(ptr, 9, 10);
    errno = 0;
    CHECK(dh_realloc(ptr, huge) == NULL && errno == ENOMEM);
    CHECK(is_filled(ptr, 10, 9));
    dh_free(ptr);
}

static void free_is_quiet(void) {
    void *ptr = dh_malloc(0);
    CHECK(ptr != NULL);
    errno = 77;
    dh_free(ptr);
    dh_free(NULL);
    CHECK(errno == 77);
}

static void usable_size_is_usable(void) {
    size_t size;
    for (size = 1; size < 200000; size = size * 3 + 1) {
        unsigned char *bytes = dh_malloc(size);
        CHECK(bytes != NULL);
        CHECK(dh_usable_size(bytes) >= size);
        memset(bytes, 1, dh_usable_size(bytes));
        dh_free(bytes);
    }
    CHECK(dh_usable_size(NULL) == 0);
}

int main(void) {
    allocations_are_aligned_usable_and_apart();
    calloc_clears_used_memory();
    realloc_keeps_the_content();
    alignments_are_honoured();
    failures_set_errno();
    free_is_quiet();
    usable_size_is_usable();
    puts("every contract holds");
    return 0;
}
