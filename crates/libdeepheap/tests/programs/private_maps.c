/* A private map has a file's bytes, keeps what the program changes, and changes no file. */
#define _XOPEN_SOURCE 700
#include <deepheap.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, dh_last_error());   \
            _Exit(1);                                                                              \
        }                                                                                          \
    } while (0)

enum { PAGE = 4096, WORDS = PAGE / 8 };
/* Over twice the budget. */
static const size_t pages = 8000;
static const char *name = "private.bin";

static uint64_t number(size_t page, size_t word) { return page << 16 | word | 1ull << 60; }

static void make_file(void) {
    FILE *file = fopen(name, "w");
    CHECK(file);
    for (size_t page = 0; page < pages; page++) {
        uint64_t words[WORDS];
        for (size_t word = 0; word < WORDS; word++) words[word] = number(page, word);
        CHECK(fwrite(words, PAGE, 1, file) == 1);
    }
    /* The end is no whole page. */
    CHECK(fwrite("end", 3, 1, file) == 1 && fclose(file) == 0);
}

static uint64_t changed(size_t page) { return page * 11 + 3; }

/* Every page, in an order that is no scan; the sixth of them were changed, some to zeros. */
static void compare(const uint64_t *map, size_t step) {
    for (size_t turn = 0; turn < pages; turn++) {
        size_t page = turn * step % pages;
        const uint64_t *words = map + page * WORDS;
        CHECK(words[9] == number(page, 9) || (page % 6 == 1 && words[9] == 0));
        CHECK(words[3] == (page % 6 == 0 ? changed(page) : page % 6 == 1 ? 0 : number(page, 3)));
    }
}

int main(void) {
    make_file();
    CHECK(!dh_map(name, 0, PROT_READ, DH_MAP_PRIVATE | DH_MAP_SHARED));
    uint64_t *map = dh_map(name, 0, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
    CHECK(map);
    /* Untouched pages are read by calls, and in scans, and at random. */
    uint64_t word;
    CHECK(dh_read(map, 77 * PAGE + 24, &word, 8) == 0 && word == number(77, 3));
    CHECK(memcmp((char *)map + pages * PAGE, "end\0\0", 5) == 0);
    for (size_t page = 0; page < pages; page++) CHECK(map[page * WORDS + 9] == number(page, 9));
    for (size_t page = 0; page < pages; page += 6) map[page * WORDS + 3] = changed(page);
    for (size_t page = 1; page < pages; page += 6) memset(map + page * WORDS, 0, PAGE);
    compare(map, 7919);
    compare(map, 1);
    word = 5;
    CHECK(dh_write(map, 500 * PAGE + 64, &word, 8) == 0 && map[500 * WORDS + 8] == 5);
    CHECK(map[500 * WORDS + 9] == number(500, 9));

    /* A child has what its parent had, and what it changes is its own. */
    pid_t child = fork();
    if (child == 0) {
        compare(map, 5003);
        for (size_t page = 2; page < pages; page += 6) map[page * WORDS + 3] = 1;
        for (size_t page = 2; page < pages; page += 6) CHECK(map[page * WORDS + 3] == 1);
        _exit(0);
    }
    for (size_t page = 4; page < pages; page += 6) map[page * WORDS + 5] = 2;
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    compare(map, 4001);
    for (size_t page = 4; page < pages; page += 6) CHECK(map[page * WORDS + 5] == 2);

    /* The file is as it was, and another private map sees it so. */
    CHECK(dh_sync(map, 0) == 0);
    const uint64_t *other = dh_map(name, 0, PROT_READ, DH_MAP_PRIVATE);
    CHECK(other);
    for (size_t page = 0; page < pages; page += 3)
        CHECK(other[page * WORDS + 3] == number(page, 3));
    child = fork();
    if (child == 0) {
        *(uint64_t *)(uintptr_t)other = 1;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(dh_unmap((void *)(uintptr_t)other) == 0 && dh_unmap(map) == 0);
    CHECK(dh_unmap(map) == DH_EOBJECT);

    /* What takes the place of a map is memory of zeros, also where the same bytes are stored. */
    for (int round = 0; round < 3; round++) {
        map = dh_map(name, 100 * PAGE, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
        CHECK(map);
        for (size_t page = 0; page < 100; page++) CHECK(map[page * WORDS + 9] == number(page, 9));
        CHECK(dh_unmap(map) == 0);
        uint64_t *block = dh_malloc(60 << 20);
        CHECK(block);
        memset(block, 0, 60 << 20);
        for (size_t at = 0; at < (60u << 20) / 8; at += 997) CHECK(block[at] == 0);
        dh_free(block);
    }

    /* Scans go on where a map ends and the next one begins, which has another part of a file. */
    enum { SIDE_BY_SIDE = 8, LONG = 40 };
    uint64_t *some[SIDE_BY_SIDE];
    for (int round = 0; round < 2; round++) {
        for (int one = 0; one < SIDE_BY_SIDE; one++) {
            some[one] = dh_map(name, (LONG + one) * PAGE, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
            CHECK(some[one]);
        }
        for (int one = 0; one < SIDE_BY_SIDE; one++)
            for (size_t page = round; page < LONG + one - 4u; page++)
                CHECK(some[one][page * WORDS + 9] == number(page, 9));
        for (int one = 0; one < SIDE_BY_SIDE; one++) {
            for (size_t page = 0; page < LONG + (size_t)one; page++)
                CHECK(some[one][page * WORDS + 8] == number(page, 8));
            CHECK(dh_unmap(some[one]) == 0);
        }
    }

    /* One that somebody cuts stops accesses that need it. */
    map = dh_map(name, 0, PROT_READ | PROT_WRITE, DH_MAP_PRIVATE);
    CHECK(map && map[0] == number(0, 0));
    CHECK(truncate(name, 1000 * PAGE) == 0);
    child = fork();
    if (child == 0) {
        volatile uint64_t *words = map;
        (void)words[5000 * WORDS];
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(map[999 * WORDS + 1] == number(999, 1) && dh_unmap(map) == 0);
    unlink(name);
    puts("private maps hold");
    return 0;
}
