/* libc's own large allocations: what qsort, memory streams and trees need leaves RAM as the
 * program's own memory does.
 */
#define _GNU_SOURCE
#include <search.h>

#include "pressure.h"

/* With the least budget no more than this may be in RAM. */
enum { MOST_KIB = 34 << 10, NUMBERS = 3 << 20, STREAM_BYTES = 44 << 20, LEAVES = 3 << 19 };

static void look(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    fclose(status);
    CHECK(kib > 0);
    if (expects_eviction() && kib > MOST_KIB) {
        fprintf(stderr, "%ld KiB are in RAM\n", kib);
        _Exit(8);
    }
}

static int compare(const void *one, const void *other) {
    static unsigned calls;
    if (++calls % (1 << 21) == 0) look();
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void sort(void) {
    uint64_t *numbers = malloc(NUMBERS * sizeof *numbers), x = 88172645463325252u, sum = 0;
    CHECK(numbers);
    for (int i = 0; i < NUMBERS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        numbers[i] = x;
        sum += x;
    }
    qsort(numbers, NUMBERS, sizeof *numbers, compare);
    for (int i = 0; i < NUMBERS; i++) {
        CHECK(i == 0 || numbers[i - 1] <= numbers[i]);
        sum -= numbers[i];
    }
    CHECK(sum == 0);
    free(numbers);
}

static void stream(void) {
    char *text = NULL;
    size_t length = 0;
    unsigned char piece[PAGE];
    FILE *stream = open_memstream(&text, &length);
    CHECK(stream);
    for (unsigned at = 0; at < STREAM_BYTES / PAGE; at++) {
        fill(piece, PAGE, at);
        CHECK(fwrite(piece, 1, PAGE, stream) == PAGE);
    }
    look();
    CHECK(fclose(stream) == 0 && length == STREAM_BYTES && text[length] == 0);
    look();
    for (unsigned at = 0; at < STREAM_BYTES / PAGE; at++)
        CHECK(is_filled((unsigned char *)text + at * PAGE, PAGE, at));
    text = realloc(text, PAGE);
    CHECK(text && is_filled((unsigned char *)text, PAGE, 0));
    free(text);
}

static int by_address(const void *one, const void *other) {
    return (one > other) - (one < other);
}

static void tree(void) {
    void *tree = NULL;
    for (uintptr_t at = 1; at < LEAVES; at++) CHECK(tsearch((void *)at, &tree, by_address));
    look();
    for (uintptr_t at = 1; at < LEAVES; at++) {
        CHECK(tfind((void *)at, &tree, by_address));
        CHECK(at % 2 || tdelete((void *)at, &tree, by_address));
    }
    look();
}

int main(void) {
    sort();
    stream();
    tree();
    puts("libc's buffers hold");
    return 0;
}
