/*
 * blocks.c - see blocks.h.
 *
 * The region is given away from its start on, in slabs of 64 KiB that hold blocks of one class, or
 * in as many slabs as one larger block needs.
 */
#define _GNU_SOURCE
#include "blocks.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum {
    PAGE = 4096,
    SLAB = 64 << 10,
    GRAIN = 16,           /* bytes: the least block, and the step of the least classes */
    STEPS = 8,            /* classes for each doubling */
    CLASSES_IN_PAGE = 40, /* up to half a page */
    PAGES_MOST = 4,       /* of a class; one class for each number of pages */
    LARGE = CLASSES_IN_PAGE + PAGES_MOST,
};

/* Blocks of one size. */
struct class {
    uint8_t *next; /* in its last slab */
    size_t left;   /* blocks from there on */
    void **freed;
    size_t freed_count, freed_room;
};

struct blocks {
    pthread_mutex_t lock;
    uint8_t *start, *next, *end; /* of the region; `next` is where the next slab begins */
    uint8_t *class_of_slab;      /* meaningful for the first slab of a block */
    struct class classes[LARGE];
};

/* ---- classes ---- */

/* Multiples of 16 up to 128, eight steps for each doubling up to half a page, whole pages. */
static unsigned class_of(size_t bytes) {
    if (bytes <= STEPS * GRAIN) {
        return bytes == 0 ? 0 : (unsigned)((bytes - 1) / GRAIN);
    }
    if (bytes > PAGE / 2) {
        const size_t pages = (bytes - 1) / PAGE + 1;
        return pages > PAGES_MOST ? LARGE : CLASSES_IN_PAGE + (unsigned)pages - 1;
    }
    const unsigned power = 63 - (unsigned)__builtin_clzll(bytes - 1);
    return (power - 6) * STEPS + (unsigned)((bytes - 1) >> (power - 3)) - STEPS;
}

static size_t class_bytes(unsigned class) {
    if (class >= CLASSES_IN_PAGE) {
        return (size_t)(class - CLASSES_IN_PAGE + 1) * PAGE;
    }
    if (class < STEPS) {
        return (size_t)(class + 1) * GRAIN;
    }
    return (size_t)(class % STEPS + STEPS + 1) << (class / STEPS + 3);
}

bool blocks_fit_pages(size_t bytes) {
    return bytes > PAGE / 2 || (bytes > 0 && PAGE % bytes == 0);
}

/* ---- the region; the lock is held ---- */

static uint8_t *slabs_take(struct blocks *blocks, size_t bytes, unsigned class) {
    uint8_t *slab = blocks->next;
    const size_t left = (size_t)(blocks->end - slab);
    if (bytes > left || left < SLAB) {
        return NULL;
    }
    const size_t whole = (bytes + SLAB - 1) / SLAB * SLAB;
    blocks->class_of_slab[(slab - blocks->start) / SLAB] = (uint8_t)class;
    blocks->next = whole < left ? slab + whole : blocks->end;
    return slab;
}

static void *class_take(struct blocks *blocks, unsigned number) {
    struct class *class = &blocks->classes[number];
    if (class->freed_count > 0) {
        return class->freed[--class->freed_count];
    }
    if (class->left == 0) {
        class->next = slabs_take(blocks, SLAB, number);
        if (!class->next) {
            return NULL;
        }
        class->left = SLAB / class_bytes(number);
    }
    void *block = class->next;
    class->left--;
    class->next += class_bytes(number);
    return block;
}

/* A block for whose address there is no memory is lost. */
static void class_give(struct class *class, void *block) {
    if (class->freed_count == class->freed_room) {
        const size_t room = class->freed_room ? 2 * class->freed_room : 64;
        void **more = realloc(class->freed, room * sizeof *more);
        if (!more) {
            return;
        }
        class->freed = more;
        class->freed_room = room;
    }
    class->freed[class->freed_count++] = block;
}

/* ---- for everybody ---- */

struct blocks *blocks_new(void *region, size_t bytes) {
    struct blocks *blocks = calloc(1, sizeof *blocks);
    uint8_t *class_of_slab = calloc(bytes / SLAB + 1, 1);
    if (!blocks || !class_of_slab) {
        free(blocks);
        free(class_of_slab);
        return NULL;
    }
    pthread_mutex_init(&blocks->lock, NULL);
    blocks->start = blocks->next = region;
    blocks->end = blocks->start + bytes;
    blocks->class_of_slab = class_of_slab;
    return blocks;
}

void *blocks_allocate(struct blocks *blocks, size_t bytes) {
    const unsigned class = class_of(bytes);
    pthread_mutex_lock(&blocks->lock);
    void *block = class == LARGE ? slabs_take(blocks, bytes, class) : class_take(blocks, class);
    pthread_mutex_unlock(&blocks->lock);
    if (!block) {
        errno = ENOMEM;
    }
    return block;
}

void blocks_free(struct blocks *blocks, void *block) {
    const unsigned class = blocks->class_of_slab[((uint8_t *)block - blocks->start) / SLAB];
    if (class == LARGE) {
        return;
    }
    pthread_mutex_lock(&blocks->lock);
    class_give(&blocks->classes[class], block);
    pthread_mutex_unlock(&blocks->lock);
}

bool blocks_has(const struct blocks *blocks, const void *memory) {
    const uint8_t *place = memory;
    return place >= blocks->start && place < blocks->end;
}
