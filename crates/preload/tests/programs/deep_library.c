/* A library (-DLIBRARY) that looks for symbols in itself and in libc first, and a program that
 * opens it so and exchanges memory with it. */
#define _GNU_SOURCE
#include "pressure.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

enum { BLOCKS = 1000, BYTES = 3000 };

#ifdef LIBRARY

char *grow(char *text) {
    text = realloc(text, 2 * BYTES);
    CHECK(text);
    memset(text + BYTES, 2, BYTES);
    return text;
}

void drop(char *text) {
    CHECK(text[0] == 1 && text[2 * BYTES - 1] == 2);
    free(text);
}

char *copy(const char *text) {
    return strdup(text);
}

int read_into(char *text) {
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(zero >= 0 && read(zero, text, BYTES) == BYTES);
    return close(zero);
}

#else

int main(void) {
    void *library = dlopen("libdeep.so", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library);
    char *(*grow)(char *) = (char *(*)(char *))dlsym(library, "grow");
    void (*drop)(char *) = (void (*)(char *))dlsym(library, "drop");
    char *(*copy)(const char *) = (char *(*)(const char *))dlsym(library, "copy");
    int (*read_into)(char *) = (int (*)(char *))dlsym(library, "read_into");
    CHECK(grow && drop && copy && read_into);
    static char *blocks[BLOCKS], *copies[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = grow(memset(malloc(BYTES), 1, BYTES));
        copies[i] = copy("copied by a library");
    }
    press();
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(read_into(blocks[i] + BYTES / 2) == 0);
        CHECK(strcmp(copies[i], "copied by a library") == 0);
        drop(blocks[i]);
        free(copies[i]);
    }
    CHECK(dlclose(library) == 0);
    puts("deep library holds");
    return 0;
}

#endif
