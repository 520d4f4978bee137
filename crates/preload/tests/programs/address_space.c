/* A program that limits its address space: malloc answers NULL at the latest when that is used up,
 * and nothing ends the process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long address_space(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) _exit(2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Allocates with so many bytes more than it has; the process ends with 0 if malloc said so. */
static void limited(long more) {
    long bytes = address_space() + more;
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit)) _exit(3);
    for (int count = 0; count < 100000; count++) {
        char *block = malloc(4000);
        if (!block) exit(errno == ENOMEM ? 0 : 4);
        block[count % 4000] = 1;
    }
    /* What a heap had before may be enough. */
    _exit(0);
}

int main(void) {
    static const long sizes[] = {0, 4 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 8 << 20};
    for (unsigned at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        pid_t child = fork();
        if (child == 0) limited(sizes[at]);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) return 1;
        if (status) {
            printf("with %ld bytes more: status %x\n", sizes[at], status);
            return 1;
        }
    }
    puts("address space holds");
    return 0;
}
