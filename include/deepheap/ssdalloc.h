/*
 * deepheap/ssdalloc.h - the names of SSDAlloc (Badam and Pai, NSDI 2011, section 4) over deepheap.
 *
 *     #include <deepheap/ssdalloc.h>
 *
 * For programs that were written after the paper. The differences:
 *   - counts and sizes are size_t where the paper has int; a negative one is an impossible size,
 *     and the call returns NULL and sets ENOMEM;
 *   - the elements of an array lie dh_ostride(size) bytes apart: whole pages, as in the paper, but
 *     elements of less than 128 bytes lie close together;
 *   - restore(file) comes first: it opens the durable heap in that file, or makes one, and from
 *     then on these functions allocate in it. checkpoint(file) makes its content durable, memory
 *     pages as well as objects. Without restore the memory is gone with the process;
 *   - a root leads to the data of an earlier process: dh_root(ssd_heap(), name), dh_set_root;
 *   - they return 0 or a DH_E..., and dh_last_error says why.
 *
 * Define DEEPHEAP_SSD_OPTIONS to give the heap options of dh_open ("ram:1G,checkpoint:10s"). A
 * program that has functions of these names itself defines DEEPHEAP_SSD_NO_CHECKPOINT and calls
 * ssd_checkpoint and ssd_restore.
 *
 * deepheap.h says everything else, under the function that is called.
 */
#ifndef DEEPHEAP_SSDALLOC_H
#define DEEPHEAP_SSDALLOC_H

#include "../deepheap.h"

#include <errno.h>
#include <string.h>

#ifndef DEEPHEAP_SSD_OPTIONS
#define DEEPHEAP_SSD_OPTIONS NULL
#endif

/* The heap that these functions allocate in, one for all files of the program; NULL: the heap of
 * dh_malloc. Use ssd_heap() to read it. */
__attribute__((weak)) dh_heap *deepheap_ssd_heap;
/* The file of that heap, as restore was told. */
__attribute__((weak)) char deepheap_ssd_file[4096];

/* The durable heap that restore opened; NULL if none is open. */
static inline dh_heap *ssd_heap(void) {
    return deepheap_ssd_heap;
}

/* Opens the durable heap of a file, or makes it. One at a time: DH_EINVAL if one is open. */
static inline int ssd_restore(const char *file) {
    if (deepheap_ssd_heap != NULL || file == NULL || strlen(file) >= sizeof deepheap_ssd_file) {
        return DH_EINVAL;
    }
    deepheap_ssd_heap = dh_open(file, DEEPHEAP_SSD_OPTIONS);
    if (deepheap_ssd_heap == NULL) {
        return DH_EFILE;
    }
    strcpy(deepheap_ssd_file, file);
    return DH_OK;
}

/* Makes the content of the heap durable that restore opened. DH_EINVAL for another file. */
static inline int ssd_checkpoint(const char *file) {
    if (deepheap_ssd_heap == NULL || file == NULL || strcmp(file, deepheap_ssd_file) != 0) {
        return DH_EINVAL;
    }
    return dh_checkpoint(deepheap_ssd_heap);
}

#ifndef DEEPHEAP_SSD_NO_CHECKPOINT
/* The names of the paper. */
static inline int checkpoint(const char *file) {
    return ssd_checkpoint(file);
}

static inline int restore(const char *file) {
    return ssd_restore(file);
}
#endif

/* Objects: a single one from a pool, several as an array. */
static inline void *ssd_oalloc(size_t objects, size_t object_size) {
    dh_heap *heap = deepheap_ssd_heap;
    return heap ? dh_heap_oalloc(heap, objects, object_size) : dh_oalloc(objects, object_size);
}

/* Memory pages: a heap like that of malloc, kept and written as pages. */
static inline void *ssd_malloc(size_t size) {
    dh_heap *heap = deepheap_ssd_heap;
    return heap ? dh_heap_malloc(heap, size) : dh_malloc(size);
}

static inline void *ssd_calloc(size_t count, size_t size) {
    void *ptr;
    if (deepheap_ssd_heap == NULL) {
        return dh_calloc(count, size);
    }
    if (size != 0 && count > (size_t)-1 / size) {
        errno = ENOMEM;
        return NULL;
    }
    ptr = ssd_malloc(count * size);
    if (ptr != NULL) {
        memset(ptr, 0, count * size);
    }
    return ptr;
}

/* Memory stays in the heap that it came from. */
static inline void *ssd_realloc(void *ptr, size_t size) {
    return ptr == NULL ? ssd_malloc(size) : dh_realloc(ptr, size);
}

/* Frees memory of any of these functions. */
static inline void ssd_free(void *ptr) {
    dh_free(ptr);
}

#endif /* DEEPHEAP_SSDALLOC_H */
