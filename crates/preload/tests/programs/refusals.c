/* What cannot work on managed memory fails with an error that programs know. */
#define _GNU_SOURCE
#include "pressure.h"
#include <aio.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

int main(void) {
    unsigned char *block = evicted(1 << 20, 1);
    unsigned long context = 0;
    CHECK(syscall(SYS_io_setup, 8, &context) == -1 && errno == ENOSYS);
    char parameters[256] = {0};
    CHECK(syscall(SYS_io_uring_setup, 8, parameters) == -1 && errno == ENOSYS);
    int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(server, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == -1);
    CHECK(errno == EOPNOTSUPP);
    int pair[2];
    CHECK(pipe(pair) == 0);
    struct iovec part = {block, PAGE};
    CHECK(vmsplice(pair[1], &part, 1, 0) == -1 && errno == EINVAL);
    struct aiocb request = {.aio_fildes = pair[1], .aio_buf = block, .aio_nbytes = 10};
    CHECK(aio_write(&request) == -1 && errno == ENOSYS);
    struct aiocb *away = calloc(1, sizeof *away);
    *away = (struct aiocb){.aio_fildes = pair[1], .aio_buf = parameters, .aio_nbytes = 10};
    CHECK(aio_write(away) == -1 && errno == ENOSYS);
    CHECK(aio_fsync(O_SYNC, away) == -1 && errno == ENOSYS);
    struct aiocb *list[] = {NULL, &request};
    CHECK(lio_listio(LIO_WAIT, list, 2, NULL) == -1 && errno == ENOSYS);
    CHECK(lio_listio64(LIO_WAIT, (struct aiocb64 **)list, 2, NULL) == -1 && errno == ENOSYS);
    struct gaicb question = {.ar_name = strdup("localhost")}, *questions[] = {&question};
    CHECK(getaddrinfo_a(GAI_WAIT, questions, 1, NULL) == EAI_SYSTEM && errno == ENOSYS);
    CHECK(mlockall(MCL_CURRENT) == -1 && errno == EPERM);
    CHECK(mlock(block, PAGE) == -1 && errno == ENOMEM);
    int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(block, PAGE, PROT_READ, fixed, -1, 0) == MAP_FAILED);
    CHECK(munmap(block, PAGE) == -1 && errno == EINVAL);
    CHECK(is_filled(block, 1 << 20, 1));
    CHECK(madvise(block, 2 * PAGE, MADV_DONTNEED) == 0);
    for (int i = 0; i < 2 * PAGE; i++) CHECK(block[i] == 0);
    press();
    for (int i = 0; i < 2 * PAGE; i++) CHECK(block[i] == 0);
    CHECK(block[2 * PAGE] == byte_at(2 * PAGE, 1));
    puts("refusals hold");
    return 0;
}
