/*
 * memmap.c - what one does with numpy.memmap, in C: an array in a file that may be far larger than
 * RAM; rows picked by a list, a slice changed in place, and all of it durable.
 *
 *     cc -O2 memmap.c $(pkg-config --cflags --libs deepheap) -o memmap
 *     DEEPHEAP_MAP_RAM=64M ./memmap vectors.bin 1000000
 *
 * The file is an array of rows of 64 doubles, as numpy.memmap("vectors.bin", dtype="f8",
 * shape=(1000000, 64)) has it. It is made if it is not there.
 */
#define _DEFAULT_SOURCE
#include <deepheap.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COLUMNS = 64, PICKED = 1000 };
typedef double row[COLUMNS];

static int fail(const char *what) {
    fprintf(stderr, "memmap: %s: %s\n", what, dh_last_error());
    return 1;
}

int main(int argc, char **argv) {
    char *end = "";
    size_t count = argc == 3 ? strtoull(argv[2], &end, 10) : 0;
    if (count == 0 || *end) {
        fprintf(stderr, "usage: memmap FILE ROWS\n");
        return 2;
    }
    int file = open(argv[1], O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, (off_t)(count * sizeof(row)))) {
        perror(argv[1]);
        return 1;
    }
    close(file);
    row *rows = dh_map(argv[1], 0, PROT_READ | PROT_WRITE, DH_MAP_SHARED);
    if (!rows)
        return fail(argv[1]);

    /* rows[:] = ..., in order: it is read and written in large pieces by itself. */
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < COLUMNS; j++)
            rows[i][j] = (double)i + (double)j / COLUMNS;

    /* picked = rows[list], the rows read side by side. With plain loads each would wait alone. */
    static row picked[PICKED];
    void *list[PICKED];
    uint64_t random = 1;
    for (size_t i = 0; i < PICKED; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        list[i] = rows[(random >> 33) % count];
    }
    if (dh_gather(list, PICKED, 0, sizeof(row), picked) != PICKED)
        return fail("gather");
    double sum = 0;
    for (size_t i = 0; i < PICKED; i++)
        sum += picked[i][0];

    /* rows[100:200] *= 2, and on disk, as flush() of numpy has it; only this part. */
    size_t last = count < 200 ? count : 200;
    for (size_t i = 100; i < last; i++)
        for (size_t j = 0; j < COLUMNS; j++)
            rows[i][j] *= 2;
    if (last > 100 && dh_sync(rows[100], (last - 100) * sizeof(row)))
        return fail("sync");

    struct dh_map_stats stats;
    if (dh_map_stats(rows, &stats))
        return fail("statistics");
    printf("%zu rows, the mean of %d picked ones is %.1f\n", count, PICKED, sum / PICKED);
    printf("%" PRIu64 " MiB of %" PRIu64 " in RAM\n", stats.resident_bytes >> 20,
           stats.file_bytes >> 20);
    return dh_unmap(rows) ? fail("unmap") : 0;
}
