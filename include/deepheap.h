/*
 * deepheap.h - a heap deeper than your RAM.
 *
 * Memory from dh_malloc is used through ordinary pointers. It stays within a RAM budget: what has
 * not been touched for a while moves to an SSD and comes back, by itself, when it is touched.
 *
 *     #include <deepheap.h>
 *
 *     int error = dh_init("ram:2G,store:/nvme/heap");
 *     if (error) fprintf(stderr, "%s\n", dh_strerror(error));
 *     char *big = dh_malloc(16ull << 30);
 *
 * Build with  cc program.c $(pkg-config --cflags --libs deepheap).
 *
 * Threads: every function may be called from any thread at any time, none from a signal handler.
 * Never pass memory of dh_malloc to free(3), nor memory of malloc(3) to dh_free.
 *
 * System calls: the kernel cannot fetch memory that is on the SSD; read(2) into such a buffer
 * fails with EFAULT. Programs started with `deepheap run` have this taken care of. Others copy
 * through memory of their own, see docs/troubleshooting.md.
 */
#ifndef DEEPHEAP_H
#define DEEPHEAP_H

#include <stddef.h>
#include <stdint.h>

#define DH_VERSION_MAJOR 0
#define DH_VERSION_MINOR 1
#define DH_VERSION_PATCH 0

#if defined(__GNUC__)
#define DH_ALLOCATES(...) __attribute__((malloc, alloc_size(__VA_ARGS__), warn_unused_result))
#define DH_MUST_USE __attribute__((warn_unused_result))
#else
#define DH_ALLOCATES(...)
#define DH_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Errors. dh_init and dh_stats return 0 or one of these; dh_strerror puts them into words.
 */
enum dh_error {
    DH_OK = 0,
    DH_ECONF = -1,    /* the configuration is not understood, or impossible */
    DH_ESTARTED = -2, /* deepheap has started already; its configuration stands */
    DH_ESTORE = -3,   /* the store cannot be used: missing, full, read-only, in use, in memory */
    DH_EKERNEL = -4,  /* the kernel lacks or forbids something; `deepheap doctor` tells the fix */
    DH_EMEMORY = -5,  /* not enough memory or address space to start */
    DH_EINVAL = -6    /* an argument of the call is wrong */
};

/*
 * Starts deepheap. `conf` has the syntax of DEEPHEAP_CONF, "key:value,key:value"; see deepheap(1)
 * for the keys. NULL takes the configuration from the environment.
 *
 * Calling it is optional: the first allocation starts deepheap with the environment and the
 * defaults. It comes before the first allocation, once; later it returns DH_ESTARTED.
 *
 * Returns 0, or a negative DH_E...; nothing has been started then.
 */
int dh_init(const char *conf);

/*
 * A text for an error of this library; never NULL, and valid for as long as the process lives.
 * After a dh_init that failed with this error it tells the particulars of the last such failure.
 */
const char *dh_strerror(int error);

/*
 * The family of malloc(3), with its contracts. Pointers are aligned to at least 16 bytes.
 *
 * dh_malloc, dh_calloc, dh_realloc and dh_aligned_alloc return NULL and set errno to ENOMEM when
 * neither the RAM budget nor the store can take the memory; nothing else happens then, and what
 * is allocated stays intact. dh_aligned_alloc wants a power of two and any size, up to 32 MiB of
 * alignment; otherwise it returns NULL and sets errno to EINVAL.
 *
 * dh_free never reads from the SSD, and leaves errno alone. dh_free(NULL) does nothing.
 */
void dh_free(void *ptr);
void *dh_malloc(size_t size) DH_ALLOCATES(1);
void *dh_calloc(size_t count, size_t size) DH_ALLOCATES(1, 2);
void *dh_realloc(void *ptr, size_t size) DH_MUST_USE;
void *dh_aligned_alloc(size_t alignment, size_t size) DH_ALLOCATES(2);

/*
 * Bytes that may be used at `ptr`, at least the size asked for; 0 for NULL and for memory that
 * is not deepheap's.
 */
size_t dh_usable_size(const void *ptr);

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
 * One snapshot of everything deepheap counts. Counters run since the start of the process (or
 * its fork); sizes are bytes. Later versions only add fields at the end.
 */
struct dh_stats {
    uint32_t version; /* DH_STATS_VERSION of the library that filled it */
    uint32_t size;    /* bytes of the struct as that library knows it */
    uint32_t pid;
    uint32_t managing; /* 1 once memory is under management, 0 while all of it fits in RAM */
    uint64_t uptime_ns;

    struct dh_latency fault_zero;   /* the page was all zero: nothing to fetch */
    struct dh_latency fault_cached; /* served from the object cache, in DRAM */
    struct dh_latency fault_stored; /* read from the store */
    struct dh_latency fault_waited; /* waited for another thread that was moving the page */

    uint64_t prefetched;               /* pages installed before they were asked for */
    uint64_t evicted_clean;            /* pages evicted unchanged */
    uint64_t evicted_dirty;            /* pages evicted with new content */
    uint64_t evicted_zero;             /* pages evicted that were all zero */
    uint64_t evicted_free;             /* pages evicted that no allocation used any more */
    uint64_t cache_reclaimed_clean;    /* left the cache, already in the store */
    uint64_t cache_reclaimed_dirty;    /* left the cache by being written to the log */
    uint64_t cache_second_chances;     /* stayed in the cache because they were touched again */
    uint64_t direct_reclaims;          /* times a faulting thread had to evict by itself */
    uint64_t stall_ns;                 /* waiting for eviction, device or a full write buffer */
    uint64_t device_reads;             /* requests */
    uint64_t device_read_bytes;
    uint64_t device_writes;            /* requests */
    uint64_t device_write_bytes;
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
    uint64_t store_used_bytes;     /* segments on the device, live or not */
    uint64_t store_capacity_bytes; /* what the store can hold */
};

#define DH_STATS_VERSION 1

/*
 * Fills `out`. `size` is sizeof(struct dh_stats) as the caller was compiled: a shorter struct is
 * filled as far as it goes, and what a longer one has beyond this library's is set to zero.
 *
 *     struct dh_stats stats;
 *     if (dh_stats(&stats, sizeof stats) == 0) ...
 *
 * Returns 0, or DH_EINVAL for a null `out` or a size too small for `version` and `size`.
 */
int dh_stats(struct dh_stats *out, size_t size);

/*
 * The same as one line of JSON, in the manner of snprintf(3): at most `length` bytes are written
 * to `buffer`, the terminating zero included, and the length of the whole text without it is
 * returned. A result of `length` or more means that the text was cut. `buffer` may be NULL if
 * `length` is 0.
 */
size_t dh_stats_json(char *buffer, size_t length);

#ifdef __cplusplus
}
#endif

#undef DH_ALLOCATES
#undef DH_MUST_USE

#endif /* DEEPHEAP_H */
