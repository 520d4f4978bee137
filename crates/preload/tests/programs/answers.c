/* answers MIB: fills so many MiB, and for each line of its input checks them all and says so. For
 * the line "more" it has 16 MiB more first. After "fork" a child, whose id it says, answers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* No page becomes smaller. */
static uint64_t mixed(uint64_t n) {
    n = (n ^ (n >> 31)) * 0x9e3779b97f4a7c15u;
    return n ^ (n >> 29);
}

/* Where the compiler has to leave it. */
void *volatile more;

int main(int count, char **arguments) {
    size_t words = count > 1 ? strtoul(arguments[1], NULL, 10) << 17 : 0;
    uint64_t *data = malloc(words * sizeof *data);
    if (!data)
        return 2;
    for (size_t n = 0; n < words; n++)
        data[n] = mixed(n + 1);
    puts("filled");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        size_t wrong = 0;
        if (line[0] == 'f') {
            pid_t child = fork();
            if (child < 0)
                return 2;
            if (child > 0) {
                waitpid(child, NULL, 0);
                return 0;
            }
            printf("%d\n", (int)getpid());
            fflush(stdout);
            continue;
        }
        if (line[0] == 'm') {
            more = malloc(16 << 20);
            if (!more)
                return 2;
        }
        for (size_t n = 0; n < words; n++)
            wrong += data[n] != mixed(n + 1);
        printf("%zu wrong\n", wrong);
        fflush(stdout);
    }
    return 0;
}
