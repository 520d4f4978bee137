/* The papers' names over deepheap: what ssdalloc.h and nvmalloc.h promise. */
#include "deepheap/nvmalloc.h"
#include "deepheap/ssdalloc.h"

#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* HashCache's index, section 5.5 of SSDAlloc: a large array of sets of 128 bytes. */
static void an_array_of_sets(void) {
    enum { SETS = 3000, SET_BYTES = 128 };
    unsigned char *sets = ssd_oalloc(SETS, SET_BYTES);
    const size_t stride = dh_ostride(SET_BYTES);
    size_t i;
    CHECK(sets != NULL && stride >= SET_BYTES);
    for (i = 0; i < SETS; i++) {
        memset(sets + i * stride, (int)(i % 251), SET_BYTES);
    }
    for (i = 0; i < SETS; i++) {
        CHECK(is_filled(sets + i * stride, SET_BYTES, (unsigned char)(i % 251)));
    }
    ssd_free(sets);
}

static void packets_of_all_sizes(void) {
    enum { PACKETS = 3000 };
    static unsigned char *packets[PACKETS];
    size_t i;
    for (i = 0; i < PACKETS; i++) {
        packets[i] = ssd_oalloc(1, 100 + i % 1401);
        CHECK(packets[i] != NULL);
        memset(packets[i], (int)(i % 251), 100 + i % 1401);
    }
    for (i = 0; i < PACKETS; i++) {
        CHECK(is_filled(packets[i], 100 + i % 1401, (unsigned char)(i % 251)));
        ssd_free(packets[i]);
    }
}

static void memory_pages(void) {
    unsigned char *bytes = ssd_calloc(100, 11);
    CHECK(bytes != NULL && is_filled(bytes, 1100, 0));
    memset(bytes, 5, 1100);
    bytes = ssd_realloc(bytes, 100000);
    CHECK(bytes != NULL && is_filled(bytes, 1100, 5));
    ssd_free(bytes);
    bytes = ssd_malloc(1000);
    CHECK(bytes != NULL);
    ssd_free(bytes);
    ssd_free(NULL);
}

static void nv_is_malloc(void) {
    size_t size;
    for (size = 0; size <= 20000; size = size * 3 / 2 + 1) {
        unsigned char *bytes = nv_malloc(size);
        unsigned char *zeros = nv_calloc(size, 3);
        CHECK(bytes != NULL && (uintptr_t)bytes % 16 == 0);
        CHECK(zeros != NULL && is_filled(zeros, size * 3, 0));
        memset(bytes, 9, size);
        memset(zeros, 7, size * 3);
        bytes = nv_realloc(bytes, size * 2 + 1);
        CHECK(bytes != NULL && is_filled(bytes, size, 9));
        nv_free(bytes);
        nv_free(zeros);
    }
    CHECK(nv_realloc(nv_realloc(NULL, 200), 0) == NULL);
    nv_free(NULL);
}

static void impossible_sizes_are_refused(void) {
    /* Not constants, or the compiler would warn of what is tested here. */
    volatile int negative = -1;
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(ssd_oalloc((size_t)negative, 100) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(ssd_oalloc(1, (size_t)negative) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(nv_calloc(huge, 16) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(nv_malloc((size_t)negative) == NULL && errno == ENOMEM);
}

int main(void) {
    an_array_of_sets();
    packets_of_all_sizes();
    memory_pages();
    nv_is_malloc();
    impossible_sizes_are_refused();
    puts("the papers' names hold");
    return 0;
}
