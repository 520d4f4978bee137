/* Where a call stops short, and where it must not: an evicted page is no reason, a signal is. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes of a socket's message that fit its buffer. */
enum { PART = 50000 };

/* What is looked at only is there once. */
static void peeks(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    unsigned char out[2 * PART];
    fill(out, sizeof out, 1);
    CHECK(send(pair[0], out, PART, 0) == PART && send(pair[0], out + PART, PART, 0) == PART);
    unsigned char *in = evicted(2 * PART, 2);
    memset(in, 0, PART);
    CHECK(recv(pair[1], in, 2 * PART, MSG_PEEK | MSG_WAITALL) == 2 * PART);
    CHECK(memcmp(in, out, 2 * PART) == 0);
    evict(in, 2 * PART);
    memset(in, 0, PART);
    CHECK(recvfrom(pair[1], in, 2 * PART, MSG_WAITALL, NULL, NULL) == 2 * PART);
    CHECK(memcmp(in, out, 2 * PART) == 0);
    free(in);
    close(pair[0]);
    close(pair[1]);
}

static void on_alarm(int signal) { (void)signal; }

static void *goes_on_later(void *argument) {
    static unsigned char bytes[300000];
    int *descriptors = argument;
    usleep(30000000); /* long after the signal; it is cancelled before */
    for (ssize_t len = 200000; descriptors[0] >= 0 && len > 0;) {
        ssize_t got = read(descriptors[0], bytes, sizeof bytes);
        CHECK(got >= 0);
        len = got == 0 ? 0 : len - got;
    }
    if (descriptors[1] >= 0) CHECK(write(descriptors[1], bytes, 150000) == 150000);
    return NULL;
}

/* A signal that interrupts a call that has moved some bytes ends it. */
static void interrupted(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval in_a_while = {.it_value = {.tv_usec = 200000},
                                    .it_interval = {.tv_usec = 200000}};
    unsigned char *block = aligned_alloc(PAGE, 75 * PAGE);
    press();
    fill(block, 75 * PAGE, 3);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    for (int kind = 0; kind < 2; kind++) {
        int pair[2];
        if (kind == 0) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        else CHECK(pipe(pair) == 0);
        if (kind == 0) CHECK(write(pair[0], block, 150000) == 150000);
        int later[2] = {kind == 0 ? -1 : pair[0], kind == 0 ? pair[0] : -1};
        pthread_t thread;
        CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
        CHECK(pthread_create(&thread, NULL, goes_on_later, later) == 0);
        CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
        CHECK(setitimer(ITIMER_REAL, &in_a_while, NULL) == 0);
        if (kind == 0) CHECK(recv(pair[1], block, 300000, MSG_WAITALL) == 150000);
        else CHECK(write(pair[1], block, 300000) == 65536);
        close(pair[1]);
        /* Nobody reads what is written later. */
        CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR && pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        close(pair[0]);
    }
    /* A later alarm would end the calls of the other tests. */
    struct itimerval never = {0};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    free(block);
}

enum { RECORDS = 60, RECORD = 25 * PAGE };

static void *appends(void *argument) {
    unsigned char **records = argument;
    int log = open("records", O_WRONLY | O_APPEND);
    CHECK(log >= 0);
    for (int i = 0; i < RECORDS; i++) CHECK(write(log, records[i], RECORD) == RECORD);
    close(log);
    return NULL;
}

/* Records that two append to one file are whole, although a page in the middle was away. */
static void records(void) {
    static unsigned char *all[2][RECORDS];
    CHECK(close(open("records", O_CREAT | O_TRUNC | O_RDWR, 0600)) == 0);
    for (int i = 0; i < 2 * RECORDS; i++) {
        all[i % 2][i / 2] = aligned_alloc(PAGE, RECORD);
        memset(all[i % 2][i / 2], 1 + i, RECORD);
    }
    press();
    volatile unsigned char sum = 0;
    for (int i = 0; i < 2 * RECORDS; i++) sum += all[i % 2][i / 2][0];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, appends, all[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    static unsigned char record[RECORD];
    int log = open("records", O_RDONLY);
    for (int i = 0; i < 2 * RECORDS; i++) {
        CHECK(read(log, record, RECORD) == RECORD);
        for (int at = 1; at < RECORD; at++) CHECK(record[at] == record[0]);
    }
    CHECK(read(log, record, 1) == 0 && close(log) == 0 && unlink("records") == 0);
    for (int i = 0; i < 2 * RECORDS; i++) free(all[i % 2][i / 2]);
}

static void *sends(void *argument) {
    int *pair = argument;
    unsigned char *out = malloc(3 << 20);
    fill(out, 3 << 20, 4);
    CHECK(send(pair[0], out, 3 << 20, 0) == 3 << 20);
    free(out);
    return NULL;
}

/* A receipt that is to fill more than is pinned at a time fills it. */
static void filled(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    unsigned char *in = evicted(3 << 20, 5);
    struct iovec parts[2] = {{in, 1000000}, {in + 1000000, (3 << 20) - 1000000}};
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2, .msg_flags = -1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sends, pair) == 0);
    CHECK(recvmsg(pair[1], &header, MSG_WAITALL) == 3 << 20 && is_filled(in, 3 << 20, 4));
    CHECK((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    free(in);
    close(pair[0]);
    close(pair[1]);
}

int main(void) {
    peeks();
    interrupted();
    records();
    filled();
    puts("counts hold");
    return 0;
}
