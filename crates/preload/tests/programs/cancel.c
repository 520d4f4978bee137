/* Cancellation: threads are cancelled while they touch evicted pages, evict others, allocate, and
 * wait in system calls. Afterwards every byte is right, nothing hangs, and every page may leave.
 *
 * CANCELLATIONS in the environment: how many (a million takes minutes). CANCEL_SEED: which ones.
 */
#define _GNU_SOURCE
#include "pressure.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#define THREADS 8
#define PAGES_EACH 2048 /* 64 MiB in all: four times the budget */
#define BUFFER 65536

/* What a thread does until it is cancelled. */
enum { TOUCHES, DIRTIES, ALLOCATES, READS, WAITS, ASYNCHRONOUS, KINDS };

/* In plain memory: which bytes a page of the heap has now. */
static unsigned generation[THREADS * PAGES_EACH];
static unsigned char *data;
/* What threads wait with, on pages of their own. */
struct waiting {
    pthread_mutex_t *mutex;
    pthread_cond_t *condition;
    sem_t *semaphore;
    struct timespec *until;
    unsigned char *buffer;
    int nothing[2]; /* a pipe that nobody writes to */
};
static struct waiting waiting[THREADS];

struct task {
    int slot, kind;
    uint64_t random;
};
static struct task tasks[THREADS];

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static void is_right(size_t page) {
    CHECK(is_filled(data + page * PAGE, PAGE, generation[page] * 77 + page));
}

static void change(size_t page) {
    is_right(page);
    generation[page]++;
    fill(data + page * PAGE, PAGE, generation[page] * 77 + page);
}

static void allocates(uint64_t *random) {
    unsigned char *blocks[32];
    size_t sizes[32];
    for (int i = 0; i < 32; i++) {
        sizes[i] = 16 + next(random) % 20000;
        blocks[i] = malloc(sizes[i]);
        CHECK(blocks[i]);
        blocks[i][0] = blocks[i][sizes[i] - 1] = (unsigned char)i;
    }
    for (int i = 0; i < 32; i++) {
        CHECK(blocks[i][0] == i && blocks[i][sizes[i] - 1] == i);
        free(blocks[i]);
    }
}

static void unlock(void *mutex) { CHECK(pthread_mutex_unlock(mutex) == 0); }

static void waits(struct waiting *with, uint64_t *random) {
    CHECK(clock_gettime(CLOCK_REALTIME, with->until) == 0);
    with->until->tv_sec += 600;
    if (next(random) & 1) {
        CHECK(pthread_mutex_lock(with->mutex) == 0);
        pthread_cleanup_push(unlock, with->mutex);
        pthread_cond_timedwait(with->condition, with->mutex, with->until);
        pthread_cleanup_pop(1);
    } else {
        sem_timedwait(with->semaphore, with->until);
    }
}

static void *work(void *argument) {
    struct task *task = argument;
    size_t first = (size_t)task->slot * PAGES_EACH;
    if (task->kind == ASYNCHRONOUS) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) {
        size_t page = first + next(&task->random) % PAGES_EACH;
        switch (task->kind) {
        case TOUCHES:
        case ASYNCHRONOUS: is_right(page); break;
        case DIRTIES: change(page); break;
        case ALLOCATES: allocates(&task->random); break;
        case READS: (void)!read(waiting[task->slot].nothing[0], waiting[task->slot].buffer, BUFFER);
            break;
        case WAITS: waits(&waiting[task->slot], &task->random); break;
        }
        pthread_testcancel();
    }
    return NULL;
}

static pthread_t threads[THREADS];

static void start(int slot, uint64_t *random) {
    int kind = (int)(next(random) % KINDS);
    tasks[slot] = (struct task){slot, kind, next(random) | 1};
    CHECK(pthread_create(&threads[slot], NULL, work, &tasks[slot]) == 0);
}

/* Cancels the threads of a set of slots; answers how many. */
static int end(unsigned slots) {
    int ended = 0;
    for (int slot = 0; slot < THREADS; slot++)
        if (slots >> slot & 1) CHECK(pthread_cancel(threads[slot]) == 0);
    for (int slot = 0; slot < THREADS; slot++) {
        void *result;
        if (!(slots >> slot & 1)) continue;
        CHECK(pthread_join(threads[slot], &result) == 0 && result == PTHREAD_CANCELED);
        ended++;
    }
    return ended;
}

/* Nothing may be pinned for a thread that is gone. What passes once drives out no page that came
 * back soon before, so the pressure is a set that is used again and again. */
static void may_leave(const void *start, size_t len) {
    size_t pages = (len + PAGE - 1) / PAGE;
    if (!expects_eviction()) return;
    for (int i = 0; i < 20 && pages_out(start, len) < pages; i++) press_again(10);
    CHECK(pages_out(start, len) == pages);
}

int main(void) {
    const char *wanted = getenv("CANCELLATIONS"), *seeded = getenv("CANCEL_SEED");
    long cancellations = wanted ? atol(wanted) : 1500;
    uint64_t random = seeded ? strtoull(seeded, NULL, 0) : (uint64_t)getpid() * 0x9e3779b97f4a7c15;
    fprintf(stderr, "CANCEL_SEED=%#llx\n", (unsigned long long)random);
    data = aligned_alloc(PAGE, (size_t)THREADS * PAGES_EACH * PAGE);
    CHECK(data);
    for (size_t page = 0; page < THREADS * PAGES_EACH; page++)
        fill(data + page * PAGE, PAGE, page);
    for (int i = 0; i < THREADS; i++) {
        struct waiting *with = &waiting[i];
        with->mutex = OWN_PAGE(pthread_mutex_t);
        with->condition = OWN_PAGE(pthread_cond_t);
        with->semaphore = OWN_PAGE(sem_t);
        with->until = OWN_PAGE(struct timespec);
        with->buffer = aligned_alloc(PAGE, BUFFER);
        CHECK(with->buffer && pthread_mutex_init(with->mutex, NULL) == 0);
        CHECK(pthread_cond_init(with->condition, NULL) == 0);
        CHECK(sem_init(with->semaphore, 0, 0) == 0);
        CHECK(pipe(with->nothing) == 0);
        memset(with->buffer, 1, BUFFER);
        start(i, &random);
    }
    for (long done = 0; done < cancellations;) {
        for (uint64_t spins = next(&random) % 200000; spins > 0; spins--) __asm__ volatile("");
        unsigned slots = next(&random) % (1 << THREADS);
        done += end(slots);
        for (int slot = 0; slot < THREADS; slot++)
            if (slots >> slot & 1) start(slot, &random);
    }
    end((1 << THREADS) - 1);
    for (size_t page = 0; page < THREADS * PAGES_EACH; page++) is_right(page);
    for (int i = 0; i < THREADS; i++) {
        may_leave(waiting[i].mutex, PAGE);
        may_leave(waiting[i].condition, PAGE);
        may_leave(waiting[i].semaphore, PAGE);
        may_leave(waiting[i].until, PAGE);
        may_leave(waiting[i].buffer, BUFFER);
    }
    puts("cancellation holds");
    return 0;
}
