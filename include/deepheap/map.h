/*
 * deepheap/map.h - maps: files larger than RAM, shared by processes. deepheap.h includes it.
 */
#ifndef DEEPHEAP_MAP_H
#define DEEPHEAP_MAP_H

#include "memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Maps: files larger than RAM, used through pointers, as with mmap(2), but within a RAM budget. All
 * processes of a user that map a file share one copy of its pages and one budget. All of them see a
 * store at once. A process that is killed at any point harms none of the others.
 *
 *     double *samples = dh_map("samples.bin", 0, PROT_READ | PROT_WRITE, 0);
 *     if (!samples) { fprintf(stderr, "%s\n", dh_last_error()); exit(1); }
 *     samples[12345678] += 1;
 *     dh_sync(samples, 0);
 *     dh_unmap(samples);
 *
 * The file is as the program made it: deepheap adds nothing. A regular file or a block device will
 * do, not one in RAM (tmpfs). Stores are in the file after dh_sync, after dh_unmap or exit(3) of
 * the last process, or sooner; only a sync makes them durable. If the last process that has the map
 * is killed, stores that were not written yet are lost. Use read(2) and write(2) on the file only
 * while nobody has it mapped.
 *
 * A forked child has the maps of its parent, and shares them. Beyond the end of the file, and where
 * somebody has made the file shorter, an access gets SIGBUS. Memory of a map takes part in dh_read,
 * dh_write, dh_gather, dh_scatter and dh_prefetch: any address in it, up to the end of the file.
 * System calls find it as they find memory of dh_malloc: under `deepheap run` everywhere, otherwise
 * where it is in RAM; dh_pin pins the page of an address; all pins take a quarter of a map's RAM at
 * most.
 */

/* Flags of dh_map. */
enum dh_map_flags {
    DH_MAP_SHARED = 1, /* stores are seen by all and go to the file; the default */
    DH_MAP_LOG = 2,    /* a file with a log: dh_sync is atomic */
    DH_MAP_PRIVATE = 4 /* stores are this process's alone (copy on write), in the heap's RAM */
};

/*
 * Maps `length` bytes from the beginning of a file, or all of it if `length` is 0. `prot` is
 * PROT_READ, or PROT_READ | PROT_WRITE; `flags` 0, DH_MAP_SHARED, DH_MAP_LOG or DH_MAP_PRIVATE. The
 * first process that maps the file decides how much RAM all of them get: DEEPHEAP_MAP_RAM (a size,
 * or a percentage of the machine), else `ram` of DEEPHEAP_CONF, else a quarter of the machine or
 * memory cgroup; 2 MiB at least.
 *
 * With DH_MAP_LOG the file is one that deepheap has made. If there is none, and `prot` has
 * PROT_WRITE, dh_map makes it: `length` bytes of zeros, a length that it keeps. Its processes
 * change the data by commits. After a crash of processes or machine, all stores that a dh_sync
 * covers are in the file, or none; stores that no dh_sync has covered are not. The end of the last
 * process that has the map commits as well, unless it is killed. Small changes cost their own size,
 * not a page each. The changes since the last dh_sync must fit into RAM and log: 8 times the RAM
 * does.
 *
 * A private map is memory of the heap (dh_malloc), and in its budget: a page is read from the file
 * when it is touched first, and never written there. The map keeps the length that the file had. It
 * takes part in dh_unmap and in all calls on memory of the heap; dh_sync and dh_map_advise do
 * nothing, and dh_remap and dh_map_stats find no map. Give the heap a store (dh_init) for more than
 * fits its RAM.
 *
 * Returns NULL and sets errno if that fails; dh_last_error says what is wrong, and what to do.
 */
void *dh_map(const char *path, size_t length, int prot, uint32_t flags);

/*
 * Ends a map, by the address that dh_map returned. No thread may use its memory meanwhile. Returns
 * 0; DH_EOBJECT; or DH_EFILE if the changes cannot be written: then the map stays.
 */
int dh_unmap(void *map);

/*
 * Makes the file of a map `length` bytes long, or takes the length that it has (0), and maps all of
 * it, at its old address if there is room there. No thread of this process may use its memory
 * meanwhile, nor later by the old address if it has moved. Other processes see the new length at
 * once, as far as they have mapped it: an access beyond it gets SIGBUS. A longer file gains zeros.
 * Returns NULL and sets errno if that fails; then the map is as it was.
 */
void *dh_remap(void *map, size_t length);

/*
 * Makes the stores of all processes until now durable, in the pages of these bytes. A length of 0
 * means to the end of the map. Returns 0; DH_EOBJECT; or DH_EFILE. After an error of the device
 * itself every later call fails, too: nobody knows what is durable.
 *
 * With DH_MAP_LOG it is one commit, of these pages only. A store that another thread or process
 * makes meanwhile may be in it or not, each by itself. If several stores belong together, hold a
 * lock of your own over them and over dh_sync.
 */
int dh_sync(const void *address, size_t length);

/*
 * Tells how a part of a map will be used. A length of 0 means to its end. It is a hint: no byte
 * changes. DH_MAP_RANDOM and DH_MAP_SEQUENTIAL apply to the whole map, in this process. Returns 0,
 * DH_EOBJECT or DH_EINVAL.
 */
enum dh_map_advice {
    DH_MAP_WILLNEED = 0,  /* soon: read it ahead */
    DH_MAP_DONTNEED = 1,  /* not soon: it leaves RAM, written if it was changed */
    DH_MAP_RANDOM = 2,    /* in no order: read page by page */
    DH_MAP_SEQUENTIAL = 3 /* in order: read much at a time */
};
int dh_map_advise(const void *address, size_t length, int advice);

/* Counts of a map, in all of its processes since the first. Later versions add fields. */
struct dh_map_stats {
    uint64_t file_bytes;
    uint64_t budget_bytes;     /* RAM that it may take */
    uint64_t resident_bytes;   /* pages in RAM */
    uint64_t processes;        /* processes that have the map now */
    uint64_t faults;           /* touches of pages that were not in RAM */
    uint64_t pages_read;       /* pages of 4096 bytes, here and below */
    uint64_t evicted_clean;    /* pages that left RAM unchanged */
    uint64_t evicted_changed;  /* pages that were written when they left RAM */
    uint64_t pages_written;    /* by evictions and by dh_sync */
    uint64_t direct_evictions; /* times a thread that faulted had to evict */
    uint64_t write_errors;     /* writes that the device refused */
    uint64_t repairs;          /* tables taken over from processes that died */
};
int dh_map_stats(const void *address, struct dh_map_stats *out);

#ifdef __cplusplus
}
#endif

#endif /* DEEPHEAP_MAP_H */
