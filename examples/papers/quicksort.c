/*
 * quicksort.c - sorts a tenth of all objects in place (SSDRAM, section 5.3).
 *
 * Of each ten objects one is chosen at random. The chosen ones are divided among the threads, and
 * each thread sorts its part by quicksort: objects change places, so that the first of the chosen
 * places has the least key. An index in RAM tells which ones are chosen.
 *
 * An operation is one object sorted, without a latency of its own. It takes as long as it takes,
 * whatever --seconds and --operations say. Afterwards the keys must be in order, every object
 * whole, and the sum of all chosen objects the same.
 *
 * Threads: a thread touches only the objects of its part.
 */
#include "application.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct application application = {
    .name = "quicksort",
    .summary = "sorts a tenth of all objects in place (SSDRAM, section 5.3)",
    .changed_lines = CHANGED_LINES,
    .full = {.data = (size_t)4 << 30, .object_least = 512, .object_most = 512, .threads = 8,
             .writes = 100},
    .small = {.data = 64 << 20, .object_least = 512, .object_most = 512, .threads = 4,
              .writes = 100},
};

enum {
    ONE_IN = 10,        /* that are chosen */
    LEAST_OBJECT = 24,  /* bytes: the key, its mix, and the rest */
    MOST_OBJECT = 4096,
    FEW = 16,           /* objects that are sorted by insertion */
};

struct object {
    uint64_t key, mix; /* mix follows from the key */
    uint8_t rest[];    /* and so does the rest */
};

struct context {
    char *objects;
    size_t stride, bytes, count;
    struct object **chosen; /* in the order of their places */
    size_t chosen_count;
    atomic_uint_fast64_t sum; /* of what the chosen objects hold, before minus after */
};

/* A thread's part of the chosen objects. */
struct part {
    struct object **places;
    size_t count, bytes;
    uint64_t comparisons, written; /* objects written */
};

/* ---- objects ---- */

static void make_object(struct object *object, size_t bytes, uint64_t key) {
    object->key = key;
    object->mix = random_mix(key);
    memset(object->rest, (int)(object->mix & 0xFF), bytes - sizeof *object);
}

static bool is_whole(const struct object *object, size_t bytes) {
    const uint8_t byte = (uint8_t)object->mix;
    return object->mix == random_mix(object->key) && object->rest[0] == byte &&
           object->rest[bytes - sizeof *object - 1] == byte;
}

/* ---- sorting ---- */

static uint64_t key_at(struct part *part, size_t place) {
    part->comparisons++;
    return part->places[place]->key;
}

static void swap(struct part *part, size_t a, size_t b) {
    uint8_t copy[MOST_OBJECT];
    memcpy(copy, part->places[a], part->bytes);
    memcpy(part->places[a], part->places[b], part->bytes);
    memcpy(part->places[b], copy, part->bytes);
    part->written += 2;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t least = a < b ? a : b, most = a < b ? b : a;
    return c < least ? least : c > most ? most : c;
}

static void sort_few(struct part *part, size_t from, size_t to) {
    for (size_t i = from + 1; i < to; i++) {
        uint8_t copy[MOST_OBJECT];
        const uint64_t key = key_at(part, i);
        size_t place = i;
        while (place > from && key_at(part, place - 1) > key) {
            place--;
        }
        if (place == i) {
            continue;
        }
        memcpy(copy, part->places[i], part->bytes);
        for (size_t moved = i; moved > place; moved--) {
            memcpy(part->places[moved], part->places[moved - 1], part->bytes);
        }
        memcpy(part->places[place], copy, part->bytes);
        part->written += i - place + 1;
    }
    phase_step(to - from);
}

/* Sorts the places from `from` to before `to` (Hoare's partition, the smaller side first). */
static void sort(struct part *part, size_t from, size_t to) {
    while (to - from > FEW) {
        const uint64_t pivot = median(key_at(part, from), key_at(part, from + (to - from) / 2),
                                      key_at(part, to - 1));
        size_t left = from, right = to; /* right: one behind */
        while (left < right) {
            while (key_at(part, left) < pivot) {
                left++;
            }
            while (key_at(part, right - 1) > pivot) {
                right--;
            }
            if (left < right) {
                if (left < right - 1) {
                    swap(part, left, right - 1);
                }
                left++;
                right--;
            }
        }
        /* Between the two sides is one pivot, which is at its place, or none. */
        phase_step(left - right);
        if (right - from < to - left) {
            sort(part, from, right);
            from = left;
        } else {
            sort(part, left, to);
            to = right;
        }
    }
    sort_few(part, from, to);
}

/* ---- the threads' work ---- */

static struct part part_of(const struct worker *worker) {
    const struct context *context = worker->context;
    const size_t threads = worker->options->threads, number = worker->number;
    const size_t each = context->chosen_count / threads, more = context->chosen_count % threads;
    return (struct part){
        .places = context->chosen + number * each + (number < more ? number : more),
        .count = each + (number < more),
        .bytes = context->bytes,
    };
}

/* Sorts all of a thread's part: that many operations, of which the caller counts the last. */
static void sort_part(struct worker *worker) {
    struct part part = part_of(worker);
    sort(&part, 0, part.count);
    worker->operations += part.count - 1;
    worker->counts[0] += part.comparisons;
    worker->writes += part.written;
}

static void fill_one(struct worker *worker) {
    struct context *context = worker->context;
    const size_t number = worker->operations * worker->options->threads + worker->number;
    struct object *object = (struct object *)(context->objects + number * context->stride);
    make_object(object, context->bytes, random_mix(number ^ worker->options->seed << 40));
    if (context->chosen[number / ONE_IN] == object) {
        atomic_fetch_add(&context->sum, random_mix(object->mix));
    }
}

static void check_one(struct worker *worker) {
    struct context *context = worker->context;
    const struct part part = part_of(worker);
    const size_t place = worker->operations;
    const struct object *object = part.places[place];
    worker->checked++;
    worker->wrong += !is_whole(object, part.bytes) ||
                     (place > 0 && part.places[place - 1]->key > object->key);
    atomic_fetch_sub(&context->sum, random_mix(object->mix));
}

/* One object of each ten, and none of the last few. */
static void choose(const struct options *options, struct context *context) {
    context->chosen_count = context->count / ONE_IN;
    context->chosen = calloc(context->chosen_count + 1, sizeof *context->chosen);
    if (!context->chosen) {
        refuse("no memory for an index of %zu objects", context->chosen_count);
    }
    for (size_t i = 0; i < context->chosen_count; i++) {
        const size_t number = i * ONE_IN + random_mix(i ^ options->seed << 40) % ONE_IN;
        context->chosen[i] = (struct object *)(context->objects + number * context->stride);
    }
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    static struct context context;
    context.bytes = options.object_least;
    if (options.object_most != context.bytes || context.bytes < LEAST_OBJECT ||
        context.bytes > MOST_OBJECT || context.bytes % sizeof(uint64_t) != 0) {
        refuse("--object: one size for all, since they change places, a multiple of %zu from %d "
               "to %d", sizeof(uint64_t), LEAST_OBJECT, MOST_OBJECT);
    }
    if (options.zipf != 0) {
        refuse("--zipf: all chosen objects are sorted, none is more popular");
    }
    context.count = options.data / context.bytes;
    if (context.count / ONE_IN < options.threads) {
        refuse("--data: too little for an object to sort for each thread");
    }
    context.objects = memory_array(&options, context.count, context.bytes, &context.stride);
    choose(&options, &context);
    phase_run(&options, "fill", context.count, fill_one, &context);
    options.warm_up = 0;
    options.operations = context.chosen_count;
    struct result result = measure(&options, sort_part, &context);
    const struct result check =
        phase_run(&options, "check", context.chosen_count, check_one, &context);
    result.checked = check.checked + 1;
    result.wrong = check.wrong + (context.sum != 0);
    result.more[0].name = "comparisons_per_object";
    result.more[0].value = (double)result.counts[0] / (double)result.operations;
    result.more[1].name = "written_per_object";
    result.more[1].value = (double)result.writes / (double)result.operations;
    memory_free(&options, context.objects);
    return report(&options, &result);
}
