/* System calls on memory of a private map: transfers, and what is given up or mapped over. */
#define _GNU_SOURCE
#include "../../../../include/deepheap.h"
#include "pressure.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 5000 };
#define BYTES ((size_t)PAGES * PAGE)

static void *(*map)(const char *, size_t, int, uint32_t);
static int (*end)(void *);

static unsigned char *again(const char *name) {
    unsigned char *mapped = map(name, 0, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
    CHECK(mapped);
    return mapped;
}

static int make(const char *name, unsigned seed) {
    unsigned char page[PAGE];
    int file = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(file >= 0);
    for (size_t at = 0; at < BYTES; at += PAGE) {
        for (int i = 0; i < PAGE; i++) page[i] = byte_at(at + i, seed);
        CHECK(write(file, page, PAGE) == PAGE);
    }
    CHECK(fsync(file) == 0);
    return file;
}

static void transfers(int first, int second) {
    unsigned char *mapped = again("first");
    int copy = open("copy", O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(copy >= 0 && write(copy, mapped, BYTES) == (ssize_t)BYTES);
    press();
    CHECK(pread(second, mapped + 100 * PAGE + 7, 1000 * PAGE, 100 * PAGE + 7) == 1000 * PAGE);
    int direct = open("second", O_RDONLY | O_DIRECT);
    CHECK(direct >= 0);
    CHECK(pread(direct, mapped + 2000 * PAGE, 700 * PAGE, 2000 * PAGE) == 700 * PAGE);
    close(direct);
    press();
    pid_t child = fork();
    for (size_t at = 0; at < BYTES; at++) {
        int is_read = (at >= 100 * PAGE + 7 && at < 1100 * PAGE + 7) ||
                      (at >= 2000 * PAGE && at < 2700 * PAGE);
        CHECK(mapped[at] == byte_at(at, is_read ? 2 : 1));
    }
    if (child == 0) _exit(0);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The files are as they were. */
    CHECK(end(mapped) == 0);
    mapped = again("copy");
    CHECK(is_filled(mapped, BYTES, 1));
    CHECK(pread(first, mapped, BYTES, 0) == (ssize_t)BYTES && is_filled(mapped, BYTES, 1));
    CHECK(end(mapped) == 0);
    close(copy);
}

static int is_zero(const unsigned char *at, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (at[i]) return 0;
    return 1;
}

/* Given up and mapped over, whether it was touched, changed, or neither: zeros from then on. */
static void gaps(void) {
    unsigned char *mapped = again("first");
    for (int i = 0; i < 400; i++) CHECK(mapped[i * PAGE] == byte_at(i * PAGE, 1));
    fill(mapped, 200 * PAGE, 3);
    CHECK(madvise(mapped + 100 * PAGE, 900 * PAGE, MADV_DONTNEED) == 0);
    unsigned char *over = mapped + 1200 * PAGE;
    CHECK(mmap(over, 300 * PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == over);
    for (int round = 0; round < 2; round++) {
        CHECK(is_filled(mapped, 100 * PAGE, 3));
        CHECK(is_zero(mapped + 100 * PAGE, 900 * PAGE) && is_zero(over, 300 * PAGE));
        for (size_t at = 1000 * PAGE; at < BYTES; at += 997)
            CHECK((at >= 1200 * PAGE && at < 1500 * PAGE) || mapped[at] == byte_at(at, 1));
        press();
    }
    /* One that is ended by munmap; its place goes to maps of another file. */
    CHECK(munmap(mapped, BYTES) == 0);
    for (int round = 0; round < 3; round++) {
        unsigned char *other = again("second");
        for (size_t at = 0; at < BYTES; at += 509) CHECK(other[at] == byte_at(at, 2));
        CHECK(end(other) == 0);
        unsigned char *plain = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(plain != MAP_FAILED && is_zero(plain, BYTES) && munmap(plain, BYTES) == 0);
    }
}

int main(void) {
    alarm(300);
    map = (void *(*)(const char *, size_t, int, uint32_t))dlsym(RTLD_DEFAULT, "dh_map");
    end = (int (*)(void *))dlsym(RTLD_DEFAULT, "dh_unmap");
    CHECK(map && end);
    int first = make("first", 1), second = make("second", 2);
    transfers(first, second);
    gaps();
    puts("private calls hold");
    return 0;
}
