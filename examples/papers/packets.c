/*
 * packets.c - keeps network packets by the SHA-1 of their content, the least recently used leave
 * (SSDAlloc, section 5.3): what network accelerators and deduplication do.
 *
 * A put stores a new packet, and drops the oldest ones until it fits. A get looks for one of those
 * that its thread put lately, by its key, and finds it or comes too late. Only the packets are
 * objects: the index and the LRU lists stay in RAM. With --calls a packet goes by dh_read and
 * dh_write, which Figure 5(a) compares with pointers.
 *
 * The content of a packet follows from its number, at random; what a get finds is compared with it
 * as a whole.
 *
 * Threads: the index is divided into shards by key, each under a lock, which is held while a packet
 * is copied: so no packet is dropped while it is used.
 */
#include "application.h"

#include <deepheap.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct application application = {
    .name = "packets",
    .summary = "keeps packets by their SHA-1 in LRU order (SSDAlloc, section 5.3)",
    .changed_lines = CHANGED_LINES,
    .has_calls = true,
    .full = {.data = (size_t)4 << 30, .object_least = 100, .object_most = 1500, .threads = 8,
             .writes = 50, .seconds = 20, .warm_up = 200000},
    .small = {.data = 64 << 20, .object_least = 100, .object_most = 1500, .threads = 8,
              .writes = 50, .operations = 30000, .warm_up = 5000},
};

enum {
    SHARDS = 256,
    LEAST_PACKET = 20,   /* bytes */
    LONGEST_PACKET = 9000,
    LEAST_PACKETS = 16,  /* of a shard */
};

enum { NONE = 0 }; /* no entry; they are numbered from 1 */

struct key {
    uint8_t bytes[SHA_DIGEST_LENGTH];
};

struct entry {
    struct key key;
    uint32_t bytes; /* of the packet */
    uint8_t *packet;
    uint32_t older, newer; /* in LRU order */
    uint32_t next;         /* in its bucket, or of the free ones */
};

struct shard {
    pthread_mutex_t lock;
    uint32_t oldest, newest, unused;
    size_t bytes; /* of all its packets */
    struct entry *entries;
    uint32_t *buckets; /* first entries */
};

struct cache {
    size_t shard_bytes;  /* that a shard holds at most */
    uint32_t entries;    /* of a shard; as many buckets */
    struct shard shards[SHARDS];
    uint64_t *put;       /* packets, by each thread */
    uint64_t asked_for;  /* of the last that a thread put, five for four that fit */
    struct popularity *popularity;
};

/* ---- packets ---- */

/* Writes the content of a packet; returns its length. */
static size_t make_packet(const struct options *options, uint64_t number, uint8_t *bytes) {
    uint64_t state = random_mix(number) ^ options->seed;
    const size_t range = options->object_most - options->object_least + 1;
    const size_t length = options->object_least + random_next(&state) % range;
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        const uint64_t word = random_next(&state);
        memcpy(bytes + at, &word, length - at < sizeof word ? length - at : sizeof word);
    }
    return length;
}

static struct key key_of(const uint8_t *bytes, size_t length) {
    struct key key;
    SHA1(bytes, length, key.bytes);
    return key;
}

/* A number of 32 bits from a key; the first byte chooses the shard. */
static uint32_t hash_of(const struct key *key) {
    uint32_t hash;
    memcpy(&hash, key->bytes + 4, sizeof hash);
    return hash;
}

static bool is_same(const struct options *options, const struct entry *entry,
                    const uint8_t *bytes, size_t length) {
    uint8_t copy[LONGEST_PACKET];
    if (entry->bytes != length) {
        return false;
    }
    if (!options->calls) {
        return memcmp(entry->packet, bytes, length) == 0;
    }
    return dh_read(entry->packet, 0, copy, length) == 0 && memcmp(copy, bytes, length) == 0;
}

static bool store(const struct options *options, struct entry *entry, const uint8_t *bytes,
                  size_t length) {
    entry->packet = memory_object(options, length);
    entry->bytes = (uint32_t)length;
    if (!options->calls) {
        memcpy(entry->packet, bytes, length);
        return true;
    }
    return dh_write(entry->packet, 0, bytes, length) == 0;
}

/* ---- a shard; its lock is held ---- */

static uint32_t *bucket_of(const struct cache *cache, struct shard *shard, const struct key *key) {
    return &shard->buckets[hash_of(key) % cache->entries];
}

static uint32_t find(const struct cache *cache, struct shard *shard, const struct key *key) {
    uint32_t at = *bucket_of(cache, shard, key);
    while (at != NONE && memcmp(&shard->entries[at].key, key, sizeof *key) != 0) {
        at = shard->entries[at].next;
    }
    return at;
}

static void list_remove(struct shard *shard, uint32_t at) {
    struct entry *entries = shard->entries, *entry = &entries[at];
    *(entry->older ? &entries[entry->older].newer : &shard->oldest) = entry->newer;
    *(entry->newer ? &entries[entry->newer].older : &shard->newest) = entry->older;
}

static void list_append(struct shard *shard, uint32_t at) {
    struct entry *entry = &shard->entries[at];
    entry->older = shard->newest;
    entry->newer = NONE;
    *(shard->newest ? &shard->entries[shard->newest].newer : &shard->oldest) = at;
    shard->newest = at;
}

static void drop_oldest(const struct options *options, const struct cache *cache,
                        struct shard *shard) {
    const uint32_t at = shard->oldest;
    struct entry *entry = &shard->entries[at];
    uint32_t *link = bucket_of(cache, shard, &entry->key);
    while (*link != at) {
        link = &shard->entries[*link].next;
    }
    *link = entry->next;
    list_remove(shard, at);
    shard->bytes -= entry->bytes;
    memory_free(options, entry->packet);
    entry->next = shard->unused;
    shard->unused = at;
}

static bool put(const struct options *options, const struct cache *cache, struct shard *shard,
                const struct key *key, const uint8_t *bytes, size_t length) {
    while (shard->bytes + length > cache->shard_bytes || shard->unused == NONE) {
        drop_oldest(options, cache, shard);
    }
    const uint32_t at = shard->unused;
    struct entry *entry = &shard->entries[at];
    shard->unused = entry->next;
    entry->key = *key;
    uint32_t *bucket = bucket_of(cache, shard, key);
    entry->next = *bucket;
    *bucket = at;
    list_append(shard, at);
    shard->bytes += length;
    return store(options, entry, bytes, length);
}

/* ---- the cache ---- */

/* A get, or a put if `puts`. counts: [0] gets, [1] of these that found their packet. */
static void use_packet(struct worker *worker, uint64_t number, bool puts) {
    struct cache *cache = worker->context;
    uint8_t bytes[LONGEST_PACKET];
    const size_t length = make_packet(worker->options, number, bytes);
    const struct key key = key_of(bytes, length);
    struct shard *shard = &cache->shards[key.bytes[0] % SHARDS];
    worker->counts[0] += !puts;
    pthread_mutex_lock(&shard->lock);
    const uint32_t at = find(cache, shard, &key);
    if (at != NONE) {
        list_remove(shard, at);
        list_append(shard, at);
    } else if (puts) {
        worker->wrong += !put(worker->options, cache, shard, &key, bytes, length);
    }
    if (at != NONE && !puts) {
        worker->counts[1]++;
        worker->checked++;
        worker->wrong += !is_same(worker->options, &shard->entries[at], bytes, length);
    }
    pthread_mutex_unlock(&shard->lock);
}

static void put_next(struct worker *worker) {
    struct cache *cache = worker->context;
    const uint64_t own = cache->put[worker->number]++;
    use_packet(worker, own * worker->options->threads + worker->number, true);
}

static void use_one(struct worker *worker) {
    const struct cache *cache = worker->context;
    if (worker_writes(worker)) {
        put_next(worker);
        return;
    }
    const uint64_t age = popularity_next(cache->popularity, &worker->random);
    const uint64_t own = cache->put[worker->number] - 1 - age;
    use_packet(worker, own * worker->options->threads + worker->number, false);
}

static void cache_new(const struct options *options, struct cache *cache) {
    const size_t average = (options->object_least + options->object_most) / 2;
    cache->shard_bytes = options->data / SHARDS;
    /* Room for some more than there are on average. */
    cache->entries = (uint32_t)(cache->shard_bytes / average * 5 / 4 + LEAST_PACKETS);
    cache->put = calloc(options->threads, sizeof *cache->put);
    cache->asked_for = options->data / average * 5 / 4 / options->threads;
    cache->popularity = popularity_new(cache->asked_for, options->zipf);
    if (!cache->put) {
        refuse("no memory for %u threads", options->threads);
    }
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        shard->entries = calloc(cache->entries + 1, sizeof *shard->entries);
        shard->buckets = calloc(cache->entries, sizeof *shard->buckets);
        if (!shard->entries || !shard->buckets) {
            refuse("no memory for an index of %zu packets", (size_t)cache->entries * SHARDS);
        }
        for (uint32_t at = cache->entries; at > NONE; at--) {
            shard->entries[at].next = shard->unused;
            shard->unused = at;
        }
    }
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    if (options.object_least < LEAST_PACKET || options.object_most > LONGEST_PACKET) {
        refuse("--object: packets have %d to %d bytes", LEAST_PACKET, LONGEST_PACKET);
    }
    if (options.data / SHARDS / options.object_most < LEAST_PACKETS) {
        refuse("--data: too little for %d shards of %d packets", SHARDS, LEAST_PACKETS);
    }
    static struct cache cache;
    cache_new(&options, &cache);
    phase_run(&options, "fill", cache.asked_for * options.threads, put_next, &cache);
    struct result result = measure(&options, use_one, &cache);
    const double gets = (double)result.counts[0];
    result.more[0].name = "get_hit_percent";
    result.more[0].value = gets > 0 ? 100 * (double)result.counts[1] / gets : 0;
    return report(&options, &result);
}
