/* A program that fills memory, gives up its rights, and then outgrows RAM: the store is out of its
 * reach. With "fork" a child does so, as a daemon's does. If ALLOWED is defined, system calls are
 * given up, all but those that are named there; with "fork" a child outgrows RAM as well. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 2000, BYTES = 5000, NOBODY = 65534 };

static unsigned char *blocks[BLOCKS];

static void outgrow(void) {
    for (int turn = 0; turn < 4; turn++) {
        press();
        for (int i = 0; i < BLOCKS; i++) {
            CHECK(is_filled(blocks[i], BYTES, i + turn));
            fill(blocks[i], BYTES, i + turn + 1);
        }
    }
    for (int i = 0; i < BLOCKS; i++) fill(blocks[i], BYTES, i);
}

#ifdef ALLOWED
#define ALLOW(name)                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1),                                     \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOWED
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

static void give_up(void) {
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}
#else
static void give_up(void) {
    if (geteuid() == 0) {
        CHECK(mkdir("jail", 0755) == 0);
        CHECK(chroot("jail") == 0 && chdir("/") == 0);
        CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    } else {
        CHECK(setuid(geteuid()) == 0 && chmod(".", 0) == 0);
    }
    CHECK(open(".", O_TMPFILE | O_RDWR, 0600) < 0);
}
#endif

/* What the child did; the child's is 0 in it. */
static int forked(void) {
    int status = 1;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) CHECK(waitpid(child, &status, 0) == child && status == 0);
    return child > 0;
}

int main(int count, char **arguments) {
    int forks = count > 1 && strcmp(arguments[1], "fork") == 0;
    for (int i = 0; i < BLOCKS; i++) fill(blocks[i] = malloc(BYTES), BYTES, i);
    give_up();
#ifdef ALLOWED
    outgrow();
#endif
    if (forks && forked()) _exit(0);
    outgrow();
    static const char line[] = "rights hold\n";
    CHECK(write(1, line, sizeof line - 1) == sizeof line - 1);
    _exit(0);
}
