/* The ends of a process, and libraries loaded late: the way is the argument. */
#define _GNU_SOURCE
#include "pressure.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <threads.h>
#include <time.h>
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

static int adds(void *argument) { return -1 - (int)(intptr_t)argument; }

static int outlives(void *argument) {
    usleep(200000);
    CHECK(argument == NULL && is_filled(data, 1 << 20, 1));
    puts("outlived");
    return 0;
}

/* The second call ends the process, which has outlived its first thread. */
static void notified(union sigval value) {
    static int calls;
    CHECK(value.sival_int == 6);
    if (++calls == 2) exit(value.sival_int);
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
    case 'c': {
        thrd_t thread;
        CHECK(thrd_create(&thread, adds, (void *)3) == thrd_success);
        int result;
        CHECK(thrd_join(thread, &result) == thrd_success && result == -4);
        CHECK(thrd_create(&thread, outlives, NULL) == thrd_success);
        thrd_exit(5);
    }
    case 'n': {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD};
        event.sigev_notify_function = notified;
        event.sigev_value.sival_int = 6;
        struct itimerspec time = {.it_value = {.tv_nsec = 100000000}};
        time.it_interval = time.it_value;
        timer_t timer;
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
        CHECK(timer_settime(timer, 0, &time, NULL) == 0);
        pthread_exit(NULL);
    }
    }
    return 9;
}
