/* The ends of a process, and libraries loaded late: the way is the argument. */
#define _GNU_SOURCE
#include "pressure.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static unsigned char *data;
static void at_end(void) {
    CHECK(is_filled(data, 1 << 20, 1));
    free(data);
    fputs("end ", stdout);
}

static void *ends(void *argument) {
    (void)argument;
    exit(4);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    data = evicted(1 << 20, 1);
    CHECK(atexit(at_end) == 0);
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        CHECK(library);
        double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
        CHECK(cosine && cosine(0) == 1);
        CHECK(dlclose(library) == 0);
        CHECK(!dlopen("libnowhere.so", RTLD_NOW) && dlerror());
    }
    switch (arguments[1][0]) {
    case 'r': return 3;
    case 'e': exit(3);
    case '_': puts("now"); fflush(stdout); _exit(3);
    case 'a': abort();
    case 't': {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ends, NULL) == 0);
        pause();
        return 9;
    }
    case 'p': pthread_exit(NULL);
    }
    return 9;
}
