/* Signals: masks and handlers mean what they meant, and SIGBUS still finds its way. */
#define _GNU_SOURCE
#include "pressure.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

static volatile unsigned char *data_page;
static unsigned char *data;
#define DATA ((size_t)20 << 20)
static volatile sig_atomic_t handled, bus, bus_code;
static void *volatile bus_address;
static sigjmp_buf *jump;

static void reads_heap(int signal) {
    (void)signal;
    errno = 0;
    CHECK(is_filled(data, DATA, 1));
    handled++;
}

static void on_bus(int signal, siginfo_t *information, void *context) {
    (void)context;
    CHECK(signal == SIGBUS);
    bus_code = information->si_code;
    bus_address = information->si_addr;
    if (information->si_code > 0) {
        bus++;
        siglongjmp(*jump, 1);
    }
    bus += 100;
}

static void masks(void) {
    sigset_t all, old, now;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &old) == 0);
    CHECK(!sigismember(&old, SIGBUS));
    press();
    CHECK(is_filled(data, DATA, 1));
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    CHECK(sigismember(&now, SIGBUS) && sigismember(&now, SIGTERM));
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && !sigismember(&now, SIGBUS));
    uint64_t word = ~0ull, before = 1;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &word, &before, 8) == 0);
    press();
    CHECK(is_filled(data, DATA, 1));
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8) == 0);
}

static void *blocked_thread(void *argument) {
    sigset_t now;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGBUS));
    press();
    CHECK(is_filled(data, DATA, 1));
    return argument;
}

static void handlers(void) {
    struct sigaction action = {.sa_handler = reads_heap}, old;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0);
    CHECK(old.sa_handler == reads_heap && sigismember(&old.sa_mask, SIGBUS));
    press();
    CHECK(raise(SIGUSR1) == 0 && handled == 1);
    CHECK(signal(SIGUSR2, reads_heap) == SIG_DFL);
    press();
    CHECK(raise(SIGUSR2) == 0 && handled == 2);
    CHECK(signal(SIGUSR2, SIG_IGN) == reads_heap);

    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, blocked_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    press();
    sigset_t *wanted = aligned_alloc(PAGE, PAGE);
    int *signal_number = aligned_alloc(PAGE, PAGE);
    sigfillset(wanted);
    press();
    CHECK(sigwait(wanted, signal_number) == 0 && *signal_number == SIGUSR1);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    siginfo_t *information = (siginfo_t *)evicted(PAGE, 1);
    CHECK(sigwaitinfo(wanted, information) == SIGUSR1 && information->si_pid == getpid());
    int descriptor = signalfd(-1, wanted, 0);
    CHECK(descriptor >= 0 && kill(getpid(), SIGUSR1) == 0);
    struct signalfd_siginfo *seen = (void *)evicted(PAGE, 1);
    CHECK(read(descriptor, seen, sizeof *seen) == sizeof *seen && seen->ssi_signo == SIGUSR1);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    sigdelset(&all, SIGUSR1);
    CHECK(sigsuspend(&all) == -1 && errno == EINTR && handled == 3);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(ppoll(NULL, 0, NULL, &all) == -1 && errno == EINTR && handled == 4);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static void own_bus_handler(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}, old;
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGBUS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_sigaction == on_bus);
    press();
    CHECK(is_filled(data, DATA, 1) && bus == 0);
    char name[] = "signals-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    volatile char *beyond = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    CHECK(beyond != MAP_FAILED);
    jump = aligned_alloc(PAGE, PAGE);
    for (int i = 1; i <= 3; i++) {
        if (sigsetjmp(*jump, 1) == 0) {
            press();
            (void)*beyond;
            CHECK(!"a page beyond the end of a file was read");
        }
        CHECK(bus == i);
        CHECK(is_filled(data, DATA, 1));
    }
    CHECK(raise(SIGBUS) == 0 && bus == 103);
    CHECK(signal(SIGBUS, SIG_DFL) != SIG_ERR);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(is_filled(data, DATA, 1));
}

/* Past every wrapper. */
static void *raw_mmap(void *at, int flags, int file) {
    register long r10 __asm__("r10") = flags;
    register long r8 __asm__("r8") = file;
    register long r9 __asm__("r9") = 0;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"((long)SYS_mmap), "D"(at), "S"((long)PAGE),
                       "d"((long)(PROT_READ | PROT_WRITE)), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return (void *)answer;
}

/* Sends this thread a SIGBUS as the kernel does for a memory error, or as anybody. */
static void send_bus(int code, void *address) {
    siginfo_t information = {.si_signo = SIGBUS, .si_code = code};
    if (code > 0) information.si_addr = address;
    CHECK(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &information) == 0);
}

/* A SIGBUS that is no missing page of ours is the program's, wherever its address lies. */
static void foreign_bus(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    bus = 0;
    volatile unsigned char *page = aligned_alloc(PAGE, PAGE);
    char name[] = "signals-XXXXXX";
    int file = mkstemp(name);
    CHECK(page && file >= 0 && unlink(name) == 0);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    /* Something else is mapped where the heap has a page, in RAM or not; in a child, whose heap is
     * of no use from then on. */
    for (volatile int i = 0; i < 2; i++) {
        *page = 1;
        if (i == 1) press();
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i == 0) *page = 2;
            CHECK(raw_mmap((void *)page, MAP_SHARED | MAP_FIXED, file) == page);
            if (sigsetjmp(*jump, 1) == 0) {
                (void)*page;
                _exit(8);
            }
            _exit(bus == 1 && bus_code == BUS_ADRERR && bus_address == page ? 7 : 9);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    /* Memory errors, and what somebody sends: `data` is the heap's, and not in RAM. */
    const int codes[] = {BUS_ADRALN, BUS_MCEERR_AR, BUS_MCEERR_AO};
    for (volatile int i = 0; i < 3; i++) {
        press();
        if (sigsetjmp(*jump, 1) == 0) {
            send_bus(codes[i], data);
            CHECK(!"a memory error was kept from the program");
        }
        CHECK(bus == 1 + i && bus_code == codes[i] && bus_address == data);
    }
    /* A page that is there and faults all the same ends at the program, not in an endless loop. */
    if (sigsetjmp(*jump, 1) == 0) {
        for (int i = 0; i < 1000000; i++) {
            data_page[0] = data_page[0];
            send_bus(BUS_ADRERR, data);
        }
    }
    CHECK(bus == 4 && bus_code == BUS_ADRERR && bus_address == data);
    CHECK(kill(getpid(), SIGBUS) == 0 && bus == 104 && bus_code == SI_USER);
    union sigval nothing = {0};
    CHECK(sigqueue(getpid(), SIGBUS, nothing) == 0 && bus == 204 && bus_code == SI_QUEUE);
    CHECK(signal(SIGBUS, SIG_IGN) != SIG_ERR);
    CHECK(kill(getpid(), SIGBUS) == 0 && raise(SIGBUS) == 0);
    send_bus(BUS_MCEERR_AO, data);
    CHECK(signal(SIGBUS, SIG_DFL) == SIG_IGN);
    const int deadly[] = {SI_USER, SI_QUEUE, BUS_MCEERR_AO};
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            send_bus(deadly[i], data);
            _exit(3);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    }
    CHECK(is_filled(data, DATA, 1));
}

static volatile uintptr_t handler_stack;

static void where(int signal) {
    (void)signal;
    char here;
    handler_stack = (uintptr_t)&here;
    CHECK(is_filled(data, DATA, 1));
    /* The handler is on the stack, so the stack stays. */
    stack_t now, none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_ONSTACK);
    CHECK(handler_stack - (uintptr_t)now.ss_sp < now.ss_size);
    CHECK(sigaltstack(&none, NULL) == -1 && errno == EPERM);
}

static void overflown(int signal) {
    char here;
    stack_t now;
    CHECK(signal == SIGSEGV && sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_ONSTACK);
    _exit((uintptr_t)&here - (uintptr_t)now.ss_sp < now.ss_size ? 7 : 8);
}

static int overflow(int depth) {
    volatile char room[4096];
    room[0] = 1;
    return depth < 0 ? 0 : overflow(depth + 1) + room[0];
}

/* What runtimes have such stacks for. */
static void overflows(void) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_handler = overflown, .sa_flags = SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
        _exit(overflow(0) & 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void stacks(void) {
    stack_t old;
    CHECK(sigaltstack(NULL, &old) == 0 && old.ss_flags == SS_DISABLE);
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    CHECK(sigaltstack(&own, &old) == 0 && old.ss_flags == SS_DISABLE);
    CHECK(sigaltstack(NULL, &old) == 0 && old.ss_sp == own.ss_sp && old.ss_size == 1 << 16);
    struct sigaction action = {.sa_handler = where, .sa_flags = SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    press();
    CHECK(raise(SIGUSR1) == 0);
    CHECK(handler_stack - (uintptr_t)own.ss_sp < 1 << 16);
    overflows();
    stack_t none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&none, NULL) == 0);
    CHECK(sigaltstack(NULL, &old) == 0 && old.ss_flags == SS_DISABLE);
    press();
    CHECK(is_filled(data, DATA, 1));
}

int main(void) {
    data_page = data = evicted(DATA, 1);
    masks();
    handlers();
    own_bus_handler();
    foreign_bus();
    stacks();
    puts("signals hold");
    return 0;
}
