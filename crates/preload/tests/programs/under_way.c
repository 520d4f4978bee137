/* Calls that began while all memory was plain, and end when their buffers have left RAM. */
#define _GNU_SOURCE
#include "pressure.h"
#include <arpa/inet.h>
#include <mqueue.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LEN = 1 << 20, DATAGRAM = 30000 };

/* What each thread waits with: `ends[0]` is where it reads, `ends[1]` where it writes. */
struct call {
    void (*run)(struct call *);
    void (*release)(struct call *);
    int ends[2];
    unsigned char *block;
};

static unsigned char pattern[LEN];

static void reads_event(struct call *call) {
    CHECK(read(call->ends[0], call->block, 8) == 8 && *(uint64_t *)call->block == 41);
}

static void adds_event(struct call *call) {
    uint64_t count = 41;
    CHECK(write(call->ends[1], &count, 8) == 8);
}

static void reads_datagram(struct call *call) {
    CHECK(read(call->ends[0], call->block, DATAGRAM) == DATAGRAM);
    CHECK(memcmp(call->block, pattern, DATAGRAM) == 0);
}

static void reads_vector(struct call *call) {
    struct iovec parts[2] = {{call->block, 10000}, {call->block + 10000, DATAGRAM - 10000}};
    CHECK(readv(call->ends[0], parts, 2) == DATAGRAM);
    CHECK(memcmp(call->block, pattern, DATAGRAM) == 0);
}

static void receives_message(struct call *call) {
    struct msghdr *header = OWN_PAGE(struct msghdr);
    struct iovec part = {call->block, DATAGRAM};
    header->msg_iov = &part;
    header->msg_iovlen = 1;
    header->msg_flags = -1;
    CHECK(recvmsg(call->ends[0], header, 0) == DATAGRAM && header->msg_flags == 0);
    CHECK(memcmp(call->block, pattern, DATAGRAM) == 0);
}

static void receives_messages(struct call *call) {
    struct mmsghdr *messages = OWN_PAGE(struct mmsghdr);
    struct iovec part = {call->block, DATAGRAM};
    messages->msg_hdr.msg_iov = &part;
    messages->msg_hdr.msg_iovlen = 1;
    CHECK(recvmmsg(call->ends[0], messages, 1, 0, NULL) == 1 && messages->msg_len == DATAGRAM);
    CHECK(memcmp(call->block, pattern, DATAGRAM) == 0);
}

static void receives_from(struct call *call) {
    struct sockaddr_in *from = OWN_PAGE(struct sockaddr_in);
    socklen_t *len = OWN_PAGE(socklen_t);
    *len = sizeof *from;
    CHECK(recvfrom(call->ends[0], call->block, DATAGRAM, 0, (void *)from, len) == DATAGRAM);
    CHECK(memcmp(call->block, pattern, DATAGRAM) == 0 && *len == sizeof *from);
    CHECK(from->sin_family == AF_INET);
}

static void sends_datagram(struct call *call) {
    CHECK(write(call->ends[1], pattern, DATAGRAM) == DATAGRAM);
}

static void takes_message(struct call *call) {
    CHECK(msgrcv(call->ends[0], call->block, 5000, 0, 0) == 5000);
    CHECK(is_filled(call->block + sizeof(long), 5000, 1));
    CHECK(msgctl(call->ends[0], IPC_RMID, NULL) == 0);
}

static void puts_message(struct call *call) {
    struct {
        long kind;
        unsigned char text[5000];
    } message = {.kind = 1};
    fill(message.text, sizeof message.text, 1);
    CHECK(msgsnd(call->ends[0], &message, sizeof message.text, 0) == 0);
}

static void takes_posix_message(struct call *call) {
    CHECK(mq_receive(call->ends[0], (char *)call->block, 8192, NULL) == 100);
    CHECK(memcmp(call->block, pattern, 100) == 0);
}

static void puts_posix_message(struct call *call) {
    CHECK(mq_send(call->ends[0], (char *)pattern, 100, 0) == 0);
}

static void receives_all(struct call *call) {
    CHECK(recv(call->ends[0], call->block, LEN, MSG_WAITALL) == LEN);
    CHECK(is_filled(call->block, LEN, 1));
}

static void fills_from_stream(struct call *call) {
    FILE *stream = fdopen(dup(call->ends[0]), "r");
    CHECK(fread(call->block, 1, 100, stream) == 100 && is_filled(call->block, 100, 1));
    CHECK(fread(call->block + 100, 4, LEN / 4 - 25, stream) == LEN / 4 - 25 && !ferror(stream));
    CHECK(is_filled(call->block, LEN, 1) && fclose(stream) == 0);
}

/* Some of it early, so that all these calls have moved something. */
static void feeds_rest(struct call *call) {
    CHECK(write(call->ends[1], pattern + 50000, LEN - 50000) == LEN - 50000);
}

static void writes(struct call *call) { CHECK(write(call->ends[1], call->block, LEN) == LEN); }

static void writes_vector(struct call *call) {
    struct iovec parts[2] = {{call->block, LEN / 2 + 1}, {call->block + LEN / 2 + 1, LEN / 2 - 1}};
    CHECK(writev(call->ends[1], parts, 2) == LEN);
}

static void sends_message(struct call *call) {
    struct iovec part = {call->block, LEN};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(sendmsg(call->ends[1], &header, 0) == LEN);
}

static void writes_stream(struct call *call) {
    FILE *stream = fdopen(dup(call->ends[1]), "w");
    CHECK(fwrite(call->block, 1, 100, stream) == 100);
    CHECK(fwrite(call->block + 100, 4, LEN / 4 - 25, stream) == LEN / 4 - 25);
    CHECK(!ferror(stream) && fclose(stream) == 0);
}

static void drains(struct call *call) {
    static unsigned char in[LEN];
    for (size_t done = 0; done < LEN;) {
        ssize_t got = read(call->ends[0], in + done, LEN - done);
        CHECK(got > 0);
        done += got;
    }
    CHECK(memcmp(in, pattern, LEN) == 0);
}

static void connects_datagrams(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    ends[0] = socket(AF_INET, SOCK_DGRAM, 0);
    ends[1] = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(ends[0], (struct sockaddr *)&address, len) == 0);
    CHECK(getsockname(ends[0], (struct sockaddr *)&address, &len) == 0);
    CHECK(connect(ends[1], (struct sockaddr *)&address, len) == 0);
}

static struct call calls[] = {
    {.run = reads_event, .release = adds_event},
    {.run = reads_datagram, .release = sends_datagram},
    {.run = reads_vector, .release = sends_datagram},
    {.run = receives_message, .release = sends_datagram},
    {.run = receives_messages, .release = sends_datagram},
    {.run = receives_from, .release = sends_datagram},
    {.run = takes_message, .release = puts_message},
    {.run = takes_posix_message, .release = puts_posix_message},
    {.run = receives_all, .release = feeds_rest},
    {.run = fills_from_stream, .release = feeds_rest},
    {.run = writes, .release = drains},
    {.run = writes_vector, .release = drains},
    {.run = sends_message, .release = drains},
    {.run = writes_stream, .release = drains},
};
enum { COUNT = sizeof calls / sizeof *calls };

static void prepare(struct call *call) {
    call->block = aligned_alloc(PAGE, LEN);
    fill(call->block, LEN, call->release == drains ? 1 : 2);
    if (call->run == reads_event) call->ends[0] = call->ends[1] = eventfd(0, 0);
    else if (call->run == receives_from) connects_datagrams(call->ends);
    else if (call->run == takes_message) call->ends[0] = msgget(IPC_PRIVATE, 0600);
    else if (call->run == takes_posix_message) {
        char name[64];
        sprintf(name, "/deepheap-%d", getpid());
        call->ends[0] = mq_open(name, O_CREAT | O_RDWR, 0600, NULL);
        CHECK(call->ends[0] < 0 || mq_unlink(name) == 0);
    } else if (call->run == writes || call->run == writes_vector) CHECK(pipe(call->ends) == 0);
    else {
        int kind = call->release == sends_datagram ? SOCK_DGRAM : SOCK_STREAM;
        CHECK(socketpair(AF_UNIX, kind, 0, call->ends) == 0);
    }
    if (call->release == feeds_rest) CHECK(write(call->ends[1], pattern, 50000) == 50000);
}

static void *runs(void *argument) {
    struct call *call = argument;
    call->run(call);
    return argument;
}

int main(void) {
    fill(pattern, LEN, 1);
    alarm(600);
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT; i++) {
        prepare(&calls[i]);
        /* A system without queues of this kind. */
        if (calls[i].ends[0] < 0) continue;
        CHECK(pthread_create(&threads[i], NULL, runs, &calls[i]) == 0);
    }
    usleep(300000);
    unsigned char *older = evicted(PAGE, 3);
    press();
    press();
    CHECK(is_filled(older, PAGE, 3));
    for (int i = 0; i < COUNT; i++) {
        if (calls[i].ends[0] < 0) continue;
        calls[i].release(&calls[i]);
        CHECK(pthread_join(threads[i], NULL) == 0);
        free(calls[i].block);
    }
    puts("under way holds");
    return 0;
}
