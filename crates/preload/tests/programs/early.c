/* What the kernel was told of before any memory was managed, and looks at when much has left RAM:
 * waits that begin anew after SIGCONT, answers of calls that were under way, stacks. */
#define _GNU_SOURCE
#include "pressure.h"
#include <arpa/inet.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10 };

static pthread_mutex_t *mutex, *taken;
static pthread_cond_t *condition;
static sem_t *semaphore;
static pthread_rwlock_t *lock;
static pthread_barrier_t *barrier;
static pthread_once_t *once;
static int *word, *status, *taken_signal;
static struct sockaddr_in *peer;
static socklen_t *peer_len;
static int may_go, listening;
static pid_t child;

static void *wait_on_condition(void *argument) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    while (!may_go) CHECK(pthread_cond_wait(condition, mutex) == 0);
    CHECK(pthread_mutex_unlock(mutex) == 0);
    return argument;
}

static void *wait_on_mutex(void *argument) {
    CHECK(pthread_mutex_lock(taken) == 0 && pthread_mutex_unlock(taken) == 0);
    return argument;
}

static void *wait_on_semaphore(void *argument) {
    CHECK(sem_wait(semaphore) == 0);
    return argument;
}

static void *wait_on_lock(void *argument) {
    CHECK(pthread_rwlock_rdlock(lock) == 0 && pthread_rwlock_unlock(lock) == 0);
    return argument;
}

static void *wait_on_barrier(void *argument) {
    pthread_barrier_wait(barrier);
    return argument;
}

static void go_on(void) { CHECK(sem_wait(semaphore) == 0); }

static void *wait_once(void *argument) {
    CHECK(pthread_once(once, go_on) == 0);
    return argument;
}

static void *wait_on_word(void *argument) {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {
        long woken = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        CHECK(woken == 0 || errno == EAGAIN || errno == EINTR);
    }
    return argument;
}

static void *wait_for_child(void *argument) {
    CHECK(waitpid(child, status, 0) == child);
    return argument;
}

static void *wait_for_signal(void *argument) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigwait(&set, taken_signal) == 0);
    return argument;
}

static void *wait_for_connection(void *argument) {
    int connection = accept(listening, (struct sockaddr *)peer, peer_len);
    CHECK(connection >= 0 && write(connection, "!", 1) == 1 && close(connection) == 0);
    return argument;
}

static void *(*const WAITS[])(void *) = {
    wait_on_condition, wait_on_mutex, wait_on_semaphore, wait_on_lock, wait_on_barrier, wait_once,
    wait_once, wait_on_word, wait_for_child, wait_for_signal, wait_for_connection,
};
enum { COUNT = sizeof WAITS / sizeof *WAITS };

static void prepare(struct sockaddr_in *address, int go[2]) {
    mutex = OWN_PAGE(pthread_mutex_t);
    taken = OWN_PAGE(pthread_mutex_t);
    condition = OWN_PAGE(pthread_cond_t);
    semaphore = OWN_PAGE(sem_t);
    lock = OWN_PAGE(pthread_rwlock_t);
    barrier = OWN_PAGE(pthread_barrier_t);
    once = OWN_PAGE(pthread_once_t);
    word = OWN_PAGE(int);
    status = OWN_PAGE(int);
    taken_signal = OWN_PAGE(int);
    peer = OWN_PAGE(struct sockaddr_in);
    peer_len = OWN_PAGE(socklen_t);
    *peer_len = sizeof *peer;
    CHECK(pthread_mutex_init(mutex, NULL) == 0 && pthread_mutex_init(taken, NULL) == 0);
    CHECK(pthread_cond_init(condition, NULL) == 0 && sem_init(semaphore, 0, 0) == 0);
    CHECK(pthread_rwlock_init(lock, NULL) == 0 && pthread_barrier_init(barrier, NULL, 2) == 0);
    CHECK(pthread_mutex_lock(taken) == 0 && pthread_rwlock_wrlock(lock) == 0);

    listening = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof *address;
    CHECK(bind(listening, (struct sockaddr *)address, len) == 0 && listen(listening, 1) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)address, &len) == 0);

    CHECK(pipe(go) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        close(go[1]);
        _exit(read(go[0], &byte, 1) == 1 ? 7 : 8);
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

/* All threads of the process stop and go on: what they wait on is looked at anew. */
static void stop_and_go_on(void) {
    pid_t own = getpid(), helper = fork();
    CHECK(helper >= 0);
    if (helper == 0) {
        kill(own, SIGSTOP);
        usleep(100000);
        kill(own, SIGCONT);
        _exit(0);
    }
    int end;
    CHECK(waitpid(helper, &end, 0) == helper && end == 0);
}

static void release(const struct sockaddr_in *address, int go) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    may_go = 1;
    CHECK(pthread_cond_broadcast(condition) == 0 && pthread_mutex_unlock(mutex) == 0);
    CHECK(pthread_mutex_unlock(taken) == 0 && pthread_rwlock_unlock(lock) == 0);
    CHECK(sem_post(semaphore) == 0 && sem_post(semaphore) == 0);
    pthread_barrier_wait(barrier);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    CHECK(write(go, "", 1) == 1 && kill(getpid(), SIGUSR2) == 0);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    char byte = 0;
    CHECK(connect(connection, (const struct sockaddr *)address, sizeof *address) == 0);
    CHECK(read(connection, &byte, 1) == 1 && byte == '!' && close(connection) == 0);
}

static volatile uintptr_t handled_at;

static void on_signal(int signal) {
    (void)signal;
    int here;
    handled_at = (uintptr_t)&here;
}

int main(void) {
    /* A stack for signals, and one for a thread: nobody asked for them to be in RAM. */
    stack_t stack = {.ss_sp = aligned_alloc(PAGE, STACK_BYTES), .ss_size = STACK_BYTES};
    for (int i = 0; i < 20000; i++) CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    void *thread_stack = aligned_alloc(PAGE, STACK_BYTES);
    CHECK(pthread_attr_setstack(&attributes, thread_stack, STACK_BYTES) == 0);

    struct sockaddr_in address;
    int go[2];
    prepare(&address, go);
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const pthread_attr_t *on_heap = i == 0 ? &attributes : NULL;
        CHECK(pthread_create(&threads[i], on_heap, WAITS[i], (void *)&WAITS[i]) == 0);
    }
    usleep(200000);
    unsigned char *older = evicted(PAGE, 1);
    for (int i = 0; i < 3; i++) {
        press();
        stop_and_go_on();
    }
    CHECK(is_filled(older, PAGE, 1));
    CHECK(raise(SIGUSR1) == 0 && handled_at - (uintptr_t)stack.ss_sp < STACK_BYTES);

    release(&address, go[1]);
    for (int i = 0; i < COUNT; i++) {
        void *result = NULL;
        CHECK(pthread_join(threads[i], &result) == 0 && result == (void *)&WAITS[i]);
    }
    CHECK(WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
    CHECK(*taken_signal == SIGUSR2 && peer->sin_family == AF_INET);

    /* Held no longer, and like any other memory. */
    press();
    press();
    if (expects_eviction()) CHECK(pages_out(word, PAGE) + pages_out(status, PAGE) > 0);
    CHECK(*word == 1 && WEXITSTATUS(*status) == 7);
    puts("early holds");
    return 0;
}
