/* Children of `clone` and `vfork`: they end when their function does, and one that shares the
 * memory finds its stack and leaves the parent's handlers alone. */
#define _GNU_SOURCE
#include "pressure.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA ((size_t)20 << 20)
#define STACK ((size_t)256 << 10)
static unsigned char *data;

static void expect(pid_t child, int code) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static int reads_data(void *argument) {
    CHECK(argument == data && is_filled(data, DATA, 1));
    return 7;
}

static int uses_its_stack(void *argument) {
    volatile unsigned char room[STACK / 2];
    fill((unsigned char *)room, sizeof room, 5);
    press();
    CHECK(is_filled((unsigned char *)room, sizeof room, 5));
    return reads_data(argument);
}

static int leaves_at_once(void *argument) {
    int code = uses_its_stack(argument);
    _exit(code);
}

static void on_bus(int number) { (void)number; }
static void on_usr(int number) { (void)number; }

/* As a program does that prepares a child for exec. */
static void resets_signals(void) {
    for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
}

static int resets_its_signals(void *argument) {
    resets_signals();
    return reads_data(argument);
}

int main(void) {
    struct sigaction old;
    data = evicted(DATA, 1);
    unsigned char *stack = malloc(STACK);
    CHECK(stack);
    /* A process of its own that returns. */
    expect(clone(reads_data, stack + STACK, SIGCHLD, data), 7);
    press();
    expect(clone(uses_its_stack, stack + STACK, SIGCHLD, data), 7);
    /* One that shares the memory, on a stack that has left RAM; the parent waits outside. */
    for (int i = 0; i < 3; i++) {
        fill(stack, STACK, 3);
        press();
        expect(clone(uses_its_stack, stack + STACK, CLONE_VM | SIGCHLD, data), 7);
        press();
        expect(clone(leaves_at_once, stack + STACK, CLONE_VM | SIGCHLD, data), 7);
        press();
        expect(clone(uses_its_stack, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, data), 7);
    }
    /* What it does about signals is its own affair. */
    CHECK(signal(SIGBUS, on_bus) == SIG_DFL && signal(SIGUSR1, on_usr) == SIG_DFL);
    expect(clone(resets_its_signals, stack + STACK, CLONE_VM | SIGCHLD, data), 7);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == on_bus);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == on_usr);
    pid_t child = vfork();
    if (child == 0) {
        resets_signals();
        _exit(7);
    }
    expect(child, 7);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == on_bus);
    CHECK(raise(SIGBUS) == 0 && raise(SIGUSR1) == 0);
    CHECK(is_filled(data, DATA, 1));
    puts("shared children hold");
    return 0;
}
