/*
 * application_test.c - what application.h promises of popularity: each rank has an object of its
 * own, and objects that are popular do not lie side by side, whatever the number of objects is.
 */
#include "application.h"

#include <stdio.h>
#include <stdlib.h>

static int failures;

static void check(bool holds, const char *promise, uint64_t objects) {
    if (!holds) {
        fprintf(stderr, "application_test: of %llu objects: not %s\n", (unsigned long long)objects,
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
    free(popularity);
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
    free(popularity);
}

int main(void) {
    const uint64_t counts[] = {1, 2, 3, 5, 64, 1000, 4096, 65537, 1 << 17, 1000000, 1 << 20};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        ranks_are_scattered_over_all_objects(counts[i]);
    }
    popularity_follows_the_rank(1 << 17);
    popularity_follows_the_rank(100003);
    return failures != 0;
}
