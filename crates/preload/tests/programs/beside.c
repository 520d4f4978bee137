/* Beside the budget: touches shared mappings, which stay the kernel's: so many, of so many MiB
 * each. `keep` has them until the end; else they are given back before. `allocate` uses malloc
 * first, which nothing else here does.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 256 };

int main(int argc, char **argv) {
    static void *mappings[MOST];
    int count = argc == 4 ? atoi(argv[1]) : 0;
    if (count < 1 || count > MOST) return 2;
    size_t len = (size_t)atoi(argv[2]) << 20;
    if (strcmp(argv[3], "allocate") == 0) {
        void *volatile allocated = malloc(100);
        free(allocated);
    }
    for (int i = 0; i < count; i++) {
        mappings[i] = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (mappings[i] == MAP_FAILED) return 1;
        memset(mappings[i], 1, len);
    }
    if (strcmp(argv[3], "keep") == 0) return 0;
    for (int i = 0; i < count; i++) {
        if (munmap(mappings[i], len) != 0) return 1;
    }
    return 0;
}
