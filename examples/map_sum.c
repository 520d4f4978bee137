/*
 * map_sum.c - sums and changes the numbers of a file that may be far larger than RAM, as one would
 * with numpy.memmap.
 *
 *     cc -O2 map_sum.c $(pkg-config --cflags --libs deepheap) -o map_sum
 *     DEEPHEAP_MAP_RAM=64M ./map_sum numbers.bin add 1
 *     DEEPHEAP_MAP_RAM=64M ./map_sum numbers.bin sum
 *
 * Several of them may run on one file at a time: they share its pages, and 64 MiB are enough for
 * all of them together.
 */
#include <deepheap.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int fail(const char *what) {
    fprintf(stderr, "map_sum: %s: %s\n", what, dh_last_error());
    return 1;
}

int main(int argc, char **argv) {
    int adds = argc == 4 && strcmp(argv[2], "add") == 0;
    if (!adds && !(argc == 3 && strcmp(argv[2], "sum") == 0)) {
        fprintf(stderr, "usage: map_sum FILE sum | map_sum FILE add NUMBER\n");
        return 2;
    }
    int prot = adds ? PROT_READ | PROT_WRITE : PROT_READ;
    uint64_t *numbers = dh_map(argv[1], 0, prot, DH_MAP_SHARED);
    if (!numbers)
        return fail(argv[1]);
    struct dh_map_stats stats;
    if (dh_map_stats(numbers, &stats) || dh_map_advise(numbers, 0, DH_MAP_SEQUENTIAL))
        return fail(argv[1]);
    size_t count = stats.file_bytes / sizeof *numbers;
    uint64_t sum = 0;
    uint64_t more = adds ? strtoull(argv[3], NULL, 10) : 0;
    for (size_t i = 0; i < count; i++) {
        if (adds)
            numbers[i] += more;
        sum += numbers[i];
    }
    if (adds && dh_sync(numbers, 0))
        return fail("sync");
    printf("%zu numbers, sum %" PRIu64 "\n", count, sum);
    return dh_unmap(numbers) ? fail("unmap") : 0;
}
