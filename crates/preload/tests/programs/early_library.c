/* A library whose constructor allocates before ours has run (-DLIBRARY), and a program that uses
 * it and forks. */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY

char *early_copy, *early_text, *early_line;
void *early_block;

void *dh_malloc(size_t) __attribute__((weak));

__attribute__((constructor)) static void allocate_early(void) {
    early_copy = strdup("copied early");
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
    for (int round = 0; round < 3; round++) {
        all_is_there();
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
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
