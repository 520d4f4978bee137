/* Threads that come and go, allocate, and free what others allocated; beyond the budget. */
#include "deepheap.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 40, THREADS = 8, BLOCKS = 300 };

struct load {
    unsigned char *blocks[BLOCKS];
    unsigned seed;
};

static size_t size_of(unsigned seed, unsigned i) {
    return (seed * 7919u + i * 104729u) % 20000 + 1;
}

static void *work(void *argument) {
    struct load *load = argument;
    unsigned i;
    for (i = 0; i < BLOCKS; i++) {
        const size_t size = size_of(load->seed, i);
        load->blocks[i] = dh_malloc(size);
        if (load->blocks[i] == NULL) {
            fprintf(stderr, "no memory\n");
            exit(1);
        }
        memset(load->blocks[i], (int)((load->seed + i) % 251), size);
    }
    return NULL;
}

/* Checks and frees in another thread than the one that allocated. */
static void *check(void *argument) {
    struct load *load = argument;
    unsigned i;
    for (i = 0; i < BLOCKS; i++) {
        const size_t size = size_of(load->seed, i);
        size_t at;
        for (at = 0; at < size; at++) {
            if (load->blocks[i][at] != (load->seed + i) % 251) {
                fprintf(stderr, "block %u of %u is wrong at %zu\n", i, load->seed, at);
                exit(1);
            }
        }
        dh_free(load->blocks[i]);
    }
    return NULL;
}

static void run_all(void *(*function)(void *), struct load *loads) {
    pthread_t threads[THREADS];
    unsigned i;
    for (i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, function, &loads[i]) != 0) {
            fprintf(stderr, "no thread\n");
            exit(1);
        }
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(void) {
    static struct load loads[2][THREADS];
    struct dh_stats stats;
    unsigned round, i;
    /* Two generations live at a time, 48 MiB. */
    for (round = 0; round < ROUNDS; round++) {
        struct load *now = loads[round % 2];
        if (round >= 2) {
            run_all(check, now);
        }
        for (i = 0; i < THREADS; i++) {
            now[i].seed = round * THREADS + i;
        }
        run_all(work, now);
    }
    run_all(check, loads[0]);
    run_all(check, loads[1]);
    if (dh_stats(&stats, sizeof stats) != 0 || stats.allocated_bytes > 1 << 20) {
        fprintf(stderr, "%llu bytes stay allocated\n", (unsigned long long)stats.allocated_bytes);
        return 1;
    }
    puts("threads share");
    return 0;
}
