/* Forks in handlers that interrupt the allocator: neither process waits for itself. With other
   threads that allocate nobody promises that, and glibc's own allocator does not keep it. */
#define _GNU_SOURCE
#include "pressure.h"
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 4000
#define FORKS 150
static volatile sig_atomic_t forked;
static int has_returned;

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
    if (++forked < FORKS) soon();
    errno = errno_before;
}

int main(void) {
    CHECK(signal(SIGPROF, on_signal) == SIG_DFL);
    evicted((size_t)20 << 20, 1);
    soon();
    for (unsigned seed = 16; forked < FORKS; seed += 17) {
        allocate(seed);
        if (has_returned) {
            allocate(seed);
            _exit(7);
        }
    }
    puts("handlers fork");
    return 0;
}
