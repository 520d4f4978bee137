/*
 * blocks.h - blocks of memory from one region, a mapped file or anonymous memory, for the kinds of
 * memory that deepheap is compared with.
 *
 * A page fault brings a whole page, so blocks lie where they cross as few page boundaries as they
 * can without spreading out: sizes that divide a page never do, those of more than half a page
 * begin one, the others lie side by side, their size rounded up by an eighth at most.
 *
 * Guarantees: what is known about blocks is kept in RAM beside the region, one byte for each 64 KiB
 * of it and eight for each block that is free; nothing in the region is read or written here, so
 * that nobody waits for a device under the lock. Blocks of more than 16 KiB are not used again.
 *
 * Threads: any; one lock.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

struct blocks;

/* Of a region that begins at a page boundary and stays; NULL if there is no memory. */
struct blocks *blocks_new(void *region, size_t bytes);

/* A block, not cleared; NULL and ENOMEM if the region is full. */
void *blocks_allocate(struct blocks *blocks, size_t bytes);

/* Takes back what blocks_allocate gave. */
void blocks_free(struct blocks *blocks, void *block);

/* Whether memory is of the region. */
bool blocks_has(const struct blocks *blocks, const void *memory);

/* Whether pages hold a block of this size evenly: it divides one, or has more than half of one. */
bool blocks_fit_pages(size_t bytes);

#endif
