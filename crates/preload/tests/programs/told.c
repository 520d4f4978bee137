/* told.c: holds 48 MiB that do not fit 16 MiB of RAM, and ends as its argument says. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)48 << 20)

/* Noise, so that nothing becomes smaller by compression. */
static void fill(unsigned long *words) {
    unsigned long state = 88172645463325252UL;
    for (size_t at = 0; at < BYTES / sizeof *words; at++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[at] = state;
    }
}

static void start(char *program, char *how) {
    if (fork() == 0) {
        execl(program, program, how, "child", (char *)NULL);
        _exit(99);
    }
}

int main(int count, char **arguments) {
    char *how = count > 1 ? arguments[1] : "return";
    if (strcmp(how, "small") == 0) {
        char *volatile little = malloc(100);
        free(little);
        return 0;
    }
    /* Of the larger one most is never touched. */
    unsigned long *words = malloc(strcmp(how, "sparse") == 0 ? 8 * BYTES : BYTES);
    if (words == NULL) return 98;
    fill(words);
    fill(words);
    free(words);
    if (strcmp(how, "children") == 0) {
        start(arguments[0], "return");
        start(arguments[0], "KILL");
        while (wait(NULL) > 0) {
        }
    }
    if (strcmp(how, "exit_group") == 0) syscall(SYS_exit_group, 7);
    /* A shell that starts the tests in the background ignores it. */
    signal(SIGINT, SIG_DFL);
    if (strcmp(how, "INT") == 0) kill(getpid(), SIGINT);
    if (strcmp(how, "TERM") == 0) kill(getpid(), SIGTERM);
    if (strcmp(how, "KILL") == 0) kill(getpid(), SIGKILL);
    return 0;
}
