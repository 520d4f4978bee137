/* System calls on memory of a map find pages that are not in RAM, and change them. */
#define _GNU_SOURCE
#include "../../../../include/deepheap.h"
#include "pressure.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 3000
#define BYTES ((size_t)PAGES * PAGE)

static void *(*map)(const char *, size_t, int, uint32_t);
static int (*advise)(const void *, size_t, int);
static int (*sync_map)(const void *, size_t);
static int (*end)(void *);
static int (*pin)(const void *);
static int (*unpin)(const void *);

static unsigned char *mapped;

static void leave(void) { CHECK(advise(mapped, 0, DH_MAP_DONTNEED) == 0); }

static int scratch(void) {
    char name[] = "calls-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    return file;
}

static void transfers(void) {
    int file = scratch();
    leave();
    CHECK(write(file, mapped, BYTES) == (ssize_t)BYTES);
    fill(mapped, BYTES, 2);
    leave();
    CHECK(pread(file, mapped + 5, 1000000, 5) == 1000000);
    leave();
    CHECK(mapped[4] == byte_at(4, 2) && mapped[5] == byte_at(5, 1));
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    leave();
    CHECK(read(file, mapped, BYTES) == (ssize_t)BYTES);
    CHECK(is_filled(mapped, BYTES, 1));
    leave();
    struct iovec parts[3] = {{mapped + 100, 5000}, {mapped + 900000, 9000}, {mapped + PAGE, 1}};
    CHECK(preadv(file, parts, 3, 0) == 14001);
    CHECK(mapped[900000] == byte_at(5000, 1) && mapped[PAGE] == byte_at(14000, 1));
    CHECK(pwritev(file, parts, 3, 0) == 14001);
    CHECK(pread(file, mapped, BYTES, 0) == (ssize_t)BYTES);
    close(file);
    fill(mapped, BYTES, 1);
}

/* Pages come and go meanwhile. */
static volatile int goes_on = 1;

static void *come_and_go(void *unused) {
    unsigned seed = 1;
    (void)unused;
    while (goes_on) {
        volatile unsigned char *at = mapped + BYTES / 2 + rand_r(&seed) % (BYTES / 2);
        *at = *at;
    }
    return NULL;
}

static void direct(void) {
    char name[] = "direct-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && write(file, mapped, BYTES) == (ssize_t)BYTES && fsync(file) == 0);
    close(file);
    file = open(name, O_RDWR | O_DIRECT);
    CHECK(file >= 0 && unlink(name) == 0);
    pthread_t presser;
    CHECK(pthread_create(&presser, NULL, come_and_go, NULL) == 0);
    for (int round = 0; round < 20; round++) {
        memset(mapped, 0, BYTES / 2);
        CHECK(pread(file, mapped, BYTES / 2, 0) == (ssize_t)BYTES / 2);
        CHECK(is_filled(mapped, BYTES / 2, 1));
        leave();
        CHECK(pwrite(file, mapped, BYTES / 2, 0) == (ssize_t)BYTES / 2);
    }
    goes_on = 0;
    CHECK(pthread_join(presser, NULL) == 0);
    close(file);
}

static void others(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    leave();
    CHECK(send(pair[0], mapped + 2 * PAGE - 50, 100, 0) == 100);
    leave();
    CHECK(recv(pair[1], mapped + 9 * PAGE - 50, 100, 0) == 100);
    CHECK(mapped[9 * PAGE + 20] == byte_at(2 * PAGE + 20, 1));
    close(pair[0]), close(pair[1]);
    strcpy((char *)mapped + 7 * PAGE - 1, "/proc");
    leave();
    struct stat *status = (struct stat *)(mapped + 70 * PAGE);
    CHECK(stat((char *)mapped + 7 * PAGE - 1, status) == 0 && S_ISDIR(status->st_mode));
    leave();
    FILE *stream = tmpfile();
    CHECK(stream && fwrite(mapped + 3 * PAGE, 1, 100000, stream) == 100000);
    rewind(stream);
    leave();
    CHECK(fread(mapped + 203 * PAGE, 1, 100000, stream) == 100000);
    CHECK(memcmp(mapped + 203 * PAGE + PAGE * 5, mapped + 8 * PAGE, PAGE) == 0);
    fclose(stream);
    CHECK(pin(mapped) == 0);
    leave();
    CHECK(unpin(mapped) == 0);
}

/* A mutex and a condition of two processes, in the map. */
struct turns {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int turn;
};

static void take_turns(struct turns *turns, int own) {
    CHECK(pthread_mutex_lock(&turns->mutex) == 0);
    for (int round = 0; round < 50; round++) {
        while (turns->turn % 2 != own) {
            CHECK(pthread_cond_wait(&turns->changed, &turns->mutex) == 0);
        }
        turns->turn++;
        CHECK(pthread_cond_signal(&turns->changed) == 0);
        leave();
    }
    CHECK(pthread_mutex_unlock(&turns->mutex) == 0);
}

static void waits(void) {
    struct turns *turns = (struct turns *)(mapped + 100 * PAGE);
    pthread_mutexattr_t of_mutex;
    pthread_condattr_t of_condition;
    CHECK(pthread_mutexattr_init(&of_mutex) == 0 && pthread_condattr_init(&of_condition) == 0);
    CHECK(pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutex_init(&turns->mutex, &of_mutex) == 0);
    CHECK(pthread_cond_init(&turns->changed, &of_condition) == 0);
    turns->turn = 0;
    pid_t child = fork();
    take_turns(turns, child == 0);
    if (child == 0) _exit(0);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(turns->turn == 100);
}

int main(void) {
    alarm(300);
    map = (void *(*)(const char *, size_t, int, uint32_t))dlsym(RTLD_DEFAULT, "dh_map");
    advise = (int (*)(const void *, size_t, int))dlsym(RTLD_DEFAULT, "dh_map_advise");
    sync_map = (int (*)(const void *, size_t))dlsym(RTLD_DEFAULT, "dh_sync");
    end = (int (*)(void *))dlsym(RTLD_DEFAULT, "dh_unmap");
    pin = (int (*)(const void *))dlsym(RTLD_DEFAULT, "dh_pin");
    unpin = (int (*)(const void *))dlsym(RTLD_DEFAULT, "dh_unpin");
    CHECK(map && advise && sync_map && end && pin && unpin);
    int file = open("mapped", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && ftruncate(file, BYTES) == 0);
    close(file);
    setenv("DEEPHEAP_MAP_RAM", "3M", 1);
    mapped = map("mapped", 0, PROT_READ | PROT_WRITE, 0);
    CHECK(mapped);
    fill(mapped, BYTES, 1);
    transfers();
    direct();
    others();
    waits();
    CHECK(sync_map(mapped, 0) == 0 && end(mapped) == 0);
    puts("map calls hold");
    return 0;
}
