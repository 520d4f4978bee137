/*
 * deepheap/nvmalloc.h - the names of SSDRAM (section 4: nv_malloc and its family) over deepheap.
 *
 *     #include <deepheap/nvmalloc.h>
 *
 * As malloc(3) and its family, but every allocation of up to a page is an object: kept in RAM and
 * written to the SSD at its own size. Larger ones come from dh_malloc, since objects would gain
 * nothing there. deepheap.h says everything else, under the function that is called.
 */
#ifndef DEEPHEAP_NVMALLOC_H
#define DEEPHEAP_NVMALLOC_H

#include "../deepheap.h"

#include <string.h>

/* The largest allocation that becomes an object, in bytes. */
#define DEEPHEAP_NV_OBJECT_MAX 4096

/* Aligned to 16 bytes, as malloc's: objects that share a page are aligned by their size. */
static inline void *nv_malloc(size_t size) {
    return size > DEEPHEAP_NV_OBJECT_MAX ? dh_malloc(size) : dh_oalloc(1, (size + 15) / 16 * 16);
}

/* count * size bytes of zeros, elements `size` bytes apart, as calloc's. */
static inline void *nv_calloc(size_t count, size_t size) {
    void *ptr;
    if (size != 0 && count > DEEPHEAP_NV_OBJECT_MAX / size) {
        return dh_calloc(count, size);
    }
    ptr = nv_malloc(count * size);
    if (ptr != NULL) {
        memset(ptr, 0, count * size);
    }
    return ptr;
}

/* The bytes are kept; an object stays an object. */
static inline void *nv_realloc(void *ptr, size_t size) {
    return ptr == NULL ? nv_malloc(size) : dh_realloc(ptr, size);
}

/* Frees memory of any of these functions. */
static inline void nv_free(void *ptr) {
    dh_free(ptr);
}

#endif /* DEEPHEAP_NVMALLOC_H */
