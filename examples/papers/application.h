/*
 * application.h - what the applications of the papers share: options, memory, threads, a report.
 *
 * An application fills its memory, runs operations on it from several threads, checks every answer,
 * and reports how fast that was. One option, --memory, says where the memory comes from; the lines
 * of an application that ask for it are the calls of memory_object, memory_array and memory_free,
 * and the Makefile counts them.
 *
 *     int main(int argc, char **argv) {
 *         struct options options = options_read(argc, argv, &application);
 *         struct thing *things = memory_array(&options, count, sizeof *things, &stride);
 *         ... phase_begin("fill", count); ... phase_step(1); ... phase_end();
 *         struct result result = measure(&options, one_operation, things);
 *         return report(&options, &result);
 *     }
 *
 * Exit status: 0 all answers were right, 1 not all, 2 the options cannot work.
 */
#ifndef APPLICATION_H
#define APPLICATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the memory of an application comes from. */
enum memory {
    MEMORY_MALLOC,  /* malloc: RAM, and swap if the machine has any. Arrays, and objects that pages
                       hold evenly (blocks.h), begin where a page does, as deepheap's do */
    MEMORY_PAGES,   /* dh_malloc: deepheap moves pages of 4 KiB */
    MEMORY_OBJECTS, /* dh_oalloc: deepheap moves objects */
    MEMORY_FILE,    /* a file in --dir, mapped shared */
};

struct options {
    enum memory memory;
    size_t data;         /* bytes of the application's objects, --data */
    size_t object_least; /* bytes of an object, --object SIZE or LEAST-MOST; 0 if it is fixed */
    size_t object_most;
    unsigned threads;    /* --threads */
    unsigned writes;     /* per cent of the operations, --writes */
    double zipf;         /* exponent of the popularity of objects, 0 is uniform, --zipf */
    double seconds;      /* to measure, --seconds */
    uint64_t operations; /* to measure instead, over all threads, --operations; 0 goes by seconds */
    uint64_t warm_up;    /* operations before that, --warm-up */
    uint64_t seed;       /* --seed */
    bool calls;          /* explicit calls (dh_read, dh_gather) instead of pointers, --calls */
    bool json;           /* the report is one line of JSON, --json */
    const char *dir;     /* where files lie, --dir; its device's counters are reported */
};

struct application {
    const char *name;
    const char *summary;     /* one sentence: what it does, and from which paper */
    int changed_lines;       /* CHANGED_LINES, which the Makefile defines */
    bool has_calls;          /* --calls is one of its options */
    bool memory_is_elsewhere; /* in a server: --memory is only reported */
    struct options full;     /* without an option; dir, seed, memory and json are filled in */
    struct options small;    /* with --small: a few seconds */
};

/* Reads the options; answers --help; refuses, with the reason, what cannot work: a --data that does
 * not fit the RAM and swap (malloc), or the disk (the others). Exits then. */
struct options options_read(int argc, char **argv, const struct application *application);

/* Says why the options cannot work, and exits with status 2. */
void refuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* One object of `bytes` bytes, not cleared. Any thread. Exits if there is no memory. */
void *memory_object(const struct options *options, size_t bytes);
/* `count` objects of `bytes` bytes, not cleared, `*stride` bytes apart. */
void *memory_array(const struct options *options, size_t count, size_t bytes, size_t *stride);
/* Frees what either gave. */
void memory_free(const struct options *options, void *memory);

/* Progress of a phase other than measuring: a bar on a terminal, nothing elsewhere. */
void phase_begin(const char *what, uint64_t steps);
void phase_step(uint64_t steps); /* any thread */
void phase_end(void);

/* Numbers that depend on the seed alone. These, popularity, histograms and sizes are those of
 * deepheap-bench, from libdeepheap_load.so. */
uint64_t random_mix(uint64_t number);    /* a number for a number */
uint64_t random_next(uint64_t *state);   /* the next of a sequence */

/* Which object is next: uniform, or with zipf's popularity, the popular ones anywhere. It lasts as
 * long as the program. */
struct popularity;
struct popularity *popularity_new(uint64_t objects, double zipf); /* refuses 0 objects */
struct popularity *popularity_or_null(uint64_t objects, double zipf);
uint64_t popularity_next(const struct popularity *popularity, uint64_t *state);
/* The object of a rank, 0 the most popular one: each has one, and neighbours in rank lie apart. */
uint64_t popularity_object(const struct popularity *popularity, uint64_t rank);

/* How often each value was recorded, at most 1.6 % off. One thread's; merged when it is done. */
struct histogram;
struct histogram *histogram_new(void);
void histogram_record(struct histogram *histogram, uint64_t value);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* The value that this share of all values, 0 to 1, do not exceed; 0 without values. */
uint64_t histogram_percentile(const struct histogram *histogram, double share);
void histogram_free(struct histogram *histogram); /* or NULL */

/* Reads a size as DEEPHEAP_CONF has it, like 512, 64K or 1.5G; false if it is none. */
bool size_read(const char *text, uint64_t *bytes);

/* A thread that runs operations. */
struct worker {
    const struct options *options;
    void *context;       /* of `measure` */
    unsigned number;     /* 0 .. threads - 1 */
    uint64_t random;     /* its sequence, for random_next */
    uint64_t operations; /* done in this phase */
    uint64_t writes;     /* an operation that wrote adds 1 */
    uint64_t checked;    /* values that were checked, and that were wrong: added by operations */
    uint64_t wrong;
    uint64_t counts[4];  /* for the application's own: hits, misses, ... */
};

struct result {
    double seconds;
    uint64_t operations, writes, checked, wrong;
    uint64_t counts[4];
    uint64_t p50_ns, p99_ns, p999_ns; /* of one operation */
    int64_t device_read_bytes, device_written_bytes; /* while measuring; -1 unknown */
    uint64_t device_waits; /* page faults (with --calls: requests) that read from a device */
    /* More that an application reports: names and values, ended by a NULL name. */
    struct {
        const char *name;
        double value;
    } more[8];
};

/* Warms up, then runs `operation` from options->threads threads until the time or the operations
 * are over. Each call is one operation, and is timed. */
struct result measure(const struct options *options, void (*operation)(struct worker *),
                      void *context);

/* Runs `operation` `steps` times from options->threads threads, untimed, as a phase of its own: to
 * fill memory, to check it. The result has the counts of the workers, the rest of it is 0. */
struct result phase_run(const struct options *options, const char *what, uint64_t steps,
                        void (*operation)(struct worker *), void *context);

/* True for a worker's operation that ought to write. */
bool worker_writes(struct worker *worker);

/* Prints what was reached; returns the exit status. */
int report(const struct options *options, const struct result *result);

/* Nanoseconds of a clock that never goes back. */
uint64_t now_ns(void);

#ifdef __cplusplus
}
#endif

#endif
