/* Coroutines: contexts on stacks from malloc, which leave RAM, under signals that come at any time.
 * Handlers run where they would without us, and masks of contexts mean what they meant. */
#define _GNU_SOURCE
#include "pressure.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK ((size_t)64 << 10)
#define DATA ((size_t)20 << 20)
#define CONTEXTS 64
static unsigned char *data;
static ucontext_t main_context, contexts[CONTEXTS];
static unsigned char *stacks[CONTEXTS];
static volatile sig_atomic_t handled, leaves;
static unsigned char *volatile expected_stack;
static volatile size_t stack_bytes;
static sigjmp_buf out;

/* One context at a time runs, on a stack of its own. */
static void run(int which, void (*body)(void)) {
    if (!stacks[which]) CHECK(stacks[which] = malloc(STACK));
    CHECK(getcontext(&contexts[which]) == 0);
    contexts[which].uc_stack.ss_sp = stacks[which];
    contexts[which].uc_stack.ss_size = STACK;
    contexts[which].uc_link = &main_context;
    makecontext(&contexts[which], body, 0);
    expected_stack = stacks[which];
    stack_bytes = STACK;
}

static int is_on_stack(const void *here) {
    return (uintptr_t)here - (uintptr_t)expected_stack < stack_bytes;
}

static void on_signal(int signal, siginfo_t *information, void *opaque) {
    const ucontext_t *context = opaque;
    volatile double clobbered[8];
    for (int i = 0; i < 8; i++) clobbered[i] = handled * 1.5 + i;
    CHECK(signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGALRM);
    CHECK(information->si_signo == signal);
    if (expected_stack) {
        CHECK(is_on_stack((const void *)clobbered) && is_on_stack(opaque));
        CHECK(is_on_stack((const void *)context->uc_mcontext.gregs[REG_RSP]));
    }
    handled++;
    if (leaves == 1) siglongjmp(out, 1);
    if (leaves == 2) CHECK(swapcontext(&contexts[0], &main_context) == 0);
}

static void simple(int signal) { on_signal(signal, &(siginfo_t){.si_signo = signal},
                                           &(ucontext_t){.uc_mcontext.gregs[REG_RSP] =
                                                             (greg_t)__builtin_frame_address(0)}); }

/* Uses the stack deeply once, then lets what lies below leave RAM, and takes a signal there. */
static __attribute__((noinline)) void use_deeply(void) {
    volatile unsigned char room[24 << 10];
    for (size_t i = 0; i < sizeof room; i += 512) room[i] = 1;
}

static __attribute__((noinline)) void signal_at(size_t depth) {
    volatile unsigned char room[depth];
    room[0] = room[depth - 1] = 7;
    CHECK(raise(SIGUSR1) == 0);
    CHECK(room[0] == 7 && room[depth - 1] == 7);
}

static void signalled(void) {
    for (size_t depth = 1; depth < PAGE; depth += 1000) {
        use_deeply();
        press();
        signal_at(depth);
    }
}

static void catching(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags}, old;
    CHECK(sigemptyset(&action.sa_mask) == 0 && sigaction(number, &action, NULL) == 0);
    CHECK(sigaction(number, NULL, &old) == 0 && old.sa_sigaction == handler);
    const int shown = old.sa_flags & (int)(SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESETHAND);
    CHECK(shown == (SA_SIGINFO | flags));
}

static void handlers(void) {
    catching(SIGUSR1, on_signal, 0);
    run(0, signalled);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && handled == 5);
    /* An alternate stack that nobody gave is none. */
    catching(SIGUSR1, on_signal, SA_ONSTACK);
    run(0, signalled);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && handled == 10);
    CHECK(signal(SIGUSR1, simple) != SIG_ERR && signal(SIGUSR1, simple) == simple);
    run(0, signalled);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && handled == 15);
    CHECK(sigset(SIGUSR1, SIG_DFL) == simple && sigset(SIGUSR1, simple) == SIG_DFL);
    CHECK(siginterrupt(SIGUSR1, 1) == 0 && signal(SIGUSR1, SIG_DFL) == simple);
    CHECK(signal(SIGUSR1, simple) == SIG_DFL);
    struct sigaction old;
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && !(old.sa_flags & SA_RESTART));
    CHECK(siginterrupt(SIGUSR1, 0) == 0 && sigaction(SIGUSR1, NULL, &old) == 0);
    CHECK(old.sa_flags & SA_RESTART && old.sa_handler == simple);
    run(0, signalled);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && handled == 20);
    catching(SIGUSR1, on_signal, SA_RESETHAND);
    expected_stack = NULL;
    CHECK(raise(SIGUSR1) == 0 && handled == 21);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    /* `system` puts the handlers of SIGINT and SIGQUIT away and back. A program that a shell
     * started in the background begins with SIGINT ignored. */
    CHECK(signal(SIGINT, SIG_DFL) != SIG_ERR);
    CHECK(signal(SIGINT, simple) == SIG_DFL && system("exit 0") == 0);
    CHECK(signal(SIGINT, SIG_DFL) == simple);
    errno = 0;
    CHECK(signal(SIGKILL, simple) == SIG_ERR && errno == EINVAL);
    CHECK(signal(0, simple) == SIG_ERR && signal(65, simple) == SIG_ERR && errno == EINVAL);
}

static volatile int resumed;

static void leaving(void) {
    use_deeply();
    press();
    signal_at(100);
    resumed++;
}

/* A handler may jump out, or switch away and be resumed, while other handlers run. */
static void leave(void) {
    catching(SIGUSR1, on_signal, 0);
    catching(SIGUSR2, on_signal, 0);
    handled = 0;
    for (volatile int i = 0; i < 3; i++) {
        run(0, leaving);
        leaves = 1;
        if (sigsetjmp(out, 1) == 0) {
            CHECK(setcontext(&contexts[0]) == 0);
        }
        CHECK(handled == i + 1);
    }
    leaves = 2;
    run(0, leaving);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && handled == 4 && resumed == 0);
    leaves = 0;
    expected_stack = NULL;
    press();
    CHECK(raise(SIGUSR2) == 0 && handled == 5);
    CHECK(is_filled(data, DATA, 1));
    expected_stack = stacks[0];
    CHECK(swapcontext(&main_context, &contexts[0]) == 0 && resumed == 1);
}

static void touching(void) {
    press();
    CHECK(is_filled(data, DATA, 1));
}

static void fill_mask(int signal, siginfo_t *information, void *context) {
    (void)signal, (void)information;
    CHECK(sigfillset(&((ucontext_t *)context)->uc_sigmask) == 0);
}

static void masks(void) {
    sigset_t all, none, now;
    CHECK(sigfillset(&all) == 0 && sigemptyset(&none) == 0);
    run(1, touching);
    contexts[1].uc_sigmask = all;
    CHECK(swapcontext(&main_context, &contexts[1]) == 0);
    volatile int turn = 0;
    CHECK(getcontext(&main_context) == 0);
    if (turn++ == 0) {
        run(1, touching);
        contexts[1].uc_sigmask = all;
        setcontext(&contexts[1]);
    }
    /* What a thread believes to be blocked goes into its contexts. */
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    run(1, touching);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &contexts[1].uc_sigmask) == 0);
    CHECK(swapcontext(&main_context, &contexts[1]) == 0);
    CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
        catching(SIGUSR1, fill_mask, flags);
        CHECK(raise(SIGUSR1) == 0 && sigprocmask(SIG_SETMASK, NULL, &now) == 0);
        CHECK(sigismember(&now, SIGTERM));
        touching();
        CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    }
}

static volatile int ended, current;

/* Computes in floating point registers, and goes on to the next one, while signals come. */
static void worker(void) {
    static uint64_t seed = 88172645463325252u;
    while (!ended) {
        double sum = 0;
        for (int i = 0; i < 20000; i++) sum += i * 0.5;
        CHECK(sum == 99995000.0);
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        const size_t page = seed % (DATA / PAGE) * PAGE;
        for (size_t i = page; i < page + 64; i++) CHECK(data[i] == byte_at(i, 1));
        use_deeply();
        const int own = current;
        current = (own + 1) % CONTEXTS;
        CHECK(swapcontext(&contexts[own], &contexts[current]) == 0);
    }
    CHECK(setcontext(&main_context) == 0);
}

static void *send(void *target) {
    for (int i = 0; i < 300; i++) {
        const int before = handled;
        CHECK(pthread_kill(*(pthread_t *)target, i % 2 ? SIGUSR1 : SIGUSR2) == 0);
        CHECK(pthread_kill(*(pthread_t *)target, i % 2 ? SIGUSR2 : SIGUSR1) == 0);
        while (handled == before) usleep(100);
    }
    ended = 1;
    return NULL;
}

/* Everything at once: coroutines, a timer, signals of another thread, pages that come and go. */
static void storm(void) {
    handled = 0;
    catching(SIGUSR1, on_signal, 0);
    catching(SIGUSR2, on_signal, SA_NODEFER);
    CHECK(signal(SIGALRM, simple) == SIG_DFL);
    for (int i = 0; i < CONTEXTS; i++) run(i, worker);
    expected_stack = NULL;
    struct itimerval often = {.it_interval.tv_usec = 3000, .it_value.tv_usec = 3000}, never = {0};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t sender, self = pthread_self();
    CHECK(pthread_create(&sender, NULL, send, &self) == 0);
    CHECK(swapcontext(&main_context, &contexts[0]) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && pthread_join(sender, NULL) == 0);
}

int main(void) {
    data = evicted(DATA, 1);
    handlers();
    leave();
    masks();
    storm();
    puts("coroutines hold");
    return 0;
}
