/*
 * bloom_filter.c - adds keys to a Bloom filter of many gigabits, and tests keys (SSDRAM, section
 * 5.5).
 *
 * As in the paper: one vector of bits, kept in objects of --object bytes; a key of 8 bytes sets
 * eight bits anywhere in it, so that adding one touches eight objects.
 *
 * No filter of this size can be filled key by key in reasonable time. It begins as one with as many
 * keys as it is made for: half of the bits are set, at random. These bits follow from where they
 * are, so each use of a word checks that none of them is gone. A key that was added must be found;
 * of those that never were, one in 2^8 is found, which is reported.
 *
 * --calls asks for the eight objects of a key that is added by dh_prefetch, so that their reads run
 * side by side. A test asks for none: that of a key which is not there mostly ends at the second.
 *
 * Threads: bits are set by atomic operations; a thread tests keys that it added itself.
 */
#include "application.h"

#include <deepheap.h>
#include <stdatomic.h>
#include <stdlib.h>

static const struct application application = {
    .name = "bloom_filter",
    .summary = "adds keys to a Bloom filter, and tests them (SSDRAM, section 5.5)",
    .changed_lines = CHANGED_LINES,
    .has_calls = true,
    .full = {.data = (size_t)4 << 30, .object_least = 512, .object_most = 512, .threads = 8,
             .writes = 80, .seconds = 20, .warm_up = 50000},
    .small = {.data = 32 << 20, .object_least = 512, .object_most = 512, .threads = 4,
              .writes = 80, .operations = 5000, .warm_up = 500},
};

enum {
    HASHES = 8,
    WORD_BITS = 64,
    NEVER_ADDED = 1024, /* keys of threads beyond all there are */
};

typedef _Atomic uint64_t word;

struct filter {
    char *objects;
    size_t stride, count, words; /* of an object */
    uint64_t *added;             /* keys, by each thread */
};

/* The bits that a word begins with, and never loses. */
static uint64_t first_bits(size_t object, size_t at) {
    return random_mix(object << 16 | at);
}

static uint64_t key_of(unsigned thread, uint64_t number) {
    return number << 16 | thread;
}

static size_t object_of(const struct filter *filter, uint64_t hash) {
    return (size_t)((unsigned __int128)hash * filter->count >> 64);
}

static void ask_for_key(const struct filter *filter, uint64_t key) {
    void *objects[HASHES];
    uint64_t state = random_mix(key);
    for (int i = 0; i < HASHES; i++) {
        objects[i] = filter->objects + object_of(filter, random_next(&state)) * filter->stride;
    }
    (void)dh_prefetch(objects, HASHES); /* what is not brought now is brought by its use */
}

/* Sets a key's bits if `adds`; true if all of them were set. `*intact`: no word had lost any. */
static bool use_key(const struct filter *filter, uint64_t key, bool adds, bool *intact) {
    bool found = true;
    uint64_t state = random_mix(key);
    for (int i = 0; i < HASHES && (found || adds); i++) {
        const uint64_t hash = random_next(&state);
        const size_t object = object_of(filter, hash);
        const uint64_t within = random_mix(hash);
        const size_t at = within / WORD_BITS % filter->words;
        const uint64_t bit = (uint64_t)1 << within % WORD_BITS;
        word *words = (word *)(filter->objects + object * filter->stride);
        uint64_t before = atomic_load(&words[at]);
        /* A bit that is set is not set again: the store alone would make its page dirty. */
        if (adds && !(before & bit)) {
            before = atomic_fetch_or(&words[at], bit);
        }
        const uint64_t first = first_bits(object, at);
        found = found && (before & bit);
        *intact = *intact && (before & first) == first;
    }
    return found;
}

/* counts: [0] tests of keys that were never added, [1] of these that were found. */
static void use_one(struct worker *worker) {
    const struct filter *filter = worker->context;
    uint64_t *added = &filter->added[worker->number];
    bool intact = true;
    worker->checked++;
    if (worker_writes(worker)) {
        const uint64_t key = key_of(worker->number, (*added)++);
        if (worker->options->calls) {
            ask_for_key(filter, key);
        }
        use_key(filter, key, true, &intact);
    } else {
        const uint64_t random = random_next(&worker->random);
        if (random % 2 == 0 && *added > 0) {
            const uint64_t key = key_of(worker->number, random / 2 % *added);
            worker->wrong += !use_key(filter, key, false, &intact);
        } else {
            const uint64_t key = key_of(NEVER_ADDED, random);
            worker->counts[0]++;
            worker->counts[1] += use_key(filter, key, false, &intact);
        }
    }
    worker->wrong += !intact;
}

static void fill_one(struct worker *worker) {
    const struct filter *filter = worker->context;
    const size_t object = worker->operations * worker->options->threads + worker->number;
    word *words = (word *)(filter->objects + object * filter->stride);
    for (size_t at = 0; at < filter->words; at++) {
        atomic_store_explicit(&words[at], first_bits(object, at), memory_order_relaxed);
    }
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    const size_t bytes = options.object_least;
    if (options.object_most != bytes || bytes % sizeof(word) != 0 || bytes > 1 << 16) {
        refuse("--object: one size for all, a multiple of %zu up to 64K", sizeof(word));
    }
    if (options.zipf != 0) {
        refuse("--zipf: the bits of keys are anywhere, no object is more popular");
    }
    static struct filter filter;
    filter.words = bytes / sizeof(word);
    filter.count = options.data / bytes;
    if (filter.count < options.threads) {
        refuse("--data: too little for an object for each thread");
    }
    filter.objects = memory_array(&options, filter.count, bytes, &filter.stride);
    filter.added = calloc(options.threads, sizeof *filter.added);
    if (!filter.added) {
        refuse("no memory for %u threads", options.threads);
    }
    phase_run(&options, "fill", filter.count, fill_one, &filter);
    struct result result = measure(&options, use_one, &filter);
    const double tests = (double)result.counts[0];
    result.more[0].name = "false_positive_percent";
    result.more[0].value = tests > 0 ? 100 * (double)result.counts[1] / tests : 0;
    result.more[1].name = "expected_percent";
    result.more[1].value = 100.0 / (1 << HASHES);
    result.more[2].name = "gigabits";
    result.more[2].value = (double)(filter.count * bytes) * 8 / 1e9;
    memory_free(&options, filter.objects);
    return report(&options, &result);
}
