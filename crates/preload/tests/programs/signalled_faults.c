/* Signals in the middle of faults: each comes once, in its order, to a handler that may do
 * anything, and the faults go on. Under a small budget many of them must have been turned away
 * until their fault was over: the frame that such a handler returns through is the fault's. */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define DATA ((size_t)24 << 20)
#define THREADS 3
#define QUEUED 4 /* real-time signals: plain, SA_NODEFER, one that blocks all, one that jumps out */
#define SINGLE 4 /* SIGUSR1, SIGUSR2 with SA_NODEFER, SIGHUP with SA_RESETHAND, SIGTERM */
#define TURNED_AWAY_LEAST 100
#define ROUNDS 20
#define AUTODISARM (int)(1u << 31) /* SS_AUTODISARM of the kernel's headers */

struct thread {
    pthread_t id;
    volatile uint64_t seed;
    volatile sig_atomic_t may_jump;
    sigjmp_buf out;
    int last[QUEUED];
    volatile int *single[SINGLE]; /* counters that leave RAM, too */
};
static struct thread threads[THREADS];
static __thread struct thread *self;
static __thread stack_t own;
static int disarms;
static unsigned char *data;
static volatile int ended;
static int turned_away, alarms, jumps;
static void *ordinary_return;
static const int single[SINGLE] = {SIGUSR1, SIGUSR2, SIGHUP, SIGTERM};

static void look_at_data(void) {
    uint64_t x = self->seed;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    self->seed = x;
    const size_t page = x % (DATA / PAGE) * PAGE;
    for (size_t i = page; i < page + 64; i++) CHECK(data[i] == byte_at(i, 1));
}

/* The address that the kernel wrote below the context. */
static void note_frame(void *context) {
    void *back = ((void **)context)[-1];
    if (!ordinary_return) ordinary_return = back;
    if (back != ordinary_return) __atomic_add_fetch(&turned_away, 1, __ATOMIC_SEQ_CST);
}

/* Whether a handler that asks for it has got the stack that its thread gave. After a jump out of a
 * handler a stack that disarms itself is none. */
static int is_where_asked(const void *here) {
    const stack_t *stack = &own;
    return !stack->ss_sp || disarms ||
           (uintptr_t)here - (uintptr_t)stack->ss_sp < stack->ss_size;
}

static void on_queued(int signal, siginfo_t *information, void *context) {
    const int saved = errno, which = signal - SIGRTMIN;
    note_frame(context);
    if (!self) return;
    CHECK(information->si_signo == signal && information->si_code == SI_QUEUE);
    CHECK(information->si_pid == getpid());
    if (which == 1) CHECK(is_where_asked(&saved));
    const int last = self->last[which]++;
    /* With SA_NODEFER the kernel begins the handler of a second one before that of the first. */
    if (which != 1) CHECK(information->si_value.sival_int == last + 1);
    look_at_data();
    /* Not out of another handler: each blocks a signal. */
    if (which == 3 && self->may_jump && !*(uint64_t *)&((ucontext_t *)context)->uc_sigmask) {
        self->may_jump = 0;
        __atomic_add_fetch(&jumps, 1, __ATOMIC_SEQ_CST);
        siglongjmp(self->out, 1);
    }
    errno = saved;
}

static void catch(int signal, void (*handler)(int, siginfo_t *, void *), int flags, int all) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    all ? sigfillset(&action.sa_mask) : sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGWINCH);
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void on_single(int signal, siginfo_t *information, void *context) {
    const int saved = errno;
    note_frame(context);
    CHECK(information->si_signo == signal);
    if (self) look_at_data();
    if (signal == SIGHUP) {
        struct sigaction now;
        CHECK(sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
        catch(signal, on_single, SA_RESETHAND, 0);
    }
    for (int i = 0; self && i < SINGLE; i++)
        if (single[i] == signal) __atomic_add_fetch(self->single[i], 1, __ATOMIC_SEQ_CST);
    errno = saved;
}

static void on_alarm(int signal, siginfo_t *information, void *context) {
    (void)signal, (void)information;
    note_frame(context);
    if (self) look_at_data();
    __atomic_add_fetch(&alarms, 1, __ATOMIC_SEQ_CST);
}

static void *touch(void *argument) {
    self = argument;
    sigset_t none;
    sigemptyset(&none);
    CHECK(pthread_sigmask(SIG_SETMASK, &none, NULL) == 0);
    sigsetjmp(self->out, 1);
    while (!ended) {
        errno = 77;
        self->may_jump = 1;
        for (int i = 0; i < 20; i++) look_at_data();
        self->may_jump = 0;
        CHECK(errno == 77);
        sigset_t now;
        CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigisemptyset(&now));
    }
    return NULL;
}

static void *touch_on_own_stack(void *argument) {
    own = (stack_t){.ss_sp = malloc(1 << 16), .ss_size = 1 << 16, .ss_flags = disarms};
    CHECK(sigaltstack(&own, NULL) == 0);
    touch(argument);
    own.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&own, NULL) == 0);
    free(own.ss_sp);
    own.ss_sp = NULL;
    return NULL;
}

/* Whether the kernel blocks no signal for the handler of faults: past every wrapper. */
static int faults_without_a_mask(void) {
    uint64_t action[4];
    long answer;
    register long r10 __asm__("r10") = 8;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"((long)SYS_rt_sigaction), "D"((long)SIGBUS), "S"(0l), "d"(action),
                       "r"(r10)
                     : "rcx", "r11", "memory");
    CHECK(answer == 0);
    return (action[1] & SA_NODEFER) != 0 && action[3] == 0;
}

static void await(const volatile int *count, int wanted) {
    while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < wanted) usleep(100);
}

/* Sends every thread the next three of some signals. */
static void queue(int first, int end, int sent) {
    for (int i = 1; i <= 3; i++)
        for (int q = first; q < end; q++)
            for (int t = 0; t < THREADS; t++)
                CHECK(pthread_sigqueue(threads[t].id, SIGRTMIN + q,
                                       (union sigval){.sival_int = sent + i}) == 0);
}

static void storm(void *(*body)(void *), int turned_away_least) {
    ended = turned_away = alarms = jumps = 0;
    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    for (int i = 0; i < THREADS; i++) {
        struct thread *thread = &threads[i];
        memset(thread->last, 0, sizeof thread->last);
        thread->seed = 88172645463325252u + (unsigned)i;
        for (int s = 0; s < SINGLE; s++) thread->single[s] = OWN_PAGE(int);
        CHECK(pthread_create(&thread->id, NULL, body, thread) == 0);
    }
    struct itimerval often = {.it_interval.tv_usec = 100, .it_value.tv_usec = 100}, never = {0};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    int sent = 0;
    for (int round = 1; round <= ROUNDS || turned_away < turned_away_least; round++) {
        /* Three of each kind, in one go: they queue up behind the first. */
        queue(QUEUED - 1, QUEUED, sent);
        for (int t = 0; t < THREADS; t++) await(&threads[t].last[QUEUED - 1], sent + 3);
        queue(0, QUEUED - 1, sent);
        sent += 3;
        for (int s = 0; s < SINGLE; s++)
            for (int t = 0; t < THREADS; t++) {
                CHECK(pthread_kill(threads[t].id, single[s]) == 0);
                /* The next one would find no handler. */
                if (single[s] == SIGHUP) await(threads[t].single[s], round);
            }
        for (int t = 0; t < THREADS; t++) {
            for (int s = 0; s < SINGLE; s++) await(threads[t].single[s], round);
            for (int q = 0; q < QUEUED; q++) await(&threads[t].last[q], sent);
        }
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    ended = 1;
    for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t].id, NULL) == 0);
    for (int t = 0; t < THREADS; t++)
        for (int q = 0; q < QUEUED; q++) CHECK(threads[t].last[q] == sent);
    CHECK(alarms > 0);
    CHECK(jumps > 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static void *sleeper(void *nothing) {
    for (;;) pause();
    return nothing;
}

static void cancel(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
}

static void become_asynchronous(void) {
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL) == 0);
    CHECK(faults_without_a_mask() == expects_eviction());
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
}

static void catch_one(void) { catch(SIGWINCH, on_single, 0, 0); }

/* Whether faults are without a mask in a child that has done this. */
static int in_child(pid_t child, void (*act)(void)) {
    CHECK(child >= 0);
    if (child == 0) {
        act();
        _exit(40 + faults_without_a_mask());
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) >= 40);
    return WEXITSTATUS(status) - 40;
}

/* What ends it, ends it where it is done. */
static void children(void) {
    CHECK(in_child(fork(), catch_one) == expects_eviction());
    CHECK(!in_child(fork(), cancel) && !in_child(fork(), become_asynchronous));
    /* Its handlers are its own, and no relay calls them. */
    pid_t child = vfork();
    if (child == 0) {
        catch_one();
        _exit(40 + faults_without_a_mask());
    }
    CHECK(!in_child(child, NULL));
    CHECK(faults_without_a_mask() == expects_eviction());
}

static pthread_barrier_t all_are_there;

static void *pass_by(void *argument) {
    self = &(struct thread){.seed = (size_t)argument};
    volatile int *counts[SINGLE];
    for (int s = 0; s < SINGLE; s++) self->single[s] = counts[s] = OWN_PAGE(int);
    pthread_barrier_wait(&all_are_there);
    for (int i = 0; i < 20; i++) look_at_data();
    CHECK(raise(SIGUSR1) == 0 && *counts[0] == 1);
    for (int s = 0; s < SINGLE; s++) free((void *)counts[s]);
    return NULL;
}

/* More threads at once than a word has bits, twice. */
static void many_threads(void) {
    enum { MANY = 150 };
    pthread_t ids[MANY];
    for (int round = 0; round < 2; round++) {
        CHECK(pthread_barrier_init(&all_are_there, NULL, MANY) == 0);
        for (size_t i = 0; i < MANY; i++)
            CHECK(pthread_create(&ids[i], NULL, pass_by, (void *)(i + 1)) == 0);
        for (int i = 0; i < MANY; i++) CHECK(pthread_join(ids[i], NULL) == 0);
        CHECK(pthread_barrier_destroy(&all_are_there) == 0);
    }
}

int main(void) {
    data = evicted(DATA, 1);
    catch(SIGRTMIN, on_queued, 0, 0);
    catch(SIGRTMIN + 1, on_queued, SA_NODEFER | SA_RESTART | SA_ONSTACK, 0);
    catch(SIGRTMIN + 2, on_queued, 0, 1);
    catch(SIGRTMIN + 3, on_queued, 0, 0);
    catch(SIGUSR1, on_single, 0, 0);
    catch(SIGUSR2, on_single, SA_NODEFER, 0);
    catch(SIGHUP, on_single, SA_RESETHAND, 0);
    catch(SIGTERM, on_single, SA_RESTART | SA_ONSTACK, 1);
    catch(SIGALRM, on_alarm, SA_RESTART, 0);
    CHECK(raise(SIGUSR1) == 0 && ordinary_return);
    CHECK(faults_without_a_mask() == expects_eviction());
    children();
    many_threads();
    storm(touch, expects_eviction() ? TURNED_AWAY_LEAST : 0);
    CHECK(faults_without_a_mask() == expects_eviction());
    /* A stack of the program's own, on which some of the handlers run. */
    storm(touch_on_own_stack, expects_eviction() ? TURNED_AWAY_LEAST : 0);
    CHECK(faults_without_a_mask() == expects_eviction());
    /* One that disarms itself: the kernel keeps all signals out of faults. */
    disarms = AUTODISARM;
    storm(touch_on_own_stack, 0);
    CHECK(turned_away == 0 && !faults_without_a_mask());
    CHECK(is_filled(data, DATA, 1));
    puts("signalled faults hold");
    return 0;
}
