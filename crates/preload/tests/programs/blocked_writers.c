/* Blocked writers: more bytes wait in blocking writes than the program may have in RAM. The program
 * goes on meanwhile, most of those bytes leave RAM, and in the end every byte arrives and every
 * count is what the kernel would have answered.
 */
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pressure.h"

#define WRITERS 24
#define BYTES ((size_t)1 << 20)
#define HEAD 4000

static unsigned char *sent[WRITERS];
static int pairs[WRITERS][2];

/* A third each by `write`, by `writev` and by `sendmsg`. */
static void *writer(void *argument) {
    size_t number = (size_t)argument;
    int socket = pairs[number][0];
    struct iovec parts[2] = {{sent[number], HEAD}, {sent[number] + HEAD, BYTES - HEAD}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t moved = number % 3 == 0   ? write(socket, sent[number], BYTES)
                    : number % 3 == 1 ? writev(socket, parts, 2)
                                      : sendmsg(socket, &message, 0);
    CHECK(moved == (ssize_t)BYTES);
    return NULL;
}

static size_t waiting(int socket) {
    int bytes = 0;
    CHECK(ioctl(socket, FIONREAD, &bytes) == 0);
    return (size_t)bytes;
}

/* Writers that wait: nothing more comes from them. */
static void await_blocked(void) {
    for (int i = 0; i < WRITERS; i++) {
        size_t before = 0, now;
        for (int same = 0; same < 20; before = now) {
            now = waiting(pairs[i][1]);
            same = now > 0 && now == before ? same + 1 : 0;
            usleep(2000);
        }
    }
}

int main(void) {
    pthread_t threads[WRITERS];
    for (size_t i = 0; i < WRITERS; i++) {
        sent[i] = aligned_alloc(PAGE, BYTES);
        CHECK(sent[i]);
        fill(sent[i], BYTES, (unsigned)i);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
    }
    press();
    for (size_t i = 0; i < WRITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, writer, (void *)i) == 0);
    await_blocked();
    press();
    if (expects_eviction()) {
        press_again(3);
        size_t out = 0;
        for (int i = 0; i < WRITERS; i++) out += pages_out(sent[i], BYTES);
        CHECK(out > WRITERS * BYTES / PAGE / 2);
    }
    for (int i = 0; i < WRITERS; i++) {
        unsigned char *got = malloc(BYTES);
        CHECK(got);
        for (size_t done = 0; done < BYTES;) {
            ssize_t moved = read(pairs[i][1], got + done, BYTES - done);
            CHECK(moved > 0);
            done += (size_t)moved;
        }
        CHECK(is_filled(got, BYTES, (unsigned)i));
        CHECK(pthread_join(threads[i], NULL) == 0 && waiting(pairs[i][1]) == 0);
        free(got);
    }
    puts("blocked writers hold");
    return 0;
}
