/*
 * deepheap.h - a heap deeper than your RAM.
 *
 * Memory from dh_malloc is used through ordinary pointers. It stays within a RAM budget: memory
 * that has not been touched for a while moves to an SSD, and comes back by itself when it is
 * touched.
 *
 *     #include <deepheap.h>
 *
 *     int error = dh_init("ram:2G,store:/nvme/heap");
 *     if (error) fprintf(stderr, "%s\n", dh_strerror(error));
 *     char *big = dh_malloc(16ull << 30);
 *
 * Build with  cc program.c $(pkg-config --cflags --libs deepheap).
 *
 * Threads: any thread may call every function at any time. A signal handler may call none. Never
 * pass memory of dh_malloc to free(3), nor memory of malloc(3) to dh_free.
 *
 * System calls: the kernel cannot fetch memory that is on the SSD; read(2) into such a buffer fails
 * with EFAULT. For programs that are linked with the shared library and started with `deepheap
 * run`, deepheap takes care of this. Others copy through memory of their own (dh_read), or pin the
 * buffers that they pass (dh_pin).
 *
 * Signals: a touch of memory that is on the SSD is a SIGBUS, which deepheap handles. While a thread
 * blocks SIGBUS such a touch kills the process. The first call of this library opens it for the
 * calling thread, so threads that inherit a full mask work. It stays open unless the program blocks
 * it again: take SIGBUS out (sigdelset) of masks that are set later, of those of handlers, and of
 * those of threads that touch the memory without a call. `deepheap run` takes care of this, too.
 */
#ifndef DEEPHEAP_H
#define DEEPHEAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DH_VERSION_MAJOR 0
#define DH_VERSION_MINOR 1
#define DH_VERSION_PATCH 0

#if defined(__GNUC__)
#define DH_ALLOCATES(...) __attribute__((malloc, alloc_size(__VA_ARGS__), warn_unused_result))
#define DH_ALLOCATES_ARRAY __attribute__((malloc, warn_unused_result))
#define DH_MUST_USE __attribute__((warn_unused_result))
#else
#define DH_ALLOCATES(...)
#define DH_ALLOCATES_ARRAY
#define DH_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Errors. The functions that return int or ssize_t return 0, or a count, or one of these;
 * dh_strerror puts them into words. They do not use errno.
 */
enum dh_error {
    DH_OK = 0,
    DH_ECONF = -1,    /* the configuration is not understood, or impossible */
    DH_ESTARTED = -2, /* deepheap has started already; its configuration stands */
    DH_ESTORE = -3,   /* the store cannot be used: missing, full, read-only, in use, in memory */
    DH_EKERNEL = -4,  /* the kernel lacks or forbids something; `deepheap doctor` tells the fix */
    DH_EMEMORY = -5,  /* not enough memory, address space or descriptors */
    DH_EINVAL = -6,   /* an argument of the call is wrong: a null buffer, an impossible size */
    DH_EOBJECT = -7,  /* the pointer is no live object: freed, foreign or null */
    DH_EBOUNDS = -8,  /* offset and length reach beyond the object */
    DH_EREAD = -9,    /* the device failed, or returned other bytes than were written */
    DH_ENOROOM = -10, /* RAM is full and the store takes no more: it is full, it failed, or a
                         forked child keeps its space until the child ends */
    DH_EFILE = -11, /* the file of a durable heap or a map cannot be used; dh_last_error says why */
};

/*
 * Starts deepheap. `conf` has the syntax of DEEPHEAP_CONF, "key:value,key:value"; see
 * deepheap.h(3) for the keys. NULL takes the configuration from the environment.
 *
 * Calling it is optional: the first allocation starts deepheap with the environment and the
 * defaults. Call it once, before the first allocation; later it returns DH_ESTARTED.
 *
 * Returns 0, or a negative DH_E...; then nothing has been started.
 */
int dh_init(const char *conf);

/*
 * A text for an error of this library; never NULL, and valid for as long as the process lives.
 * After a dh_init that failed with this error it gives the details of the last such failure.
 */
const char *dh_strerror(int error);

/*
 * The family of malloc(3), with its contracts. Pointers are aligned to at least 16 bytes.
 *
 * dh_malloc, dh_calloc, dh_realloc and dh_aligned_alloc return NULL and set errno to ENOMEM when
 * neither the RAM budget nor the store can take the memory; then nothing else happens, and existing
 * allocations stay intact. dh_aligned_alloc takes any size, and as alignment a power of two up to
 * 32 MiB; for another alignment it returns NULL and sets errno to EINVAL.
 *
 * dh_free never reads from the SSD, and leaves errno alone. dh_free(NULL) does nothing. To free a
 * pointer that was freed already, or never came from this library, is an error of the program and
 * may damage other memory. If dh_free or dh_realloc notices it, it stops the process with abort(3),
 * and one line on stderr gives the call and the address. They notice foreign pointers once
 * something has been allocated, and objects and blocks above 16 KiB unless their address has been
 * allocated again. For smaller memory they notice a second free if the thread has freed none of
 * that size since.
 *
 * dh_free and dh_realloc take objects of dh_oalloc, too, and whole arrays by their first element.
 * dh_realloc keeps the bytes, and an object stays an object. For an array of dh_oalloc the new size
 * is the number of bytes from the first element to the end of the last, with strides as given by
 * dh_ostride. Making an allocation smaller never fails.
 */
void dh_free(void *ptr);
void *dh_malloc(size_t size) DH_ALLOCATES(1);
void *dh_calloc(size_t count, size_t size) DH_ALLOCATES(1, 2);
void *dh_realloc(void *ptr, size_t size) DH_MUST_USE;
void *dh_aligned_alloc(size_t alignment, size_t size) DH_ALLOCATES(2);

/*
 * Bytes that may be used at `ptr`, at least the size asked for; 0 for NULL and for memory that does
 * not belong to deepheap.
 */
size_t dh_usable_size(const void *ptr);

/*
 * Objects: memory that is kept in RAM and written to the SSD at its own size, not as pages. Use
 * them for many small things that are accessed without order: entries of a cache, nodes of a tree
 * or a graph. For data that is accessed in the order of addresses dh_malloc is better.
 *
 * dh_oalloc(1, object_size) allocates one object. Its address never changes, and is used like any
 * other pointer. Each object has addresses of its own up to the next multiple of 4096 bytes; those
 * beyond its size are not memory. Objects of less than 128 bytes share pages: so few share one page
 * that an object moves together with about 128 bytes. Sizes are rounded up to a multiple of 8
 * first: here and below, an object of 121 to 127 bytes counts as 128.
 *
 * dh_oalloc(count, object_size) allocates an array of `count` objects. They lie dh_ostride bytes
 * apart, not object_size. From 128 bytes on each has whole pages; smaller ones lie close together,
 * and are kept as pages. dh_free frees the whole array, and cannot free one element.
 *
 * An object is aligned for every type of this size: from 128 bytes on to 4096 bytes; below, to the
 * largest power of two that divides object_size rounded up to 8. Its bytes are not initialised.
 *
 * Returns NULL and sets errno to ENOMEM when neither RAM nor the store can take it, or when the
 * array is larger than the address space. With count or object_size 0 it returns an address that
 * may only be freed.
 */
void *dh_oalloc(size_t count, size_t object_size) DH_ALLOCATES_ARRAY;

/*
 * Bytes from one element of an array of such objects to the next:
 *
 *     char *sets = dh_oalloc(count, sizeof(struct set));
 *     struct set *set = (struct set *)(sets + i * dh_ostride(sizeof(struct set)));
 *
 * It depends only on the size. 0 if no object can be that large.
 */
size_t dh_ostride(size_t object_size);

/*
 * Access without page faults. These functions copy what a plain pointer would have found. They may
 * be mixed with plain pointers in any thread, with the same care as memcpy(3). They need no page of
 * the page buffer: an object in RAM costs little more than the copy, and one that is not is read
 * faster. Their buffers may be any memory: a system call on a buffer of malloc(3), filled by
 * dh_read, cannot fail with EFAULT.
 *
 * `object` is what an allocating function above returned, or the address of an element of an array
 * of dh_oalloc. Memory of dh_malloc will do, too.
 *
 * Errors, beside DH_EREAD and DH_ENOROOM:
 *   - NULL, a foreign pointer, or a freed object that has not been allocated again: DH_EOBJECT. If
 *     another thread frees an object during the call, that may go unnoticed: then a read gives any
 *     bytes, and a write may change another object. The same holds for memory of dh_malloc that was
 *     freed before.
 *   - offset + length beyond dh_usable_size, or overflowing: DH_EBOUNDS, nothing is copied. An
 *     element of less than 128 bytes has no bounds of its own: the bytes must lie in allocated
 *     memory.
 *   - a null buffer with a length above 0: DH_EINVAL.
 *   - a length of 0: nothing is copied, `buffer` may be NULL; object and offset are checked.
 *
 * dh_read and dh_write return 0 or a negative DH_E... After DH_EREAD the buffer of dh_read may hold
 * anything.
 */
int dh_read(const void *object, size_t offset, void *buffer, size_t length);
int dh_write(void *object, size_t offset, const void *buffer, size_t length);

/*
 * The same for `count` objects at once, in order, `length` bytes at `offset` of each. dh_gather
 * packs them into `buffer`, which has count * length bytes; dh_scatter takes them from there. Reads
 * from the SSD run side by side, so that one thread reads as fast as many otherwise would. Memory
 * use is bounded whatever the count.
 *
 * They return how many objects are done: `count`, or fewer if one of them fails. Then the object at
 * that index has failed, and any of those behind it may have been copied. If the first one fails
 * they return its negative DH_E... A null `objects`, or count * length overflowing: DH_EINVAL. A
 * count of 0 returns 0. If dh_scatter gets an object twice, one of the two values remains.
 */
ssize_t dh_gather(void *const objects[], size_t count, size_t offset, size_t length,
                  void *buffer);
ssize_t dh_scatter(void *const objects[], size_t count, size_t offset, size_t length,
                   const void *buffer);

/*
 * Starts to bring objects into RAM, and does not wait. The number of reads under way is bounded, so
 * it may start fewer than asked for, and for a larger object or block of dh_malloc at most the
 * first 1024 pages. Returns how many were started; those in RAM already need no start. If one of
 * the pointers is not memory of the heap it returns DH_EOBJECT and starts none. Errors of the
 * device show when the object is used. It is a hint: an object that another thread frees meanwhile
 * does no harm.
 */
ssize_t dh_prefetch(void *const objects[], size_t count);

/*
 * dh_pin brings an object into RAM and keeps it there until dh_unpin has been called as often.
 * Meanwhile it can be touched without a fault and passed to system calls. Pinned objects count
 * against the RAM budget, as whole pages: pin few, and for a short time. Unpin an object before you
 * free it. dh_unpin without a dh_pin is an error of the program. Errors: DH_EOBJECT; DH_EMEMORY if
 * the pinned pages, counted at each dh_pin, would be more than half of the page buffer, or if
 * memory cannot be managed at all. dh_pin brings an object in as a plain pointer does: if the
 * device fails, or neither RAM nor the store has room, the thread gets SIGBUS, not an error.
 *
 * For an element of less than 128 bytes, dh_pin and dh_advise apply to the rest of its page. If it
 * lies across two pages, pin and unpin the address of its last byte, too.
 */
int dh_pin(const void *object);
int dh_unpin(const void *object);

/*
 * Tells deepheap how an object will be used. It is a hint: deepheap may ignore it, and no byte
 * changes. Returns 0, DH_EOBJECT, or DH_EINVAL for an unknown advice.
 */
enum dh_advice {
    DH_HOT = 0,        /* soon and often: keep it in RAM if there is a choice */
    DH_COLD = 1,       /* not soon: let it go first */
    DH_SEQUENTIAL = 2, /* in the order of addresses */
    DH_ONCE = 3        /* once: let it go after the next use */
};

int dh_advise(const void *object, int advice);

/*
 * Latencies of one kind of fault, in nanoseconds. Percentiles are at most 12.5 % too high.
 */
struct dh_latency {
    uint64_t count;    /* number of faults */
    uint64_t total_ns; /* time of all of them together */
    uint64_t p50_ns;
    uint64_t p90_ns;
    uint64_t p99_ns;
    uint64_t p999_ns;
    uint64_t max_ns;
};

/*
 * One snapshot of everything that deepheap counts. Counters begin at the start of the process (or
 * at its fork); sizes are in bytes. Later versions only add fields at the end.
 */
struct dh_stats {
    uint32_t version; /* DH_STATS_VERSION of the library that filled it */
    uint32_t size;    /* bytes of the struct as that library knows it */
    uint32_t pid;
    uint32_t managing; /* 1 once memory may move: RAM was outgrown, or objects or pins need it */
    uint64_t uptime_ns;

    struct dh_latency fault_zero;   /* the page was all zero: nothing to fetch */
    struct dh_latency fault_cached; /* served from the object cache, in DRAM */
    struct dh_latency fault_stored; /* read from the store */
    struct dh_latency fault_waited; /* waited for another thread that was moving the page */

    uint64_t prefetched;               /* pages read before they were touched */
    uint64_t evicted_clean;            /* pages evicted unchanged */
    uint64_t evicted_dirty;            /* pages evicted with new content */
    uint64_t evicted_zero;             /* pages evicted that were all zero */
    uint64_t evicted_free;             /* pages evicted that no allocation used any more */
    uint64_t compressed;               /* pages compressed when they left reach */
    uint64_t compressed_bytes;         /* bytes that they became */
    uint64_t compress_given_up;        /* pages tried that did not become clearly smaller */
    uint64_t decompressed;             /* pages decompressed */
    uint64_t compress_ns;              /* time of threads spent on all of that */
    uint64_t cache_reclaimed_clean;    /* left the cache, already in the store */
    uint64_t cache_reclaimed_dirty;    /* left the cache by being written to the log */
    uint64_t cache_second_chances;     /* stayed in the cache because they were touched again */
    uint64_t direct_reclaims;          /* times a faulting thread had to evict by itself */
    uint64_t stall_ns;                 /* waiting for eviction, device or a full write buffer */
    uint64_t device_reads;             /* requests */
    uint64_t device_read_bytes;
    uint64_t device_writes;            /* requests */
    uint64_t device_write_bytes;
    uint64_t writes_retried;           /* segments written again after the device refused them */
    uint64_t segments_relocated;       /* written elsewhere, since their place refused them */
    uint64_t blocks_from_memory;       /* wanted while in DRAM: not written, or just read */
    uint64_t blocks_reread;            /* right only when they were read again */
    uint64_t blocks_refused;           /* times that a block could not be read */
    uint64_t blocks_appended_fresh;    /* 4 KiB blocks written because they left DRAM */
    uint64_t blocks_appended_survivor; /* 4 KiB blocks written because collection moved them */
    uint64_t segments_collected;
    uint64_t efault_retries;           /* system calls repeated because of evicted buffers */
    uint64_t pins;                     /* ranges pinned */

    uint64_t budget_bytes;         /* the RAM budget; the next seven count against it */
    uint64_t page_buffer_bytes;    /* physical pages the program can touch right now */
    uint64_t cache_bytes;          /* the object cache */
    uint64_t page_table_bytes;     /* kernel page tables of the region */
    uint64_t object_table_bytes;   /* the object tables */
    uint64_t heap_metadata_bytes;  /* the heap's bitmaps and lists */
    uint64_t store_memory_bytes;   /* the store's tables and segment buffers */
    uint64_t other_bytes;          /* everything else deepheap uses */
    uint64_t committed_bytes;      /* pages handed to the heap */
    uint64_t allocated_bytes;      /* allocated and not freed */
    uint64_t stored_bytes;         /* live bytes on the device */
    uint64_t store_used_bytes;     /* taken on the device, live or not */
    uint64_t store_capacity_bytes; /* what the store can hold */
    uint64_t mapped_bytes;         /* mapped by the program itself, memory of the heap */
    uint64_t unmanaged_bytes;      /* RAM of the program outside of deepheap, files apart */

    uint64_t strides_asked; /* since version 3: pages asked for ahead of walks in equal steps */
    uint64_t strides_used;  /* of them those that were there when the walk came to them */

    uint64_t fault_stall_ns;      /* since version 4: threads stood in faults for want of RAM */
    uint64_t run_ns;              /* run time: it computed, or threads stood in faults */
    uint64_t stall_share_now_ppm; /* lately, of the thread that stood most: millionths of it */
    uint64_t stall_share_ppm;     /* the same of all of it */

    uint64_t discards;            /* since version 5: requests that told the device what is free */
    uint64_t discarded_bytes;     /* what they were about */
    uint64_t not_discarded_bytes; /* free for a while, then written again without one */

    uint64_t stall_bound_ppm;     /* since version 6: the most that it may be, by `stall` */
    uint64_t budget_most_bytes;   /* the most that budget_bytes may become under a bound */
    uint64_t touched_mean_bytes;  /* under a bound, on average: touched and not given back, */
    uint64_t used_mean_bytes;     /* and what counted against the budget */

    uint64_t sequences_brought; /* since version 7: pages read because they had followed before */
    uint64_t sequences_used;    /* of them those that the program came to */
    uint64_t sequences_dropped; /* and those that left RAM before */

    uint64_t tier_read_bytes;     /* read from the second tier */
    uint64_t tier_write_bytes;    /* written to it */
    uint64_t tier_stored_bytes;   /* live bytes in it */
    uint64_t tier_capacity_bytes; /* what it can hold; 0: there is none */

    uint64_t pool_members;    /* since version 8: processes of its pool; 0: there is none */
    uint64_t pool_bytes;      /* what they may use together, of it this process budget_bytes */
    uint64_t pool_free_bytes; /* of that none of them has */
};

#define DH_STATS_VERSION 8

/*
 * Fills `out`. `size` is sizeof(struct dh_stats) as the caller was compiled. A shorter struct is
 * filled as far as it goes; in a longer one the bytes that this library does not know are set to
 * zero.
 *
 *     struct dh_stats stats;
 *     if (dh_stats(&stats, sizeof stats) == 0) ...
 *
 * Returns 0, or DH_EINVAL for a null `out` or a size too small for `version` and `size`.
 */
int dh_stats(struct dh_stats *out, size_t size);

/*
 * The same as one line of JSON, in the manner of snprintf(3): writes at most `length` bytes to
 * `buffer`, the terminating zero included, and returns the length of the whole text without it. A
 * result of `length` or more means that the text was cut. `buffer` may be NULL if `length` is 0.
 */
size_t dh_stats_json(char *buffer, size_t length);

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

/*
 * Why the last call of this thread on a durable heap or a map failed; "" if none did. The text
 * stays until the next one fails.
 */
const char *dh_last_error(void);

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
 * Keeps a snapshot no longer; who has it open can go on. Returns 0; DH_EINVAL if there is none of
 * this name; or DH_EFILE.
 */
int dh_remove_snapshot(dh_heap *heap, const char *name);

/*
 * Makes a checkpoint and closes the heap; its memory is not there any more, and `heap` means
 * nothing. No thread may use them meanwhile, or wait for a checkpoint. If the checkpoint fails
 * (DH_EFILE) the heap stays open. Of a heap that was opened for reading none is made.
 */
int dh_close(dh_heap *heap);

/*
 * Maps: files larger than RAM, used through pointers, as with mmap(2), but within a RAM budget. All
 * processes of a user that map a file share one copy of its pages and one budget. What one of them
 * stores the others see at once. One that is killed at any point harms none of the others.
 *
 *     double *samples = dh_map("samples.bin", 0, PROT_READ | PROT_WRITE, 0);
 *     if (!samples) { fprintf(stderr, "%s\n", dh_last_error()); exit(1); }
 *     samples[12345678] += 1;
 *     dh_sync(samples, 0);
 *     dh_unmap(samples);
 *
 * The file has no format of ours: a page of it is where it is. A regular file or a block device
 * will do, not one in RAM (tmpfs). What was stored is in the file after dh_sync, after dh_unmap or
 * exit(3) of the last process, or sooner; a sync alone makes it durable. If the last process that
 * has the map is killed, what was not written yet is lost. Use read(2) and write(2) on the file
 * only while nobody has it mapped.
 *
 * A forked child has the maps of its parent, and shares them. Beyond the end of the file, and where
 * somebody has made the file shorter, an access gets SIGBUS. Memory of a map takes part in dh_read,
 * dh_write, dh_gather, dh_scatter and dh_prefetch: any address in it, up to the end of the file.
 * System calls find it as they find memory of dh_malloc: under `deepheap run` everywhere, otherwise
 * where it is in RAM; dh_pin pins the page of an address, of a map a quarter of its RAM at most.
 */

/* Flags of dh_map. */
enum dh_map_flags {
    DH_MAP_SHARED = 1, /* stores are seen by all and go to the file; the default */
    DH_MAP_LOG = 2,    /* a file of ours, with a log: dh_sync is atomic */
    DH_MAP_PRIVATE = 4 /* stores are this process's alone (copy on write), in the heap's RAM */
};

/*
 * Maps `length` bytes from the beginning of a file; 0: all that it has. `prot` is PROT_READ, or
 * PROT_READ | PROT_WRITE; `flags` 0, DH_MAP_SHARED, DH_MAP_LOG or DH_MAP_PRIVATE. The first process
 * that maps the file decides how much RAM all of them get: DEEPHEAP_MAP_RAM (a size, or a
 * percentage of the machine), else `ram` of DEEPHEAP_CONF, else a quarter of the machine or memory
 * cgroup; 2 MiB at least.
 *
 * With DH_MAP_LOG the file is one that deepheap has made. If there is none, and `prot` has
 * PROT_WRITE, it is made: `length` bytes of zeros, which is what it keeps. Its processes change the
 * data by commits: what dh_sync covers is in the file after a crash of processes or machine as a
 * whole, or not at all, and what no dh_sync has covered is not. The end of the last process that
 * has the map commits as well, unless it is killed. Small changes cost what they are, not a page
 * each. What was changed since the last dh_sync must fit into RAM and log: 8 times the RAM does.
 *
 * A private map is memory of the heap (dh_malloc), and in its budget: a page is read from the file
 * when it is touched first, and never written there. The file's length at that time is its own. It
 * takes part in dh_unmap and in all calls on memory of the heap; dh_sync and dh_map_advise do
 * nothing, and dh_remap and dh_map_stats find no map. Give the heap a store (dh_init) for more than
 * fits its RAM.
 *
 * Returns NULL and sets errno if that fails; dh_last_error says what is wrong, and what to do.
 */
void *dh_map(const char *path, size_t length, int prot, uint32_t flags);

/*
 * Ends a map, by the address that dh_map returned. No thread may use its memory meanwhile. Returns
 * 0; DH_EOBJECT; or DH_EFILE if what was changed cannot be written: then the map stays.
 */
int dh_unmap(void *map);

/*
 * Makes the file of a map `length` bytes long, or takes the length that it has (0), and maps all of
 * it: where it was, if there is room there. No thread of this process may use its memory meanwhile,
 * nor by the old address if it has moved. Other processes see the new length at once, as far as
 * they have mapped it: an access beyond it gets SIGBUS. What the file gains is zeros. Returns NULL
 * and sets errno if that fails; the map is as it was then.
 */
void *dh_remap(void *map, size_t length);

/*
 * Makes durable what all processes have stored in these bytes until now: the pages that they are
 * on; a length of 0: to the end of the map. Returns 0; DH_EOBJECT; or DH_EFILE. After an error of
 * the device itself every later call fails, too: nobody knows what is durable.
 *
 * With DH_MAP_LOG it is one commit, of these pages only. A store that another thread or process
 * makes meanwhile may be in it or not, each by itself: where several stores belong together, keep
 * others from storing by a lock of yours.
 */
int dh_sync(const void *address, size_t length);

/*
 * Tells how a part of a map will be used; a length of 0: to its end. It is a hint, no byte changes.
 * DH_MAP_RANDOM and DH_MAP_SEQUENTIAL are of the whole map, in this process. Returns 0, DH_EOBJECT
 * or DH_EINVAL.
 */
enum dh_map_advice {
    DH_MAP_WILLNEED = 0,  /* soon: read it ahead */
    DH_MAP_DONTNEED = 1,  /* not soon: it leaves RAM, written if it was changed */
    DH_MAP_RANDOM = 2,    /* in no order: read page by page */
    DH_MAP_SEQUENTIAL = 3 /* in order: read much at a time */
};
int dh_map_advise(const void *address, size_t length, int advice);

/* What a map has done, in all of its processes since the first. Later versions add fields. */
struct dh_map_stats {
    uint64_t file_bytes;
    uint64_t budget_bytes;     /* RAM that it may take */
    uint64_t resident_bytes;   /* pages in RAM */
    uint64_t processes;        /* that have it now */
    uint64_t faults;           /* touches of pages that were not in RAM */
    uint64_t pages_read;       /* pages of 4096 bytes, here and below */
    uint64_t evicted_clean;    /* left RAM as the file had them */
    uint64_t evicted_changed;  /* were written when they left RAM */
    uint64_t pages_written;    /* by that and by dh_sync */
    uint64_t direct_evictions; /* times a thread that faulted had to evict */
    uint64_t write_errors;     /* writes that the device refused */
    uint64_t repairs;          /* tables taken over from processes that died */
};
int dh_map_stats(const void *address, struct dh_map_stats *out);

#ifdef __cplusplus
}
#endif

#undef DH_ALLOCATES
#undef DH_ALLOCATES_ARRAY
#undef DH_MUST_USE

#endif /* DEEPHEAP_H */
