/* A table of many nodes, more than RAM holds: one place allocates and keeps them, others
 * allocate what soon goes again. */
#include "pressure.h"

#define NODES 150000

struct node {
    uint64_t key, check;
    unsigned char payload[200 - 2 * 8];
};

static uint64_t mixed(uint64_t i) {
    i *= 0x9e3779b97f4a7c15u;
    return i ^ i >> 31;
}

static __attribute__((noinline)) struct node *new_node(uint64_t key) {
    struct node *node = malloc(sizeof *node);
    CHECK(node);
    *node = (struct node){.key = key, .check = ~key};
    node->payload[sizeof node->payload - 1] = (unsigned char)key;
    return node;
}

/* Gone before the next comes: never many of them. */
static __attribute__((noinline)) void short_lived(uint64_t i) {
    unsigned char *bytes = calloc(1, 300 + i % 50);
    CHECK(bytes && bytes[299] == 0);
    bytes[299] = 1;
    free(bytes);
}

int main(void) {
    static struct node *table[NODES];
    for (uint64_t i = 0; i < NODES; i++) {
        table[i] = new_node(mixed(i));
        short_lived(i);
    }
    for (uint64_t i = 0; i < NODES; i += 7) {
        const uint64_t at = mixed(i) % NODES;
        CHECK(table[at]->key == mixed(at) && table[at]->check == ~mixed(at));
        CHECK(table[at]->payload[sizeof table[at]->payload - 1] == (unsigned char)mixed(at));
    }
    puts("nodes hold");
    return 0;
}
