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

#define DH_VERSION_MAJOR 0
#define DH_VERSION_MINOR 1
#define DH_VERSION_PATCH 0

#include "deepheap/memory.h"
#include "deepheap/durable.h"
#include "deepheap/map.h"

#endif /* DEEPHEAP_H */
