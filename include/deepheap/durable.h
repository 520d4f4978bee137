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
 * larger than RAM, and opens at once: a page is read when it is touched.
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
 * A checkpoint makes the content of the heap at one instant durable. Whatever happens to the
 * process or the machine later, the next dh_open finds the last checkpoint that has returned 0, or
 * one that was being made. Changes after it are lost.
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
 *     address:HEX       its address (anywhere); at creation only
 *     checkpoint:TIME   a checkpoint after each such time (500ms, 10s, 5min) if anything changed;
 *                       see dh_checkpoint_wait for failures (none)
 *     encrypt:FILE      the heap is encrypted, under the key in this file: 32 random bytes, or 64
 *                       hexadecimal digits; the heap opens only with it (none)
 *     compress, segment, page_buffer   as in DEEPHEAP_CONF
 *     readonly          (DH_READONLY) opens the last checkpoint to read it, see below
 *     snapshot:NAME     with readonly: opens this snapshot instead
 *
 * With readonly the file is never written, and the writer's lock not taken: the heap can be read
 * beside the process that changes it, by any number of processes, and on a file system that cannot
 * be written. The opened checkpoint stays as it was, whatever the writer does, until the heap is
 * closed. A write to its memory is a SIGSEGV. Allocations fail with EROFS, dh_set_root,
 * dh_checkpoint and dh_snapshot with DH_EFILE. A free has no effect.
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
 * removes the name. This becomes durable with the next checkpoint. Returns 0, DH_EINVAL, DH_EMEMORY
 * when there are too many names (16384), or DH_EFILE if it was opened for reading.
 */
int dh_set_root(dh_heap *heap, const char *name, const void *address);

/* The address that has this name; NULL if none has. */
void *dh_root(dh_heap *heap, const char *name);

/*
 * Makes the content of the heap durable, while other threads go on. A thread that writes to its
 * memory in RAM is held up for `pause_ns` at most. A thread that allocates, frees, or touches
 * memory that is not in RAM may wait until all changes are in the file. Returns 0; or DH_EFILE, and
 * the last checkpoint is what it was; dh_last_error says why.
 */
int dh_checkpoint(dh_heap *heap);

/* The same; fills `info`. */
struct dh_checkpoint {
    uint64_t number;      /* checkpoints are counted from 1, the making of the heap */
    uint64_t pause_ns;    /* how long a write to memory in RAM was held up, at most */
    uint64_t time_ns;     /* how long all of it took */
    uint64_t objects;     /* objects that were written for it */
    uint64_t table_bytes; /* bytes of tables that were written for it */
};
int dh_checkpoint_info(dh_heap *heap, struct dh_checkpoint *info);

/*
 * The same without waiting: a thread of the heap makes the checkpoint. It has the content of the
 * heap at this moment, and perhaps some later changes. Requests that come before it begins become
 * one. `ticket`, unless NULL, gets a number to wait for. dh_close makes the checkpoints that were
 * asked for. While system calls use memory of the heap, the thread tries three times, for a second
 * each. Returns 0, or DH_EINVAL.
 */
int dh_checkpoint_async(dh_heap *heap, uint64_t *ticket);

/*
 * Waits until the content of the heap at that request is durable. `info`, unless NULL, tells of the
 * newest checkpoint by then. Returns 0; DH_EFILE if it could not be made, and no later one has been
 * since: dh_last_error says why; or DH_EINVAL: there is no such ticket.
 *
 * Ticket 0 does not wait: it tells of the newest checkpoint, whoever made it, or DH_EFILE if the
 * heap's thread has failed to make one since. The first such failure is written to stderr, too.
 */
int dh_checkpoint_wait(dh_heap *heap, uint64_t ticket, struct dh_checkpoint *info);

/*
 * Makes a checkpoint and keeps it under a name: a snapshot. It can be opened by dh_open(path,
 * "readonly,snapshot:NAME"), and `deepheap rollback` makes the heap what it was then. The name has
 * 1 to 64 bytes, without commas and blanks; a heap has up to 64 snapshots. A snapshot keeps the
 * space of its content, and a copy of the heap's tables. Beside that the file must have room for
 * twice the content of the heap, or there is no snapshot. Returns 0; DH_EINVAL for a name that is
 * impossible or taken; or DH_EFILE, and dh_last_error says why. After an error there is no such
 * snapshot.
 */
int dh_snapshot(dh_heap *heap, const char *name);

/*
 * Removes a snapshot; its readers can go on. Returns 0; DH_EINVAL if there is none of this name; or
 * DH_EFILE.
 */
int dh_remove_snapshot(dh_heap *heap, const char *name);

/*
 * Makes a checkpoint and closes the heap. Its memory is gone then, and `heap` means nothing. No
 * thread may use them meanwhile, or wait for a checkpoint. If the checkpoint fails (DH_EFILE), the
 * heap stays open. A heap that was opened for reading closes without a checkpoint.
 */
int dh_close(dh_heap *heap);

#ifdef __cplusplus
}
#endif

#undef DH_MUST_USE

#endif /* DEEPHEAP_DURABLE_H */
