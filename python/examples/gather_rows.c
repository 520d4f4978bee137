/*
 * gather_rows.c: what `gather_rows.py c` starts: the same rows of the same array, with dh_gather.
 *
 *     cc -O2 gather_rows.c $(pkg-config --cflags --libs deepheap) -o gather_rows
 *     gather_rows ROWS-FILE COUNT SECONDS    prints rows a second
 *
 * ROWS-FILE has 8 bytes for each row to read, in order, again from the start at its end.
 */

#include <deepheap.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { ROW_BYTES = 512, TOGETHER = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s ROWS-FILE COUNT SECONDS\n", argv[0]);
        return 2;
    }
    const size_t count = strtoull(argv[2], NULL, 10);
    const double seconds = strtod(argv[3], NULL);
    const int file = open(argv[1], O_RDONLY);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        perror(argv[1]);
        return 1;
    }
    const size_t draws = (size_t)status.st_size / sizeof(int64_t);
    const int64_t *rows = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    char *array = dh_malloc(count * ROW_BYTES);
    if (rows == MAP_FAILED || array == NULL || draws < TOGETHER) {
        perror("gather_rows");
        return 1;
    }
    uint64_t state = 1;
    for (size_t at = 0; at < count * ROW_BYTES / sizeof(float); at++) {
        ((float *)array)[at] = (float)(next_random(&state) >> 40) / (1 << 24);
    }
    static void *addresses[TOGETHER];
    static char out[TOGETHER * ROW_BYTES];
    size_t next = 0, done = 0;
    double begin = now();
    for (int is_warm = 0;;) {
        const double took = now() - begin;
        if (took >= seconds && is_warm) {
            printf("%.0f\n", (double)done / took);
            return 0;
        }
        if (took >= seconds) {
            is_warm = 1;
            done = 0;
            begin = now();
        }
        for (size_t at = 0; at < TOGETHER; at++) {
            addresses[at] = array + (size_t)rows[next + at] * ROW_BYTES;
        }
        if (dh_gather(addresses, TOGETHER, 0, ROW_BYTES, out) != TOGETHER) {
            fprintf(stderr, "dh_gather failed\n");
            return 1;
        }
        done += TOGETHER;
        next = next + 2 * TOGETHER <= draws ? next + TOGETHER : 0;
    }
}
