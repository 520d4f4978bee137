/* Nodes of one size, more than RAM holds, by places that keep them: looked up here and there,
 * walked in the order of their allocation, or kept and not touched again. Others allocate what soon
 * goes again. */
#include "pressure.h"

#define KEPT 80000
#define NODES 40000
#define ROUNDS 2
/* Of so many nodes one is looked up, again and again: its page has no other such. */
#define HOT 16

struct node {
    uint64_t key, check;
    unsigned char payload[200 - 2 * 8];
};

static struct node *looked_up[NODES], *walked[NODES], *kept[KEPT];

static uint64_t mixed(uint64_t i) {
    i *= 0x9e3779b97f4a7c15u;
    return i ^ i >> 31;
}

static uint64_t hot(uint64_t i) {
    return mixed(i) % (NODES / HOT) * HOT;
}

static void set(struct node *node, uint64_t key) {
    CHECK(node);
    *node = (struct node){.key = key, .check = ~key};
    node->payload[sizeof node->payload - 1] = (unsigned char)key;
}

static void check(const struct node *node, uint64_t key) {
    CHECK(node->key == key && node->check == ~key);
    CHECK(node->payload[sizeof node->payload - 1] == (unsigned char)key);
}

static __attribute__((noinline)) void new_looked_up(uint64_t i) {
    looked_up[i] = malloc(sizeof(struct node));
    set(looked_up[i], mixed(i));
}

static __attribute__((noinline)) void new_walked(uint64_t i) {
    walked[i] = malloc(sizeof(struct node));
    set(walked[i], mixed(i));
}

static __attribute__((noinline)) void new_kept(uint64_t i) {
    kept[i] = malloc(sizeof(struct node));
    set(kept[i], mixed(i));
}

/* Gone before the next comes: never many of them. */
static __attribute__((noinline)) void short_lived(uint64_t i) {
    unsigned char *bytes = calloc(1, 300 + i % 50);
    CHECK(bytes && bytes[299] == 0);
    bytes[299] = 1;
    free(bytes);
}

int main(void) {
    for (uint64_t i = 0; i < KEPT; i++) new_kept(i);
    for (uint64_t i = 0; i < NODES; i++) {
        new_walked(i);
        new_looked_up(i);
        short_lived(i);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < NODES; i++) {
            check(walked[i], mixed(i));
            const uint64_t at = hot(round * NODES + i);
            check(looked_up[at], mixed(at));
        }
    }
    /* What was decided holds for what is allocated from now on. */
    for (uint64_t i = 0; i < NODES; i++) {
        free(looked_up[i]);
        free(walked[i]);
        new_looked_up(i);
        new_walked(i);
    }
    for (uint64_t i = 0; i < NODES; i++) {
        check(walked[i], mixed(i));
        check(looked_up[hot(i)], mixed(hot(i)));
    }
    puts("nodes hold");
    return 0;
}
