/* Calls that few programs make, and names that few know a call by, on memory that left RAM. */
#define _GNU_SOURCE
#include "pressure.h"
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/acct.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/quota.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

int capget(void *header, void *data);
int pivot_root(const char *new, const char *old);
int init_module(void *image, unsigned long len, const char *parameters);
int __dprintf_chk(int descriptor, int flag, const char *format, ...);
ssize_t __read(int descriptor, void *buffer, size_t len);
ssize_t __write(int descriptor, const void *buffer, size_t len);
int __poll(struct pollfd *list, nfds_t count, int timeout_ms);
ssize_t __send(int socket, const void *buffer, size_t len, int flags);

#define EVICTED(type) ((type *)evicted(sizeof(type), 11))

static char *evicted_text(const char *text) {
    char *copy = strcpy(aligned_alloc(PAGE, PAGE), text);
    press();
    return copy;
}

static int print(int descriptor, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int printed = vdprintf(descriptor, format, list);
    va_end(list);
    return printed;
}

static void formatted(void) {
    enum { LONG = 40 << 20 };
    char *text = malloc(LONG + 1), *back = malloc(LONG + 8);
    for (int i = 0; i < LONG; i++) text[i] = 'a' + byte_at(i, 1) % 26;
    text[LONG] = 0;
    for (int way = 0; way < 3; way++) {
        char name[] = "file-XXXXXX";
        int file = mkstemp(name);
        CHECK(file >= 0 && unlink(name) == 0);
        press();
        int printed = way == 0   ? dprintf(file, "%d%s%.1f", 5, text, 0.5)
                      : way == 1 ? print(file, "%d%s%.1f", 5, text, 0.5)
                                 : __dprintf_chk(file, 1, "%d%s%.1f", 5, text, 0.5);
        CHECK(printed == LONG + 4 && lseek(file, 0, SEEK_END) == LONG + 4);
        CHECK(pread(file, back, LONG + 4, 0) == LONG + 4 && back[0] == '5');
        CHECK(memcmp(back + 1, text, LONG) == 0 && memcmp(back + 1 + LONG, "0.5", 3) == 0);
        close(file);
    }
    CHECK(dprintf(-1, "%s", text) == -1 && errno == EBADF);
    free(text);
    free(back);
}

static void other_names(void) {
    int pair[2];
    CHECK(pipe(pair) == 0);
    unsigned char *out = evicted(9000, 1), *in = evicted(9000, 2);
    CHECK(__write(pair[1], out, 9000) == 9000);
    struct pollfd *list = EVICTED(struct pollfd);
    *list = (struct pollfd){pair[0], POLLIN, 0};
    press();
    CHECK(__poll(list, 1, 1000) == 1 && list->revents == POLLIN);
    evict(in, 9000);
    CHECK(__read(pair[0], in, 9000) == 9000 && is_filled(in, 9000, 1));
    evict(out, 9000);
    CHECK(__send(pair[1], out, 9000, 0) == -1 && errno == ENOTSOCK);
    close(pair[0]);
    close(pair[1]);
    free(in);
    free(out);
}

static void traced(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    struct user_regs_struct *registers = EVICTED(struct user_regs_struct);
    CHECK(ptrace(PTRACE_GETREGS, child, NULL, registers) == 0);
    struct user_regs_struct same = *registers;
    struct iovec *part = EVICTED(struct iovec);
    *part = (struct iovec){registers, sizeof *registers};
    memset(registers, 0, sizeof *registers);
    press();
    CHECK(ptrace(PTRACE_GETREGSET, child, (void *)1L, part) == 0);
    CHECK(memcmp(registers, &same, sizeof same) == 0 && registers->rip != 0);
    errno = 0;
    CHECK(ptrace(PTRACE_PEEKTEXT, child, (void *)registers->rip, NULL) != -1 || errno == 0);
    CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* None of these does harm: each names something that is not there. */
static void refused_by_the_kernel(void) {
    char *nowhere = evicted_text("./no-such-file");
    CHECK(swapon(nowhere, 0) == -1 && errno != EFAULT);
    press();
    CHECK(pivot_root(nowhere, nowhere) == -1 && errno != EFAULT);
    press();
    CHECK(acct(nowhere) == -1 && errno != EFAULT);
    press();
    CHECK(quotactl(QCMD(Q_GETFMT, USRQUOTA), nowhere, 0, nowhere) == -1 && errno != EFAULT);
    press();
    CHECK(fanotify_mark(-1, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, nowhere) == -1 && errno != EFAULT);
    unsigned char *image = evicted(3 * PAGE, 5);
    CHECK(init_module(image, 3 * PAGE, (char *)nowhere) == -1 && errno != EFAULT);
}

static void small(void) {
    unsigned *header = (void *)evicted(8, 11), *sets = (void *)evicted(24, 11);
    header[0] = 0x20080522; /* _LINUX_CAPABILITY_VERSION_3 */
    header[1] = 0;
    press();
    CHECK(capget(header, sets) == 0);
    char *here = evicted_text(".");
    struct file_handle *handle = (void *)evicted(sizeof *handle + MAX_HANDLE_SZ, 1);
    handle->handle_bytes = MAX_HANDLE_SZ;
    int *mount_id = EVICTED(int);
    press();
    CHECK(name_to_handle_at(AT_FDCWD, here, handle, mount_id, 0) == 0 || errno == EOPNOTSUPP);
    press();
    int opened = open_by_handle_at(AT_FDCWD, handle, O_RDONLY);
    CHECK(opened >= 0 || errno != EFAULT);
    if (opened >= 0) close(opened);
    struct timex *state = EVICTED(struct timex);
    memset(state, 0, sizeof *state);
    press();
    CHECK(clock_adjtime(CLOCK_REALTIME, state) >= 0);
    state->modes = 0;
    press();
    CHECK(ntp_adjtime(state) >= 0);
    struct sched_param *priority = EVICTED(struct sched_param);
    priority->sched_priority = 0;
    press();
    CHECK(pthread_setschedparam(pthread_self(), SCHED_OTHER, priority) == 0);
    struct timespec *now = EVICTED(struct timespec);
    CHECK(timespec_get(now, TIME_UTC) == TIME_UTC && now->tv_sec > 1000000000);
    int event = eventfd(41, 0);
    eventfd_t *count = EVICTED(eventfd_t);
    CHECK(eventfd_read(event, count) == 0 && *count == 41);
    close(event);
    struct winsize *window = EVICTED(struct winsize), seen;
    *window = (struct winsize){.ws_row = 33, .ws_col = 77};
    int first, second;
    evict(window, sizeof *window);
    CHECK(openpty(&first, &second, NULL, NULL, window) == 0);
    CHECK(ioctl(first, TIOCGWINSZ, &seen) == 0 && seen.ws_row == 33 && seen.ws_col == 77);
    close(first);
    close(second);
    evict(window, sizeof *window);
    pid_t child = forkpty(&first, NULL, NULL, window);
    CHECK(child >= 0);
    if (child == 0) {
        press();
        int fits = ioctl(0, TIOCGWINSZ, &seen) == 0 && seen.ws_col == window->ws_col;
        _exit(fits && window->ws_row == 33 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(first);
    press();
    CHECK(window->ws_col == 77 && unsetenv("TMPDIR") == 0);
    char *made = tempnam(here, "x");
    CHECK(made && made[0] == '.');
    cnd_t *condition = EVICTED(cnd_t);
    CHECK(cnd_init(condition) == thrd_success);
    press();
    cnd_destroy(condition);
}

static void of_memory(void) {
    unsigned char *mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    fill(mapped, 1 << 20, 5);
    evict(mapped, 1 << 20);
    if (pkey_mprotect(mapped, 1 << 20, PROT_READ, -1) == 0)
        CHECK(pkey_mprotect(mapped, 1 << 20, PROT_READ | PROT_WRITE, -1) == 0);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec *part = EVICTED(struct iovec);
    *part = (struct iovec){mapped, 1 << 20};
    press();
    CHECK(process_madvise(self, part, 1, MADV_COLD, 0) == 1 << 20);
    if (getenv("LD_PRELOAD"))
        CHECK(process_madvise(self, part, 1, MADV_DONTNEED, 0) == -1 && errno == EINVAL);
    CHECK(is_filled(mapped, 1 << 20, 5));
    close(self);
}

int main(void) {
    alarm(300);
    formatted();
    other_names();
    traced();
    refused_by_the_kernel();
    small();
    of_memory();
    puts("rare calls hold");
    return 0;
}
