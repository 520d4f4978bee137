/* Own stacks: threads on stacks that the program provides. While such a thread lives its stack is
 * in RAM, for the kernel writes to it at any time. Afterwards it is memory as any other: it leaves
 * RAM, can be given up, unmapped and mapped again, and reads as what the program wrote or as zeros.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pressure.h"

#define STACK_BYTES ((size_t)1 << 20)
#define THREADS 40
#define MAPPED_BYTES ((size_t)8 << 20)

static int ends[2];
static volatile pid_t worker;

static void *work(void *argument) {
    unsigned char local[20000];
    fill(local, sizeof local, 5);
    /* A system call on the stack, and a signal whose frame comes there. */
    CHECK(write(ends[1], local, 3000) == 3000 && read(ends[0], local, 3000) == 3000);
    CHECK(raise(SIGUSR1) == 0);
    CHECK(is_filled(local, sizeof local, 5));
    worker = gettid();
    return argument;
}

static void ignored(int signal) { (void)signal; }

static void start(pthread_t *thread, void *(*body)(void *), void *stack, size_t bytes, int state) {
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, stack, bytes) == 0);
    CHECK(pthread_attr_setdetachstate(&attributes, state) == 0);
    CHECK(pthread_create(thread, &attributes, body, stack) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
}

static void run_on(void *stack, size_t bytes) {
    pthread_t thread;
    void *result;
    start(&thread, work, stack, bytes, PTHREAD_CREATE_JOINABLE);
    CHECK(pthread_join(thread, &result) == 0 && result == stack);
}

/* Everything of the range leaves RAM, in the end. */
static void must_leave(const void *start, size_t bytes) {
    for (int turn = 0; expects_eviction() && pages_out(start, bytes) < bytes / PAGE; turn++) {
        CHECK(turn < 50);
        press_again(3);
    }
}

/* One thread after the other, on more stacks than the program may have in RAM. */
static void stacks_leave(void) {
    unsigned char *stacks[THREADS];
    for (int i = 0; i < THREADS; i++) {
        stacks[i] = aligned_alloc(PAGE, STACK_BYTES);
        CHECK(stacks[i]);
        run_on(stacks[i], STACK_BYTES);
        fill(stacks[i], STACK_BYTES, (unsigned)i);
    }
    press();
    for (int i = 0; i < THREADS; i++) must_leave(stacks[i], STACK_BYTES);
    for (int i = 0; i < THREADS; i++) {
        CHECK(is_filled(stacks[i], STACK_BYTES, (unsigned)i));
        free(stacks[i]);
    }
}

/* As `stacks_leave`, for a thread that nobody joins. */
static void a_detached_threads_stack_leaves(void) {
    unsigned char *stack = aligned_alloc(PAGE, STACK_BYTES);
    pthread_t thread;
    CHECK(stack);
    worker = 0;
    start(&thread, work, stack, STACK_BYTES, PTHREAD_CREATE_DETACHED);
    while (worker == 0 || syscall(SYS_tgkill, getpid(), worker, 0) == 0) usleep(1000);
    for (int turn = 0; expects_eviction() && pages_out(stack, STACK_BYTES) == 0; turn++) {
        CHECK(turn < 50);
        press_again(3);
        /* The next thread with a stack of its own may be who finds out. */
        unsigned char *other = aligned_alloc(PAGE, STACK_BYTES);
        CHECK(other);
        run_on(other, STACK_BYTES);
        free(other);
    }
    free(stack);
}

/* The addresses of a stack that was unmapped serve as any other. */
static void unmapped_stacks_come_back(void) {
    for (int i = 0; i < 3; i++) {
        unsigned char *stack = mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        memset(stack, 7, MAPPED_BYTES);
        run_on(stack, MAPPED_BYTES);
        CHECK(munmap(stack, MAPPED_BYTES) == 0);
        unsigned char *again = mmap(stack, MAPPED_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(again != MAP_FAILED);
        for (size_t at = 0; at < MAPPED_BYTES; at += PAGE) {
            CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], again + at, 1) == 1);
            CHECK(again[at] == 'x' && again[at + 1] == 0);
        }
        CHECK(munmap(again, MAPPED_BYTES) == 0);
    }
}

#define BUSY 4
static atomic_bool is_over;

static void *call_until_over(void *argument) {
    int own[2];
    CHECK(pipe(own) == 0);
    while (!is_over) {
        struct timespec used;
        unsigned char local[100];
        fill(local, sizeof local, 3);
        CHECK(write(own[1], local, sizeof local) == sizeof local);
        CHECK(read(own[0], local, sizeof local) == sizeof local);
        CHECK(is_filled(local, sizeof local, 3));
        CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
    }
    return argument;
}

/* Threads on such stacks make calls without a pause while management begins. */
static void management_begins_below_calls(void) {
    pthread_t threads[BUSY];
    for (int i = 0; i < BUSY; i++) {
        void *stack = aligned_alloc(PAGE, STACK_BYTES);
        CHECK(stack);
        start(&threads[i], call_until_over, stack, STACK_BYTES, PTHREAD_CREATE_JOINABLE);
    }
    press();
    is_over = true;
    for (int i = 0; i < BUSY; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

#define LIVE 10

static void *wait_for_end(void *argument) {
    char end;
    CHECK(read(ends[0], &end, 1) == 1);
    return argument;
}

/* Stacks of living threads that are larger than the budget. */
static int live(void) {
    pthread_t threads[LIVE];
    for (int i = 0; i < LIVE; i++) {
        void *stack = aligned_alloc(PAGE, MAPPED_BYTES);
        CHECK(stack);
        start(&threads[i], wait_for_end, stack, MAPPED_BYTES, PTHREAD_CREATE_JOINABLE);
    }
    press();
    for (int i = 0; i < LIVE; i++) CHECK(write(ends[1], "x", 1) == 1);
    for (int i = 0; i < LIVE; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}

int main(int count, char **arguments) {
    (void)arguments;
    CHECK(pipe(ends) == 0);
    if (count > 1) return live();
    CHECK(signal(SIGUSR1, ignored) != SIG_ERR);
    management_begins_below_calls();
    stacks_leave();
    a_detached_threads_stack_leaves();
    unmapped_stacks_come_back();
    puts("own stacks hold");
    return 0;
}
