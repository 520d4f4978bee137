/*
 * packet_cache.c - a cache of network packets by their content, larger than its RAM.
 *
 *     cc -O2 packet_cache.c -o packet_cache $(pkg-config --cflags --libs deepheap)
 *     ./packet_cache
 *
 * It was written for malloc, and ported by changing its allocation lines; docs/porting.md shows
 * the difference.
 */
#include <deepheap.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The traffic: so many packets are offered, of so many different ones. */
#define OFFERED 200000
#define DIFFERENT 200000

struct packet {
    uint32_t length;
    uint8_t bytes[];
};

/* Where the protocol stands in a packet, and the shortest and longest packets. */
enum { PROTOCOL = 9, LENGTH_MIN = 100, LENGTH_MAX = 1500 };

/* Hashes lie apart from packets: a lookup that misses touches no packet. */
enum { SETS = 16384, WAYS = 8 };
struct set {
    uint64_t hash[WAYS];
    struct packet *packet[WAYS];
    uint32_t oldest;
};

static uint64_t hash_of(const uint8_t *bytes, uint32_t length) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < length; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001B3u;
    }
    return hash;
}

static struct packet *find(struct set *sets, uint64_t hash, const uint8_t *bytes,
                           uint32_t length) {
    struct set *set = &sets[hash % SETS];
    for (int way = 0; way < WAYS; way++) {
        struct packet *packet = set->packet[way];
        if (packet != NULL && set->hash[way] == hash && packet->length == length &&
            memcmp(packet->bytes, bytes, length) == 0) {
            return packet;
        }
    }
    return NULL;
}

static void insert(struct set *sets, uint64_t hash, const uint8_t *bytes, uint32_t length) {
    struct packet *packet = dh_oalloc(1, sizeof *packet + length);
    if (packet == NULL) {
        return; /* a packet that is not cached is sent again */
    }
    packet->length = length;
    memcpy(packet->bytes, bytes, length);
    struct set *set = &sets[hash % SETS];
    const uint32_t way = set->oldest++ % WAYS;
    dh_free(set->packet[way]);
    set->hash[way] = hash;
    set->packet[way] = packet;
}

/* Adds up the bytes in the cache by protocol. */
enum { BATCH = 256 };
struct head {
    uint32_t length;
    uint8_t bytes[PROTOCOL + 1];
};

static void add_batch(void *const packets[], size_t count, uint64_t by_protocol[256]) {
    static struct head heads[BATCH];
    const ssize_t done = dh_gather(packets, count, 0, sizeof heads[0], heads);
    for (ssize_t i = 0; i < done; i++) {
        by_protocol[heads[i].bytes[PROTOCOL]] += heads[i].length;
    }
}

static void inventory(const struct set *sets, uint64_t by_protocol[256]) {
    void *packets[BATCH];
    size_t count = 0;
    for (int i = 0; i < SETS * WAYS; i++) {
        struct packet *packet = sets[i / WAYS].packet[i % WAYS];
        if (packet != NULL) {
            packets[count++] = packet;
        }
        if (count == BATCH) {
            add_batch(packets, count, by_protocol);
            count = 0;
        }
    }
    add_batch(packets, count, by_protocol);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The content of a packet of the traffic; returns its length. */
static uint32_t receive(uint64_t number, uint8_t bytes[LENGTH_MAX]) {
    uint64_t state = (number + 1) * 0x9E3779B97F4A7C15u;
    const uint32_t length = LENGTH_MIN + next_random(&state) % (LENGTH_MAX - LENGTH_MIN + 1);
    for (uint32_t i = 0; i < length; i++) {
        bytes[i] = (uint8_t)(next_random(&state) >> 32);
    }
    bytes[PROTOCOL] = number % 3 == 0 ? 17 : 6; /* UDP, TCP */
    return length;
}

int main(void) {
    const int error = dh_init("ram:32M,store:.");
    if (error) {
        /* Not fatal where the environment configured deepheap already. */
        fprintf(stderr, "dh_init: %s\n", dh_strerror(error));
    }
    struct set *sets = calloc(SETS, sizeof *sets);
    if (sets == NULL) {
        perror("calloc");
        return 1;
    }
    static uint8_t bytes[LENGTH_MAX];
    uint64_t state = 0x5EED, hits = 0, saved = 0;
    for (int i = 0; i < OFFERED; i++) {
        /* Half of the traffic is a tenth of the packets. */
        const uint64_t random = next_random(&state);
        const uint64_t number = random % 2 ? random / 2 % (DIFFERENT / 10) : random / 2 % DIFFERENT;
        const uint32_t length = receive(number, bytes);
        const uint64_t hash = hash_of(bytes, length);
        if (find(sets, hash, bytes, length) != NULL) {
            hits++;
            saved += length;
        } else {
            insert(sets, hash, bytes, length);
        }
    }
    uint64_t by_protocol[256] = {0};
    inventory(sets, by_protocol);
    printf("%d packets, %llu of them and %llu KiB cached; held: %llu KiB TCP, %llu KiB UDP\n",
           OFFERED, (unsigned long long)hits, (unsigned long long)saved >> 10,
           (unsigned long long)by_protocol[6] >> 10, (unsigned long long)by_protocol[17] >> 10);
    return 0;
}
