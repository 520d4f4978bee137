/*
 * Threads that count in a private map larger than its RAM, by pointers and by calls: no count is
 * lost, and no page is seen as it was in the file once it was changed, or as zeros.
 */
#include "check.h"

#include <deepheap.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 6, TURNS = 12000 };
/* Twice the budget. The last sixteenth is never written. */
static const size_t pages = 12288, written = 12288 / 16 * 15;
static uint64_t *map;

static uint64_t number(size_t page, size_t word) { return page << 20 | word | 1ull << 60; }

struct counter {
    uint64_t seed;
    size_t word;
    uint32_t *counts;
};

static uint64_t draw(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void *count(void *argument) {
    struct counter *own = argument;
    size_t turn;
    for (turn = 0; turn < TURNS; turn++) {
        /* Half of the pages are a few that all threads want. */
        const uint64_t drawn = draw(&own->seed);
        const size_t page = (drawn >> 8) % (drawn & 1 ? pages : 64);
        volatile uint64_t *word = map + page * WORDS + own->word;
        uint64_t value, expected = number(page, own->word) + own->counts[page];
        switch (drawn >> 1 & 3) {
        case 0:
            check(*word == expected, "a load is wrong");
            break;
        case 1:
            CHECK(dh_read(map, page * PAGE + own->word * 8, &value, 8) == 0);
            check(value == expected, "a read is wrong");
            break;
        case 2:
            check(*word == expected, "a load before a store is wrong");
            if (page < written) {
                own->counts[page]++;
                *word = expected + 1;
            }
            break;
        default:
            if (page < written) {
                own->counts[page]++;
                value = expected + 1;
                CHECK(dh_write(map, page * PAGE + own->word * 8, &value, 8) == 0);
            }
        }
    }
    return NULL;
}

int main(void) {
    struct counter counters[THREADS];
    pthread_t threads[THREADS];
    uint64_t words[WORDS];
    size_t page, word, thread;
    FILE *file = fopen("counts.bin", "w");
    CHECK(file != NULL);
    for (page = 0; page < pages; page++) {
        for (word = 0; word < WORDS; word++) words[word] = number(page, word);
        CHECK(fwrite(words, PAGE, 1, file) == 1);
    }
    CHECK(fclose(file) == 0);
    /* Memory that was there before, plain or managed, does not show through. */
    void *before = dh_malloc(4 << 20);
    CHECK(before != NULL);
    memset(before, 7, 4 << 20);
    dh_free(before);
    map = dh_map("counts.bin", 0, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
    CHECK(map != NULL);
    for (thread = 0; thread < THREADS; thread++) {
        counters[thread].seed = 88172645463325252ull + thread * 7919;
        counters[thread].word = 3 + 80 * thread;
        counters[thread].counts = calloc(pages, sizeof(uint32_t));
        CHECK(counters[thread].counts != NULL);
        CHECK(pthread_create(&threads[thread], NULL, count, &counters[thread]) == 0);
    }
    for (thread = 0; thread < THREADS; thread++) CHECK(pthread_join(threads[thread], NULL) == 0);
    for (page = 0; page < pages; page++) {
        CHECK(map[page * WORDS + 2] == number(page, 2));
        for (thread = 0; thread < THREADS; thread++) {
            word = counters[thread].word;
            check(map[page * WORDS + word] == number(page, word) + counters[thread].counts[page],
                  "a count is wrong");
        }
    }
    CHECK(dh_unmap(map) == 0);
    file = fopen("counts.bin", "r");
    CHECK(file != NULL);
    for (page = 0; page < pages; page++) {
        CHECK(fread(words, PAGE, 1, file) == 1);
        for (word = 0; word < WORDS; word++) check(words[word] == number(page, word), "the file");
    }
    fclose(file);
    unlink("counts.bin");
    puts("no count is lost");
    return 0;
}
