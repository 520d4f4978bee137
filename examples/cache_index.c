/*
 * cache_index.c - the index of a web cache (HashCache, NSDI 2009; SSDAlloc, section 5.5) that is
 * there again after kill -9: warm, and at once.
 *
 *     cache_index FILE fill [SECONDS]   threads insert entries; tells how many are durable
 *     cache_index FILE ask              opens it and looks up entries, at once
 *     cache_index FILE check            holds every set against what was inserted
 *
 * The index is an array of sets of sixteen entries, in a durable heap. An insert takes the place of
 * the oldest entry of its set. The threads have a part of the sets each, and count their inserts in
 * the heap as well. A checkpoint holds one instant: so what the sets hold is what so many inserts
 * make, set by set; only the insert that was under way may be half there. `check` makes all of them
 * once more, in plain memory, and compares.
 *
 * cc cache_index.c $(pkg-config --cflags --libs deepheap) -lpthread
 */
#include <deepheap.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAYS = 16, THREADS = 4, TOLD_MS = 250 };

struct entry {
    uint32_t hash;
    uint32_t insert; /* which insert of its thread it was, from 1; 0 is none */
};

struct set {
    struct entry entries[WAYS];
};

struct index {
    struct set *sets;
    uint64_t sets_a_thread;
    volatile uint64_t inserts[THREADS * 8]; /* every eighth: a cache line each */
};

static struct index *index_of_all;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *need(void *memory)
{
    if (!memory) {
        fprintf(stderr, "cache_index: no memory: the RAM budget or the file is full\n");
        exit(1);
    }
    return memory;
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    return x ^ (x >> 27);
}

/* The set of a thread's nth insert, and the hash of its entry: the same for ever. */
static uint64_t set_of(uint64_t thread, uint64_t n, uint64_t sets)
{
    return mix(thread << 56 ^ n) % sets;
}

static uint32_t hash_of(uint64_t thread, uint64_t n)
{
    return mix(n << 8 ^ thread) >> 32;
}

/* One that a checkpoint holds without its count is made again later: in the same place, or the set
 * would have it twice. */
static void insert(struct set *sets, uint64_t sets_a_thread, uint64_t thread, uint64_t n)
{
    struct set *set = &sets[thread * sets_a_thread + set_of(thread, n, sets_a_thread)];
    struct entry *place = set->entries;
    for (int way = 0; way < WAYS; way++) {
        struct entry *entry = &set->entries[way];
        if (entry->insert == n + 1) {
            place = entry;
            break;
        }
        if (entry->insert < place->insert)
            place = entry;
    }
    *place = (struct entry){.hash = hash_of(thread, n), .insert = n + 1};
}

static void *work(void *number)
{
    uint64_t thread = (uintptr_t)number;
    volatile uint64_t *inserts = &index_of_all->inserts[thread * 8];
    for (;;) {
        insert(index_of_all->sets, index_of_all->sets_a_thread, thread, *inserts);
        ++*inserts;
    }
    return NULL;
}

static uint64_t count_inserts(void)
{
    uint64_t sum = 0;
    for (int thread = 0; thread < THREADS; thread++)
        sum += index_of_all->inserts[thread * 8];
    return sum;
}

static int fill(dh_heap *heap, double seconds)
{
    double start = now();
    pthread_t threads[THREADS];
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, work, (void *)thread) != 0) {
            fprintf(stderr, "cache_index: no thread can be started\n");
            return 1;
        }
    while (now() - start < seconds) {
        const struct timespec pause = {.tv_nsec = TOLD_MS * 1000000L};
        nanosleep(&pause, NULL);
        uint64_t inserts = count_inserts(), ticket;
        struct dh_checkpoint made;
        if (dh_checkpoint_async(heap, &ticket) != 0
            || dh_checkpoint_wait(heap, ticket, &made) != 0) {
            fprintf(stderr, "cache_index: no checkpoint: %s\n", dh_last_error());
            return 1;
        }
        printf("%8.2f s  %llu inserts are durable (checkpoint %llu: %.1f ms, pause %.1f)\n",
               now() - start, (unsigned long long)inserts, (unsigned long long)made.number,
               made.time_ns / 1e6, made.pause_ns / 1e6);
        fflush(stdout);
    }
    return 0;
}

/* Looks up the last inserts of each thread: a warm cache has nearly all of them. */
static void ask(void)
{
    double start = now();
    uint64_t asked = 0, found = 0;
    for (uint64_t thread = 0; thread < THREADS; thread++) {
        uint64_t end = index_of_all->inserts[thread * 8], sets = index_of_all->sets_a_thread;
        for (uint64_t back = 1; back <= 1000 && back <= end; back++, asked++) {
            uint64_t n = end - back;
            struct set *set = &index_of_all->sets[thread * sets + set_of(thread, n, sets)];
            for (int way = 0; way < WAYS; way++)
                found += set->entries[way].insert == n + 1
                         && set->entries[way].hash == hash_of(thread, n);
        }
    }
    double time = now() - start;
    printf("%llu of %llu lookups are hits, %.0f us each\n", (unsigned long long)found,
           (unsigned long long)asked, time * 1e6 / (asked ? asked : 1));
}

static int check(void)
{
    uint64_t sets_a_thread = index_of_all->sets_a_thread, wrong = 0;
    struct set *right = need(calloc(THREADS * sets_a_thread, sizeof *right));
    for (uint64_t thread = 0; thread < THREADS; thread++) {
        uint64_t inserts = index_of_all->inserts[thread * 8];
        for (uint64_t n = 0; n < inserts; n++)
            insert(right, sets_a_thread, thread, n);
        uint64_t under_way = set_of(thread, inserts, sets_a_thread);
        for (uint64_t number = 0; number < sets_a_thread; number++) {
            uint64_t set = thread * sets_a_thread + number;
            wrong += number != under_way
                     && memcmp(&right[set], &index_of_all->sets[set], sizeof *right) != 0;
        }
    }
    printf("%llu inserts, %llu sets: ", (unsigned long long)count_inserts(),
           (unsigned long long)(THREADS * sets_a_thread));
    if (wrong)
        printf("%llu are WRONG\n", (unsigned long long)wrong);
    else
        printf("each holds what was inserted\n");
    return wrong != 0;
}

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "usage: cache_index FILE fill [SECONDS] | ask | check\n");
        return 2;
    }
    const char *sets_text = getenv("CACHE_INDEX_SETS");
    uint64_t sets = sets_text ? strtoull(sets_text, NULL, 10) : 1 << 20;
    double start = now();
    dh_heap *heap = dh_open(arguments[1], getenv("CACHE_INDEX_OPTIONS"));
    if (!heap) {
        fprintf(stderr, "cache_index: %s: %s\n", arguments[1], dh_last_error());
        return 1;
    }
    index_of_all = dh_root(heap, "index");
    if (!index_of_all) {
        uint64_t of_thread = sets / THREADS ? sets / THREADS : 1;
        index_of_all = need(dh_heap_malloc(heap, sizeof *index_of_all));
        memset(index_of_all, 0, sizeof *index_of_all);
        index_of_all->sets_a_thread = of_thread;
        index_of_all->sets = need(dh_heap_malloc(heap, THREADS * of_thread * sizeof(struct set)));
        memset(index_of_all->sets, 0, THREADS * of_thread * sizeof(struct set));
        dh_set_root(heap, "index", index_of_all);
    }
    printf("open after %.1f ms: %llu inserts\n", (now() - start) * 1e3,
           (unsigned long long)count_inserts());
    fflush(stdout);
    if (!strcmp(arguments[2], "fill"))
        return fill(heap, count > 3 ? strtod(arguments[3], NULL) : 1e9);
    if (!strcmp(arguments[2], "ask")) {
        ask();
        return 0;
    }
    return check();
}
