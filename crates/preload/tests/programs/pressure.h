/* Pressure: pushes what a test program allocated before out of RAM.
 *
 * Under a small budget `press()` allocates and fills far more than it, so that everything older is
 * evicted; without deepheap, or under a large budget, it is only a large allocation. With
 * EXPECT_EVICTION in the environment `pages_out` must find pages that left.
 */
#ifndef PRESSURE_H
#define PRESSURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/mman.h>

#define PAGE 4096
/* A zeroed value with a page to itself. */
#define OWN_PAGE(type) ((type *)memset(aligned_alloc(PAGE, PAGE), 0, PAGE))
#define PRESSURE_BYTES ((size_t)40 << 20)

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            int saved_errno = errno;                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition,      \
                    saved_errno, strerror(saved_errno));                                       \
            _Exit(9);                                                                          \
        }                                                                                      \
    } while (0)

/* Bytes that tell their own address and a seed, and do not compress to a page of zeros. */
static inline unsigned char byte_at(size_t index, unsigned seed) {
    uint64_t x = (index / 8 + 1) * 0x9e3779b97f4a7c15u ^ seed;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (unsigned char)(x >> (8 * (index % 8))) | 1;
}

static inline void fill(unsigned char *at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i++) at[i] = byte_at(i, seed);
}

static inline int is_filled(const unsigned char *at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i++)
        if (at[i] != byte_at(i, seed)) return 0;
    return 1;
}

static inline void press(void) {
    uint64_t *block = malloc(PRESSURE_BYTES);
    CHECK(block);
    for (size_t i = 0; i < PRESSURE_BYTES / 8; i += PAGE / 8) block[i] = i * 77 + 1;
    for (size_t i = 0; i < PRESSURE_BYTES / 8; i += PAGE / 8) CHECK(block[i] == i * 77 + 1);
    free(block);
}

/* Uses a set of pages this many times in an order of its own. It is larger than the budget by so
 * little that its pages are back soon after they left. */
static inline void press_again(int times) {
    size_t pages = ((size_t)20 << 20) / PAGE;
    uint64_t *block = calloc(pages, PAGE);
    CHECK(block);
    for (size_t i = 0; i < times * pages; i++) block[i * 1009 % pages * (PAGE / 8)]++;
    for (size_t i = 0; i < pages; i++) CHECK(block[i * (PAGE / 8)] == (uint64_t)times);
    free(block);
}

/* Pages of the range that are not mapped right now. */
static inline size_t pages_out(const void *start, size_t len) {
    uintptr_t first = (uintptr_t)start & ~(uintptr_t)(PAGE - 1);
    size_t pages = ((uintptr_t)start + len - first + PAGE - 1) / PAGE, out = 0;
    for (size_t i = 0; i < pages; i++) {
        unsigned char here = 0;
        if (mincore((void *)(first + i * PAGE), PAGE, &here) == 0 && !(here & 1)) out++;
    }
    return out;
}

static inline int expects_eviction(void) { return getenv("EXPECT_EVICTION") != NULL; }

/* Presses, and makes sure that something of the range left. What came back soon after it had left
 * stays while others go by once, as those of `press` do. */
static inline void evict(const void *start, size_t len) {
    press();
    if (!expects_eviction()) return;
    for (int turn = 0; turn < 8 && pages_out(start, len) == 0; turn++) press_again(3);
    CHECK(pages_out(start, len) > 0);
}

/* A page-aligned block of its own, filled and evicted. */
static inline unsigned char *evicted(size_t len, unsigned seed) {
    unsigned char *block = aligned_alloc(PAGE, (len + PAGE - 1) / PAGE * PAGE);
    CHECK(block);
    fill(block, len, seed);
    evict(block, len);
    return block;
}

#endif
