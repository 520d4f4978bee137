/* A library whose constructor allocates before ours has run, and registers handlers of forks
 * (-DLIBRARY), and a program that uses it and forks. */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCHED_BYTES ((size_t)1 << 20)

#ifdef LIBRARY

char *early_copy, *early_text, *early_line;
void *early_block;

unsigned char *early_watched;
int early_sound_before, early_sound_in_child;

void *dh_malloc(size_t) __attribute__((weak));

/* Handlers of forks that use the heap: what they read is not in RAM, and not the same. */
static int is_sound(unsigned half) {
    free(malloc(100000));
    return early_watched && is_filled(early_watched + half * WATCHED_BYTES, WATCHED_BYTES, half);
}

static void before_fork(void) {
    early_sound_before = is_sound(0);
}

static void in_child(void) {
    early_sound_in_child = is_sound(1);
}

__attribute__((constructor)) static void allocate_early(void) {
    early_copy = strdup("copied early");
    CHECK(pthread_atfork(before_fork, NULL, in_child) == 0);
    CHECK(asprintf(&early_text, "%s", "formatted early") > 0);
    size_t room = 0;
    char words[] = "read early\n";
    FILE *stream = fmemopen(words, sizeof words - 1, "r");
    CHECK(stream && getline(&early_line, &room, stream) == sizeof words - 1);
    fclose(stream);
    if (dh_malloc) {
        early_block = memset(dh_malloc(100), 7, 100);
    }
}

#else

extern char *early_copy, *early_text, *early_line;
extern char *early_block;
extern unsigned char *early_watched;
extern int early_sound_before, early_sound_in_child;

static void all_is_there(void) {
    CHECK(strcmp(early_copy, "copied early") == 0 && strcmp(early_text, "formatted early") == 0);
    CHECK(strcmp(early_line, "read early\n") == 0);
    CHECK(!early_block || (early_block[0] == 7 && early_block[99] == 7));
}

static void *allocate(void *unused) {
    free(malloc(1000));
    return unused;
}

int main(void) {
    early_watched = malloc(2 * WATCHED_BYTES);
    CHECK(early_watched);
    fill(early_watched, WATCHED_BYTES, 0);
    fill(early_watched + WATCHED_BYTES, WATCHED_BYTES, 1);
    for (int round = 0; round < 3; round++) {
        all_is_there();
        pid_t child = fork();
        CHECK(child >= 0);
        CHECK(early_sound_before);
        if (child == 0) {
            CHECK(early_sound_in_child && is_filled(early_watched, WATCHED_BYTES, 0));
            all_is_there();
            free(malloc(1000));
            _exit(5);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        press();
    }
    free(early_copy);
    free(early_text);
    free(early_line);
    puts("early library holds");
    return 0;
}

#endif
