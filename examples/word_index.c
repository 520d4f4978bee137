/*
 * word_index.c - an index of words that is built once and opened by every later run.
 *
 *     word_index FILE add DOCUMENTS [EVERY]   adds documents; a checkpoint after EVERY of them
 *     word_index FILE find WORD...            which documents have the word, and how long it took
 *     word_index FILE check                   holds the whole index against the documents
 *
 * Documents are made of numbers, eight words each, some words much more common than others. The
 * index is a hash table of words; each word has a chain of chunks with the numbers of its
 * documents. All of it lies in a durable heap: ordinary pointers, and nothing to load or save.
 *
 * cc word_index.c $(pkg-config --cflags --libs deepheap)
 */
#include <deepheap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 200000, BUCKETS = 1 << 16, PER_DOCUMENT = 8, PER_CHUNK = 58 };

struct chunk {
    struct chunk *next;
    uint32_t count;
    uint32_t documents[PER_CHUNK];
};

struct word {
    struct word *next;
    struct chunk *chunks; /* the newest first */
    uint64_t count;
    uint32_t number;
};

struct index {
    struct word **buckets;
    uint64_t documents;
    uint64_t words;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *need(void *memory)
{
    if (!memory) {
        fprintf(stderr, "word_index: no memory: the RAM budget or the file is full\n");
        exit(1);
    }
    return memory;
}

/* The word at a place of a document: the same for ever. */
static uint32_t word_at(uint64_t document, int place)
{
    uint64_t x = document * PER_DOCUMENT + place + 1;
    x *= 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    double part = ((x ^ (x >> 31)) >> 11) / 9007199254740992.0;
    return WORDS * part * part * part;
}

static struct word **bucket_of(struct index *index, uint32_t number)
{
    return &index->buckets[number * 2654435761u % BUCKETS];
}

static struct word *find(struct index *index, uint32_t number)
{
    struct word *word = *bucket_of(index, number);
    while (word && word->number != number)
        word = word->next;
    return word;
}

static void add(dh_heap *heap, struct index *index, uint32_t number, uint32_t document)
{
    struct word *word = find(index, number);
    if (!word) {
        struct word **bucket = bucket_of(index, number);
        word = need(dh_heap_malloc(heap, sizeof *word));
        *word = (struct word){.next = *bucket, .number = number};
        *bucket = word;
        index->words++;
    }
    if (!word->chunks || word->chunks->count == PER_CHUNK) {
        struct chunk *chunk = need(dh_heap_oalloc(heap, 1, sizeof *chunk));
        chunk->next = word->chunks;
        chunk->count = 0;
        word->chunks = chunk;
    }
    word->chunks->documents[word->chunks->count++] = document;
    word->count++;
}

static void add_documents(dh_heap *heap, struct index *index, uint64_t count, uint64_t every)
{
    double start = now();
    uint64_t end = index->documents + count;
    while (index->documents < end) {
        for (int place = 0; place < PER_DOCUMENT; place++)
            add(heap, index, word_at(index->documents, place), index->documents);
        index->documents++;
        if (index->documents % every == 0 || index->documents == end) {
            struct dh_checkpoint made;
            if (dh_checkpoint_info(heap, &made) != 0) {
                fprintf(stderr, "word_index: no checkpoint: %s\n", dh_last_error());
                exit(1);
            }
            printf("%8.2f s  %9llu documents are durable (checkpoint %llu: %.1f ms, pause %.1f)\n",
                   now() - start, (unsigned long long)index->documents,
                   (unsigned long long)made.number, made.time_ns / 1e6, made.pause_ns / 1e6);
            fflush(stdout);
        }
    }
}

static void show(struct index *index, const char *text)
{
    double start = now();
    struct word *word = find(index, strtoul(text, NULL, 10));
    uint64_t newest = word ? word->chunks->documents[word->chunks->count - 1] : 0;
    double time = now() - start;
    if (word)
        printf("word %s: %llu documents, the newest is %llu (%.2f ms)\n", text,
               (unsigned long long)word->count, (unsigned long long)newest, time * 1e3);
    else
        printf("word %s: no document (%.2f ms)\n", text, time * 1e3);
}

/* Counts every word of every document anew, and compares. */
static int check(struct index *index)
{
    uint64_t *counts = need(calloc(WORDS, sizeof *counts));
    uint64_t *sums = need(calloc(WORDS, sizeof *sums));
    for (uint64_t document = 0; document < index->documents; document++)
        for (int place = 0; place < PER_DOCUMENT; place++) {
            uint32_t number = word_at(document, place);
            counts[number]++;
            sums[number] += document;
        }
    uint64_t wrong = 0, words = 0;
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++)
        for (struct word *word = index->buckets[bucket]; word; word = word->next) {
            uint64_t count = 0, sum = 0;
            for (struct chunk *chunk = word->chunks; chunk; chunk = chunk->next)
                for (uint32_t at = 0; at < chunk->count; at++, count++)
                    sum += chunk->documents[at];
            wrong += word->number >= WORDS || count != counts[word->number]
                     || count != word->count || sum != sums[word->number];
            words++;
        }
    wrong += words != index->words;
    printf("%llu documents, %llu words: %s\n", (unsigned long long)index->documents,
           (unsigned long long)words, wrong ? "WRONG" : "every word has its documents");
    return wrong != 0;
}

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "usage: word_index FILE add DOCUMENTS [EVERY] | find WORD... | check\n");
        return 2;
    }
    double start = now();
    dh_heap *heap = dh_open(arguments[1], getenv("WORD_INDEX_OPTIONS"));
    if (!heap) {
        fprintf(stderr, "word_index: %s: %s\n", arguments[1], dh_last_error());
        return 1;
    }
    struct index *index = dh_root(heap, "index");
    if (!index) {
        index = need(dh_heap_malloc(heap, sizeof *index));
        *index = (struct index){.buckets = need(dh_heap_malloc(heap, BUCKETS * sizeof(void *)))};
        memset(index->buckets, 0, BUCKETS * sizeof(void *));
        dh_set_root(heap, "index", index);
    }
    uint64_t documents = index->documents;
    printf("open after %.1f ms: %llu documents\n", (now() - start) * 1e3,
           (unsigned long long)documents);
    fflush(stdout);
    int status = 0;
    if (!strcmp(arguments[2], "add") && count >= 4) {
        uint64_t every = count > 4 ? strtoull(arguments[4], NULL, 10) : 0;
        add_documents(heap, index, strtoull(arguments[3], NULL, 10), every ? every : 1 << 20);
    } else if (!strcmp(arguments[2], "find")) {
        for (int at = 3; at < count; at++)
            show(index, arguments[at]);
    } else {
        status = check(index);
    }
    /* Nothing to save: the last checkpoint is what the next run finds. */
    return status;
}
