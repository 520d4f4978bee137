/*
 * graph_engine.c - page rank and connected components of a graph that may be far larger than RAM,
 * on a map of deepheap's, on a mapping of the kernel's, or on the heap.
 *
 *     cc -O2 graph_engine.c $(pkg-config --cflags --libs deepheap) -lm -o graph_engine
 *     ./graph_engine make graph.bin 22 16               2^22 vertices, 16 edges each (R-MAT)
 *     DEEPHEAP_MAP_RAM=64M ./graph_engine map graph.bin
 *     ./graph_engine mmap graph.bin
 *     DEEPHEAP_CONF=ram:64M,store:. ./graph_engine heap graph.bin
 *
 * The file: the numbers of vertices and edges; where each vertex's edges begin; the neighbours, one
 * after the other; and for each vertex two ranks and a label, which the engine writes. The engine
 * goes over the edges in order, and looks up what it needs of each neighbour where that is: it
 * knows nothing of RAM and disk.
 */
#define _DEFAULT_SOURCE
#include <deepheap.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Edges of one part of the file while it is made: what is sorted in RAM at a time. */
#define PART_EDGES ((uint64_t)4 << 20)
#define ROUNDS 3
#define DAMPING 0.85f

struct graph {
    uint64_t vertices, edges;
    const uint64_t *first;      /* of each vertex, and the end */
    const uint32_t *neighbours; /* of all */
    float *rank, *next;
    uint32_t *label;
    void *memory;
    size_t bytes;
};

static void fail(const char *what, const char *why) {
    fprintf(stderr, "graph_engine: %s: %s\n", what, why);
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* An edge of the R-MAT graph, from its number alone: a quadrant of the matrix for each bit. */
static void edge(uint64_t number, int scale, uint32_t *from, uint32_t *to) {
    uint64_t state = number * 0x9E3779B97F4A7C15u + 1;
    uint32_t row = 0, column = 0;
    for (int bit = 0; bit < scale; bit++) {
        state ^= state >> 30, state *= 0xBF58476D1CE4E5B9u, state ^= state >> 27;
        unsigned part = (unsigned)(state >> 40) % 100; /* a 57, b 19, c 19, d 5 */
        row = row << 1 | (part >= 76);
        column = column << 1 | ((part >= 57 && part < 76) || part >= 95);
    }
    *from = row, *to = column;
}

static size_t layout(struct graph *graph, char *at) {
    size_t first = 16, neighbours = first + (graph->vertices + 1) * 8;
    size_t rank = (neighbours + graph->edges * 4 + 4095) / 4096 * 4096;
    graph->first = (const uint64_t *)(at + first);
    graph->neighbours = (const uint32_t *)(at + neighbours);
    graph->rank = (float *)(at + rank);
    graph->next = graph->rank + graph->vertices;
    graph->label = (uint32_t *)(graph->next + graph->vertices);
    return rank + graph->vertices * 12;
}

static void put(FILE *file, const void *bytes, size_t size, size_t count) {
    if (fwrite(bytes, size, count, file) != count)
        fail("the graph cannot be written", "is the disk full?");
}

static void make(const char *path, int scale, uint64_t degree) {
    struct graph graph = {.vertices = (uint64_t)1 << scale};
    graph.edges = graph.vertices * degree;
    uint64_t *first = calloc(graph.vertices + 1, 8);
    uint32_t *part = malloc(PART_EDGES * 2 * 4);
    FILE *file = fopen(path, "wb");
    if (!first || !part || !file)
        fail(path, "cannot be made");
    uint32_t from, to;
    for (uint64_t i = 0; i < graph.edges; i++)
        edge(i, scale, &from, &to), first[from + 1]++;
    for (uint64_t i = 0; i < graph.vertices; i++)
        first[i + 1] += first[i];
    put(file, &graph.vertices, 8, 1), put(file, &graph.edges, 8, 1);
    put(file, first, 8, graph.vertices + 1);
    /* Vertex by vertex, as many as fit; all edges are made anew for each part. */
    for (uint64_t begin = 0, end; begin < graph.vertices; begin = end) {
        for (end = begin + 1;
             end < graph.vertices && first[end + 1] - first[begin] <= PART_EDGES * 2; end++) {
        }
        uint64_t *cursor = malloc((end - begin) * 8);
        if (!cursor || first[end] - first[begin] > PART_EDGES * 2)
            fail(path, "a vertex has too many edges");
        memcpy(cursor, first + begin, (end - begin) * 8);
        for (uint64_t i = 0; i < graph.edges; i++) {
            edge(i, scale, &from, &to);
            if (from >= begin && from < end)
                part[cursor[from - begin]++ - first[begin]] = to;
        }
        put(file, part, 4, first[end] - first[begin]);
        free(cursor);
    }
    size_t bytes = layout(&graph, NULL);
    if (fflush(file) || ftruncate(fileno(file), (off_t)bytes) || fsync(fileno(file)))
        fail(path, "cannot be made so long");
    posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED);
    fclose(file);
    free(first), free(part);
    printf("%" PRIu64 " vertices, %" PRIu64 " edges, %zu MiB\n", graph.vertices, graph.edges,
           bytes >> 20);
}

static struct graph open_graph(const char *kind, const char *path) {
    struct graph graph = {0};
    struct stat status;
    int file = open(path, O_RDWR);
    if (file < 0 || fstat(file, &status) || read(file, &graph, 16) != 16)
        fail(path, "is no graph of `graph_engine make`");
    graph.bytes = (size_t)status.st_size;
    if (strcmp(kind, "map") == 0) {
        graph.memory = dh_map(path, 0, PROT_READ | PROT_WRITE, DH_MAP_SHARED);
        if (!graph.memory)
            fail(path, dh_last_error());
    } else if (strncmp(kind, "mmap", 4) == 0) {
        graph.memory = mmap(NULL, graph.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (graph.memory == MAP_FAILED)
            fail(path, "mmap");
        if (strcmp(kind, "mmap-random") == 0)
            madvise(graph.memory, graph.bytes, MADV_RANDOM);
    } else {
        char buffer[1 << 16];
        char *at = graph.memory = dh_malloc(graph.bytes);
        ssize_t got;
        if (!at || lseek(file, 0, SEEK_SET))
            fail("no memory for the graph", "give a larger --store-size");
        /* The kernel cannot fetch what is on the SSD: read through memory of our own. */
        while ((got = read(file, buffer, sizeof buffer)) > 0)
            memcpy(at, buffer, (size_t)got), at += got;
    }
    close(file);
    if (layout(&graph, graph.memory) > graph.bytes)
        fail(path, "is too short");
    return graph;
}

/* Each vertex gives its rank to its neighbours in equal parts. */
static double page_rank(struct graph *graph) {
    float base = (1 - DAMPING) / (float)graph->vertices;
    for (uint64_t v = 0; v < graph->vertices; v++)
        graph->rank[v] = 1 / (float)graph->vertices;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t v = 0; v < graph->vertices; v++)
            graph->next[v] = base;
        for (uint64_t v = 0; v < graph->vertices; v++) {
            uint64_t begin = graph->first[v], end = graph->first[v + 1];
            if (begin == end)
                continue;
            float part = DAMPING * graph->rank[v] / (float)(end - begin);
            for (uint64_t e = begin; e < end; e++)
                graph->next[graph->neighbours[e]] += part;
        }
        float *swap = graph->rank;
        graph->rank = graph->next, graph->next = swap;
    }
    double largest = 0;
    for (uint64_t v = 0; v < graph->vertices; v++)
        largest = fmax(largest, graph->rank[v]);
    return largest;
}

/* The least number of all that can be reached; edges go both ways. */
static uint64_t components(struct graph *graph) {
    for (uint64_t v = 0; v < graph->vertices; v++)
        graph->label[v] = (uint32_t)v;
    for (int changes = 1; changes;) {
        changes = 0;
        for (uint64_t v = 0; v < graph->vertices; v++) {
            uint32_t least = graph->label[v];
            for (uint64_t e = graph->first[v]; e < graph->first[v + 1]; e++) {
                uint32_t *other = &graph->label[graph->neighbours[e]];
                if (*other < least)
                    least = *other, changes = 1;
                else if (*other > least)
                    *other = least, changes = 1;
            }
            graph->label[v] = least;
        }
    }
    uint64_t count = 0;
    for (uint64_t v = 0; v < graph->vertices; v++)
        count += graph->label[v] == v;
    return count;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "make") == 0) {
        make(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10));
        return 0;
    }
    const char *kinds[] = {"map", "mmap", "mmap-random", "heap"};
    int is_kind = 0;
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++)
        is_kind |= strcmp(argv[1], kinds[i]) == 0;
    if (!is_kind) {
        fprintf(stderr, "usage: graph_engine make FILE SCALE DEGREE |\n"
                        "       graph_engine map|mmap|mmap-random|heap FILE\n");
        return 2;
    }
    double began = seconds();
    struct graph graph = open_graph(argv[1], argv[2]);
    double opened = seconds();
    double largest = page_rank(&graph);
    double ranked = seconds();
    uint64_t count = components(&graph);
    printf("open %.2f s, page rank %.2f s (largest %.9f), components %.2f s (%" PRIu64 ")\n",
           opened - began, ranked - opened, largest, seconds() - ranked, count);
    if (strcmp(argv[1], "map") == 0 && dh_unmap(graph.memory))
        fail(argv[2], dh_last_error());
    return 0;
}
