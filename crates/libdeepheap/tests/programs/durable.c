/* Durable heaps from C, by their own names and by those of SSDAlloc. */
#define DEEPHEAP_SSD_OPTIONS "ram:24M,size:1G"
#include "deepheap/ssdalloc.h"

#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 2000, SET_BYTES = 128 };

struct index {
    struct index *self;
    unsigned char *sets;
    char *pages;
};

/* HashCache's index, section 5.5: made in one process, restored in the next. */
static void build(const char *file) {
    struct index *index;
    size_t i;
    CHECK(checkpoint(file) == DH_EINVAL && ssd_heap() == NULL);
    CHECK(restore(file) == DH_OK);
    CHECK(restore("other.dh") == DH_EINVAL && checkpoint("other.dh") == DH_EINVAL);
    index = ssd_oalloc(1, sizeof *index);
    CHECK(index != NULL);
    index->self = index;
    index->sets = ssd_oalloc(SETS, SET_BYTES);
    index->pages = ssd_calloc(1000, 20);
    CHECK(index->sets != NULL && index->pages != NULL);
    CHECK(is_filled((unsigned char *)index->pages, 20000, 0));
    for (i = 0; i < SETS; i++) {
        memset(index->sets + i * dh_ostride(SET_BYTES), (int)(i % 251), SET_BYTES);
    }
    index->pages = ssd_realloc(index->pages, 40000);
    CHECK(index->pages != NULL);
    strcpy(index->pages + 30000, "kept");
    CHECK(dh_set_root(ssd_heap(), "index", index) == DH_OK);
    CHECK(checkpoint(file) == DH_OK);
    /* After the checkpoint: lost. */
    strcpy(index->pages + 30000, "lost");
    _Exit(0);
}

static void again(const char *file) {
    struct index *index;
    uint64_t ticket = 0, next = 0;
    struct dh_checkpoint info, later;
    size_t i;
    CHECK(restore(file) == DH_OK);
    index = dh_root(ssd_heap(), "index");
    CHECK(index != NULL && index->self == index);
    CHECK(strcmp(index->pages + 30000, "kept") == 0);
    CHECK(is_filled((unsigned char *)index->pages, 20000, 0));
    for (i = 0; i < SETS; i++) {
        const unsigned char *set = index->sets + i * dh_ostride(SET_BYTES);
        CHECK(is_filled(set, SET_BYTES, (unsigned char)(i % 251)));
    }
    /* Tickets. */
    CHECK(dh_checkpoint_wait(ssd_heap(), 0, &info) == DH_OK && info.number == 2);
    CHECK(dh_checkpoint_wait(ssd_heap(), 1, NULL) == DH_EINVAL);
    CHECK(dh_last_error()[0] != 0);
    ssd_free(index->sets);
    index->sets = NULL;
    CHECK(dh_checkpoint_async(ssd_heap(), &ticket) == DH_OK && ticket == 1);
    CHECK(dh_checkpoint_async(ssd_heap(), &next) == DH_OK && next == 2);
    CHECK(dh_checkpoint_wait(ssd_heap(), next, &later) == DH_OK && later.number > info.number);
    CHECK(dh_checkpoint_wait(ssd_heap(), ticket, &info) == DH_OK && info.number == later.number);
    CHECK(dh_checkpoint_async(NULL, &ticket) == DH_EINVAL);
    CHECK(dh_checkpoint_wait(NULL, 0, NULL) == DH_EINVAL);
    CHECK(dh_checkpoint_async(ssd_heap(), NULL) == DH_OK);
    /* Snapshots. */
    CHECK(dh_snapshot(ssd_heap(), "two words") == DH_EINVAL && dh_last_error()[0] != 0);
    CHECK(dh_snapshot(ssd_heap(), NULL) == DH_EINVAL && dh_snapshot(NULL, "x") == DH_EINVAL);
    CHECK(dh_snapshot(ssd_heap(), "kept") == DH_OK && dh_snapshot(ssd_heap(), "gone") == DH_OK);
    CHECK(dh_snapshot(ssd_heap(), "kept") == DH_EINVAL);
    CHECK(dh_remove_snapshot(ssd_heap(), "gone") == DH_OK);
    CHECK(dh_remove_snapshot(ssd_heap(), "gone") == DH_EINVAL);
    strcpy(index->pages + 30000, "last");
    CHECK(dh_close(ssd_heap()) == DH_OK);
}

/* What is opened to be read cannot be changed. */
static void readers(const char *file) {
    static const char *const options[] = {DH_READONLY, DH_READONLY ",snapshot:kept"};
    static const char *const kept[] = {"last", "kept"};
    size_t i;
    CHECK(dh_open(file, "snapshot:kept") == NULL && errno == EINVAL);
    CHECK(dh_open(file, DH_READONLY ",snapshot:gone") == NULL && errno == ENOENT);
    for (i = 0; i < 2; i++) {
        dh_heap *heap = dh_open(file, options[i]);
        struct index *index = dh_root(heap, "index");
        uint64_t ticket = 0;
        CHECK(index != NULL && strcmp(index->pages + 30000, kept[i]) == 0);
        errno = 0;
        CHECK(dh_heap_malloc(heap, 10) == NULL && errno == EROFS);
        errno = 0;
        CHECK(dh_heap_oalloc(heap, 3, 5000) == NULL && errno == EROFS);
        CHECK(dh_set_root(heap, "other", index) == DH_EFILE && dh_root(heap, "other") == NULL);
        CHECK(dh_checkpoint(heap) == DH_EFILE && dh_snapshot(heap, "more") == DH_EFILE);
        CHECK(dh_remove_snapshot(heap, "none") == DH_EINVAL);
        CHECK(dh_checkpoint_async(heap, &ticket) == DH_OK);
        CHECK(dh_checkpoint_wait(heap, ticket, NULL) == DH_EFILE);
        dh_free(index->pages);
        CHECK(strcmp(index->pages + 30000, kept[i]) == 0);
        CHECK(dh_close(heap) == DH_OK);
    }
}

int main(int count, char **arguments) {
    static const char *const acts[] = {"build", "again", "read"};
    static char line[4096];
    size_t i;
    if (count == 1) {
        for (i = 0; i < 3; i++) {
            snprintf(line, sizeof line, "'%s' %s", arguments[0], acts[i]);
            check(system(line) == 0, acts[i]);
        }
        puts("the index is there again");
    } else if (strcmp(arguments[1], "build") == 0) {
        build("index.dh");
    } else if (strcmp(arguments[1], "read") == 0) {
        readers("index.dh");
    } else {
        again("index.dh");
    }
    return 0;
}
