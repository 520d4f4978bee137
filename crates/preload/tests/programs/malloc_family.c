/* The malloc(3) family keeps its contracts. */
#define _GNU_SOURCE
#include "pressure.h"
#include <malloc.h>
#include <unistd.h>

static void alignments(void) {
    for (size_t align = 8; align <= (1 << 21); align *= 2) {
        for (size_t size = 0; size < 200000; size = size * 3 + 1) {
            void *p = NULL;
            CHECK(posix_memalign(&p, align, size) == 0);
            CHECK((uintptr_t)p % align == 0);
            memset(p, 1, size);
            CHECK(malloc_usable_size(p) >= size);
            free(p);
            p = memalign(align, size);
            CHECK(p && (uintptr_t)p % align == 0);
            free(p);
            p = aligned_alloc(align, size);
            CHECK(p && (uintptr_t)p % align == 0);
            p = realloc(p, size + 100);
            CHECK(p);
            free(p);
        }
    }
    void *p = (void *)1;
    errno = 77;
#if !__GLIBC_PREREQ(2, 38)
    for (size_t align = 0; align <= 48; align += 48) {
        volatile size_t odd = align;
        p = aligned_alloc(odd, 100);
        CHECK(p && (uintptr_t)p % (align ? 64 : 1) == 0);
        free(p);
    }
    p = (void *)1;
    errno = 77;
#endif
    CHECK(posix_memalign(&p, 3, 10) == EINVAL && p == (void *)1);
    CHECK(posix_memalign(&p, 4, 10) == EINVAL && errno == 77);
    CHECK(posix_memalign(&p, 0, 10) == EINVAL);
    p = valloc(100);
    CHECK(p && (uintptr_t)p % PAGE == 0);
    free(p);
    p = pvalloc(100);
    CHECK(p && (uintptr_t)p % PAGE == 0 && malloc_usable_size(p) >= PAGE);
    free(p);
}

static void impossible(void) {
    volatile size_t huge = PTRDIFF_MAX;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(huge, 16) == NULL && errno == ENOMEM);
    void *p = malloc(10);
    strcpy(p, "still");
    errno = 0;
    CHECK(realloc(p, huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(p, huge, 16) == NULL && errno == ENOMEM);
    CHECK(strcmp(p, "still") == 0);
    free(p);
    void *q = (void *)1;
    CHECK(posix_memalign(&q, 64, huge) == ENOMEM && q == (void *)1);
}

static void contents(void) {
    enum { COUNT = 3000 };
    static unsigned char *blocks[COUNT];
    static size_t sizes[COUNT];
    unsigned random = 1;
    for (int round = 0; round < 60000; round++) {
        random = random * 1664525 + 1013904223;
        int slot = random >> 8 & 0xfff;
        if (slot >= COUNT) continue;
        size_t size = (random >> 3) % (round % 50 == 0 ? 60000 : 900);
        if (blocks[slot]) CHECK(is_filled(blocks[slot], sizes[slot], slot));
        if (round % 3 == 0) {
            size_t kept = size < sizes[slot] ? size : sizes[slot];
            unsigned char *p = realloc(blocks[slot], size + 1);
            CHECK(p);
            if (blocks[slot]) CHECK(is_filled(p, kept, slot));
            blocks[slot] = p;
        } else {
            free(blocks[slot]);
            blocks[slot] = round % 2 ? malloc(size + 1) : calloc(1, size + 1);
            CHECK(blocks[slot]);
            if (round % 2 == 0)
                for (size_t i = 0; i <= size; i++) CHECK(blocks[slot][i] == 0);
        }
        sizes[slot] = size;
        CHECK((uintptr_t)blocks[slot] % 16 == 0);
        CHECK(malloc_usable_size(blocks[slot]) > size);
        fill(blocks[slot], size, slot);
    }
    for (int slot = 0; slot < COUNT; slot++) free(blocks[slot]);
}

int main(void) {
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    void *nothing = malloc(0);
    CHECK(nothing);
    free(nothing);
    CHECK(realloc(malloc(10), 0) == NULL);
    CHECK((nothing = realloc(NULL, 5)) != NULL);
    errno = 5;
    free(nothing);
    CHECK(errno == 5);
    alignments();
    impossible();
    contents();
    unsigned char *large = evicted(40 << 20, 3);
    large = realloc(large, 50 << 20);
    CHECK(large && is_filled(large, 40 << 20, 3));
    large = realloc(large, 1 << 20);
    CHECK(large && is_filled(large, 1 << 20, 3));
    press();
    free(large);
    unsigned char *zeros = calloc(1, 40 << 20);
    for (size_t i = 0; i < (40 << 20); i++) CHECK(zeros[i] == 0);
    free(zeros);
    (void)mallinfo2();
    malloc_trim(0);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    puts("the family holds");
    return 0;
}
