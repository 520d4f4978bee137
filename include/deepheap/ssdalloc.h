/*
 * deepheap/ssdalloc.h - the names of SSDAlloc (Badam and Pai, NSDI 2011, section 4) over deepheap.
 *
 *     #include <deepheap/ssdalloc.h>
 *
 * For programs that were written after the paper. What differs from it:
 *   - counts and sizes are size_t where the paper has int; a negative one is an impossible size,
 *     refused with NULL and ENOMEM;
 *   - the elements of an array lie dh_ostride(size) bytes apart, as in the paper whole pages,
 *     but those of less than 128 bytes close together;
 *   - checkpoint and restore are not there yet.
 *
 * Everything else is as deepheap.h says of the function that is called.
 */
#ifndef DEEPHEAP_SSDALLOC_H
#define DEEPHEAP_SSDALLOC_H

#include "../deepheap.h"

/* Objects: one from the pools, several as an array. */
static inline void *ssd_oalloc(size_t objects, size_t object_size) {
    return dh_oalloc(objects, object_size);
}

/* Memory pages: a heap as malloc's, kept and written by the page. */
static inline void *ssd_malloc(size_t size) {
    return dh_malloc(size);
}

static inline void *ssd_calloc(size_t count, size_t size) {
    return dh_calloc(count, size);
}

static inline void *ssd_realloc(void *ptr, size_t size) {
    return dh_realloc(ptr, size);
}

/* Frees what any of these allocated. */
static inline void ssd_free(void *ptr) {
    dh_free(ptr);
}

#endif /* DEEPHEAP_SSDALLOC_H */
