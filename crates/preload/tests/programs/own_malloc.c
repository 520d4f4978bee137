/* A program with a malloc of its own, as one that is linked with another allocator: what libc's
 * functions hand to the program comes from there, for its own free gets it. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static _Alignas(16) char area[32 << 20];
static size_t used;

static int is_own(const void *block) {
    return (const char *)block >= area && (const char *)block < area + used;
}

void *malloc(size_t size) {
    size_t *block = (size_t *)(area + used);
    used += (size + 31) & ~(size_t)15;
    if (used > sizeof area) _exit(4);
    *block = size;
    return block + 2;
}

void free(void *block) {
    if (block && !is_own(block)) {
        static const char line[] = "free of another's block\n";
        if (write(2, line, sizeof line - 1) < 0) _exit(5);
        _exit(3);
    }
}

void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }

void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (old) {
        free(old);
        size_t had = ((size_t *)old)[-2];
        memcpy(block, old, had < size ? had : size);
    }
    return block;
}

static char *early;
__attribute__((constructor)) static void begins(void) { early = strdup("early"); }

static int formatted(char **out, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = vasprintf(out, format, list);
    va_end(list);
    return length;
}

#define EXPECT(what) do { if (!(what)) { printf("not so: %s\n", #what); return 1; } } while (0)

int main(int count, char **arguments) {
    EXPECT(is_own(early) && !strcmp(early, "early"));
    free(early);
    for (int round = 0; round < 1000; round++) {
        char *copy = strdup("a string"), *part = strndup("a string", 3), *text, *other;
        wchar_t *wide = wcsdup(L"wide");
        EXPECT(is_own(copy) && is_own(part) && is_own(wide));
        EXPECT(!strcmp(copy, "a string") && !strcmp(part, "a s") && !wcscmp(wide, L"wide"));
        EXPECT(asprintf(&text, "%d of %s", round, copy) > 0 && is_own(text));
        EXPECT(formatted(&other, "%s!", text) > 0 && is_own(other));
        free(copy), free(part), free(text), free(other), free(wide);
    }
    char *folder = getcwd(NULL, 0), *path = realpath(arguments[0], NULL), *line = NULL;
    EXPECT(is_own(folder) && is_own(path));
    size_t size = 0;
    FILE *self = fopen(path, "r");
    EXPECT(self);
    for (int lines = 0; lines < 100 && getline(&line, &size, self) > 0; lines++)
        EXPECT(is_own(line));
    EXPECT(line);
    free(line), free(folder), free(path), fclose(self);
    printf("own malloc holds%s\n", count > 9 ? " with arguments" : "");
    return 0;
}
