/*
 * random_access.c - reads and writes objects at random (SSDRAM, section 5: random access with fixed
 * and random sizes).
 *
 * An object begins with its number and a version; the rest follows from these, and its first and
 * last bytes are checked at every access, the version against what RAM remembers of it.
 *
 * Threads: a thread reads and writes only objects that are its own.
 */
#include "application.h"

#include <stdlib.h>
#include <string.h>

static const struct application application = {
    .name = "random_access",
    .summary = "reads and writes objects of fixed or random sizes (SSDRAM, section 5)",
    .changed_lines = CHANGED_LINES,
    .full = {.data = (size_t)4 << 30, .object_least = 512, .object_most = 512, .threads = 8,
             .writes = 50, .seconds = 20, .warm_up = 200000},
    .small = {.data = 64 << 20, .object_least = 64, .object_most = 4096, .threads = 4,
              .writes = 50, .operations = 100000, .warm_up = 10000},
};

struct object {
    uint64_t number, version;
    uint8_t rest[];
};

struct context {
    size_t count;
    struct object **objects;
    uint8_t *versions; /* of each, modulo 256 */
    struct popularity *popularity;
};

static size_t size_of_object(const struct options *options, uint64_t number) {
    const size_t range = options->object_most - options->object_least + 1;
    return options->object_least + random_mix(number) % range;
}

static uint8_t byte_of(uint64_t number, uint64_t version) {
    return (uint8_t)random_mix(number ^ version << 40);
}

static void write_object(struct object *object, size_t size, uint64_t number, uint64_t version) {
    object->number = number;
    object->version = version;
    memset(object->rest, byte_of(number, version), size - sizeof *object);
}

static bool is_right(const struct object *object, size_t size, uint64_t number) {
    const uint8_t byte = byte_of(number, object->version);
    const size_t rest = size - sizeof *object;
    return object->number == number &&
           (rest == 0 || (object->rest[0] == byte && object->rest[rest - 1] == byte));
}

static void access_one(struct worker *worker) {
    const struct context *context = worker->context;
    uint64_t number = popularity_next(context->popularity, &worker->random);
    /* One of this thread's own. */
    number = number - number % worker->options->threads + worker->number;
    number = number < context->count ? number : worker->number;
    struct object *object = context->objects[number];
    const size_t size = size_of_object(worker->options, number);
    worker->checked++;
    worker->wrong += !is_right(object, size, number) ||
                     (uint8_t)object->version != context->versions[number];
    if (worker_writes(worker)) {
        context->versions[number]++;
        write_object(object, size, number, object->version + 1);
    }
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    if (options.object_least < sizeof(struct object)) {
        refuse("--object: the least size is %zu", sizeof(struct object));
    }
    const size_t count = options.data / ((options.object_least + options.object_most) / 2);
    if (count < options.threads) {
        refuse("--data: too little for an object for each thread");
    }
    struct context context = {
        .count = count,
        .objects = calloc(count, sizeof *context.objects), /* the index stays in RAM */
        .versions = calloc(count, 1),
        .popularity = popularity_new(count, options.zipf),
    };
    if (!context.objects || !context.versions) {
        refuse("no memory for an index of %zu objects", count);
    }
    phase_begin("fill", count);
    for (uint64_t number = 0; number < count; number++) {
        const size_t size = size_of_object(&options, number);
        context.objects[number] = memory_object(&options, size);
        write_object(context.objects[number], size, number, 0);
        phase_step(1);
    }
    phase_end();
    struct result result = measure(&options, access_one, &context);
    return report(&options, &result);
}
