/*
 * embeddings.c - an embedding table, as recommenders and language models have: batches of rows are
 * gathered, and trained. Of no paper here, but what is larger than RAM today.
 *
 * A row is 512 bytes, 128 floats. An operation draws 64 rows by popularity and copies them, each
 * once, to a batch; --writes per cent of the batches then add a gradient to each of their rows.
 * --calls takes the batch with dh_gather, whose reads run side by side, and brings it back with
 * dh_scatter.
 *
 * The floats are whole numbers, so that sums are exact: a row's first float is how often it was
 * trained, the next two are its number, and the others begin with what follows from the number and
 * grow by a gradient that is always the same. A row that was trained RESTART times begins anew.
 * All of a row is checked at each use, and its count with a byte in RAM.
 *
 * Threads: the table is divided among them, as it is among machines: a row belongs to one thread.
 */
#include "application.h"

#include <deepheap.h>
#include <stdlib.h>
#include <string.h>

static const struct application application = {
    .name = "embeddings",
    .summary = "gathers and trains batches of rows of an embedding table",
    .changed_lines = CHANGED_LINES,
    .has_calls = true,
    .full = {.data = (size_t)4 << 30, .threads = 8, .writes = 20, .zipf = 0.99, .seconds = 20,
             .warm_up = 20000},
    .small = {.data = 64 << 20, .threads = 4, .writes = 20, .zipf = 0.99, .operations = 3000,
              .warm_up = 500},
};

enum {
    WIDTH = 128,
    BATCH = 64,
    HEAD = 3,          /* floats before those that are made up */
    RESTART = 1 << 20, /* a float counts exactly to 2^24: 1023 + 8 * RESTART is less */
};

struct row {
    float values[WIDTH];
};

struct table {
    char *rows;
    size_t stride, rows_a_thread;
    uint8_t *trained; /* how often each was, modulo 256; in RAM */
    struct popularity *popularity;
};

/* ---- a row ---- */

static float gradient_of(int i) {
    return i == 0 ? 1 : i < HEAD ? 0 : (float)(1 + i % 8);
}

static void make_row(struct row *row, uint64_t number, uint32_t trained) {
    const uint32_t seed = (uint32_t)random_mix(number);
    row->values[0] = (float)trained;
    row->values[1] = (float)(number % (1 << 20));
    row->values[2] = (float)(number >> 20);
    for (int i = HEAD; i < WIDTH; i++) {
        const uint32_t begins_with = (seed + 37 * (uint32_t)i) % 1024;
        row->values[i] = (float)begins_with + (float)trained * gradient_of(i);
    }
}

static bool is_right(const struct row *row, uint64_t number, uint8_t trained) {
    const float count = row->values[0];
    if (!(count >= 0 && count <= RESTART) || (uint8_t)(uint32_t)count != trained) {
        return false;
    }
    struct row right;
    make_row(&right, number, (uint32_t)count);
    return memcmp(row, &right, sizeof right) == 0;
}

/* Adds the gradient. */
static void train(struct row *row, uint64_t number) {
    if (row->values[0] == RESTART) {
        make_row(row, number, 0);
        return;
    }
    for (int i = 0; i < WIDTH; i++) {
        row->values[i] += gradient_of(i);
    }
}

/* ---- a batch of rows ---- */

struct batch {
    size_t count;
    uint64_t numbers[BATCH];
    void *places[BATCH]; /* where the rows are in the table */
    struct row rows[BATCH];
};

static void draw(struct worker *worker, struct batch *batch) {
    const struct table *table = worker->context;
    batch->count = 0;
    for (int i = 0; i < BATCH; i++) {
        const uint64_t number = worker->number * table->rows_a_thread +
                                popularity_next(table->popularity, &worker->random);
        size_t same = 0;
        while (same < batch->count && batch->numbers[same] != number) {
            same++;
        }
        if (same == batch->count) {
            batch->numbers[batch->count] = number;
            batch->places[batch->count++] = table->rows + number * table->stride;
        }
    }
}

/* Copies the rows to the batch; false if not all of them could be read. */
static bool gather(const struct worker *worker, struct batch *batch) {
    if (worker->options->calls) {
        return dh_gather(batch->places, batch->count, 0, sizeof(struct row), batch->rows) ==
               (ssize_t)batch->count;
    }
    for (size_t i = 0; i < batch->count; i++) {
        memcpy(&batch->rows[i], batch->places[i], sizeof(struct row));
    }
    return true;
}

static bool train_all(const struct worker *worker, struct batch *batch) {
    const struct table *table = worker->context;
    for (size_t i = 0; i < batch->count; i++) {
        const uint64_t number = batch->numbers[i];
        const bool restarts = batch->rows[i].values[0] == RESTART;
        train(worker->options->calls ? &batch->rows[i] : batch->places[i], number);
        table->trained[number] = restarts ? 0 : (uint8_t)(table->trained[number] + 1);
    }
    return !worker->options->calls ||
           dh_scatter(batch->places, batch->count, 0, sizeof(struct row), batch->rows) ==
               (ssize_t)batch->count;
}

/* counts: [0] rows. */
static void use_batch(struct worker *worker) {
    const struct table *table = worker->context;
    struct batch batch;
    draw(worker, &batch);
    worker->wrong += !gather(worker, &batch);
    worker->checked += batch.count;
    worker->counts[0] += batch.count;
    for (size_t i = 0; i < batch.count; i++) {
        const uint64_t number = batch.numbers[i];
        worker->wrong += !is_right(&batch.rows[i], number, table->trained[number]);
    }
    if (worker_writes(worker)) {
        worker->wrong += !train_all(worker, &batch);
    }
}

static void fill_one(struct worker *worker) {
    const struct table *table = worker->context;
    const uint64_t number = worker->number * table->rows_a_thread + worker->operations;
    make_row((struct row *)(table->rows + number * table->stride), number, 0);
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    static struct table table;
    table.rows_a_thread = options.data / sizeof(struct row) / options.threads;
    if (table.rows_a_thread < BATCH) {
        refuse("--data: too little for %d rows for each thread", BATCH);
    }
    const size_t rows = table.rows_a_thread * options.threads;
    table.rows = memory_array(&options, rows, sizeof(struct row), &table.stride);
    table.trained = calloc(rows, 1);
    table.popularity = popularity_new(table.rows_a_thread, options.zipf);
    if (!table.trained) {
        refuse("no memory for the counts of %zu rows", rows);
    }
    phase_run(&options, "fill", rows, fill_one, &table);
    struct result result = measure(&options, use_batch, &table);
    result.more[0].name = "rows_per_second";
    result.more[0].value = (double)result.counts[0] / result.seconds;
    memory_free(&options, table.rows);
    return report(&options, &result);
}
