/*
 * memcached_load.c - sets and gets values of a memcached server (SSDAlloc, section 5.2).
 *
 * The server listens on the unix socket that the environment names in MEMCACHED_SOCKET; --memory
 * says what it was started with (memcached/run.sh) and is only reported here. Each thread is a
 * connection that asks and waits. A thread has keys of its own, so it knows the version of each:
 * every byte that a get returns is checked. A key that the server has evicted is a miss: it is
 * counted and set again. With --operations all keys are read back at the end.
 */
#include "application.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const struct application application = {
    .name = "memcached_load",
    .summary = "sets and gets values of the memcached at the socket MEMCACHED_SOCKET "
               "(SSDAlloc, section 5.2)",
    .changed_lines = CHANGED_LINES,
    .memory_is_elsewhere = true,
    .full = {.data = (size_t)4 << 30, .object_least = 512, .object_most = 512, .threads = 8,
             .writes = 50, .seconds = 20, .warm_up = 200000},
    .small = {.data = 64 << 20, .object_least = 4, .object_most = 4096, .threads = 4,
              .writes = 50, .operations = 50000, .warm_up = 5000},
};

enum { MISSES, REFUSED }; /* a worker's counts */
enum { BATCH = 32, VALUE_MOST = 4096, REQUEST_MOST = VALUE_MOST + 64 };

struct connection {
    int socket;
    size_t from, to;               /* of `in`, what has been received and not looked at */
    char in[2 * REQUEST_MOST];
    char out[BATCH * REQUEST_MOST];
    char expected[VALUE_MOST + 8]; /* values are made 8 bytes at a time */
};

struct context {
    const struct options *options;
    uint64_t count;
    uint32_t *versions; /* of the value under each key */
    struct popularity *popularity;
    struct connection *connections;
};

_Noreturn static void give_up(const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", application.name, what, why);
    exit(1);
}

/* ---- values ---- */

static size_t size_of_value(const struct options *options, uint64_t number) {
    return options->object_least +
           random_mix(number) % (options->object_most - options->object_least + 1);
}

/* Writes a value, and up to 7 bytes more. */
static void make_value(char *value, size_t size, uint64_t number, uint32_t version) {
    uint64_t state = random_mix(number ^ (uint64_t)version << 40);
    for (size_t at = 0; at < size; at += 8) {
        const uint64_t bytes = random_next(&state);
        memcpy(value + at, &bytes, sizeof bytes);
    }
}

/* ---- the protocol ---- */

static void connect_to(struct connection *connection, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        refuse("MEMCACHED_SOCKET: %s is too long for the path of a socket", path);
    }
    strcpy(address.sun_path, path);
    connection->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connection->socket < 0 ||
        connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0) {
        refuse("MEMCACHED_SOCKET %s: %s; is memcached running?", path, strerror(errno));
    }
}

static void send_all(struct connection *connection, size_t length) {
    for (size_t sent = 0; sent < length;) {
        const ssize_t now =
            send(connection->socket, connection->out + sent, length - sent, MSG_NOSIGNAL);
        if (now < 0 && errno != EINTR) {
            give_up("the server does not take a request", strerror(errno));
        }
        sent += now > 0 ? (size_t)now : 0;
    }
}

/* Receives more; what has not been looked at moves to the front. */
static void receive(struct connection *connection) {
    connection->to -= connection->from;
    memmove(connection->in, connection->in + connection->from, connection->to);
    connection->from = 0;
    const ssize_t now = recv(connection->socket, connection->in + connection->to,
                             sizeof connection->in - connection->to, 0);
    if (now < 0 && errno == EINTR) {
        return;
    }
    if (now <= 0) {
        give_up("the server hung up", now ? strerror(errno) : "end of its answers");
    }
    connection->to += (size_t)now;
}

/* The next line, without its end. Valid until the next call. */
static char *next_line(struct connection *connection) {
    for (;;) {
        char *line = connection->in + connection->from;
        char *end = memchr(line, '\n', connection->to - connection->from);
        if (end && end > line && end[-1] == '\r') {
            connection->from += (size_t)(end + 1 - line);
            end[-1] = '\0';
            return line;
        }
        if (connection->to - connection->from == sizeof connection->in) {
            give_up("the server answers", "a line without end");
        }
        receive(connection);
    }
}

static const char *next_bytes(struct connection *connection, size_t length) {
    while (connection->to - connection->from < length) {
        receive(connection);
    }
    connection->from += length;
    return connection->in + connection->from - length;
}

/* Requests are put one behind the other into `out`; these return where the next one goes. */
static size_t put_set(struct context *context, struct connection *connection, size_t at,
                      uint64_t number) {
    const size_t size = size_of_value(context->options, number);
    at += (size_t)sprintf(connection->out + at, "set k%010llu 0 0 %zu\r\n",
                          (unsigned long long)number, size);
    make_value(connection->out + at, size, number, context->versions[number]);
    memcpy(connection->out + at + size, "\r\n", 2);
    return at + size + 2;
}

static size_t put_get(struct connection *connection, size_t at, uint64_t number) {
    return at + (size_t)sprintf(connection->out + at, "get k%010llu\r\n",
                                (unsigned long long)number);
}

/* False if the server has no memory for the value; the key is gone then. */
static bool was_stored(struct connection *connection) {
    const char *answer = next_line(connection);
    if (strcmp(answer, "STORED") == 0) {
        return true;
    }
    if (strncmp(answer, "SERVER_ERROR out of memory", 26) != 0) {
        give_up("the server answers to a set", answer);
    }
    return false;
}

enum answer { RIGHT, WRONG, MISSING };

static enum answer answer_to_get(struct context *context, struct connection *connection,
                                 uint64_t number) {
    const size_t size = size_of_value(context->options, number);
    unsigned long long key;
    size_t length;
    const char *line = next_line(connection);
    if (strcmp(line, "END") == 0) {
        return MISSING;
    }
    if (sscanf(line, "VALUE k%llu 0 %zu", &key, &length) != 2 || length > VALUE_MOST) {
        give_up("the server answers to a get", line);
    }
    make_value(connection->expected, size, number, context->versions[number]);
    const char *value = next_bytes(connection, length + 2);
    const bool right =
        key == number && length == size && memcmp(value, connection->expected, size) == 0;
    line = next_line(connection);
    if (strcmp(line, "END") != 0) {
        give_up("the server ends a value with", line);
    }
    return right ? RIGHT : WRONG;
}

/* ---- operations ---- */

static bool set_one(struct context *context, struct connection *connection, uint64_t number) {
    send_all(connection, put_set(context, connection, 0, number));
    return was_stored(connection);
}

static void access_one(struct worker *worker) {
    struct context *context = worker->context;
    struct connection *connection = &context->connections[worker->number];
    uint64_t number = popularity_next(context->popularity, &worker->random);
    /* One of this thread's own. */
    number = number - number % worker->options->threads + worker->number;
    number = number < context->count ? number : worker->number;
    if (worker_writes(worker)) {
        context->versions[number]++;
        worker->counts[REFUSED] += !set_one(context, connection, number);
        return;
    }
    send_all(connection, put_get(connection, 0, number));
    const enum answer answer = answer_to_get(context, connection, number);
    if (answer == MISSING) {
        worker->counts[MISSES]++;
        worker->counts[REFUSED] += !set_one(context, connection, number);
        return;
    }
    worker->checked++;
    worker->wrong += answer == WRONG;
}

/* A thread that goes once through its keys: sets all of them, or reads all of them back. */
struct pass {
    struct context *context;
    pthread_t thread;
    bool reads;
    unsigned number;
    uint64_t checked, wrong, misses, refused;
};

static void *go_through(void *argument) {
    struct pass *pass = argument;
    struct context *context = pass->context;
    struct connection *connection = &context->connections[pass->number];
    const unsigned threads = context->options->threads;
    for (uint64_t from = pass->number; from < context->count; from += BATCH * threads) {
        size_t at = 0;
        unsigned asked = 0;
        for (uint64_t key = from; key < context->count && asked < BATCH; key += threads, asked++) {
            at = pass->reads ? put_get(connection, at, key)
                             : put_set(context, connection, at, key);
        }
        send_all(connection, at);
        for (unsigned i = 0; i < asked; i++) {
            if (!pass->reads) {
                pass->refused += !was_stored(connection);
                continue;
            }
            const enum answer answer =
                answer_to_get(context, connection, from + (uint64_t)i * threads);
            pass->misses += answer == MISSING;
            pass->checked += answer != MISSING;
            pass->wrong += answer == WRONG;
        }
        phase_step(asked);
    }
    return NULL;
}

static void pass_all(struct context *context, bool reads, struct result *result) {
    const unsigned threads = context->options->threads;
    struct pass *passes = calloc(threads, sizeof *passes);
    if (!passes) {
        refuse("no memory for %u threads", threads);
    }
    phase_begin(reads ? "verify" : "fill", context->count);
    for (unsigned i = 0; i < threads; i++) {
        passes[i] = (struct pass){.context = context, .reads = reads, .number = i};
        const int error = pthread_create(&passes[i].thread, NULL, go_through, &passes[i]);
        if (error) {
            refuse("thread %u: %s", i, strerror(error));
        }
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(passes[i].thread, NULL);
        result->checked += passes[i].checked;
        result->wrong += passes[i].wrong;
        result->counts[MISSES] += passes[i].misses;
        result->counts[REFUSED] += passes[i].refused;
    }
    phase_end();
    free(passes);
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv, &application);
    const char *path = getenv("MEMCACHED_SOCKET");
    if (!path) {
        refuse("MEMCACHED_SOCKET is not set; start memcached/run.sh and name its socket");
    }
    if (options.object_most > VALUE_MOST) {
        refuse("--object: a value has %d bytes at most", VALUE_MOST);
    }
    struct context context = {
        .options = &options,
        .count = options.data / ((options.object_least + options.object_most) / 2),
    };
    if (context.count < options.threads) {
        refuse("--data: too little for a value for each thread");
    }
    context.versions = calloc(context.count, sizeof *context.versions);
    context.popularity = popularity_new(context.count, options.zipf);
    context.connections = calloc(options.threads, sizeof *context.connections);
    if (!context.versions || !context.connections) {
        refuse("no memory for the versions of %zu values", (size_t)context.count);
    }
    for (unsigned i = 0; i < options.threads; i++) {
        connect_to(&context.connections[i], path);
    }
    struct result filled = {0};
    const uint64_t from = now_ns();
    pass_all(&context, false, &filled);
    const double fill_seconds = (double)(now_ns() - from) / 1e9;

    struct result result = measure(&options, access_one, &context);
    if (options.operations) {
        pass_all(&context, true, &result);
    }
    result.more[0].name = "fill_seconds";
    result.more[0].value = fill_seconds;
    result.more[1].name = "misses";
    result.more[1].value = (double)result.counts[MISSES];
    result.more[2].name = "not_stored";
    result.more[2].value = (double)(result.counts[REFUSED] + filled.counts[REFUSED]);
    return report(&options, &result);
}
