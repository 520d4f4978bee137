/* A process reads and writes its own memory by the kernel, wherever that memory is. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGES = 100 };
#define BYTES ((size_t)PAGES * PAGE)

int main(void) {
    static unsigned char copy[BYTES];
    unsigned char *block = evicted(BYTES, 1);
    int memory = open("/proc/self/mem", O_RDWR);
    CHECK(memory >= 0);
    CHECK(pread(memory, copy, BYTES, (off_t)(uintptr_t)block) == (ssize_t)BYTES);
    CHECK(is_filled(copy, BYTES, 1));
    evict(block, BYTES);
    fill(copy, BYTES, 2);
    CHECK(pwrite(memory, copy, BYTES, (off_t)(uintptr_t)block) == (ssize_t)BYTES);
    CHECK(is_filled(block, BYTES, 2));
    evict(block, BYTES);
    memset(copy, 0, BYTES);
    CHECK(lseek(memory, (off_t)(uintptr_t)block, SEEK_SET) == (off_t)(uintptr_t)block);
    struct iovec parts[] = {{copy, 5}, {copy + 5, BYTES - 5}};
    CHECK(readv(memory, parts, 2) == (ssize_t)BYTES && is_filled(copy, BYTES, 2));
    /* What is not there stays away. */
    CHECK(pread(memory, copy, 8, 8) == -1 && errno == EIO);

    unsigned char *other = evicted(BYTES, 3);
    struct iovec local = {block, BYTES}, remote = {other, BYTES};
    evict(block, BYTES);
    CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)BYTES);
    CHECK(is_filled(block, BYTES, 3));
    fill(block, BYTES, 4);
    evict(block, BYTES);
    evict(other, BYTES);
    CHECK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)BYTES);
    CHECK(is_filled(other, BYTES, 4));
    remote.iov_base = (void *)8;
    CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == -1 && errno == EFAULT);
    close(memory);
    puts("own memory holds");
    return 0;
}
