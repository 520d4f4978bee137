/* Advice about managed memory does what it says, or answers EINVAL. What is to stay out of core
 * dumps is nowhere else either, not where evicted pages are kept. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <unistd.h>

#define SECRET ((size_t)1 << 20)

/* The eight bytes at an index that is a multiple of eight, as `fill` writes them. */
static uint64_t word_at(size_t index) {
    uint64_t word = 0;
    for (size_t i = 0; i < 8; i++) word |= (uint64_t)byte_at(index + i, 77) << (8 * i);
    return word;
}

/* How many pages of the secret are in memory that a core dump holds; -1 if the page at `at` lies in
 * such memory itself. */
static int dumped(const unsigned char *at) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    int memory = open("/proc/self/mem", O_RDONLY), present = open("/proc/self/pagemap", O_RDONLY);
    CHECK(maps && memory >= 0 && present >= 0);
    char line[4096], rights[8] = "";
    unsigned long start = 0, end = 0;
    int found = 0, is_ours = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long low, high;
        char found_rights[8];
        if (sscanf(line, "%lx-%lx %7s", &low, &high, found_rights) == 3) {
            start = low;
            end = high;
            memcpy(rights, found_rights, sizeof rights);
        }
        if (strncmp(line, "VmFlags:", 8) != 0 || strstr(line, " dd")) continue;
        is_ours |= (uintptr_t)at >= start && (uintptr_t)at < end;
        for (unsigned long from = start; rights[0] == 'r' && from < end; from += 512 * PAGE) {
            uint64_t pages[512], words[PAGE / 8];
            ssize_t got = pread(present, pages, sizeof pages, from / PAGE * 8);
            for (ssize_t i = 0; i < got / 8 && from + i * PAGE < end; i++) {
                if (!(pages[i] >> 63) || pread(memory, words, PAGE, from + i * PAGE) != PAGE)
                    continue;
                /* The words themselves are in no page that is looked at but this one. */
                for (size_t w = 0; w + 1 < PAGE / 8; w++)
                    found += words[w] == word_at(PAGE + 8) && words[w + 1] == word_at(PAGE + 16);
                memset(words, 0, sizeof words);
            }
        }
    }
    fclose(maps);
    close(memory);
    close(present);
    return is_ours ? -1 : found;
}

int main(void) {
    unsigned char *mapped = mmap(NULL, SECRET, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                 -1, 0);
    CHECK(mapped != MAP_FAILED && madvise(mapped, SECRET, MADV_DONTDUMP) == 0);
    fill(mapped, SECRET, 77);
    CHECK(dumped(mapped) == 0);
    evict(mapped, SECRET);
    CHECK(dumped(mapped) == 0);
    CHECK(is_filled(mapped, SECRET, 77) && dumped(mapped) == 0);
    CHECK(madvise(mapped, SECRET, MADV_DODUMP) == 0 && dumped(mapped) == -1);
    CHECK(madvise(mapped, SECRET, MADV_DONTDUMP) == 0 && dumped(mapped) == 0);
    /* What is mapped later, there or elsewhere, is dumped. */
    CHECK(munmap(mapped, SECRET) == 0);
    for (int i = 0; i < 4; i++) {
        unsigned char *later = mmap(NULL, SECRET, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(later != MAP_FAILED && dumped(later) == -1);
        if (i % 2) CHECK(munmap(later, SECRET) == 0);
    }

    unsigned char *block = evicted(SECRET, 3);
    static const int hints[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, 20, 21,
                                MADV_DOFORK};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        CHECK(madvise(block, SECRET, hints[i]) == 0);
    CHECK(is_filled(block, SECRET, 3));
    CHECK(madvise(block + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    if (getenv("LD_PRELOAD")) {
        /* Children have a copy, pages are not merged, none is a guard. */
        static const int unmet[] = {MADV_DONTFORK, 18, MADV_MERGEABLE, 22, 23, 25, 102, 9999};
        for (size_t i = 0; i < sizeof unmet / sizeof *unmet; i++)
            CHECK(madvise(block, SECRET, unmet[i]) == -1 && errno == EINVAL);
        CHECK(madvise(block, SECRET, 24) == 0 && block[0] == 0 && block[SECRET - 1] == 0);
    }
    puts("advice holds");
    return 0;
}
