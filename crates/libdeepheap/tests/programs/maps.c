/* maps.c - files larger than their RAM, shared by a process and its child, and refusals. */
#define _XOPEN_SOURCE 700
#include <deepheap.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define PAGES 1500u
#define WORDS (PAGE / 8)

#define CHECK(holds)                                                                               \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #holds, dh_last_error());      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *const name = "numbers.bin";

static uint64_t word_of_file(size_t page, size_t word) {
    uint64_t value = 0;
    int file = open(name, O_RDONLY);
    CHECK(file >= 0);
    CHECK(pread(file, &value, sizeof value, (off_t)(page * PAGE + word * 8)) == sizeof value);
    close(file);
    return value;
}

static void refusals(void) {
    CHECK(!dh_map("no-such-file", 0, PROT_READ, 0) && strstr(dh_last_error(), "No such file"));
    CHECK(!dh_map(name, 0, PROT_READ, DH_MAP_LOG) && strstr(dh_last_error(), "no map with a log"));
    CHECK(!dh_map(name, 0, PROT_WRITE, 0) && strstr(dh_last_error(), "PROT_READ"));
    CHECK(dh_unmap(NULL) == DH_EOBJECT && dh_sync(name, 1) == DH_EOBJECT);
}

static void calls(uint64_t *numbers) {
    void *pages[100];
    uint64_t values[100];
    for (size_t i = 0; i < 100; i++)
        pages[i] = numbers + (i * 29 % PAGES) * WORDS;
    CHECK(dh_prefetch(pages, 100) >= 0);
    CHECK(dh_gather(pages, 100, 16, 8, values) == 100);
    for (size_t i = 0; i < 100; i++)
        CHECK(values[i] == (i * 29 % PAGES) * 7);
    CHECK(dh_scatter(pages, 100, 24, 8, values) == 100);
    CHECK(numbers[29 * WORDS + 3] == 29 * 7);
    uint64_t one = 1;
    CHECK(dh_write(numbers, 32, &one, 8) == 0 && dh_read(numbers, 32, &one, 8) == 0 && one == 1);
    CHECK(dh_read(numbers, (size_t)PAGES * PAGE - 4, &one, 8) == DH_EBOUNDS);
}

/* A child commits, changes more, and is killed: what it had committed is there, and no more. */
static void commits(void) {
    const size_t bytes = (size_t)PAGES * PAGE;
    const char *log_name = "accounts.map";
    unlink(log_name);
    pid_t child = fork();
    if (child == 0) {
        uint64_t *accounts = dh_map(log_name, bytes, PROT_READ | PROT_WRITE, DH_MAP_LOG);
        CHECK(accounts);
        for (size_t page = 0; page < PAGES; page++)
            accounts[page * WORDS] = page;
        CHECK(dh_sync(accounts, 0) == 0);
        for (size_t page = 0; page < PAGES; page++)
            accounts[page * WORDS] = 1;
        raise(SIGKILL);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(!dh_map(log_name, 0, PROT_READ, 0) && strstr(dh_last_error(), "DH_MAP_LOG"));
    uint64_t *accounts = dh_map(log_name, 0, PROT_READ | PROT_WRITE, DH_MAP_LOG);
    CHECK(accounts);
    for (size_t page = 0; page < PAGES; page++)
        CHECK(accounts[page * WORDS] == page);
    CHECK(!dh_remap(accounts, 2 * bytes) && strstr(dh_last_error(), "cannot be longer"));
    CHECK(dh_unmap(accounts) == 0);
    unlink(log_name);
}

int main(void) {
    commits();
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && ftruncate(file, (off_t)PAGES * PAGE) == 0);
    close(file);
    refusals();

    uint64_t *numbers = dh_map(name, 0, PROT_READ | PROT_WRITE, DH_MAP_SHARED);
    CHECK(numbers);
    for (size_t page = 0; page < PAGES; page++)
        numbers[page * WORDS + 2] = page * 7;
    calls(numbers);
    CHECK(dh_map_advise(numbers, 0, DH_MAP_RANDOM) == 0);
    CHECK(dh_map_advise(numbers, 10 * PAGE, DH_MAP_DONTNEED) == 0);

    /* Memory of the heap that does not fit its RAM either, so that all of it is forked. */
    size_t bytes = (size_t)40 << 20;
    char *heap = dh_malloc(bytes);
    CHECK(heap);
    memset(heap, 5, bytes);

    pid_t child = fork();
    if (child == 0) {
        for (size_t page = 0; page < PAGES; page++)
            CHECK(numbers[page * WORDS + 2] == page * 7);
        for (size_t at = 0; at < bytes; at += PAGE)
            CHECK(heap[at] == 5);
        numbers[5] = 55;
        exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(numbers[5] == 55);
    CHECK(dh_sync(numbers, 8) == 0 && word_of_file(0, 5) == 55);

    struct dh_map_stats stats;
    CHECK(dh_map_stats(numbers, &stats) == 0);
    CHECK(stats.file_bytes == (uint64_t)PAGES * PAGE && stats.processes == 1);
    CHECK(stats.resident_bytes <= stats.budget_bytes && stats.evicted_changed > 0);
    CHECK(dh_pin(numbers + 9) == 0 && dh_unpin(numbers + 9) == 0);
    numbers = dh_remap(numbers, (size_t)2 * PAGES * PAGE);
    CHECK(numbers && numbers[(size_t)(2 * PAGES - 1) * WORDS] == 0 && numbers[5] == 55);
    numbers[(size_t)PAGES * WORDS] = 3;
    CHECK(!dh_remap(numbers + 1, PAGE) && strstr(dh_last_error(), "no map"));
    CHECK(dh_remap(numbers, (size_t)PAGES * PAGE) == numbers);
    CHECK(dh_unmap(numbers) == 0);
    CHECK(word_of_file(1499, 2) == 1499 * 7);

    /* What is changed is written at the exit, too. */
    child = fork();
    if (child == 0) {
        numbers = dh_map(name, 0, PROT_READ | PROT_WRITE, 0);
        CHECK(numbers);
        numbers[1499 * WORDS + 1] = 99;
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(word_of_file(1499, 1) == 99);
    /* The next one to map it removes the tables of who ended without dh_unmap. */
    numbers = dh_map(name, 0, PROT_READ, 0);
    CHECK(numbers && numbers[1499 * WORDS + 1] == 99 && dh_unmap(numbers) == 0);
    unlink(name);
    puts("maps hold");
    return 0;
}
