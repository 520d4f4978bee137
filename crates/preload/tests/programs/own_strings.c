/* strdup, getline, asprintf and their kin: the program's own data, whatever libc does inside. */
#define _GNU_SOURCE
#include "pressure.h"
#include <locale.h>
#include <malloc.h>
#include <stdarg.h>
#include <wchar.h>

static char *formatted(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *text = NULL;
    CHECK(vasprintf(&text, format, list) >= 0);
    va_end(list);
    return text;
}

int main(void) {
    CHECK(setlocale(LC_ALL, "C.UTF-8") || setlocale(LC_ALL, "C"));
    char *large = malloc(5 << 20);
    memset(large, 'x', (5 << 20) - 1);
    large[(5 << 20) - 1] = 0;
    char *copy = strdup(large);
    CHECK(copy && strcmp(copy, large) == 0);
    press();
    CHECK(strlen(copy) == (5 << 20) - 1);
    free(copy);
    copy = strndup(large, 10);
    CHECK(strcmp(copy, "xxxxxxxxxx") == 0);
    free(copy);
    const char *volatile two = "ab";
    copy = strndup(two, 10);
    CHECK(strcmp(copy, "ab") == 0);
    free(copy);
    wchar_t *wide = wcsdup(L"gr\u00fc\u00dfe");
    CHECK(wcscmp(wide, L"gr\u00fc\u00dfe") == 0);
    free(wide);

    char *text = NULL;
    CHECK(asprintf(&text, "%d %s %g %c %ld %d %d %d", 1, "two", 3.5, '4', 5L, 6, 7, 8) == 19);
    CHECK(strcmp(text, "1 two 3.5 4 5 6 7 8") == 0);
    free(text);
    CHECK(asprintf(&text, "[%s] %f %f", large, 1.5, 2.5) == (5 << 20) - 1 + 2 + 18);
    CHECK(text[0] == '[' && text[5 << 20] == ']');
    CHECK(strcmp(text + (5 << 20) + 1, " 1.500000 2.500000") == 0);
    free(text);
    text = formatted("%1000d|%s", 7, "end");
    CHECK(strlen(text) == 1004 && text[999] == '7');
    free(text);
    text = formatted("%s", "");
    CHECK(text[0] == 0);
    free(text);

    FILE *file = tmpfile();
    CHECK(file);
    for (int i = 0; i < 2000; i++) CHECK(fprintf(file, "line %d %*s\n", i, i, "") > 0);
    CHECK(fputs("last", file) >= 0);
    rewind(file);
    char *line = NULL;
    size_t room = 0;
    for (int i = 0; i < 2000; i++) {
        ssize_t len = getline(&line, &room, file);
        char start[32];
        int digits = sprintf(start, "line %d ", i);
        CHECK(len == digits + i + 1 && room > (size_t)len && strncmp(line, start, digits) == 0);
        CHECK(malloc_usable_size(line) >= room);
    }
    press();
    CHECK(getline(&line, &room, file) == 4 && strcmp(line, "last") == 0);
    CHECK(getline(&line, &room, file) == -1 && feof(file));
    free(line);
    line = NULL;
    rewind(file);
    CHECK(getdelim(&line, &room, ' ', file) == 5 && strcmp(line, "line ") == 0);
    free(line);
    fclose(file);

    char *stream = NULL;
    size_t size = 0;
    file = open_memstream(&stream, &size);
    for (int i = 0; i < 100000; i++) CHECK(fputc('a' + i % 26, file) != EOF);
    fclose(file);
    CHECK(size == 100000 && stream[99999] == 'a' + 99999 % 26);
    stream = realloc(stream, 200000);
    CHECK(stream[99999] == 'a' + 99999 % 26);
    free(stream);
    char *path = realpath("/proc/self/..", NULL);
    CHECK(path && strcmp(path, "/proc") == 0);
    free(path);
    free(large);
    puts("strings hold");
    return 0;
}
