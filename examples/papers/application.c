/*
 * application.c - see application.h.
 */
#define _GNU_SOURCE
#include "application.h"
#include "blocks.h"

#include <deepheap.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static const char *const MEMORY_NAMES[] = {"malloc", "pages", "objects", "file"};
static const struct application *the_application;
static void blocks_open(const struct options *options);

void refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", the_application->name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    // Not exit: its handlers would take away what other threads still use (libcrypto's state).
    fflush(NULL);
    _exit(2);
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- options ---- */

static size_t size_of(const char *text) {
    uint64_t bytes;
    if (!size_read(text, &bytes) || bytes == 0 || bytes > SIZE_MAX / 4) {
        refuse("%s is not a size; write it like 512, 64K, 256M or 4G", text);
    }
    return bytes;
}

static double number_of(const char *text, double least, double most) {
    char *end;
    const double number = strtod(text, &end);
    if (end == text || *end != '\0' || !(number >= least && number <= most)) {
        refuse("%s is not a number from %g to %g", text, least, most);
    }
    return number;
}

static void usage(const struct application *application) {
    printf("%s: %s\n\n"
           "  --memory KIND     malloc, pages, objects, or file (mapped) [malloc]\n"
           "  --small           a few seconds instead of the defaults below\n"
           "  --data SIZE       bytes of all objects together [%zuM]\n"
           "  --object SIZE     bytes of an object, or LEAST-MOST%s\n"
           "  --threads N       that run operations [%u]\n"
           "  --writes PERCENT  of the operations [%u]\n"
           "  --zipf EXPONENT   of the objects' popularity, 0 is uniform [%g]\n"
           "  --seconds N       to measure [%g]\n"
           "  --operations N    to measure, instead\n"
           "  --warm-up N       operations before that [%llu]\n"
           "  --seed N          same seed, same operations [1]\n"
           "  --dir PATH        where files lie [.]\n"
           "  --json            one line of JSON\n%s\n"
           "DEEPHEAP_CONF=\"ram:256M,store:PATH\" is the RAM for pages and objects.\n",
           application->name, application->summary, application->full.data >> 20,
           application->full.object_most ? "" : " (fixed here)", application->full.threads,
           application->full.writes, application->full.zipf, application->full.seconds,
           (unsigned long long)application->full.warm_up,
           application->has_calls ? "  --calls           dh_read, dh_gather, dh_prefetch\n" : "");
}

/* Bytes that may be allocated before the machine has no RAM and swap left; 0 unknown. */
static size_t memory_left(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    size_t left = 0, kib;
    char line[128];
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %zu", &kib) == 1 ||
            sscanf(line, "SwapFree: %zu", &kib) == 1) {
            left += kib << 10;
        }
    }
    if (file) {
        fclose(file);
    }
    return left;
}

static void check_that_ram_holds(const struct options *options) {
    const size_t left = memory_left();
    if (left && options->data > left) {
        refuse("--data %zuM does not fit the %zuM of RAM and swap that are free; use --memory "
               "pages or objects, or less data",
               options->data >> 20, left >> 20);
    }
}

static void check_that_disk_holds(const struct options *options) {
    struct statvfs disk;
    if (statvfs(options->dir, &disk) != 0) {
        refuse("--dir %s: %s", options->dir, strerror(errno));
    }
    const size_t left = (size_t)disk.f_bavail * disk.f_frsize;
    if (options->data > left / 10 * 9) {
        refuse("--data %zuM does not fit the %zuM that are free in %s; use --dir for another disk, "
               "or less data",
               options->data >> 20, left >> 20, options->dir);
    }
}

/* The store is open from the first object on. For pages it is opened when RAM is full: what it
   cannot hold is refused when it is allocated. */
static void check_that_store_holds(const struct options *options) {
    struct dh_stats stats = {0};
    void *object = dh_oalloc(1, 128);
    const int error = object ? dh_stats(&stats, sizeof stats) : 0;
    dh_free(object);
    if (!object || error) {
        refuse("deepheap: %s", error ? dh_strerror(error) : strerror(ENOMEM));
    }
    if (options->data > stats.store_capacity_bytes) {
        refuse("--data %zuM does not fit the store's %lluM; use a larger one (store: and "
               "store_size: in DEEPHEAP_CONF), or less data",
               options->data >> 20, (unsigned long long)stats.store_capacity_bytes >> 20);
    }
}

struct options options_read(int argc, char **argv, const struct application *application) {
    the_application = application;
    enum { MEMORY = 256, SMALL, DATA, OBJECT, THREADS, WRITES, ZIPF, SECONDS, OPERATIONS, WARM_UP,
           SEED, DIR, CALLS, JSON };
    static const struct option known[] = {
        {"memory", 1, NULL, MEMORY},   {"small", 0, NULL, SMALL},
        {"data", 1, NULL, DATA},       {"object", 1, NULL, OBJECT},
        {"threads", 1, NULL, THREADS}, {"writes", 1, NULL, WRITES},
        {"zipf", 1, NULL, ZIPF},       {"seconds", 1, NULL, SECONDS},
        {"operations", 1, NULL, OPERATIONS}, {"warm-up", 1, NULL, WARM_UP},
        {"seed", 1, NULL, SEED},       {"dir", 1, NULL, DIR},
        {"calls", 0, NULL, CALLS},     {"json", 0, NULL, JSON},
        {"help", 0, NULL, 'h'},        {NULL, 0, NULL, 0},
    };
    struct options options = application->full;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            options = application->small;
        }
    }
    options.dir = ".";
    options.seed = 1;
    for (int option; (option = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        char *dash;
        switch (option) {
        case MEMORY:
            for (options.memory = 0; strcmp(optarg, MEMORY_NAMES[options.memory]) != 0;) {
                if (++options.memory > MEMORY_FILE) {
                    refuse("--memory %s: it is malloc, pages, objects or file", optarg);
                }
            }
            break;
        case SMALL: break;
        case DATA: options.data = size_of(optarg); break;
        case OBJECT:
            if (application->full.object_most == 0) {
                refuse("--object: the size of its objects is fixed");
            }
            dash = strchr(optarg, '-');
            if (dash) {
                *dash = '\0';
            }
            options.object_least = size_of(optarg);
            options.object_most = dash ? size_of(dash + 1) : options.object_least;
            if (options.object_most < options.object_least) {
                refuse("--object: write the lesser size first");
            }
            break;
        case THREADS: options.threads = (unsigned)number_of(optarg, 1, 1024); break;
        case WRITES: options.writes = (unsigned)number_of(optarg, 0, 100); break;
        case ZIPF: options.zipf = number_of(optarg, 0, 4); break;
        case SECONDS:
            options.seconds = number_of(optarg, 0.1, 1e6);
            options.operations = 0;
            break;
        case OPERATIONS: options.operations = (uint64_t)number_of(optarg, 1, 1e15); break;
        case WARM_UP: options.warm_up = (uint64_t)number_of(optarg, 0, 1e15); break;
        case SEED: options.seed = (uint64_t)number_of(optarg, 0, 1e15); break;
        case DIR: options.dir = optarg; break;
        case CALLS:
            if (!application->has_calls) {
                refuse("--calls: this program has no variant with explicit calls");
            }
            options.calls = true;
            break;
        case JSON: options.json = true; break;
        case 'h': usage(application); exit(0);
        default: fprintf(stderr, "--help lists the options\n"); exit(2);
        }
    }
    if (optind < argc) {
        refuse("%s is not an option; --help lists them", argv[optind]);
    }
    if (options.calls && options.memory != MEMORY_OBJECTS) {
        refuse("--calls go with --memory objects");
    }
    if (application->memory_is_elsewhere) {
        return options;
    }
    if (access(options.dir, F_OK) != 0) {
        refuse("--dir %s: %s", options.dir, strerror(errno));
    }
    if (options.memory == MEMORY_PAGES || options.memory == MEMORY_OBJECTS) {
        const int error = dh_init(NULL); /* settings come from DEEPHEAP_CONF */
        if (error) {
            refuse("deepheap does not start: %s", dh_strerror(error));
        }
        if (options.memory == MEMORY_OBJECTS) {
            check_that_store_holds(&options);
        }
    } else {
        if (options.memory == MEMORY_MALLOC) {
            check_that_ram_holds(&options);
        } else {
            check_that_disk_holds(&options);
        }
        blocks_open(&options);
    }
    return options;
}

/* ---- memory ---- */

/* The source of blocks that are not deepheap's. */
static struct blocks *the_blocks;

/* Room for what blocks add to the data where a page holds one only; what is not used costs
   nothing. */
static size_t region_bytes(const struct options *options) {
    return 4 * options->data + ((size_t)1 << 30);
}

static void *file_map(const struct options *options, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-XXXXXX", options->dir, the_application->name);
    const int file = mkstemp(path);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        refuse("%s: %s", path, strerror(errno));
    }
    unlink(path);
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region != MAP_FAILED) {
        madvise(region, bytes, MADV_RANDOM);
    }
    close(file);
    return region;
}

static void *anonymous_map(size_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (region != MAP_FAILED) {
        /* Fails on kernels without huge pages, where there is nothing to switch off. */
        madvise(region, bytes, MADV_NOHUGEPAGE);
    }
    return region;
}

static void blocks_open(const struct options *options) {
    const size_t bytes = region_bytes(options);
    void *region = options->memory == MEMORY_FILE ? file_map(options, bytes) : anonymous_map(bytes);
    if (region == MAP_FAILED) {
        refuse("mapping %zuM: %s", bytes >> 20, strerror(errno));
    }
    the_blocks = blocks_new(region, bytes);
    if (!the_blocks) {
        refuse("no memory for a table of blocks");
    }
}

/* glibc's malloc puts a head of 16 bytes before each object, and so one of 4 KiB on two pages.
   Where pages hold objects evenly, they get them so, as from an allocator of pages. */
static void *malloc_object(size_t bytes) {
    return blocks_fit_pages(bytes) ? blocks_allocate(the_blocks, bytes) : malloc(bytes);
}

static void *or_refuse(void *memory, size_t bytes) {
    if (!memory) {
        refuse("no memory for %zu bytes more: %s; use less --data, or more RAM or a larger store "
               "(DEEPHEAP_CONF) for pages and objects", bytes, strerror(errno));
    }
    return memory;
}

void *memory_object(const struct options *options, size_t bytes) {
    switch (options->memory) {
    case MEMORY_MALLOC: return or_refuse(malloc_object(bytes), bytes);
    case MEMORY_PAGES: return or_refuse(dh_malloc(bytes), bytes);
    case MEMORY_OBJECTS: return or_refuse(dh_oalloc(1, bytes), bytes);
    default: return or_refuse(blocks_allocate(the_blocks, bytes), bytes);
    }
}

void *memory_array(const struct options *options, size_t count, size_t bytes, size_t *stride) {
    *stride = bytes;
    if (count > SIZE_MAX / 2 / bytes) {
        refuse("%zu objects of %zu bytes are more than an address space holds", count, bytes);
    }
    switch (options->memory) {
    case MEMORY_PAGES: return or_refuse(dh_malloc(count * bytes), count * bytes);
    case MEMORY_OBJECTS:
        *stride = dh_ostride(bytes);
        return or_refuse(dh_oalloc(count, bytes), count * bytes);
    default: return or_refuse(blocks_allocate(the_blocks, count * bytes), count * bytes);
    }
}

void memory_free(const struct options *options, void *memory) {
    if (options->memory == MEMORY_PAGES || options->memory == MEMORY_OBJECTS) {
        dh_free(memory);
    } else if (blocks_has(the_blocks, memory)) {
        blocks_free(the_blocks, memory);
    } else {
        free(memory);
    }
}

/* ---- progress ---- */

static struct {
    const char *what;
    uint64_t steps, started, shown;
    atomic_uint_fast64_t done;
} phase;

static void phase_show(uint64_t now) {
    const double part = phase.steps ? (double)phase.done / (double)phase.steps : 1;
    const double seconds = (double)(now - phase.started) / 1e9;
    char bar[31];
    for (int i = 0; i < 30; i++) {
        bar[i] = i < part * 30 ? '#' : '.';
    }
    bar[30] = '\0';
    fprintf(stderr, "\r%-8s [%s] %3.0f %%  %.0f s left \033[K", phase.what, bar, 100 * part,
            part > 0 ? seconds / part - seconds : 0);
}

void phase_begin(const char *what, uint64_t steps) {
    phase.what = what;
    phase.steps = steps;
    phase.done = 0;
    phase.started = phase.shown = now_ns();
}

void phase_step(uint64_t steps) {
    static atomic_flag showing = ATOMIC_FLAG_INIT;
    const uint64_t before = atomic_fetch_add(&phase.done, steps);
    /* The clock is asked once in 4096 steps. */
    if (before / 4096 == (before + steps) / 4096 || !isatty(STDERR_FILENO) ||
        atomic_flag_test_and_set(&showing)) {
        return;
    }
    const uint64_t now = now_ns();
    if (now - phase.shown > 200000000) {
        phase.shown = now;
        phase_show(now);
    }
    atomic_flag_clear(&showing);
}

void phase_end(void) {
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K");
    }
}

struct popularity *popularity_new(uint64_t objects, double zipf) {
    struct popularity *popularity = popularity_or_null(objects, zipf);
    if (!popularity) {
        refuse("no objects to choose from");
    }
    return popularity;
}

/* ---- measuring ---- */

struct thread {
    struct worker worker;
    pthread_t thread;
    void (*operation)(struct worker *);
    uint64_t share; /* operations to do; 0 until it is told to stop */
    atomic_bool *stop;
    struct histogram *latencies; /* nanoseconds, or NULL */
    bool shows;
};

static void *run(void *argument) {
    struct thread *thread = argument;
    struct worker *worker = &thread->worker;
    while (thread->share ? worker->operations < thread->share : !atomic_load(thread->stop)) {
        const uint64_t from = now_ns();
        thread->operation(worker);
        if (thread->latencies) {
            histogram_record(thread->latencies, now_ns() - from);
        }
        worker->operations++;
        if (thread->share) {
            phase_step(1);
        }
    }
    return NULL;
}

static void run_all(struct thread *threads, const struct options *options, const char *what,
                    uint64_t operations, bool timed) {
    atomic_bool stop = false;
    const uint64_t tenths = operations ? 0 : (uint64_t)(options->seconds * 10);
    phase_begin(what, operations ? operations : tenths * 4096);
    for (unsigned i = 0; i < options->threads; i++) {
        struct thread *thread = &threads[i];
        struct worker fresh = {.options = options, .number = i};
        fresh.context = thread->worker.context;
        fresh.random = thread->worker.random;
        thread->worker = fresh;
        /* The first threads do one more where they do not divide. */
        thread->share = operations / options->threads + (i < operations % options->threads);
        thread->stop = &stop;
        thread->latencies = timed ? histogram_new() : NULL;
        if (operations && !thread->share) {
            atomic_store(&stop, true);
        }
        const int error = pthread_create(&thread->thread, NULL, run, thread);
        if (error) {
            refuse("thread %u: %s", i, strerror(error));
        }
    }
    for (uint64_t i = 0; i < tenths; i++) {
        usleep(100000);
        phase_step(4096);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < options->threads; i++) {
        pthread_join(threads[i].thread, NULL);
    }
    phase_end();
}

/* Bytes read and written on the device of --dir since it was started. */
static bool device_bytes(const struct options *options, int64_t *read, int64_t *written) {
    struct stat folder;
    char path[64];
    unsigned long long sectors_read, sectors_written;
    if (stat(options->dir, &folder) != 0) {
        return false;
    }
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(folder.st_dev),
             minor(folder.st_dev));
    FILE *file = fopen(path, "r");
    if (!file) {
        return false;
    }
    const int found =
        fscanf(file, "%*u %*u %llu %*u %*u %*u %llu", &sectors_read, &sectors_written);
    fclose(file);
    *read = (int64_t)sectors_read * 512;
    *written = (int64_t)sectors_written * 512;
    return found == 2;
}

/* How often memory had to be read from a device (swap, the file, the store) since the start. */
static uint64_t device_waits(const struct options *options) {
    struct rusage usage;
    struct dh_stats stats;
    if (options->memory == MEMORY_MALLOC || options->memory == MEMORY_FILE) {
        return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_majflt : 0;
    }
    if (dh_stats(&stats, sizeof stats) != 0) {
        return 0;
    }
    return options->calls ? stats.device_reads : stats.fault_stored.count;
}

static struct thread *threads_new(const struct options *options,
                                  void (*operation)(struct worker *), void *context) {
    struct thread *threads = calloc(options->threads, sizeof *threads);
    if (!threads) {
        refuse("no memory for %u threads", options->threads);
    }
    for (unsigned i = 0; i < options->threads; i++) {
        threads[i].worker.context = context;
        threads[i].worker.random = random_mix(options->seed * 4096 + i);
        threads[i].operation = operation;
    }
    return threads;
}

/* Adds what the workers counted. */
static void add_up(struct result *result, const struct thread *threads, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        const struct worker *worker = &threads[i].worker;
        result->operations += worker->operations;
        result->writes += worker->writes;
        result->checked += worker->checked;
        result->wrong += worker->wrong;
        for (int number = 0; number < 4; number++) {
            result->counts[number] += worker->counts[number];
        }
    }
}

static void threads_free(struct thread *threads, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        histogram_free(threads[i].latencies);
    }
    free(threads);
}

struct result measure(const struct options *options, void (*operation)(struct worker *),
                      void *context) {
    struct thread *threads = threads_new(options, operation, context);
    if (options->warm_up) {
        run_all(threads, options, "warm-up", options->warm_up, false);
    }
    struct result result = {0};
    int64_t read[2], written[2];
    const bool counted = device_bytes(options, &read[0], &written[0]);
    const uint64_t waits = device_waits(options), from = now_ns();
    run_all(threads, options, "measure", options->operations, true);
    result.seconds = (double)(now_ns() - from) / 1e9;
    result.device_waits = device_waits(options) - waits;
    result.device_read_bytes = result.device_written_bytes = -1;
    if (counted && device_bytes(options, &read[1], &written[1])) {
        result.device_read_bytes = read[1] - read[0];
        result.device_written_bytes = written[1] - written[0];
    }
    add_up(&result, threads, options->threads);
    struct histogram *latencies = threads[0].latencies;
    for (unsigned i = 1; i < options->threads; i++) {
        histogram_merge(latencies, threads[i].latencies);
    }
    result.p50_ns = histogram_percentile(latencies, 0.5);
    result.p99_ns = histogram_percentile(latencies, 0.99);
    result.p999_ns = histogram_percentile(latencies, 0.999);
    threads_free(threads, options->threads);
    return result;
}

struct result phase_run(const struct options *options, const char *what, uint64_t steps,
                        void (*operation)(struct worker *), void *context) {
    struct thread *threads = threads_new(options, operation, context);
    struct result result = {0};
    if (steps) {
        run_all(threads, options, what, steps, false);
    }
    add_up(&result, threads, options->threads);
    threads_free(threads, options->threads);
    return result;
}

bool worker_writes(struct worker *worker) {
    const bool writes = random_next(&worker->random) % 100 < worker->options->writes;
    worker->writes += writes;
    return writes;
}

/* ---- report ---- */

static void report_json(const struct options *options, const struct result *result) {
    printf("{\"application\":\"%s\",\"memory\":\"%s\",\"data_bytes\":%zu,"
           "\"object_bytes\":[%zu,%zu],"
           "\"threads\":%u,\"write_percent\":%u,\"zipf\":%g,\"calls\":%s,\"seed\":%llu,"
           "\"seconds\":%.3f,\"operations\":%llu,\"operations_per_second\":%.1f,\"writes\":%llu,"
           "\"p50_ns\":%llu,\"p99_ns\":%llu,\"p999_ns\":%llu,\"checked\":%llu,\"wrong\":%llu,"
           "\"device_waits\":%llu,\"changed_lines\":%d",
           the_application->name, MEMORY_NAMES[options->memory], options->data,
           options->object_least, options->object_most, options->threads, options->writes,
           options->zipf, options->calls ? "true" : "false", (unsigned long long)options->seed,
           result->seconds, (unsigned long long)result->operations,
           (double)result->operations / result->seconds, (unsigned long long)result->writes,
           (unsigned long long)result->p50_ns, (unsigned long long)result->p99_ns,
           (unsigned long long)result->p999_ns, (unsigned long long)result->checked,
           (unsigned long long)result->wrong, (unsigned long long)result->device_waits,
           the_application->changed_lines);
    if (result->device_read_bytes >= 0) {
        printf(",\"device_read_bytes\":%lld,\"device_written_bytes\":%lld",
               (long long)result->device_read_bytes, (long long)result->device_written_bytes);
    }
    for (int i = 0; i < 8 && result->more[i].name; i++) {
        printf(",\"%s\":%.6g", result->more[i].name, result->more[i].value);
    }
    printf("}\n");
}

static void report_text(const struct options *options, const struct result *result) {
    printf("%s, memory: %s, %zu MiB, %u threads, %u %% writes\n", the_application->name,
           MEMORY_NAMES[options->memory], options->data >> 20, options->threads, options->writes);
    printf("  %.1f k operations/s   p50 %.1f us   p99 %.1f us   p99.9 %.1f us\n",
           (double)result->operations / result->seconds / 1e3, (double)result->p50_ns / 1e3,
           (double)result->p99_ns / 1e3, (double)result->p999_ns / 1e3);
    if (result->device_read_bytes >= 0) {
        printf("  device: %.1f MiB read, %.1f MiB written",
               (double)result->device_read_bytes / 1048576,
               (double)result->device_written_bytes / 1048576);
        if (result->writes) {
            printf(", %.0f bytes written a write",
                   (double)result->device_written_bytes / (double)result->writes);
        }
        printf("\n");
        if (result->device_written_bytes > 0) {
            /* A drive of 1 TB for consumers is rated for 600 TB. */
            printf("  device life at this rate, of 600 TB: %.3g years\n",
                   600e12 / ((double)result->device_written_bytes / result->seconds) /
                       (365.25 * 86400));
        }
    }
    printf("  %.3g waits for the device an operation\n",
           (double)result->device_waits / (double)result->operations);
    for (int i = 0; i < 8 && result->more[i].name; i++) {
        printf("  %s: %g\n", result->more[i].name, result->more[i].value);
    }
    printf("  lines that differ from malloc: %d\n", the_application->changed_lines);
    printf("  %llu answers checked, %llu wrong\n", (unsigned long long)result->checked,
           (unsigned long long)result->wrong);
}

int report(const struct options *options, const struct result *result) {
    if (options->json) {
        report_json(options, result);
    } else {
        report_text(options, result);
    }
    return result->wrong == 0 && result->checked > 0 ? 0 : 1;
}
