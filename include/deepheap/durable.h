/*
 * deepheap/durable.h - durable heaps: memory that outlives its process. deepheap.h includes it.
 */
#ifndef DEEPHEAP_DURABLE_H
#define DEEPHEAP_DURABLE_H

#include "memory.h"

#if defined(__GNUC__)
#define DH_MUST_USE __attribute__((warn_unused_result))
#else
#define DH_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Durable heaps: memory that outlives its process. A durable heap lives in a file, at the same
 * addresses in every process that opens it, so pointers into it can be kept in it. It may be much
 * larger than RAM, and opens at once: what it holds is read when it is touched.
 *
 *     dh_heap *heap = dh_open("index.dh", "ram:1G");
 *     if (!heap) { fprintf(stderr, "%s\n", dh_last_error()); exit(1); }
 *     struct index *index = dh_root(heap, "index");
 *     if (!index) {
 *         index = dh_heap_malloc(heap, sizeof *index);
 *         ... fill it with memory of dh_heap_malloc and dh_heap_oalloc ...
 *         dh_set_root(heap, "index", index);
 *         dh_checkpoint(heap);
 *     }
 *
 * A checkpoint makes durable what the heap holds at one instant. Whatever happens to the process or
 * the machine later, the next dh_open finds what the last checkpoint held that has returned 0, or
 * one that was being made. What was changed after it is lost.
 *
 * One process at a time has a heap open to change it, any number to read it. A forked child does
 * not have it: the memory is not there. Its memory takes part in dh_free, dh_realloc (in the same
 * heap), dh_usable_size, dh_read and its family as other memory does. Only pointers into the same
 * heap mean something later. Do not mprotect(2) or madvise(2) its memory.
 *
 * A dh_heap * is the same in every process that has the heap open, so it may be kept in the heap.
 * The functions below refuse one that this process does not have open: NULL, or DH_EINVAL.
 */
typedef struct dh_heap dh_heap;

/*
 * Makes a durable heap in a new file, or opens an existing one. `options` (NULL: none) are
 * key:value pairs, separated by commas:
 *
 *     ram:SIZE|PERCENT  its part of the RAM budget of the process (50%)
 *     size:SIZE         address space for it, which cannot grow later (256G); at creation only
 *     store_size:SIZE   the most that the file may take (as size); at creation only
 *     address:HEX       where it lives (somewhere); at creation only
 *     checkpoint:TIME   a checkpoint after each such time (500ms, 10s, 5min) if anything changed;
 *                       see dh_checkpoint_wait for failures (none)
 *     encrypt:FILE      the heap is encrypted, under the key in this file: 32 random bytes, or 64
 *                       hexadecimal digits; only with it is the heap opened again (none)
 *     compress, segment, page_buffer   as in DEEPHEAP_CONF
 *     readonly          (DH_READONLY) opens the last checkpoint to read it, see below
 *     snapshot:NAME     with readonly: opens this snapshot instead
 *
 * With readonly the file is never written, and the writer's lock not taken: the heap can be read
 * beside the process that changes it, by any number of processes, and on a file system that cannot
 * be written. What was opened stays as it was, whatever the writer does, until it is closed. To
 * write to its memory is a SIGSEGV. Allocations fail with EROFS, dh_set_root, dh_checkpoint and
 * dh_snapshot with DH_EFILE; what is freed stays.
 *
 * Returns NULL and sets errno if that fails; dh_last_error says what is wrong, and what to do.
 */
dh_heap *dh_open(const char *path, const char *options);

/* For dh_open: dh_open(path, DH_READONLY), dh_open(path, DH_READONLY ",ram:1G"). */
#define DH_READONLY "readonly"

/* As dh_malloc, dh_aligned_alloc and dh_oalloc, from a durable heap. NULL and ENOMEM when neither
 * the RAM budget nor the file can take it; NULL and EROFS of a heap that was opened for reading. */
void *dh_heap_malloc(dh_heap *heap, size_t size) DH_MUST_USE;
void *dh_heap_aligned_alloc(dh_heap *heap, size_t align, size_t size) DH_MUST_USE;
void *dh_heap_oalloc(dh_heap *heap, size_t count, size_t object_size) DH_MUST_USE;

/*
 * Gives `address`, in the heap, a name of 1 to 56 bytes, by which the next process finds it; NULL
 * takes the name away. It becomes durable with the next checkpoint. Returns 0, DH_EINVAL,
 * DH_EMEMORY when there are too many names (16384), or DH_EFILE if it was opened for reading.
 */
int dh_set_root(dh_heap *heap, const char *name, const void *address);

/* The address that has this name; NULL if none has. */
void *dh_root(dh_heap *heap, const char *name);

/*
 * Makes what the heap holds durable, while other threads go on. One that writes to memory of it
 * that is in RAM is held up for `pause_ns` at most. One that allocates, frees, or touches what is
 * not in RAM may wait until all that was changed is in the file. Returns 0; or DH_EFILE, and the
 * last checkpoint is what it was; dh_last_error says why.
 */
int dh_checkpoint(dh_heap *heap);

/* The same; tells what it took. */
struct dh_checkpoint {
    uint64_t number;      /* checkpoints are counted from 1, the making of the heap */
    uint64_t pause_ns;    /* how long a write to memory in RAM was held up, at most */
    uint64_t time_ns;     /* how long all of it took */
    uint64_t objects;     /* objects that were written for it */
    uint64_t table_bytes; /* bytes of tables that were written for it */
};
int dh_checkpoint_info(dh_heap *heap, struct dh_checkpoint *info);

/*
 * The same without waiting: a thread of the heap makes the checkpoint. It holds what the heap holds
 * now, and perhaps some of what comes later; requests that come before it begins become one.
 * `ticket`, unless NULL, gets what to wait for. dh_close makes durable what was asked for. While
 * system calls use memory of the heap it is tried three times, for a second each. Returns 0, or
 * DH_EINVAL.
 */
int dh_checkpoint_async(dh_heap *heap, uint64_t *ticket);

/*
 * Waits until what the heap held at that request is durable. `info`, unless NULL, tells of the
 * newest checkpoint by then. Returns 0; DH_EFILE if it could not be made, and no later one has been
 * since: dh_last_error says why; or DH_EINVAL: there is no such ticket.
 *
 * Ticket 0 does not wait: it tells of the newest checkpoint, whoever made it, or DH_EFILE if the
 * heap's thread has failed to make one since. The first such failure is written to stderr, too.
 */
int dh_checkpoint_wait(dh_heap *heap, uint64_t ticket, struct dh_checkpoint *info);

/*
 * Makes a checkpoint and keeps it under a name: a snapshot. It can be opened by
 * dh_open(path, "readonly,snapshot:NAME"), and `deepheap rollback` makes the heap what it was then.
 * The name has 1 to 64 bytes, without commas and blanks; a heap has up to 64 snapshots. A snapshot
 * keeps the space of what it holds, and a copy of the heap's tables; what the heap holds must have
 * room twice beside that, or none is taken. Returns 0; DH_EINVAL for a name that is impossible or
 * taken; or DH_EFILE. There is no such snapshot then; dh_last_error says why.
 */
int dh_snapshot(dh_heap *heap, const char *name);

/*
 * Keeps a snapshot no longer; its readers can go on. Returns 0; DH_EINVAL if there is none of
 * this name; or DH_EFILE.
 */
int dh_remove_snapshot(dh_heap *heap, const char *name);

/*
 * Makes a checkpoint and closes the heap; its memory is not there any more, and `heap` means
 * nothing. No thread may use them meanwhile, or wait for a checkpoint. If the checkpoint fails
 * (DH_EFILE) the heap stays open. Of a heap that was opened for reading none is made.
 */
int dh_close(dh_heap *heap);

#ifdef __cplusplus
}
#endif

#undef DH_MUST_USE

#endif /* DEEPHEAP_DURABLE_H */
