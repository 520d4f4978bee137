/*
 * hello.c - a table larger than its RAM budget, in C.
 *
 *     cc -O2 hello.c -o hello $(pkg-config --cflags --libs deepheap)
 *     ./hello
 */
#include <deepheap.h>

#include <stdint.h>
#include <stdio.h>

/* 128 MiB of numbers in 32 MiB of RAM. */
#define NUMBERS ((uint64_t)16 << 20)

/* Scatters the accesses, so that there is no order for anyone to guess. */
static uint64_t scatter(uint64_t i) {
    return i * 0x9E3779B97F4A7C15u % NUMBERS;
}

int main(void) {
    const int error = dh_init("ram:32M,store:.");
    if (error) {
        /* Not fatal where the environment configured deepheap already. */
        fprintf(stderr, "dh_init: %s\n", dh_strerror(error));
    }

    uint64_t *numbers = dh_malloc(NUMBERS * sizeof *numbers);
    if (numbers == NULL) {
        perror("dh_malloc");
        return 1;
    }
    for (uint64_t i = 0; i < NUMBERS; i++) {
        numbers[i] = i ^ 0x5EED;
    }
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        const uint64_t at = scatter(i);
        wrong += numbers[at] != (at ^ 0x5EED);
    }

    struct dh_stats stats;
    if (dh_stats(&stats, sizeof stats) == 0) {
        printf("hello, %llu MiB in %llu MiB of RAM: %llu faults from the store, %llu wrong\n",
               (unsigned long long)(stats.allocated_bytes >> 20),
               (unsigned long long)(stats.budget_bytes >> 20),
               (unsigned long long)stats.fault_stored.count, (unsigned long long)wrong);
    }
    dh_free(numbers);
    return wrong != 0;
}
