/* What deepheap.h says of elements of less than 128 bytes, first while all is ordinary memory and
 * then while it is managed; of objects of several pages; and of what the store has no room for. */
#include "deepheap.h"

#include "check.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1000, SIZE = 24, PAGES = 6, PAGE = 4096 };

static struct dh_stats stats(void) {
    struct dh_stats now;
    CHECK(dh_stats(&now, sizeof now) == 0);
    return now;
}

static void elements_have_the_bounds_of_the_memory_in_use(unsigned char *array) {
    static const size_t beyond[] = {SIZE_MAX - SIZE, SIZE_MAX / 2, (size_t)1 << 43,
                                    (size_t)1 << 30};
    unsigned char bytes[2 * SIZE];
    void *batch[2];
    size_t i;
    batch[0] = array + 500 * SIZE;
    batch[1] = array + 501 * SIZE;
    memset(bytes, 7, sizeof bytes);
    CHECK(dh_scatter(batch, 2, 0, SIZE, bytes) == 2);
    CHECK(dh_gather(batch, 2, 0, SIZE, bytes) == 2 && bytes[2 * SIZE - 1] == 7);
    for (i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        CHECK(dh_read(batch[0], beyond[i], bytes, SIZE) == DH_EBOUNDS);
        CHECK(dh_write(batch[0], beyond[i], bytes, SIZE) == DH_EBOUNDS);
        CHECK(dh_read(batch[0], beyond[i], NULL, 0) == DH_EBOUNDS);
        CHECK(dh_gather(batch, 2, beyond[i], SIZE, bytes) == DH_EBOUNDS);
        CHECK(dh_scatter(batch, 2, beyond[i], SIZE, bytes) == DH_EBOUNDS);
    }
}

static void elements_are_pinned_and_advised(unsigned char *array) {
    unsigned char *element = array + 300 * SIZE;
    int advice;
    CHECK(dh_pin(element) == 0 && dh_pin(element) == 0);
    CHECK(dh_unpin(element) == 0 && dh_unpin(element) == 0);
    for (advice = DH_HOT; advice <= DH_ONCE; advice++) {
        CHECK(dh_advise(element, advice) == 0);
    }
}

/* Takes more RAM than there is, for a moment. */
static void push_everything_out(void) {
    const size_t size = (size_t)48 << 20;
    unsigned char *other = dh_malloc(size);
    size_t at;
    CHECK(other != NULL);
    for (at = 0; at < size; at += PAGE) {
        memset(other + at, (int)(at / PAGE % 255) + 1, PAGE / 2);
    }
    dh_free(other);
}

static void all_pages_of_an_object_are_prefetched(void) {
    const struct timespec a_moment = {0, 10 * 1000 * 1000};
    unsigned char *object = dh_oalloc(1, PAGES * PAGE - 100);
    void *list[1];
    uint64_t before;
    int moments = 0;
    CHECK(object != NULL);
    for (; moments < PAGES * PAGE - 100; moments++) {
        object[moments] = (unsigned char)(moments * 2654435761u >> 24);
    }
    push_everything_out();
    list[0] = object;
    before = stats().prefetched;
    CHECK(dh_prefetch(list, 1) == 1);
    for (moments = 0; stats().prefetched < before + PAGES && moments < 12000; moments++) {
        nanosleep(&a_moment, NULL);
    }
    CHECK(stats().prefetched >= before + PAGES);
    dh_free(object);
}

static void no_bytes_are_no_object_however_many(void) {
    void *nothing = dh_oalloc((size_t)1 << 60, 0);
    CHECK(nothing != NULL && dh_usable_size(nothing) <= 16);
    dh_free(nothing);
}

/* Last, for it takes all of the store. */
static void an_array_shrinks_though_there_is_no_room_for_another(void) {
    const size_t stride = dh_ostride(PAGE);
    unsigned char *array = dh_oalloc(COUNT, PAGE);
    size_t count, i;
    CHECK(array != NULL);
    for (i = 0; i < COUNT; i++) {
        memset(array + i * stride, (int)(i % 255), PAGE);
    }
    for (count = COUNT; count > 0; count /= 4) {
        while (dh_oalloc(count, PAGE) != NULL) {
        }
    }
    CHECK(dh_realloc(array, (COUNT + 1) * stride) == NULL);
    array = dh_realloc(array, COUNT / 2 * stride);
    CHECK(array != NULL);
    for (i = 0; i < COUNT / 2; i++) {
        CHECK(array[i * stride] == i % 255 && array[i * stride + PAGE - 1] == i % 255);
    }
}

int main(void) {
    unsigned char *array = dh_oalloc(COUNT, SIZE);
    CHECK(array != NULL && dh_ostride(SIZE) == SIZE);
    no_bytes_are_no_object_however_many();
    elements_have_the_bounds_of_the_memory_in_use(array);
    dh_free(dh_oalloc(1, 200)); /* from here on memory is managed */
    CHECK(stats().managing == 1);
    elements_have_the_bounds_of_the_memory_in_use(array);
    elements_are_pinned_and_advised(array);
    push_everything_out();
    elements_have_the_bounds_of_the_memory_in_use(array);
    elements_are_pinned_and_advised(array);
    all_pages_of_an_object_are_prefetched();
    dh_free(array);
    an_array_shrinks_though_there_is_no_room_for_another();
    puts("every element holds");
    return 0;
}
