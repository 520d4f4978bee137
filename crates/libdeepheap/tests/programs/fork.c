/* A heap several times its budget, forked: child and parent read all of it, and write apart. */
#include "deepheap.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUMBERS ((size_t)12 << 20) /* 96 MiB */

static void fill(uint64_t *numbers, uint64_t seed) {
    size_t i;
    for (i = 0; i < NUMBERS; i++) {
        numbers[i] = i * 0x9E3779B97F4A7C15u ^ seed;
    }
}

static size_t wrong(const uint64_t *numbers, uint64_t seed) {
    size_t i, wrong = 0;
    for (i = 0; i < NUMBERS; i++) {
        wrong += numbers[i] != (i * 0x9E3779B97F4A7C15u ^ seed);
    }
    return wrong;
}

int main(void) {
    uint64_t *numbers = dh_malloc(NUMBERS * sizeof *numbers);
    pid_t child;
    int status;
    if (numbers == NULL) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    fill(numbers, 1);
    child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        if (wrong(numbers, 1) != 0) {
            fprintf(stderr, "the child reads something else\n");
            _exit(1);
        }
        fill(numbers, 2);
        _exit(wrong(numbers, 2) != 0);
    }
    /* The parent writes while the child reads what was there before. */
    fill(numbers, 3);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the child failed: %#x\n", status);
        return 1;
    }
    if (wrong(numbers, 3) != 0) {
        fprintf(stderr, "the parent reads something else\n");
        return 1;
    }
    dh_free(numbers);
    puts("both keep every byte");
    return 0;
}
