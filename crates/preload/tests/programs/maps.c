/* Memory that the program maps itself: every call means what it means without us, and every byte
 * stays, in RAM or out of it. The last part compares random calls with a model; it prints its seed.
 */
#define _GNU_SOURCE
#include "pressure.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS, BOTH = PROT_READ | PROT_WRITE };

static unsigned char *map(size_t len, int protection) {
    unsigned char *at = mmap(NULL, len, protection, ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int is_zero(const unsigned char *at, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (at[i]) return 0;
    return 1;
}

static sigjmp_buf back;
static void on_fault(int number) {
    (void)number;
    siglongjmp(back, 1);
}

/* Whether a store to that byte ends in a signal. */
static int is_closed(volatile unsigned char *at) {
    if (sigsetjmp(back, 1)) return 1;
    *at = *at;
    return 0;
}

static void bytes_stay(void) {
    unsigned char *at = map(24 * MIB, BOTH);
    CHECK(is_zero(at, 24 * MIB));
    fill(at, 24 * MIB, 3);
    evict(at, 24 * MIB);
    CHECK(is_filled(at, 24 * MIB, 3));
    /* Parts go, the rest stays. */
    CHECK(munmap(at, MIB) == 0);
    CHECK(munmap(at + 20 * MIB, 4 * MIB) == 0);
    CHECK(munmap(at + 8 * MIB + PAGE, PAGE) == 0);
    for (int i = 2 * MIB; i < 20 * MIB; i++)
        CHECK(i / PAGE == 8 * MIB / PAGE + 1 || at[i] == byte_at(i, 3));
    CHECK(munmap(at, 24 * MIB) == 0);
    at = map(24 * MIB, BOTH);
    CHECK(is_zero(at, 24 * MIB));
    CHECK(munmap(at, 24 * MIB) == 0);
}

static void protection_is_kept(void) {
    unsigned char *at = map(4 * MIB, BOTH);
    fill(at, 4 * MIB, 5);
    CHECK(mprotect(at + MIB, MIB, PROT_READ) == 0);
    CHECK(mprotect(at + 2 * MIB, MIB, PROT_NONE) == 0);
    press();
    CHECK(is_closed(at + MIB) && is_closed(at + 2 * MIB) && !is_closed(at));
    CHECK(is_filled(at, 2 * MIB, 5));
    CHECK(mprotect(at, 4 * MIB, BOTH) == 0);
    press();
    CHECK(is_filled(at, 4 * MIB, 5));
    CHECK(mprotect(at, 2 * MIB, PROT_READ) == 0);
    CHECK(madvise(at + MIB, 2 * MIB, MADV_DONTNEED) == 0);
    CHECK(is_zero(at + MIB, 2 * MIB) && is_closed(at));
    CHECK(munmap(at, 4 * MIB) == 0);
    /* The next mapping can be written, wherever it is. */
    at = map(4 * MIB, BOTH);
    CHECK(is_zero(at, 4 * MIB));
    fill(at, 4 * MIB, 6);
    CHECK(munmap(at, 4 * MIB) == 0);
}

/* What the Java virtual machine and V8 do. */
static void reservations_are_committed_later(void) {
    size_t len = (size_t)1 << 40;
    unsigned char *at = mmap(NULL, len, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    CHECK(is_closed(at + len / 2));
    const uintptr_t align = len >> 2;
    unsigned char *aligned = (unsigned char *)(((uintptr_t)at + align - 1) & ~(align - 1));
    if (aligned > at) CHECK(munmap(at, aligned - at) == 0);
    CHECK(mprotect(aligned, 8 * MIB, BOTH) == 0);
    fill(aligned, 8 * MIB, 8);
    unsigned char *fixed = aligned + (len >> 3);
    CHECK(mmap(fixed, 8 * MIB, BOTH, ANONYMOUS | MAP_FIXED, -1, 0) == fixed);
    fill(fixed, 8 * MIB, 9);
    press();
    CHECK(is_filled(aligned, 8 * MIB, 8) && is_filled(fixed, 8 * MIB, 9));
    int none = ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    CHECK(mmap(fixed, 4 * MIB, PROT_NONE, none, -1, 0) == fixed);
    CHECK(is_closed(fixed) && is_closed(aligned + 8 * MIB));
    CHECK(mmap(fixed, 4 * MIB, BOTH, ANONYMOUS | MAP_FIXED, -1, 0) == fixed);
    CHECK(is_zero(fixed, 4 * MIB));
    for (int i = 4 * MIB; i < 8 * MIB; i++) CHECK(fixed[i] == byte_at(i, 9));
    CHECK(mmap(fixed, PAGE, BOTH, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    CHECK(errno == EEXIST);
    CHECK(munmap(aligned, at + len - aligned) == 0);
}

static void remapping_moves_every_byte(void) {
    unsigned char *at = map(6 * MIB, BOTH);
    fill(at, 6 * MIB, 11);
    press();
    at = mremap(at, 6 * MIB, 14 * MIB, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    CHECK(is_filled(at, 6 * MIB, 11) && is_zero(at + 6 * MIB, 8 * MIB));
    CHECK(mremap(at, 14 * MIB, 2 * MIB, 0) == at);
    press();
    CHECK(is_filled(at, 2 * MIB, 11));
    CHECK(munmap(at, 2 * MIB) == 0);
}

/* Files and shared memory may be placed into a reservation. */
static void other_mappings_find_their_place(void) {
    int file = memfd_create("file", 0);
    unsigned char *bytes = malloc(MIB);
    fill(bytes, MIB, 13);
    CHECK(write(file, bytes, MIB) == MIB);
    unsigned char *at = map(4 * MIB, PROT_NONE);
    CHECK(mmap(at, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == at);
    unsigned char *twice = at + MIB;
    for (int i = 0; i < 2; i++) {
        void *place = twice + i * MIB;
        CHECK(mmap(place, MIB, BOTH, MAP_SHARED | MAP_FIXED, file, 0) == place);
    }
    CHECK(mprotect(at + 3 * MIB, MIB, BOTH) == 0);
    fill(at + 3 * MIB, MIB, 14);
    press();
    CHECK(is_filled(at, MIB, 13) && is_closed(at));
    CHECK(is_filled(twice, MIB, 13) && is_filled(twice + MIB, MIB, 13));
    twice[5] = 77;
    CHECK(twice[MIB + 5] == 77);
    pid_t child = fork();
    if (child == 0) {
        CHECK(is_filled(at + 3 * MIB, MIB, 14) && twice[MIB + 5] == 77);
        twice[6] = 78;
        press();
        CHECK(is_filled(at + 3 * MIB, MIB, 14));
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(twice[MIB + 6] == 78);
    /* Memory comes back to their place. */
    CHECK(mmap(twice, 2 * MIB, BOTH, ANONYMOUS | MAP_FIXED, -1, 0) == twice);
    CHECK(is_zero(twice, 2 * MIB));
    fill(twice, 2 * MIB, 15);
    press();
    CHECK(is_filled(twice, 2 * MIB, 15) && is_filled(at + 3 * MIB, MIB, 14));
    CHECK(munmap(at, 4 * MIB) == 0);
    free(bytes);
    close(file);
}

static void system_calls_reach_it(void) {
    unsigned char *at = map(8 * MIB, BOTH), *to = map(8 * MIB, BOTH);
    fill(at, 8 * MIB, 17);
    evict(at, 8 * MIB);
    int file = memfd_create("file", 0);
    CHECK(write(file, at, 8 * MIB) == 8 * MIB);
    evict(at, 8 * MIB);
    CHECK(pread(file, to, 8 * MIB, 0) == 8 * MIB);
    CHECK(is_filled(to, 8 * MIB, 17));
    close(file);
    CHECK(munmap(at, 8 * MIB) == 0 && munmap(to, 8 * MIB) == 0);
}

static void both_processes_keep_it(void) {
    unsigned char *at = map(16 * MIB, BOTH);
    fill(at, 16 * MIB, 19);
    evict(at, 16 * MIB);
    pid_t child = fork();
    if (child == 0) {
        CHECK(is_filled(at, 16 * MIB, 19));
        CHECK(munmap(at, 8 * MIB) == 0);
        fill(at + 8 * MIB, 8 * MIB, 20);
        unsigned char *more = map(8 * MIB, BOTH);
        fill(more, 8 * MIB, 21);
        press();
        CHECK(is_filled(at + 8 * MIB, 8 * MIB, 20) && is_filled(more, 8 * MIB, 21));
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_filled(at, 16 * MIB, 19));
    CHECK(munmap(at, 16 * MIB) == 0);
}

/* Random calls on pieces of 64 KiB against an array that knows what each holds. */
enum { PIECE = 64 << 10, PIECES = 192, NONE = 1, ZERO = 2 };

static void random_calls_agree_with_a_model(uint64_t seed, int steps) {
    unsigned char *at = map((size_t)PIECE * PIECES, PROT_NONE);
    unsigned state[PIECES]; /* NONE, ZERO, or the seed of what it is filled with */
    for (int i = 0; i < PIECES; i++) state[i] = NONE;
    uint64_t x = seed;
    for (int step = 0; step < steps; step++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        int first = (x >> 33) % PIECES, most = PIECES - first;
        int count = 1 + (x >> 45) % (most < 24 ? most : 24);
        unsigned char *from = at + (size_t)first * PIECE;
        size_t len = (size_t)count * PIECE;
        unsigned next = 0;
        int all_open = 1;
        for (int i = first; i < first + count; i++) {
            all_open &= state[i] >= ZERO;
        }
        switch ((x >> 56) % 7) {
        case 0: /* unmapped, and mapped again before anybody else takes the place */
            CHECK(munmap(from, len) == 0);
            CHECK(mmap(from, len, BOTH, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == from);
            next = ZERO;
            break;
        case 1:
            CHECK(mmap(from, len, BOTH, ANONYMOUS | MAP_FIXED, -1, 0) == from);
            next = ZERO;
            break;
        case 2:
            CHECK(mmap(from, len, PROT_NONE, ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == from);
            next = NONE;
            break;
        case 3:
            if (!all_open) continue;
            CHECK(madvise(from, len, MADV_DONTNEED) == 0);
            next = ZERO;
            break;
        case 4: /* opened: what was closed is zero */
            for (int i = first; i < first + count; i++) {
                if (state[i] != NONE) continue;
                CHECK(mprotect(at + (size_t)i * PIECE, PIECE, BOTH) == 0);
                state[i] = ZERO;
            }
            continue;
        case 5:
            if (!all_open) continue;
            for (int i = first; i < first + count; i++) {
                state[i] = ZERO + 1 + step;
                fill(at + (size_t)i * PIECE, PIECE, state[i]);
            }
            continue;
        default:
            if (step % 29 == 0) press();
            for (int i = first; i < first + count; i++) {
                unsigned char *piece = at + (size_t)i * PIECE;
                if (state[i] == ZERO) CHECK(is_zero(piece, PIECE));
                if (state[i] > ZERO) CHECK(is_filled(piece, PIECE, state[i]));
                if (state[i] == NONE) CHECK(is_closed(piece));
            }
            continue;
        }
        for (int i = first; i < first + count; i++) state[i] = next;
    }
    for (int i = 0; i < PIECES; i++)
        if (state[i] > ZERO) CHECK(is_filled(at + (size_t)i * PIECE, PIECE, state[i]));
    CHECK(munmap(at, (size_t)PIECE * PIECES) == 0);
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_fault};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    bytes_stay();
    protection_is_kept();
    reservations_are_committed_later();
    remapping_moves_every_byte();
    other_mappings_find_their_place();
    system_calls_reach_it();
    both_processes_keep_it();
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)getpid() * 2654435761u;
    fprintf(stderr, "seed %#lx\n", (unsigned long)seed);
    random_calls_agree_with_a_model(seed, argc > 2 ? atoi(argv[2]) : 1500);
    puts("mappings hold");
    return 0;
}
