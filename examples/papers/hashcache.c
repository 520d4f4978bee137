/*
 * hashcache.c - the index of a web cache or WAN accelerator: an array of sets, without pointers
 * (SSDAlloc, section 5.5; Badam et al., "HashCache", NSDI 2009).
 *
 * A set is 128 bytes: sixteen entries, each a hash to test membership by, its place in the LRU
 * order of the set, and the location of the cached item on its disk. A lookup makes the entry the
 * youngest; an insert takes the place of the oldest.
 *
 * Every set carries a check in RAM, a byte that its content gives, and each user of a set computes
 * it anew; a location follows from its entry's hash.
 *
 * Threads: the index is divided among them, as in the paper: a set belongs to one thread.
 *
 * After the throughput of lookups and inserts all over the index it measures what Figure 6(a)
 * shows, how many useful entries RAM holds. The useful ones are a working set: sets strewn over
 * the index at random and looked up over and over. The largest of these of which at least 95 %
 * of the lookups do not wait for a device is what RAM holds. A page that is kept for one set of a
 * working set keeps its 31 neighbours, too, which is of no use.
 */
#include "application.h"

#include <deepheap.h>
#include <stdlib.h>
#include <string.h>

static const struct application application = {
    .name = "hashcache",
    .summary = "looks up and inserts entries of a set-associative index (SSDAlloc, section 5.5)",
    .changed_lines = CHANGED_LINES,
    .has_calls = true,
    .full = {.data = (size_t)4 << 30, .threads = 8, .writes = 50, .seconds = 20,
             .warm_up = 1000000},
    .small = {.data = 32 << 20, .threads = 4, .writes = 50, .operations = 20000,
              .warm_up = 5000},
};

enum {
    WAYS = 16,
    AGE_BITS = 4,       /* of the WAYS: 0 is the youngest */
    KEYS_A_SET = 32,    /* that ask for entries: every other one is there */
    LEAST_WORKING = 64, /* sets of a thread */
    PASSES_MAX = 12,    /* over a working set, to come to RAM and drive out what was there */
};

struct entry {
    uint32_t hash_and_age;
    uint32_t location; /* 0 is none: the entry is empty */
};

struct set {
    struct entry entries[WAYS];
};

struct index {
    char *sets;
    size_t stride, sets_a_thread;
    uint8_t *checks; /* of each set, in RAM */
    struct popularity *popularity;
    size_t working;  /* sets of a thread that are used; 0 is all */
    struct popularity *order; /* of those, by which they take turns */
};

/* ---- a set ---- */

static uint32_t hash_of(const struct entry *entry) {
    return entry->hash_and_age >> AGE_BITS;
}

static unsigned age_of(const struct entry *entry) {
    return entry->hash_and_age % WAYS;
}

static uint32_t hash_of_key(size_t number, unsigned key) {
    return (uint32_t)random_mix(number * KEYS_A_SET + key) >> AGE_BITS;
}

/* The location changes with each insert: its lowest eight bits count them. */
static uint32_t location_of(size_t number, uint32_t hash, uint32_t inserts) {
    const uint32_t place = (uint32_t)random_mix(number << 28 ^ hash);
    return (place | 1u << 31) ^ ((place ^ inserts) & 0xFF);
}

static uint8_t check_of(const struct set *set) {
    uint64_t sum = 0;
    for (int way = 0; way < WAYS; way++) {
        const struct entry *entry = &set->entries[way];
        const uint64_t word = (uint64_t)entry->location << 32 | entry->hash_and_age;
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    }
    return (uint8_t)(sum >> 56);
}

static struct entry *find(struct set *set, uint32_t hash) {
    for (int way = 0; way < WAYS; way++) {
        if (set->entries[way].location != 0 && hash_of(&set->entries[way]) == hash) {
            return &set->entries[way];
        }
    }
    return NULL;
}

/* Makes an entry the youngest; those that were younger are one older. */
static void touch(struct set *set, struct entry *used) {
    const unsigned age = age_of(used);
    for (int way = 0; age > 0 && way < WAYS; way++) {
        set->entries[way].hash_and_age += age_of(&set->entries[way]) < age;
    }
    used->hash_and_age -= age_of(used);
}

static void insert(struct set *set, size_t number, uint32_t hash) {
    struct entry *place = find(set, hash);
    uint32_t inserts = 0;
    if (place) {
        inserts = place->location + 1;
    } else {
        for (place = set->entries; age_of(place) != WAYS - 1;) {
            place++; /* the oldest, or an empty one: they are older than all others */
        }
        place->hash_and_age = hash << AGE_BITS | (WAYS - 1);
    }
    place->location = location_of(number, hash, inserts);
    touch(set, place);
}

/* The ages of a set are all different; so the oldest is always found. */
static void clear(struct set *set) {
    for (unsigned way = 0; way < WAYS; way++) {
        set->entries[way] = (struct entry){.hash_and_age = way};
    }
}

static bool ages_are_right(const struct set *set) {
    unsigned seen = 0;
    for (int way = 0; way < WAYS; way++) {
        seen |= 1u << age_of(&set->entries[way]);
    }
    return seen == (1u << WAYS) - 1;
}

/* ---- the index ---- */

/* Where a set is used: in place, or with --calls as a copy that is brought back. */
static struct set *set_get(const struct worker *worker, size_t number, struct set *copy) {
    const struct index *index = worker->context;
    char *set = index->sets + number * index->stride;
    if (!worker->options->calls) {
        return (struct set *)set;
    }
    return dh_read(set, 0, copy, sizeof *copy) == 0 ? copy : NULL;
}

static bool set_put(const struct worker *worker, size_t number, const struct set *set) {
    const struct index *index = worker->context;
    return !worker->options->calls ||
           dh_write(index->sets + number * index->stride, 0, set, sizeof *set) == 0;
}

/* One of this thread's sets: any, or any of the working set. */
static size_t choose_set(struct worker *worker) {
    const struct index *index = worker->context;
    size_t own;
    if (index->working == 0) {
        own = popularity_next(index->popularity, &worker->random);
    } else {
        /* The sets of a working set stand each in a stretch of its own, anywhere in it. */
        const size_t stretch = index->sets_a_thread / index->working;
        const uint64_t turn = worker->operations % index->working;
        const size_t which = popularity_object(index->order, turn);
        own = which * stretch + random_mix(which) % stretch;
    }
    return worker->number * index->sets_a_thread + own;
}

/* counts: [0] lookups, [1] of these that found their entry. */
static void use_one(struct worker *worker) {
    const struct index *index = worker->context;
    const size_t number = choose_set(worker);
    const uint32_t hash = hash_of_key(number, random_next(&worker->random) % KEYS_A_SET);
    const bool inserts = index->working == 0 && worker_writes(worker);
    struct set copy, *set = set_get(worker, number, &copy);
    worker->checked++;
    if (!set || check_of(set) != index->checks[number] || !ages_are_right(set)) {
        worker->wrong++;
        return;
    }
    if (inserts) {
        insert(set, number, hash);
    } else {
        struct entry *entry = find(set, hash);
        worker->counts[0]++;
        if (!entry) {
            return;
        }
        worker->counts[1]++;
        worker->wrong += entry->location != location_of(number, hash, entry->location);
        if (index->working != 0 || age_of(entry) == 0) {
            return; /* nothing changes */
        }
        touch(set, entry);
    }
    index->checks[number] = check_of(set);
    worker->wrong += !set_put(worker, number, set);
}

/* Each operation fills one set. */
static void fill_one(struct worker *worker) {
    struct index *index = worker->context;
    const size_t number = worker->number * index->sets_a_thread + worker->operations;
    struct set *set = (struct set *)(index->sets + number * index->stride);
    clear(set);
    for (unsigned key = 0; key < KEYS_A_SET; key += KEYS_A_SET / WAYS) {
        insert(set, number, hash_of_key(number, key));
    }
    index->checks[number] = check_of(set);
}

/* ---- Figure 6(a) ---- */

/* True if RAM comes to hold a working set of so many sets of each thread: nineteen of twenty
 * lookups of one pass over it wait for no device. Its sets are looked up in an order that knows no
 * neighbours, again and again; no lookup changes a set. */
static bool is_held(const struct options *options, struct index *index, size_t working,
                    struct result *sum) {
    struct options lookups = *options;
    lookups.operations = working * options->threads;
    lookups.warm_up = 0;
    index->working = working;
    index->order = popularity_new(working, 0);
    bool held = false;
    for (int pass = 0; pass < PASSES_MAX && !held; pass++) {
        const struct result result = measure(&lookups, use_one, index);
        held = result.device_waits * 20 <= result.operations;
        sum->checked += result.checked;
        sum->wrong += result.wrong;
    }
    index->working = 0;
    free(index->order);
    return held;
}

/* Sets of the largest working set that RAM holds, to a quarter of a power of two. */
static size_t sets_held(const struct options *options, struct index *index, struct result *sum) {
    size_t held = 0;
    for (size_t next = LEAST_WORKING; next <= index->sets_a_thread; next *= 2) {
        if (!is_held(options, index, next, sum)) {
            break;
        }
        held = next;
    }
    for (size_t more = held / 2, least = held / 4; more > 0 && more >= least; more /= 2) {
        if (held + more <= index->sets_a_thread && is_held(options, index, held + more, sum)) {
            held += more;
        }
    }
    return held * options->threads;
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    static struct index index;
    index.sets_a_thread = options.data / sizeof(struct set) / options.threads;
    if (index.sets_a_thread < LEAST_WORKING) {
        refuse("--data: too little for %d sets of %zu bytes for each thread", LEAST_WORKING,
               sizeof(struct set));
    }
    const size_t count = index.sets_a_thread * options.threads;
    index.sets = memory_array(&options, count, sizeof(struct set), &index.stride);
    index.checks = calloc(count, 1);
    index.popularity = popularity_new(index.sets_a_thread, options.zipf);
    if (!index.checks) {
        refuse("no memory for the checks of %zu sets", count);
    }
    phase_run(&options, "fill", count, fill_one, &index);
    struct result result = measure(&options, use_one, &index);
    const double lookups = (double)result.counts[0];
    result.more[0].name = "lookup_hit_percent";
    result.more[0].value = lookups > 0 ? 100 * (double)result.counts[1] / lookups : 0;
    result.more[1].name = "useful_entries_in_ram";
    result.more[1].value = (double)(WAYS * sets_held(&options, &index, &result));
    memory_free(&options, index.sets);
    return report(&options, &result);
}
