/* A server that fills memory, gives up its privileges, and then outgrows RAM: /proc/self is not its
 * own any more, or not there. */
#define _GNU_SOURCE
#include "pressure.h"
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 2000, BYTES = 5000 };

static unsigned char *blocks[BLOCKS];

static void all_is_there(void) {
    for (int i = 0; i < BLOCKS; i++) CHECK(is_filled(blocks[i], BYTES, i));
}

int main(void) {
    for (int i = 0; i < BLOCKS; i++) fill(blocks[i] = malloc(BYTES), BYTES, i);
    if (geteuid() == 0) {
        CHECK(chroot(".") == 0 && chdir("/") == 0);
        CHECK(access("/proc/self/pagemap", F_OK) != 0);
    } else {
        CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
        CHECK(access("/proc/self/pagemap", R_OK) != 0);
    }
    press();
    all_is_there();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        press();
        all_is_there();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    puts("given up");
    return 0;
}
