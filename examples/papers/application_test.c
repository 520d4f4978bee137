/*
 * application_test.c - what application.h promises of popularity: each rank has an object of its
 * own, and objects that are popular do not lie side by side, whatever the number of objects is; of
 * histograms and sizes; and what blocks.h promises.
 */
#include "application.h"
#include "blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static int failures;

static void check(bool holds, const char *promise, uint64_t objects) {
    if (!holds) {
        fprintf(stderr, "application_test: %llu: not %s\n", (unsigned long long)objects,
                promise);
        failures++;
    }
}

static void ranks_are_scattered_over_all_objects(uint64_t objects) {
    struct popularity *popularity = popularity_new(objects, 0.99);
    bool *seen = calloc(objects, sizeof *seen);
    bool each_once = true;
    uint64_t previous = 0, near = 0;
    for (uint64_t rank = 0; rank < objects; rank++) {
        const uint64_t object = popularity_object(popularity, rank);
        each_once = each_once && object < objects && !seen[object];
        if (!each_once) {
            break;
        }
        seen[object] = true;
        const uint64_t apart = object > previous ? object - previous : previous - object;
        near += rank > 0 && apart <= 8;
        previous = object;
    }
    check(each_once, "each rank has an object of its own", objects);
    /* By chance, sixteen of `objects` places are so near. */
    check(objects < 1000 || near <= 16 + objects / 50, "popular objects lie apart", objects);
    free(seen);
}

static void popularity_follows_the_rank(uint64_t objects) {
    enum { DRAWS = 200000 };
    struct popularity *popularity = popularity_new(objects, 0.99);
    uint64_t state = 1, first = 0, second = 0;
    for (int i = 0; i < DRAWS; i++) {
        const uint64_t object = popularity_next(popularity, &state);
        first += object == popularity_object(popularity, 0);
        second += object == popularity_object(popularity, 1);
    }
    /* The second is drawn 2^-0.99 times as often as the first. */
    const bool holds = second * 100 > first * 45 && second * 100 < first * 56;
    check(holds, "as popular as Zipf says", objects);
}

/* In a region that nobody can touch: blocks lie one behind the other, at most an eighth apart,
   cross no page boundary that they need not, and are used again when they are free. */
static void blocks_touch_nothing_and_fit_pages(void) {
    enum { PAGE = 4096, COUNT = 1000, REGION = 64 << 20, LARGE = 5 << 20 };
    void *region = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t bytes = 1; bytes <= 5 * PAGE; bytes += bytes < 300 ? 1 : 61) {
        struct blocks *blocks = blocks_new(region, REGION);
        char *before = blocks_allocate(blocks, bytes), *block = before, *last = NULL;
        bool apart = before != NULL, in_pages = true;
        size_t span = bytes;
        for (int i = 1; i < COUNT && (block = blocks_allocate(blocks, bytes)); i++) {
            apart = apart && block >= before + bytes;
            span = (size_t)(block - before);
            in_pages = in_pages && (!blocks_fit_pages(bytes) || bytes > PAGE ||
                                    (uintptr_t)block % PAGE + bytes <= PAGE);
            last = before;
            before = block;
        }
        check(apart && blocks_has(blocks, before), "side by side", bytes);
        check(in_pages, "on as few pages as can be", bytes);
        check(bytes < 128 || bytes > PAGE / 2 || span <= bytes + bytes / 8 + 1, "dense", bytes);
        blocks_free(blocks, last);
        check(bytes > 4 * PAGE || blocks_allocate(blocks, bytes) == last, "used again", bytes);
    }
    struct blocks *blocks = blocks_new(region, REGION);
    size_t given = 0;
    for (char *block; (block = blocks_allocate(blocks, LARGE)); given++) {
        check((uintptr_t)block % PAGE == 0 && block + LARGE <= (char *)region + REGION, "inside",
              LARGE);
    }
    check(given == REGION / LARGE && !blocks_allocate(blocks, REGION), "full at last", LARGE);
    check(!blocks_has(blocks, (char *)region + REGION), "of this region", REGION);
}

/* Of the values 1 to 10000, the odd ones in one histogram and the even ones in another. */
static void histograms_add_up(void) {
    enum { VALUES = 10000 };
    struct histogram *odd = histogram_new(), *even = histogram_new();
    check(histogram_percentile(odd, 0.5) == 0, "empty", 0);
    for (uint64_t value = 1; value <= VALUES; value++) {
        histogram_record(value % 2 ? odd : even, value);
    }
    histogram_merge(odd, even);
    const uint64_t median = histogram_percentile(odd, 0.5);
    check(median >= VALUES / 2 && median * 125 <= VALUES / 2 * 127, "the median", median);
    check(histogram_percentile(odd, 1) == VALUES, "the largest", VALUES);
    histogram_free(odd);
    histogram_free(even);
    histogram_free(NULL);
}

static void sizes_are_read_as_people_write_them(void) {
    uint64_t bytes = 7;
    check(size_read("512", &bytes) && bytes == 512, "bytes", bytes);
    check(size_read("64K", &bytes) && bytes == 64 << 10, "a unit", bytes);
    check(size_read("1.5G", &bytes) && bytes == 3ull << 29, "a fraction", bytes);
    bytes = 7;
    check(!size_read("", &bytes) && !size_read("50%", &bytes) && !size_read("2X", &bytes) &&
              bytes == 7,
          "refused", bytes);
}

int main(void) {
    histograms_add_up();
    sizes_are_read_as_people_write_them();
    blocks_touch_nothing_and_fit_pages();
    const uint64_t counts[] = {1, 2, 3, 5, 64, 1000, 4096, 65537, 1 << 17, 1000000, 1 << 20};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        ranks_are_scattered_over_all_objects(counts[i]);
    }
    popularity_follows_the_rank(1 << 17);
    popularity_follows_the_rank(100003);
    return failures != 0;
}
