/* A search tree of many nodes, more than RAM holds: one place allocates and keeps them, others
 * allocate what soon goes again. */
#include "pressure.h"

#define NODES 200000

struct node {
    struct node *left, *right;
    uint64_t key, check;
    unsigned char payload[200 - 4 * 8];
};

static struct node *root;

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

static struct node **place_of(uint64_t key) {
    struct node **place = &root;
    while (*place && (*place)->key != key) {
        place = key < (*place)->key ? &(*place)->left : &(*place)->right;
    }
    return place;
}

int main(void) {
    for (uint64_t i = 0; i < NODES; i++) {
        *place_of(mixed(i)) = new_node(mixed(i));
        short_lived(i);
    }
    for (uint64_t i = 0; i < NODES; i += 7) {
        struct node *node = *place_of(mixed(i));
        CHECK(node && node->check == ~mixed(i));
        CHECK(node->payload[sizeof node->payload - 1] == (unsigned char)mixed(i));
    }
    puts("nodes hold");
    return 0;
}
