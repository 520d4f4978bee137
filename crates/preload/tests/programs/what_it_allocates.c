// Allocates memory of random bytes in functions that say what becomes of it, more than fits RAM.
// The argument says how it ends:
//   plain  a forked child allocates, too; then both end
//   freed  it frees all, after so many seconds
//   killed by a signal, after so many seconds
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PIECES = 1 << 14 };

static unsigned char *hot, *mapped, *grown;
static unsigned char *cold[PIECES], *waste[PIECES], *own[PIECES];
static unsigned wrong;
static uint64_t random_bits = 0x9e3779b97f4a7c15u;

static uint64_t random_word(void) {
    random_bits ^= random_bits << 13;
    random_bits ^= random_bits >> 7;
    return random_bits ^= random_bits << 17;
}

static void touch_hot(void) {
    for (size_t at = 0; at < 2 * MIB; at += 4096)
        wrong += hot[at] != 7;
}

static void fill(unsigned char *piece, size_t size) {
    static size_t since;
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word = random_word();
        memcpy(piece + at, &word, 8);
        since += 8;
        if (since % (MIB / 4) == 0)
            touch_hot();
    }
}

// Pieces of 16 bytes to 32 KiB.
static void allocate(unsigned char **pieces, size_t all) {
    for (size_t done = 0, at = 0; done < all && at < PIECES; at++) {
        size_t size = 16 + random_word() % (32 << 10);
        pieces[at] = malloc(size);
        fill(pieces[at], size);
        done += size;
    }
}

static void free_all(unsigned char **pieces) {
    for (size_t at = 0; at < PIECES; at++)
        free(pieces[at]);
}

// Not its last call, so that the function is on the stack.
#define KEEP wrong += hot[0] != 7

__attribute__((noinline)) static void allocate_hot(void) {
    hot = malloc(2 * MIB);
    memset(hot, 7, 2 * MIB);
    KEEP;
}

__attribute__((noinline)) static void allocate_cold(void) {
    allocate(cold, 64 * MIB);
    KEEP;
}

__attribute__((noinline)) static void allocate_waste(void) {
    allocate(waste, 32 * MIB);
    KEEP;
}

__attribute__((noinline)) static void allocate_mapped(void) {
    mapped = mmap(NULL, 48 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(mapped, 48 * MIB);
    KEEP;
}

__attribute__((noinline)) static void allocate_grown(void) {
    for (size_t size = 4 * MIB; size <= 24 * MIB; size += 4 * MIB) {
        grown = realloc(grown, size);
        fill(grown + size - 4 * MIB, 4 * MIB);
    }
    KEEP;
}

__attribute__((noinline)) static void allocate_in_child(void) {
    allocate(own, 48 * MIB);
    KEEP;
}

int main(int argc, char **argv) {
    printf("/dev/shm/deepheap-profile-%.16s\n", getenv("DEEPHEAP_PROFILE"));
    fflush(stdout);
    allocate_hot();
    allocate_waste();
    allocate_mapped();
    free_all(waste);
    munmap(mapped + 8 * MIB, 40 * MIB);
    allocate_cold();
    allocate_grown();
    if (strcmp(argv[1], "plain") == 0) {
        pid_t child = fork();
        if (child == 0) {
            allocate_in_child();
            exit(wrong != 0);
        }
        int status = 0;
        wrong += waitpid(child, &status, 0) != child || status != 0;
    } else {
        usleep(argc > 2 ? atoi(argv[2]) * 1000000u : 0);
        if (strcmp(argv[1], "killed") == 0)
            kill(getpid(), SIGKILL);
        free_all(cold);
        free(grown);
        munmap(mapped, 8 * MIB);
    }
    printf("%d %u wrong\n", getpid(), wrong);
    return wrong != 0;
}
