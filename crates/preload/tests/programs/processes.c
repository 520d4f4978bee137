/* Children: forked ones see every byte, spawned ones get every argument. */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
#define DATA ((size_t)20 << 20)
#define WRITTEN ((size_t)4 << 20)
static unsigned char *data;

static char *page_of(const char *text) {
    char *copy = aligned_alloc(PAGE, PAGE);
    strcpy(copy, text);
    return copy;
}

static void expect(pid_t child, int code) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

/* What a child of ours does with its copy: read it, change it, read it again. */
static int use_copy(void) {
    CHECK(is_filled(data, DATA, 1));
    fill(data, DATA / 2, 2);
    press();
    CHECK(is_filled(data, DATA / 2, 2));
    for (size_t i = DATA / 2; i < DATA; i++) CHECK(data[i] == byte_at(i, 1));
    return 7;
}

static int cloned(void *argument) {
    CHECK(argument == data);
    _exit(use_copy());
}

static void forks(void) {
    data = evicted(DATA, 1);
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(use_copy());
        expect(grandchild, 7);
        _exit(use_copy());
    }
    /* The parent changes its own copy meanwhile. */
    fill(data + DATA / 2, DATA / 2, 3);
    press();
    expect(child, 7);
    CHECK(is_filled(data + DATA / 2, DATA / 2, 3) && is_filled(data, DATA / 2, 1));
    fill(data, DATA, 1);

    child = _Fork();
    if (child == 0) _exit(use_copy());
    expect(child, 7);
    child = syscall(SYS_fork);
    if (child == 0) _exit(use_copy());
    expect(child, 7);
    static char stack[1 << 18] __attribute__((aligned(16)));
    child = clone(cloned, stack + sizeof stack, SIGCHLD, data);
    expect(child, 7);
    for (int i = 0; i < 20; i++) {
        child = fork();
        if (child == 0) _exit(data[i * 900000] == byte_at(i * 900000, 1) ? 0 : 1);
        expect(child, 0);
    }
    CHECK(is_filled(data, DATA, 1));
}

static int ended;

static void *write_evicted(void *unused) {
    unsigned char *bytes = evicted(WRITTEN, 9);
    FILE *stream = fopen("/dev/null", "w");
    CHECK(stream);
    while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
        CHECK(fwrite(bytes, 1, WRITTEN, stream) == WRITTEN);
        press();
    }
    fclose(stream);
    free(bytes);
    return unused;
}

static void *flush_all(void *unused) {
    while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) CHECK(fflush(NULL) == 0);
    return unused;
}

/* Forks while one thread has a stream and faults, and another all streams but that one. */
static void forks_beside_streams(void) {
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, write_evicted, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, flush_all, NULL) == 0);
    alarm(600);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) _exit(fflush(NULL) == 0 ? 8 : 1);
        expect(child, 8);
        usleep(2000);
    }
    alarm(0);
    __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void programs(void) {
    char **arguments = (char **)page_of("");
    char *shell = page_of("/bin/sh"), *name = page_of("sh"), *flag = page_of("-c");
    char *script = page_of("test \"$1$EVICTED_VARIABLE\" = argumentvariable && exit 5");
    char *filler = page_of("zero"), *argument = page_of("argument");
    char *variable = page_of("EVICTED_VARIABLE=variable");
    CHECK(putenv(variable) == 0);
    arguments[0] = name;
    arguments[1] = flag;
    arguments[2] = script;
    arguments[3] = filler;
    arguments[4] = argument;
    arguments[5] = NULL;

    evict(script, PAGE);
    pid_t *child = (pid_t *)page_of("");
    press();
    CHECK(posix_spawn(child, shell, NULL, NULL, arguments, environ) == 0);
    expect(*child, 5);
    posix_spawn_file_actions_t *actions = (void *)page_of("");
    posix_spawnattr_t *attributes = (void *)page_of("");
    CHECK(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0);
    char *null_path = page_of("/dev/null");
    CHECK(posix_spawn_file_actions_addopen(actions, 1, null_path, 2, 0) == 0);
    press();
    CHECK(posix_spawnp(child, name, actions, attributes, arguments, environ) == 0);
    expect(*child, 5);
    *child = fork();
    if (*child == 0) {
        execve(shell, arguments, environ);
        _exit(99);
    }
    expect(*child, 5);
    press();
    *child = fork();
    if (*child == 0) {
        press();
        execvp(name, arguments);
        _exit(99);
    }
    expect(*child, 5);
    pid_t vforked = vfork();
    if (vforked == 0) {
        execv(shell, arguments);
        _exit(99);
    }
    expect(vforked, 5);
    *child = fork();
    if (*child == 0) {
        execl(shell, name, flag, script, filler, argument, (char *)NULL);
        _exit(99);
    }
    expect(*child, 5);
    *child = fork();
    if (*child == 0) {
        execle(shell, name, flag, script, filler, argument, (char *)NULL, environ);
        _exit(99);
    }
    expect(*child, 5);
    *child = fork();
    if (*child == 0) {
        execlp(name, name, flag, script, filler, argument, (char *)NULL);
        _exit(99);
    }
    expect(*child, 5);

    char *command = page_of("test \"$EVICTED_VARIABLE\" = variable && exit 6");
    press();
    int status = system(command);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
    CHECK(system(NULL) != 0);
    char *printing = page_of("echo one; echo $EVICTED_VARIABLE");
    press();
    FILE *pipe = popen(printing, "r");
    char line[100];
    CHECK(pipe && fgets(line, 100, pipe) && strcmp(line, "one\n") == 0);
    CHECK(fgets(line, 100, pipe) && strcmp(line, "variable\n") == 0);
    CHECK(pclose(pipe) == 0);
    CHECK(execv("/nowhere", arguments) == -1 && errno == ENOENT);
}

int main(void) {
    forks();
    forks_beside_streams();
    programs();
    puts("children hold");
    return 0;
}
