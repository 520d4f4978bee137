/*
 * Threads that have blocked every signal, as those of a program do that waits for signals in one
 * thread: they use their memory all the same.
 */
#include "check.h"

#include <deepheap.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t) };
static const size_t pages = 12288;

static void count(uint64_t *memory, size_t first) {
    size_t page;
    for (page = first; page < first + pages; page++) memory[(page - first) * WORDS] = page;
    for (page = first; page < first + pages; page++) {
        check(memory[(page - first) * WORDS] == page, "a word is wrong");
    }
}

static void *allocate(void *unused) {
    uint64_t *memory = dh_malloc(pages * PAGE);
    check(memory != NULL, "no memory");
    count(memory, 1);
    dh_free(memory);
    return unused;
}

static void *use_object(void *unused) {
    enum { OBJECTS = 20000, BYTES = 2000 };
    static char *objects[OBJECTS];
    int i;
    for (i = 0; i < OBJECTS; i++) {
        objects[i] = dh_oalloc(1, BYTES);
        check(objects[i] != NULL, "no object");
        memset(objects[i], i, BYTES);
    }
    for (i = 0; i < OBJECTS; i++) check(objects[i][BYTES - 1] == (char)i, "an object is wrong");
    return unused;
}

/* Gets its memory from another thread. */
static void *read_and_touch(void *memory) {
    uint64_t word;
    CHECK(dh_read(memory, 0, &word, sizeof word) == 0);
    count(memory, 2);
    return NULL;
}

int main(void) {
    sigset_t all, before;
    pthread_t threads[3];
    uint64_t *memory = dh_malloc(pages * PAGE);
    int i;
    check(memory != NULL, "no memory");
    CHECK(sigfillset(&all) == 0 && pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    CHECK(pthread_create(&threads[0], NULL, allocate, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, use_object, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, read_and_touch, memory) == 0);
    for (i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    count(memory, 3);
    puts("blocked threads hold");
    return 0;
}
