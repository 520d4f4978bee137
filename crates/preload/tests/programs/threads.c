/* Threads, and everything they wait on, in memory that leaves RAM while they wait. */
#define _GNU_SOURCE
#include "pressure.h"
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static struct timespec in_a_while(clockid_t clock, int ms) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += ms * 1000000L;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static pthread_mutex_t *mutex;
static pthread_cond_t *condition;
static sem_t *semaphore;
static pthread_rwlock_t *lock;
static pthread_barrier_t *barrier;
static pthread_once_t *once;
static int turns, once_calls;

static void count_once(void) { once_calls++; }

static void *wait_for_turn(void *argument) {
    int turn = (int)(intptr_t)argument;
    CHECK(pthread_once(once, count_once) == 0);
    CHECK(pthread_mutex_lock(mutex) == 0);
    while (turns < turn) CHECK(pthread_cond_wait(condition, mutex) == 0);
    CHECK(pthread_mutex_unlock(mutex) == 0);
    CHECK(sem_wait(semaphore) == 0);
    CHECK(pthread_rwlock_rdlock(lock) == 0);
    CHECK(pthread_rwlock_unlock(lock) == 0);
    pthread_barrier_wait(barrier);
    return argument;
}

static void waiting(void) {
    enum { THREADS = 6 };
    mutex = OWN_PAGE(pthread_mutex_t);
    condition = OWN_PAGE(pthread_cond_t);
    semaphore = OWN_PAGE(sem_t);
    lock = OWN_PAGE(pthread_rwlock_t);
    barrier = OWN_PAGE(pthread_barrier_t);
    once = OWN_PAGE(pthread_once_t);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    CHECK(pthread_mutex_init(mutex, NULL) == 0 && pthread_cond_init(condition, &attributes) == 0);
    CHECK(sem_init(semaphore, 0, 0) == 0 && pthread_rwlock_init(lock, NULL) == 0);
    CHECK(pthread_barrier_init(barrier, NULL, THREADS + 1) == 0);
    press();

    /* Held while threads come to wait, and their pages are squeezed. */
    CHECK(pthread_mutex_lock(mutex) == 0 && pthread_rwlock_wrlock(lock) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_for_turn, (void *)(intptr_t)(i + 1)) == 0);
    press();
    CHECK(pthread_mutex_unlock(mutex) == 0);
    for (int i = 0; i < THREADS; i++) {
        usleep(2000);
        if (i % 2) press();
        CHECK(pthread_mutex_lock(mutex) == 0);
        turns++;
        CHECK(pthread_mutex_unlock(mutex) == 0);
        CHECK((i % 2 ? pthread_cond_signal : pthread_cond_broadcast)(condition) == 0);
    }
    CHECK(pthread_cond_broadcast(condition) == 0);
    usleep(20000);
    press();
    for (int i = 0; i < THREADS; i++) CHECK(sem_post(semaphore) == 0);
    usleep(20000);
    press();
    CHECK(pthread_rwlock_unlock(lock) == 0);
    usleep(20000);
    press();
    pthread_barrier_wait(barrier);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0 && result == (void *)(intptr_t)(i + 1));
    }
    CHECK(once_calls == 1);

    struct timespec until = in_a_while(CLOCK_MONOTONIC, 30);
    CHECK(pthread_mutex_lock(mutex) == 0);
    CHECK(pthread_cond_timedwait(condition, mutex, &until) == ETIMEDOUT);
    until = in_a_while(CLOCK_REALTIME, 30);
    CHECK(pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &until) == ETIMEDOUT);
    CHECK(pthread_mutex_trylock(mutex) == EBUSY);
    until = in_a_while(CLOCK_REALTIME, 30);
    CHECK(pthread_mutex_timedlock(mutex, &until) == ETIMEDOUT);
    CHECK(pthread_mutex_unlock(mutex) == 0);
    until = in_a_while(CLOCK_REALTIME, 30);
    CHECK(sem_timedwait(semaphore, &until) == -1 && errno == ETIMEDOUT);
    CHECK(sem_trywait(semaphore) == -1 && errno == EAGAIN);
    CHECK(pthread_mutex_destroy(mutex) == 0 && pthread_cond_destroy(condition) == 0);
    CHECK(sem_destroy(semaphore) == 0 && pthread_rwlock_destroy(lock) == 0);
    CHECK(pthread_barrier_destroy(barrier) == 0);
}

static void kinds(void) {
    int kinds[] = {PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP};
    for (int i = 0; i < 12; i++) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, kinds[i % 3]);
        if (i / 3 == 1) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (i / 3 == 2) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        if (i / 3 == 3) pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        mutex = OWN_PAGE(pthread_mutex_t);
        CHECK(pthread_mutex_init(mutex, &attributes) == 0);
        press();
        CHECK(pthread_mutex_lock(mutex) == 0);
        if (i % 3 == 0) CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
        if (i % 3 == 1) CHECK(pthread_mutex_lock(mutex) == EDEADLK);
        press();
        CHECK(pthread_mutex_unlock(mutex) == 0);
        if (i % 3 == 1) CHECK(pthread_mutex_unlock(mutex) == EPERM);
        CHECK(pthread_mutex_destroy(mutex) == 0);
        free(mutex);
    }
    mtx_t *simple = OWN_PAGE(mtx_t);
    CHECK(mtx_init(simple, mtx_plain) == thrd_success);
    press();
    CHECK(mtx_lock(simple) == thrd_success && mtx_unlock(simple) == thrd_success);
}

static void *dies_with_mutex(void *argument) {
    CHECK(pthread_mutex_lock(argument) == 0);
    return NULL;
}

static void robust(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    mutex = OWN_PAGE(pthread_mutex_t);
    CHECK(pthread_mutex_init(mutex, &attributes) == 0);
    press();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, dies_with_mutex, mutex) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    press();
    CHECK(pthread_mutex_lock(mutex) == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0);
    CHECK(pthread_mutex_unlock(mutex) == 0);
}

static void *sleeps(void *argument) {
    for (;;) CHECK(read(((int *)argument)[0], argument, 4) == 4);
    return NULL;
}

static void *leaves(void *argument) { pthread_exit(strdup(argument)); }

static void *churns(void *argument) {
    unsigned seed = (unsigned)(intptr_t)argument;
    unsigned char *blocks[200] = {0};
    for (int i = 0; i < 20000; i++) {
        int slot = (i * 7 + seed) % 200;
        if (blocks[slot]) CHECK(is_filled(blocks[slot], 100 + slot * 10, slot + seed));
        free(blocks[slot]);
        blocks[slot] = malloc(100 + slot * 10);
        fill(blocks[slot], 100 + slot * 10, slot + seed);
    }
    for (int i = 0; i < 200; i++) free(blocks[i]);
    return NULL;
}

static void *on_heap_stack(void *argument) {
    volatile unsigned char local[60000];
    for (int i = 0; i < 60000; i++) local[i] = byte_at(i, 8);
    press();
    for (int i = 0; i < 60000; i++) CHECK(local[i] == byte_at(i, 8));
    return argument;
}

/* Never waits, and ends when it is cancelled. */
static void *takes(void *semaphore) {
    for (;;) CHECK(sem_wait(semaphore) == 0);
}

static void lives(void) {
    pthread_t thread;
    void *result;
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_create(&thread, NULL, leaves, "gone") == 0);
        CHECK(pthread_join(thread, &result) == 0 && strcmp(result, "gone") == 0);
        free(result);
    }
    int *pair = OWN_PAGE(int);
    CHECK(pipe(pair) == 0);
    CHECK(pthread_create(&thread, NULL, sleeps, pair) == 0);
    usleep(20000);
    press();
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    sem_t *plenty = OWN_PAGE(sem_t);
    CHECK(sem_init(plenty, 0, SEM_VALUE_MAX) == 0);
    CHECK(pthread_create(&thread, NULL, takes, plenty) == 0);
    usleep(1000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    pthread_t many[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&many[i], NULL, churns, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(many[i], NULL) == 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    void *stack = aligned_alloc(PAGE, 1 << 20);
    memset(stack, 1, 1 << 20);
    press();
    CHECK(pthread_attr_setstack(&attributes, stack, 1 << 20) == 0);
    CHECK(pthread_create(&thread, &attributes, on_heap_stack, stack) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == stack);
    free(stack);
}

static FILE *stream;
static char *text;
static int cleanups;

static void counts_cleanup(void *argument) {
    (void)argument;
    cleanups++;
}

/* Fills a pipe that nobody reads, until it is cancelled there. */
static void *prints(void *argument) {
    pthread_cleanup_push(counts_cleanup, NULL);
    for (;;) {
        if (argument) fprintf(stream, "%s%d", text, 1);
        else fwrite(text, 1, 300000, stream);
    }
    pthread_cleanup_pop(1);
    return NULL;
}

/* Whoever is cancelled in a stream leaves it to others, and runs its own cleanups. */
static void cancelled(void) {
    text = malloc(300001);
    memset(text, 't', 300000);
    text[300000] = 0;
    for (intptr_t formatted = 0; formatted < 2; formatted++) {
        int pair[2];
        CHECK(pipe(pair) == 0 && (stream = fdopen(pair[1], "w")) != NULL);
        press();
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, prints, (void *)formatted) == 0);
        /* Until it waits there. */
        struct pollfd room = {.fd = pair[1], .events = POLLOUT};
        while (poll(&room, 1, 0) != 0) usleep(1000);
        void *result;
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && cleanups == 1 + formatted);
        CHECK(ftrylockfile(stream) == 0);
        funlockfile(stream);
        close(pair[0]);
    }
    free(text);
}

static ucontext_t *home, *away;

static void coroutine(void) {
    volatile unsigned char local[100000];
    for (int i = 0; i < 100000; i++) local[i] = byte_at(i, 4);
    for (int round = 0; round < 3; round++) {
        CHECK(swapcontext(away, home) == 0);
        for (int i = 0; i < 100000; i++) CHECK(local[i] == byte_at(i, 4));
    }
}

static void coroutines(void) {
    home = OWN_PAGE(ucontext_t);
    away = OWN_PAGE(ucontext_t);
    void *stack = malloc(1 << 20);
    press();
    CHECK(getcontext(away) == 0);
    away->uc_stack.ss_sp = stack;
    away->uc_stack.ss_size = 1 << 20;
    away->uc_link = home;
    makecontext(away, coroutine, 0);
    for (int round = 0; round < 4; round++) {
        CHECK(swapcontext(home, away) == 0);
        press();
    }
    free(stack);
}

int main(void) {
    waiting();
    kinds();
    robust();
    lives();
    cancelled();
    coroutines();
    puts("threads hold");
    return 0;
}
