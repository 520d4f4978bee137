/* Pinned memory: a thread waits in a call on memory that another one gives up, unmaps, moves or
 * frees. The call's answer is the kernel's affair; but what comes to the same addresses later is
 * memory as any other: it holds what is written to it, system calls find it, and it leaves RAM.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pressure.h"

#define BYTES ((size_t)4 << 20)

static int pair[2];
static volatile pid_t receiver;

/* Waits with its buffer in RAM: of a datagram nothing may be lost. */
static void *receive(void *buffer) {
    receiver = gettid();
    ssize_t moved = recv(pair[0], buffer, 1 << 20, 0);
    CHECK(moved == 5 || (moved == -1 && errno == EFAULT));
    return NULL;
}

/* Until the thread sleeps in `recv`, which is `recvfrom` to the kernel. */
static void await_receiver(void) {
    char path[64], text[32];
    while (receiver == 0) usleep(1000);
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", receiver);
    for (;;) {
        FILE *file = fopen(path, "r");
        CHECK(file);
        int is_there = fgets(text, sizeof text, file) && atoi(text) == SYS_recvfrom;
        fclose(file);
        if (is_there) return;
        usleep(1000);
    }
}

static void *mapped(void *hint) {
    void *memory = mmap(hint, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Every page can be read into by a call, before the program itself has touched it, and keeps what
 * it gets. */
static void must_serve(unsigned char *memory, int is_zero) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (size_t at = 0; at < BYTES; at += PAGE) {
        CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], memory + at, 1) == 1);
        CHECK(memory[at] == 'x');
        for (size_t i = 1; is_zero && i < PAGE; i++) CHECK(memory[at + i] == 0);
    }
    close(ends[0]);
    close(ends[1]);
    fill(memory, BYTES, 3);
    CHECK(is_filled(memory, BYTES, 3));
}

static void must_leave(unsigned char *memory) {
    for (int turn = 0; expects_eviction() && pages_out(memory, BYTES) < BYTES / PAGE; turn++) {
        CHECK(turn < 50);
        press_again(3);
    }
    CHECK(is_filled(memory, BYTES, 3));
}

enum way { GIVE_UP, UNMAP, MAP_OVER, MOVE, FREE, WAYS };

static void ends_by(enum way way) {
    pthread_t thread;
    unsigned char *memory = way == FREE ? aligned_alloc(PAGE, BYTES) : mapped(NULL), *next = memory;
    CHECK(memory);
    fill(memory, BYTES, 9);
    receiver = 0;
    CHECK(pthread_create(&thread, NULL, receive, memory + PAGE / 2) == 0);
    await_receiver();
    switch (way) {
    case GIVE_UP:
        CHECK(madvise(memory, BYTES, MADV_DONTNEED) == 0);
        break;
    case UNMAP:
        CHECK(munmap(memory, BYTES) == 0);
        next = mapped(memory);
        break;
    case MAP_OVER:
        CHECK(mmap(memory, BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
        break;
    case MOVE:
        next = mremap(memory, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
        CHECK(next != MAP_FAILED && is_filled(next, BYTES, 9));
        CHECK(munmap(next, 2 * BYTES) == 0);
        next = mapped(memory);
        break;
    default:
        free(memory);
        next = aligned_alloc(PAGE, BYTES);
        CHECK(next);
    }
    must_serve(next, way != FREE);
    CHECK(send(pair[1], "hello", 5, 0) == 5);
    CHECK(pthread_join(thread, NULL) == 0);
    /* The message may have come to the memory that is there now. */
    fill(next, BYTES, 3);
    must_leave(next);
    if (way == FREE) free(next);
    else CHECK(munmap(next, BYTES) == 0);
}

int main(void) {
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    press();
    for (enum way way = 0; way < WAYS; way++) ends_by(way);
    puts("pinned memory holds");
    return 0;
}
