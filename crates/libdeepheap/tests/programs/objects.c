/* What deepheap.h says of objects, call by call. The budget is small: most of them are away. */
#define _GNU_SOURCE
#include "deepheap.h"

#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t seed = 0x5EED;

static uint64_t random_number(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* The byte that object `i` has at offset `at`. */
static unsigned char expected(size_t i, size_t at) {
    return (unsigned char)(i * 31 + at * 7 + 1);
}

static void fill(unsigned char *bytes, size_t i, size_t size) {
    size_t at;
    for (at = 0; at < size; at++) {
        bytes[at] = expected(i, at);
    }
}

static int is_right(const unsigned char *bytes, size_t i, size_t from, size_t length) {
    size_t at;
    for (at = 0; at < length; at++) {
        if (bytes[at] != expected(i, from + at)) {
            return 0;
        }
    }
    return 1;
}

enum { OBJECTS = 40000, SIZE_LARGEST = 9000 };
static unsigned char *objects[OBJECTS];
static size_t sizes[OBJECTS];

/* Every size from 1 byte to 4 KiB comes up several times, and some larger ones. */
static size_t any_size(size_t i) {
    return i % 100 == 99 ? 4097 + i % (SIZE_LARGEST - 4096) : 1 + i % 4096;
}

static void a_thousand_sizes_live_together(void) {
    size_t i;
    for (i = 0; i < OBJECTS; i++) {
        sizes[i] = any_size(i);
        objects[i] = dh_oalloc(1, sizes[i]);
        CHECK(objects[i] != NULL);
        CHECK((uintptr_t)objects[i] % (sizes[i] >= 128 ? 4096 : 8) == 0);
        CHECK(dh_usable_size(objects[i]) >= sizes[i]);
        fill(objects[i], i, sizes[i]);
    }
    for (i = 0; i < OBJECTS; i++) {
        CHECK(is_right(objects[i], i, 0, sizes[i]));
    }
}

static void read_and_write_find_every_part(void) {
    static unsigned char buffer[SIZE_LARGEST];
    size_t round;
    for (round = 0; round < 30000; round++) {
        const size_t i = random_number() % OBJECTS;
        const size_t offset = random_number() % sizes[i];
        const size_t length = random_number() % (sizes[i] - offset + 1);
        CHECK(dh_read(objects[i], offset, buffer, length) == 0);
        CHECK(is_right(buffer, i, offset, length));
        if (round % 3 == 0) {
            memset(buffer, 0xEE, length);
            CHECK(dh_write(objects[i], offset, buffer, length) == 0);
            CHECK(length == 0 || objects[i][offset + length / 2] == 0xEE);
            fill(buffer, i, sizes[i]);
            CHECK(dh_write(objects[i], 0, buffer, sizes[i]) == 0);
            CHECK(is_right(objects[i], i, 0, sizes[i]));
        }
    }
}

static void gather_and_scatter_agree_with_pointers(void) {
    enum { BATCH = 1000, LENGTH = 24 };
    static unsigned char packed[BATCH * LENGTH];
    static void *batch[BATCH];
    static size_t chosen[BATCH];
    size_t round, n;
    for (round = 0; round < 40; round++) {
        for (n = 0; n < BATCH; n++) {
            do {
                chosen[n] = random_number() % OBJECTS;
            } while (sizes[chosen[n]] < 2 * LENGTH);
            batch[n] = objects[chosen[n]];
        }
        CHECK(dh_prefetch(batch, BATCH) >= 0);
        CHECK(dh_gather(batch, BATCH, LENGTH, LENGTH, packed) == BATCH);
        for (n = 0; n < BATCH; n++) {
            CHECK(is_right(packed + n * LENGTH, chosen[n], LENGTH, LENGTH));
        }
        /* The same bytes again, so that an object named twice is right whichever stays. */
        CHECK(dh_scatter(batch, BATCH, LENGTH, LENGTH, packed) == BATCH);
        for (n = 0; n < BATCH; n += 17) {
            CHECK(is_right(objects[chosen[n]], chosen[n], 0, sizes[chosen[n]]));
        }
    }
}

static void bad_arguments_are_answered(void) {
    unsigned char bytes[64];
    void *batch[3];
    char on_stack = 0;
    unsigned char *object = dh_oalloc(1, 200), *freed = dh_oalloc(1, 3333);
    void *foreign = malloc(100);
    CHECK(object != NULL && freed != NULL && foreign != NULL);
    dh_free(freed);

    CHECK(dh_read(freed, 0, bytes, 1) == DH_EOBJECT);
    CHECK(dh_read(foreign, 0, bytes, 1) == DH_EOBJECT);
    CHECK(dh_write(&on_stack, 0, bytes, 1) == DH_EOBJECT);
    CHECK(dh_pin(foreign) == DH_EOBJECT && dh_advise(freed, DH_HOT) == DH_EOBJECT);
    CHECK(dh_usable_size(foreign) == 0);

    CHECK(dh_read(object, 200, bytes, 1) == DH_EBOUNDS);
    CHECK(dh_read(object, 190, bytes, 11) == DH_EBOUNDS);
    CHECK(dh_write(object, 5000, bytes, 1) == DH_EBOUNDS);
    CHECK(dh_read(object, SIZE_MAX, bytes, 2) == DH_EBOUNDS);
    CHECK(dh_read(object, 200, NULL, 0) == 0 && dh_write(object, 0, NULL, 0) == 0);
    CHECK(dh_read(object, 201, NULL, 0) == DH_EBOUNDS);

    memset(object, 5, 200);
    batch[0] = object;
    batch[1] = freed;
    batch[2] = object;
    CHECK(dh_gather(batch, 3, 0, 10, bytes) == 1 && bytes[9] == 5);
    CHECK(dh_gather(batch + 1, 2, 0, 10, bytes) == DH_EOBJECT);
    batch[1] = NULL;
    CHECK(dh_scatter(batch, 3, 0, 10, bytes) == 1);
    CHECK(dh_scatter(batch + 1, 2, 0, 10, bytes) == DH_EOBJECT);
    CHECK(dh_gather(batch, 1, 195, 10, bytes) == DH_EBOUNDS);
    CHECK(dh_gather(batch, 0, 0, 10, bytes) == 0);
    dh_free(object);
    free(foreign);
}

static void pins_count(void) {
    unsigned char *object = objects[OBJECTS / 2];
    int ends[2];
    CHECK(dh_pin(object) == 0 && dh_pin(object) == 0);
    CHECK(dh_unpin(object) == 0);
    /* A system call finds it: one pin is left. */
    CHECK(pipe(ends) == 0);
    CHECK(write(ends[1], object, 1) == 1);
    close(ends[0]);
    close(ends[1]);
    CHECK(dh_unpin(object) == 0);
    CHECK(dh_advise(object, DH_HOT) == 0 && dh_advise(object, DH_COLD) == 0);
    CHECK(dh_advise(object, DH_SEQUENTIAL) == 0 && dh_advise(object, DH_ONCE) == 0);
    CHECK(is_right(object, OBJECTS / 2, 0, sizes[OBJECTS / 2]));
}

static void arrays_have_their_stride(void) {
    static const size_t element_sizes[] = {1, 8, 24, 100, 127, 128, 129, 1000, 4096, 5000};
    enum { COUNT = 300 };
    size_t which, i;
    for (which = 0; which < sizeof element_sizes / sizeof element_sizes[0]; which++) {
        const size_t size = element_sizes[which], stride = dh_ostride(size);
        unsigned char *array = dh_oalloc(COUNT, size);
        unsigned char *batch[COUNT], *gathered = malloc(COUNT * size);
        CHECK(array != NULL && gathered != NULL && stride >= size && stride % 8 == 0);
        for (i = 0; i < COUNT; i++) {
            batch[i] = array + i * stride;
            fill(batch[i], i, size);
        }
        CHECK(dh_gather((void *const *)batch, COUNT, 0, size, gathered) == COUNT);
        for (i = 0; i < COUNT; i++) {
            CHECK(is_right(batch[i], i, 0, size));
            CHECK(is_right(gathered + i * size, i, 0, size));
        }
        free(gathered);
        dh_free(array);
    }
}

static void realloc_keeps_the_bytes(void) {
    size_t size = 10;
    unsigned char *bytes = dh_oalloc(1, size);
    CHECK(bytes != NULL);
    fill(bytes, 3, size);
    while (size < 20000) {
        const size_t grown = size * 3 / 2;
        bytes = dh_realloc(bytes, grown);
        CHECK(bytes != NULL && dh_usable_size(bytes) >= grown);
        CHECK(is_right(bytes, 3, 0, size));
        fill(bytes, 3, grown);
        size = grown;
    }
    bytes = dh_realloc(bytes, 150);
    CHECK(bytes != NULL && is_right(bytes, 3, 0, 150));
    dh_free(bytes);
    bytes = dh_oalloc(0, 100);
    CHECK(bytes != NULL);
    dh_free(bytes);
    bytes = dh_oalloc(1, 0);
    CHECK(bytes != NULL);
    dh_free(bytes);
}

/* A child does it; it must be stopped by abort. */
static void is_stopped(void (*deed)(void)) {
    int status = 0;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        deed();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void free_twice(void) {
    void *object = dh_oalloc(1, 500);
    dh_free(object);
    dh_free(object);
}

static void free_a_cold_object_twice(void) {
    dh_free(objects[1]);
    dh_free(objects[1]);
}

static void free_the_inside(void) {
    dh_free(objects[500] + 16);
}

static void free_a_foreign_pointer(void) {
    static char memory[64];
    char *volatile foreign = memory;
    dh_free(foreign);
}

/* Threads that add to counters by pointer and by write; each counter has one thread. */
enum { THREADS = 4, ROUNDS = 2000, COUNTERS = 64 };
static uint64_t *counters[THREADS][COUNTERS];

static void *count_up(void *which) {
    uint64_t *const *mine = counters[(size_t)(uintptr_t)which];
    size_t round, i;
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < COUNTERS; i++) {
            uint64_t value;
            if ((round + i) % 2 == 0) {
                __atomic_fetch_add(mine[i], 1, __ATOMIC_RELAXED);
            } else if (dh_read(mine[i], 0, &value, sizeof value) != 0 ||
                       (value += 1, dh_write(mine[i], 0, &value, sizeof value)) != 0) {
                return counters; /* a call failed */
            }
        }
    }
    return NULL;
}

static void calls_agree_with_pointers_of_other_threads(void) {
    pthread_t threads[THREADS];
    size_t thread, i;
    for (i = 0; i < COUNTERS; i++) {
        for (thread = 0; thread < THREADS; thread++) {
            /* Small ones of several threads share pages. */
            counters[thread][i] = dh_oalloc(1, i % 2 == 0 ? 8 : 136);
            CHECK(counters[thread][i] != NULL);
            *counters[thread][i] = 0;
        }
    }
    for (thread = 0; thread < THREADS; thread++) {
        void *name = (void *)(uintptr_t)thread;
        CHECK(pthread_create(&threads[thread], NULL, count_up, name) == 0);
    }
    /* Meanwhile everything else goes through RAM, and so do they. */
    for (i = 0; i < OBJECTS; i += 2) {
        CHECK(objects[i][sizes[i] - 1] == expected(i, sizes[i] - 1));
    }
    for (thread = 0; thread < THREADS; thread++) {
        void *failure = NULL;
        CHECK(pthread_join(threads[thread], &failure) == 0);
        CHECK(failure == NULL);
        for (i = 0; i < COUNTERS; i++) {
            CHECK(*counters[thread][i] == ROUNDS);
            dh_free(counters[thread][i]);
        }
    }
}

static void cold_objects_are_freed_and_come_again(void) {
    size_t i;
    for (i = 0; i < OBJECTS; i += 2) {
        dh_free(objects[i]);
        objects[i] = NULL;
    }
    for (i = 0; i < OBJECTS; i += 2) {
        sizes[i] = any_size(i * 7 + 1);
        objects[i] = dh_oalloc(1, sizes[i]);
        CHECK(objects[i] != NULL);
        fill(objects[i], i, sizes[i]);
    }
    for (i = 0; i < OBJECTS; i++) {
        CHECK(is_right(objects[i], i, 0, sizes[i]));
        dh_free(objects[i]);
    }
}

int main(void) {
    a_thousand_sizes_live_together();
    read_and_write_find_every_part();
    gather_and_scatter_agree_with_pointers();
    bad_arguments_are_answered();
    pins_count();
    arrays_have_their_stride();
    realloc_keeps_the_bytes();
    is_stopped(free_twice);
    is_stopped(free_a_cold_object_twice);
    is_stopped(free_the_inside);
    is_stopped(free_a_foreign_pointer);
    calls_agree_with_pointers_of_other_threads();
    cold_objects_are_freed_and_come_again();
    puts("every object holds");
    return 0;
}
