/* A program that closes everything keeps its memory, also in its children. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA ((size_t)20 << 20)

int main(void) {
    unsigned char *data = evicted(DATA, 1);
    /* Low numbers are the program's: only what it inherited is in the way. */
    for (int descriptor = 3; descriptor < 100; descriptor++) {
        if (fcntl(descriptor, F_GETFD) == -1) CHECK(dup2(1, descriptor) == descriptor);
    }
    CHECK(open("/dev/null", O_RDONLY) >= 100);
    for (int descriptor = 3; descriptor < 2000; descriptor++) close(descriptor);
    press();
    CHECK(is_filled(data, DATA, 1));
    closefrom(3);
    CHECK(close_range(3, ~0u, 0) == 0 && syscall(SYS_close_range, 3, ~0u, 0) == 0);
    press();
    CHECK(is_filled(data, DATA, 1));
    CHECK(close(700) == -1 && errno == EBADF);
    CHECK(dup2(1, 700) == 700 && close(700) == 0);
    for (int i = 0; i < 2; i++) {
        pid_t child = i ? vfork() : fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int descriptor = 3; descriptor < 2000; descriptor++) close(descriptor);
            const char *command = is_filled(data, DATA, 1) ? "exit 7" : "exit 8";
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
            _exit(9);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    puts("memory outlives descriptors");
    return 0;
}
