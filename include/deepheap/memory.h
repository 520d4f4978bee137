/*
 * deepheap/memory.h - allocation, objects, calls that move bytes without faults, statistics.
 * deepheap.h includes it, and says what holds for threads, signals and system calls.
 */
#ifndef DEEPHEAP_MEMORY_H
#define DEEPHEAP_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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
 * Why the last call of this thread on a durable heap or a map failed; "" if none did. The text
 * stays until the next one fails.
 */
const char *dh_last_error(void);

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
 * the page buffer: an object in RAM costs little more than the copy, and an object on the SSD is
 * read faster. Their buffers may be any memory: a system call on a buffer of malloc(3), filled by
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
    struct dh_latency fault_cached; /* compressed in RAM, in the cache */
    struct dh_latency fault_stored; /* read from the store */
    struct dh_latency fault_waited; /* waited for another thread that was moving the page */

    uint64_t prefetched;               /* pages read before they were touched */
    uint64_t evicted_clean;            /* pages evicted unchanged */
    uint64_t evicted_dirty;            /* pages evicted with new content */
    uint64_t evicted_zero;             /* pages evicted that were all zero */
    uint64_t evicted_free;             /* pages evicted that no allocation used any more */
    uint64_t compressed;               /* pages compressed after they were evicted */
    uint64_t compressed_bytes;         /* bytes that they became */
    uint64_t compress_given_up;        /* pages tried that did not become clearly smaller */
    uint64_t decompressed;             /* pages decompressed */
    uint64_t compress_ns;              /* time of threads spent on compression */
    uint64_t cache_reclaimed_clean;    /* left the cache, for the store had them */
    uint64_t cache_reclaimed_dirty;    /* left the cache by being written to the log */
    uint64_t cache_second_chances;     /* stayed in the cache because they were touched again */
    uint64_t direct_reclaims;          /* times a faulting thread had to evict by itself */
    uint64_t stall_ns;                 /* waits for eviction, device or a full write buffer */
    uint64_t device_reads;             /* requests */
    uint64_t device_read_bytes;
    uint64_t device_writes;            /* requests */
    uint64_t device_write_bytes;
    uint64_t writes_retried;           /* segments written again after the device refused them */
    uint64_t segments_relocated;       /* written elsewhere, since their place refused them */
    uint64_t blocks_from_memory;       /* read from RAM: not written yet, or just read */
    uint64_t blocks_reread;            /* right only when they were read again */
    uint64_t blocks_refused;           /* times that a block could not be read */
    uint64_t blocks_appended_fresh;    /* 4 KiB blocks written because they left RAM */
    uint64_t blocks_appended_survivor; /* 4 KiB blocks written because collection moved them */
    uint64_t segments_collected;
    uint64_t efault_retries;           /* system calls repeated because of evicted buffers */
    uint64_t pins;                     /* ranges pinned */

    uint64_t budget_bytes;         /* the RAM budget; the next seven count against it */
    uint64_t page_buffer_bytes;    /* in RAM: pages that the program can touch right now */
    uint64_t cache_bytes;          /* the cache: compressed in RAM */
    uint64_t page_table_bytes;     /* kernel page tables of the region */
    uint64_t object_table_bytes;   /* the object tables */
    uint64_t heap_metadata_bytes;  /* the heap's bitmaps and lists */
    uint64_t store_memory_bytes;   /* the store's tables and segment buffers */
    uint64_t other_bytes;          /* everything else deepheap uses */
    uint64_t committed_bytes;      /* pages handed to the heap */
    uint64_t allocated_bytes;      /* allocated and not freed */
    uint64_t stored_bytes;         /* live bytes on the device */
    uint64_t store_used_bytes;     /* taken on the device, live or not */
    uint64_t store_capacity_bytes; /* the size of the store */
    uint64_t mapped_bytes;         /* mapped by the program itself, memory of the heap */
    uint64_t unmanaged_bytes;      /* RAM of the program outside of deepheap, files apart */

    uint64_t strides_asked; /* since version 3: pages asked for ahead of equal steps */
    uint64_t strides_used;  /* those of them that were in RAM when the program came to them */

    uint64_t fault_stall_ns;      /* since version 4: waits in faults for want of RAM */
    uint64_t run_ns;              /* run time: it computed, or threads waited in faults */
    uint64_t stall_share_now_ppm; /* lately, of the thread that waited most: millionths of run_ns */
    uint64_t stall_share_ppm;     /* the same since the start */

    uint64_t discards;            /* since version 5: requests that gave free space back */
    uint64_t discarded_bytes;     /* bytes that they gave back */
    uint64_t not_discarded_bytes; /* free for a while, then written again without a request */

    uint64_t stall_bound_ppm;     /* since version 6: the bound of `stall`, in millionths */
    uint64_t budget_most_bytes;   /* the most that budget_bytes may become under a bound */
    uint64_t touched_mean_bytes;  /* under a bound, on average: touched and not given back, */
    uint64_t used_mean_bytes;     /* and counted against the budget */

    uint64_t sequences_brought; /* since version 7: pages read because they had followed before */
    uint64_t sequences_used;    /* those of them that the program came to */
    uint64_t sequences_dropped; /* those of them that left RAM before */

    uint64_t tier_read_bytes;     /* read from the second tier */
    uint64_t tier_write_bytes;    /* written to it */
    uint64_t tier_stored_bytes;   /* live bytes in it */
    uint64_t tier_capacity_bytes; /* its size; 0: there is none */

    uint64_t pool_members;    /* since version 8: processes of its pool; 0: there is none */
    uint64_t pool_bytes;      /* RAM that they share; budget_bytes of it for this process */
    uint64_t pool_free_bytes; /* the part of it that none of them has */

    uint64_t wait_room_ns;       /* since version 9: the longest fault of the last minute that */
    uint64_t wait_take_over_ns;  /* waited for room in RAM; until memory was managed; */
    uint64_t wait_owner_ns;      /* for another thread that was moving the page; */
    uint64_t wait_fork_ns;       /* for a fork; */
    uint64_t wait_checkpoint_ns; /* for the cut of a checkpoint; */
    uint64_t wait_device_ns;     /* for a read of the device; */
    uint64_t wait_log_ns;        /* for room in the log; */
    uint64_t wait_table_ns;      /* for the object table; */
    uint64_t wait_other_ns;      /* for a processor, or the kernel; 0: none took a millisecond */

    uint64_t touched_peak_bytes;   /* since version 10: the most touched and not given back */
    uint64_t committed_peak_bytes; /* the most pages handed to the heap */
    uint64_t stored_peak_bytes;    /* the most live bytes on the device */
    uint64_t better_budget_bytes;  /* with so much RAM it would wait clearly less; 0: not known */
    uint64_t better_share_ppm;     /* this share of run_ns, in millionths */
    uint64_t dense;                /* since version 11: pages compressed once more, to stay */
    uint64_t dense_bytes;          /* bytes that they became */
};

#define DH_STATS_VERSION 11

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

#ifdef __cplusplus
}
#endif

#undef DH_ALLOCATES
#undef DH_ALLOCATES_ARRAY
#undef DH_MUST_USE

#endif /* DEEPHEAP_MEMORY_H */
