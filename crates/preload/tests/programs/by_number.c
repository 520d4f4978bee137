/* Calls by number, through `syscall`, do what the functions of their names do. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <poll.h>
#include <unistd.h>

enum { PARTS = 40, PART = 60001 };
#define TOTAL ((long)PARTS * PART)

static struct iovec *evicted_parts(unsigned seed) {
    struct iovec *parts = malloc(PARTS * sizeof *parts);
    for (int i = 0; i < PARTS; i++) {
        parts[i] = (struct iovec){malloc(PART), PART};
        fill(parts[i].iov_base, PART, seed + i);
    }
    press();
    return parts;
}

static void check_parts(const struct iovec *parts, unsigned seed) {
    for (int i = 0; i < PARTS; i++) CHECK(is_filled(parts[i].iov_base, PART, seed + i));
}

static void vectors(void) {
    char name[] = "file-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    struct iovec *out = evicted_parts(1), *in = evicted_parts(100);
    CHECK(syscall(SYS_writev, file, out, PARTS) == TOTAL);
    CHECK(syscall(SYS_preadv, file, in, PARTS, 0L, 0L) == TOTAL);
    check_parts(in, 1);
    press();
    CHECK(syscall(SYS_pwritev, file, in, PARTS, 10L, 0L) == TOTAL);
    press();
    CHECK(syscall(SYS_preadv2, file, out, PARTS, 10L, 0L, 0) == TOTAL);
    check_parts(out, 1);
    press();
    CHECK(syscall(SYS_lseek, file, 10L, SEEK_SET) == 10);
    CHECK(syscall(SYS_readv, file, in, PARTS) == TOTAL);
    check_parts(in, 1);
    unsigned char *block = evicted(3 << 20, 9);
    CHECK(syscall(SYS_pwrite64, file, block, 3 << 20, 0L) == 3 << 20);
    memset(block, 0, 3 << 20);
    evict(block, 3 << 20);
    CHECK(syscall(SYS_pread64, file, block, 3 << 20, 0L) == 3 << 20);
    CHECK(is_filled(block, 3 << 20, 9));
    free(block);
    close(file);
}

static void messages(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    unsigned char *out = evicted(60000, 1), *in = evicted(60000, 2);
    CHECK(syscall(SYS_sendto, pair[0], out, 60000, 0, NULL, 0) == 60000);
    CHECK(syscall(SYS_recvfrom, pair[1], in, 60000, 0, NULL, NULL) == 60000);
    CHECK(is_filled(in, 60000, 1));
    struct iovec *part = malloc(sizeof *part);
    struct msghdr *header = calloc(1, sizeof *header);
    *part = (struct iovec){out, 60000};
    header->msg_iov = part;
    header->msg_iovlen = 1;
    press();
    CHECK(syscall(SYS_sendmsg, pair[0], header, 0) == 60000);
    part->iov_base = in;
    memset(in, 0, 60000);
    press();
    CHECK(syscall(SYS_recvmsg, pair[1], header, 0) == 60000 && is_filled(in, 60000, 1));
    struct pollfd *many = malloc(3000 * sizeof *many);
    for (int i = 0; i < 3000; i++) many[i] = (struct pollfd){pair[i % 2], POLLOUT, 0};
    uint64_t *mask = malloc(8);
    *mask = 1ull << (SIGBUS - 1);
    press();
    /* Under us the kernel is never told to block SIGBUS. The handler of a signal that comes
     * meanwhile may then touch what is away. */
    CHECK(syscall(SYS_ppoll, many, 1000, NULL, mask, 8) == 1000 && many[999].revents == POLLOUT);
    fd_set *set = OWN_PAGE(fd_set);
    FD_SET(pair[0], set);
    struct { uint64_t *mask; size_t len; } *masked = malloc(sizeof *masked);
    masked->mask = mask;
    masked->len = 8;
    press();
    CHECK(syscall(SYS_pselect6, pair[0] + 1, NULL, set, NULL, NULL, masked) == 1);
    CHECK(syscall(SYS_write, -1, out, 1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_write, pair[0], (void *)8, 1) == -1 && errno == EFAULT);
    free(out);
    free(in);
    close(pair[0]);
    close(pair[1]);
}

static volatile sig_atomic_t signalled;
static void on_signal(int signal) { signalled = signal; }

struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

/* What the runtime lives on stays its own. */
static void memory_and_signals(void) {
    unsigned char *mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    fill(mapped, 1 << 20, 5);
    evict(mapped, 1 << 20);
    CHECK(syscall(SYS_madvise, mapped, 10 * PAGE, MADV_DONTNEED) == 0);
    press();
    for (int i = 0; i < 10 * PAGE; i++) CHECK(mapped[i] == 0);
    for (int i = 10 * PAGE; i < 1 << 20; i++) CHECK(mapped[i] == byte_at(i, 5));
    CHECK(syscall(SYS_mprotect, mapped, 1 << 20, PROT_READ) == 0);
    CHECK(syscall(SYS_mprotect, mapped, 1 << 20, PROT_READ | PROT_WRITE) == 0);
    CHECK(syscall(SYS_munmap, mapped, 1 << 20) == 0);
    long address = syscall(SYS_mmap, NULL, 1 << 20, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(address != -1);
    fill((unsigned char *)address, 1 << 20, 6);
    press();
    CHECK(is_filled((unsigned char *)address, 1 << 20, 6));
    CHECK(syscall(SYS_munmap, address, 1 << 20) == 0);

    unsigned char *block = evicted(1 << 20, 7);
    struct kernel_action old, none = {SIG_DFL, 0, NULL, 0}, own = {on_signal, 0, NULL, 0};
    CHECK(syscall(SYS_rt_sigaction, SIGBUS, &none, &old, 8) == 0 && old.handler == SIG_DFL);
    CHECK(is_filled(block, 1 << 20, 7));
    if (getenv("LD_PRELOAD")) {
        own.mask = 1ull << (SIGBUS - 1);
        CHECK(syscall(SYS_rt_sigaction, SIGUSR1, &own, &old, 8) == 0);
        CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &old, 8) == 0);
        CHECK(old.handler == on_signal && old.mask == own.mask);
        CHECK(raise(SIGUSR1) == 0 && signalled == SIGUSR1);
    }
    stack_t *no_stack = calloc(1, sizeof *no_stack);
    no_stack->ss_flags = SS_DISABLE;
    press();
    CHECK(syscall(SYS_sigaltstack, no_stack, NULL) == 0);
    evict(block, 1 << 20);
    CHECK(is_filled(block, 1 << 20, 7));
    free(block);
}

static void programs(void) {
    char **arguments = calloc(4, sizeof *arguments);
    const char *words[] = {"/bin/sh", "-c", "exit 7"};
    for (int i = 0; i < 3; i++) arguments[i] = strcpy(aligned_alloc(PAGE, PAGE), words[i]);
    press();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        press();
        syscall(SYS_execve, arguments[0], arguments, arguments + 3);
        _exit(9);
    }
    int *status = OWN_PAGE(int);
    press();
    CHECK(syscall(SYS_wait4, child, status, 0, NULL) == child && WEXITSTATUS(*status) == 7);
}

int main(void) {
    alarm(300);
    vectors();
    messages();
    memory_and_signals();
    programs();
    puts("numbers hold");
    return 0;
}
