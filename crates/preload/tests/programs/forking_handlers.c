/* Forks in handlers that interrupt the allocator: neither process waits for itself. */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 4000
static volatile sig_atomic_t forked, ended;
static int forks = 150, has_returned;

static void allocate(unsigned seed) {
    static __thread void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i] = malloc(seed % 200 + i % 3 * 3000));
        *(int *)blocks[i] = i;
    }
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(*(int *)blocks[i] == i);
        free(blocks[i]);
    }
}

/* The interrupted code goes on for a while, whatever others compute. */
static void soon(void) {
    const struct itimerval once = {.it_value.tv_usec = 1000};
    CHECK(setitimer(ITIMER_PROF, &once, NULL) == 0);
}

static void on_signal(int number) {
    (void)number;
    const int errno_before = errno;
    const pid_t child = forked % 2 ? fork() : _Fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* As a handler that starts a debugger, which is to be nobody's child. */
        const pid_t grandchild = _Fork();
        CHECK(grandchild >= 0);
        if (grandchild == 0) {
            /* The allocation that was interrupted goes on here, too. */
            has_returned = 1;
            return;
        }
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    if (++forked < forks) soon();
    errno = errno_before;
}

static void *others(void *unused) {
    sigset_t all;
    CHECK(sigfillset(&all) == 0 && pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    for (unsigned seed = 16; !ended; seed += 31) allocate(seed);
    return unused;
}

/* With an argument another thread allocates meanwhile: more than libc's own allocator promises. */
int main(int count, char **arguments) {
    (void)arguments;
    CHECK(signal(SIGPROF, on_signal) == SIG_DFL);
    evicted((size_t)20 << 20, 1);
    pthread_t other;
    if (count > 1) CHECK(pthread_create(&other, NULL, others, NULL) == 0);
    if (count > 1) forks /= 3;
    soon();
    for (unsigned seed = 16; forked < forks; seed += 17) {
        allocate(seed);
        if (has_returned) {
            allocate(seed);
            _exit(7);
        }
    }
    ended = 1;
    if (count > 1) CHECK(pthread_join(other, NULL) == 0);
    puts("handlers fork");
    return 0;
}
