/* A program that closes everything keeps its memory, also in its children. */
#define _GNU_SOURCE
#include "pressure.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA ((size_t)20 << 20)

/* A descriptor that is listed is open, and what is open is listed; none of it is ours. */
static void list(void) {
    static char listed[2000];
    memset(listed, 0, sizeof listed);
    const char *folders[] = {"/proc/self/fd", "/proc/self/fdinfo", "/proc/thread-self/fd"};
    for (int i = 0; i < 3; i++) {
        DIR *folder = opendir(folders[i]);
        CHECK(folder);
        for (struct dirent *entry; (entry = readdir(folder));) {
            int descriptor = atoi(entry->d_name);
            if (*entry->d_name == '.' || descriptor == dirfd(folder)) continue;
            CHECK(descriptor < 900);
            listed[descriptor] |= 1 << i;
        }
        CHECK(closedir(folder) == 0);
    }
    for (int descriptor = 0; descriptor < 2000; descriptor++) {
        struct stat status;
        CHECK(listed[descriptor] == 0 || listed[descriptor] == 7);
        int is_open = fstat(descriptor, &status) == 0;
        CHECK(is_open || errno == EBADF);
        CHECK(is_open == (listed[descriptor] != 0));
        CHECK((fcntl(descriptor, F_GETFD) != -1) == is_open);
        CHECK((syscall(SYS_fcntl, descriptor, F_GETFD) != -1) == is_open);
        int copy = dup(descriptor), high = fcntl(descriptor, F_DUPFD_CLOEXEC, 100);
        CHECK((copy >= 0) == is_open && (high >= 100) == is_open);
        if (is_open) CHECK(close(copy) == 0 && close(high) == 0);
    }
    /* A folder whose names are numbers and that lists nothing. */
    char name[] = "descriptors-XXXXXX", path[64];
    CHECK(mkdtemp(name));
    for (int descriptor = 0; descriptor < 2000; descriptor++) {
        snprintf(path, sizeof path, "%s/%d", name, descriptor);
        CHECK(mkdir(path, 0700) == 0);
    }
    DIR *folder = opendir(name);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (*entry->d_name != '.') count++;
    CHECK(closedir(folder) == 0 && count == 2000);
    for (int descriptor = 0; descriptor < 2000; descriptor++) {
        snprintf(path, sizeof path, "%s/%d", name, descriptor);
        CHECK(rmdir(path) == 0);
    }
    CHECK(rmdir(name) == 0);
}

int main(void) {
    list();
    unsigned char *data = evicted(DATA, 1);
    list();
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
