/*
 * bplus_tree.cpp - an index: a B+tree with up to 25 keys a node (SSDAlloc, section 5.4), or with a
 * record behind each key (SSDRAM, section 5.4).
 *
 * --object up to 64 is the length of a key; operations look up a key, or update its value in the
 * leaf. --object from 65 on is the length of a record: keys have 8 bytes, the leaves tell where
 * the records are, and a search reads both; SSDRAM's is this with --writes 0.
 *
 * Keys are loaded in order; then some are inserted between them, in no order, and split nodes.
 * One lookup in sixteen is for a key that may not be there. A value holds the number of its key
 * and of its updates; RAM knows the latter for one key in sixteen, and it must be the same.
 *
 * Threads: one builds the tree, and the nodes stay as they are while measuring. Values change: a
 * thread reads and updates only those of its own keys.
 */
#include "application.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace {

constexpr size_t keys_a_node = 25, half = keys_a_node / 2 + 1;
constexpr size_t shortest_key = 4, longest_key = 64, record_key = 8;
constexpr size_t known_one_in = 16;
constexpr size_t most_inserts = 20000, keys_an_insert = 1000;

constexpr application bplus_tree = {
    .name = "bplus_tree",
    .summary = "looks up and updates keys of a B+tree (SSDAlloc and SSDRAM, sections 5.4)",
    .changed_lines = CHANGED_LINES,
    .has_calls = false,
    .full = {.data = size_t{4} << 30, .object_least = 4, .object_most = 64, .threads = 8,
             .writes = 50, .seconds = 20, .warm_up = 200000},
    .small = {.data = 64 << 20, .object_least = 4, .object_most = 64, .threads = 4,
              .writes = 50, .operations = 30000, .warm_up = 5000},
};

/* ---- the tree ---- */

/* Keys are ordered by their bytes; shorter ones end in zeros. */
template <size_t Bytes> using key = std::array<unsigned char, Bytes>;

struct record {
    uint64_t number, updates;
    unsigned char rest[1]; /* and more */
};

union value {
    struct {
        uint32_t number, updates;
    } plain;
    struct record *record;
};

template <size_t Bytes> struct leaf_node {
    uint64_t count;
    std::array<value, keys_a_node> values;
    std::array<key<Bytes>, keys_a_node> keys;
};

/* Child i has the keys from keys[i - 1] on, and less than keys[i]. */
template <size_t Bytes> struct inner_node {
    uint64_t count; /* of its keys; it has one child more */
    std::array<void *, keys_a_node + 1> children;
    std::array<key<Bytes>, keys_a_node> keys;
};

template <class Array, class Item>
void insert_at(Array &array, size_t count, size_t at, const Item &item) {
    std::copy_backward(array.begin() + at, array.begin() + count, array.begin() + count + 1);
    array[at] = item;
}

template <size_t Bytes> class tree {
public:
    using key_type = key<Bytes>;
    using leaf = leaf_node<Bytes>;
    using inner = inner_node<Bytes>;

    explicit tree(const options &options) : options_{options}, root_{new_leaf()} {}

    /* Where the value of a key is, or null. */
    value *find(const key_type &key) const {
        void *node = root_;
        for (unsigned level = height_; level > 1; level--) {
            auto *inner_node = static_cast<inner *>(node);
            node = inner_node->children[child_of(*inner_node, key)];
        }
        auto *leaf_node = static_cast<leaf *>(node);
        const size_t at = place_of(*leaf_node, key);
        const bool found = at < leaf_node->count && leaf_node->keys[at] == key;
        return found ? &leaf_node->values[at] : nullptr;
    }

    /* Inserts a key that is not there. */
    void insert(const key_type &key, const value &value) {
        const split split = insert_below(root_, height_, true, key, value);
        if (split.node) {
            inner *root = new_inner();
            root->count = 1;
            root->keys[0] = split.first;
            root->children[0] = root_;
            root->children[1] = split.node;
            root_ = root;
            height_++;
        }
    }

    unsigned height() const { return height_; }
    size_t nodes() const { return nodes_; }

private:
    /* A new node to the right of one that was split, and its least key. No node: no split. */
    struct split {
        key_type first;
        void *node;
    };

    static size_t place_of(const leaf &leaf, const key_type &key) {
        const auto begin = leaf.keys.begin();
        return std::lower_bound(begin, begin + leaf.count, key) - begin;
    }

    static size_t child_of(const inner &inner, const key_type &key) {
        const auto begin = inner.keys.begin();
        return std::upper_bound(begin, begin + inner.count, key) - begin;
    }

    leaf *new_leaf() {
        nodes_++;
        auto *node = new (memory_object(&options_, sizeof(leaf))) leaf;
        node->count = 0;
        return node;
    }

    inner *new_inner() {
        nodes_++;
        auto *node = new (memory_object(&options_, sizeof(inner))) inner;
        node->count = 0;
        return node;
    }

    /* `last`: no node of this level is to the right. There, a full node that gets one more at its
     * end stays full, since keys that come in order never come back to it. */
    split insert_below(void *node, unsigned level, bool last, const key_type &key,
                       const value &value) {
        if (level == 1) {
            return insert_into_leaf(*static_cast<leaf *>(node), last, key, value);
        }
        auto &parent = *static_cast<inner *>(node);
        const size_t at = child_of(parent, key);
        const split below = insert_below(parent.children[at], level - 1,
                                         last && at == parent.count, key, value);
        return below.node ? insert_into_inner(parent, last, at, below) : split{};
    }

    split insert_into_leaf(leaf &full, bool last, const key_type &key, const value &value) {
        const size_t at = place_of(full, key);
        if (full.count < keys_a_node) {
            insert_at(full.values, full.count, at, value);
            insert_at(full.keys, full.count++, at, key);
            return {};
        }
        const size_t stay = last && at == keys_a_node ? keys_a_node : half;
        leaf &right = *new_leaf();
        std::copy(full.values.begin() + stay, full.values.end(), right.values.begin());
        std::copy(full.keys.begin() + stay, full.keys.end(), right.keys.begin());
        right.count = keys_a_node - stay;
        full.count = stay;
        leaf &into = at < stay ? full : right;
        const size_t place = at < stay ? at : at - stay;
        insert_at(into.values, into.count, place, value);
        insert_at(into.keys, into.count++, place, key);
        return {right.keys[0], &right};
    }

    /* `below` is what child `at` gave away. */
    split insert_into_inner(inner &full, bool last, size_t at, const split &below) {
        if (full.count < keys_a_node) {
            insert_at(full.keys, full.count, at, below.first);
            insert_at(full.children, ++full.count, at + 1, below.node);
            return {};
        }
        /* One too many for a moment; the key in the middle goes up. */
        std::array<key_type, keys_a_node + 1> keys;
        std::array<void *, keys_a_node + 2> children;
        std::copy(full.keys.begin(), full.keys.end(), keys.begin());
        std::copy(full.children.begin(), full.children.end(), children.begin());
        insert_at(keys, keys_a_node, at, below.first);
        insert_at(children, keys_a_node + 1, at + 1, below.node);
        const size_t stay = last && at == keys_a_node ? keys_a_node : half;
        inner &right = *new_inner();
        full.count = stay;
        right.count = keys_a_node - stay;
        std::copy(keys.begin(), keys.begin() + stay, full.keys.begin());
        std::copy(children.begin(), children.begin() + stay + 1, full.children.begin());
        std::copy(keys.begin() + stay + 1, keys.end(), right.keys.begin());
        std::copy(children.begin() + stay + 1, children.end(), right.children.begin());
        return {keys[stay], &right};
    }

    const options &options_;
    unsigned height_ = 1;
    size_t nodes_ = 0;
    void *root_;
};

/* ---- what is in it ---- */

bool has_records(const options &options) {
    return options.object_least > longest_key;
}

size_t size_between(size_t least, size_t most, uint64_t number) {
    return least + random_mix(number) % (most - least + 1);
}

/* A key begins with its number, highest byte first. */
template <size_t Bytes> key<Bytes> key_of(const options &options, uint32_t number) {
    const size_t length = has_records(options)
                              ? record_key
                              : size_between(options.object_least, options.object_most, number);
    key<Bytes> key{};
    for (size_t i = 0; i < length; i++) {
        key[i] = static_cast<unsigned char>(i < 4 ? number >> (24 - 8 * i) : number + i);
    }
    return key;
}

unsigned char byte_of(uint64_t number, uint64_t updates) {
    return static_cast<unsigned char>(random_mix(number ^ updates << 40));
}

void write_record(record *record, size_t size, uint64_t number, uint64_t updates) {
    record->number = number;
    record->updates = updates;
    memset(record->rest, byte_of(number, updates), size - offsetof(struct record, rest));
}

bool is_right(const record *record, size_t size, uint64_t number) {
    const unsigned char byte = byte_of(number, record->updates);
    return record->number == number && record->rest[0] == byte &&
           record->rest[size - offsetof(struct record, rest) - 1] == byte;
}

value new_value(const options &options, uint32_t number) {
    value value{.plain = {.number = number, .updates = 0}};
    if (has_records(options)) {
        const size_t size = size_between(options.object_least, options.object_most, number);
        value.record = static_cast<record *>(memory_object(&options, size));
        write_record(value.record, size, number, 0);
    }
    return value;
}

/* Keys 2 i are loaded, i < count; keys 2 i + 1 are inserted where i is a multiple of `gap`. */
template <size_t Bytes> struct context {
    tree<Bytes> index;
    size_t count, gap;
    popularity *popular;
    std::vector<uint8_t> known; /* updates of one in known_one_in of a thread's keys, modulo 256 */
};

/* Reads a value, and updates it if `updates`; false if it is wrong. */
bool use_value(const options &options, value *value, uint32_t number, uint8_t *known,
               bool updates) {
    if (!value) {
        return false;
    }
    if (has_records(options)) {
        const size_t size = size_between(options.object_least, options.object_most, number);
        record *record = value->record;
        if (!is_right(record, size, number) ||
            (known && *known != static_cast<uint8_t>(record->updates))) {
            return false;
        }
        if (updates) {
            write_record(record, size, number, record->updates + 1);
        }
    } else {
        if (value->plain.number != number ||
            (known && *known != static_cast<uint8_t>(value->plain.updates))) {
            return false;
        }
        /* A lookup stores nothing: a store of the same number makes the leaf's page dirty, too. */
        if (updates) {
            value->plain.updates++;
        }
    }
    if (known) {
        *known = static_cast<uint8_t>(*known + updates);
    }
    return true;
}

template <size_t Bytes> void use_one(worker *worker) {
    auto &context = *static_cast<struct context<Bytes> *>(worker->context);
    const options &options = *worker->options;
    const size_t threads = options.threads;
    size_t i = popularity_next(context.popular, &worker->random);
    /* One of this thread's own. */
    i = i - i % threads + worker->number;
    i = i < context.count ? i : worker->number;
    worker->checked++;
    const bool updates = worker_writes(worker);
    if (!updates && random_next(&worker->random) % 16 == 0) {
        const auto number = static_cast<uint32_t>(2 * i + 1);
        value *value = context.index.find(key_of<Bytes>(options, number));
        worker->wrong += i % context.gap == 0 ? !use_value(options, value, number, nullptr, false)
                                              : value != nullptr;
        return;
    }
    const auto number = static_cast<uint32_t>(2 * i);
    const size_t own = i / threads;
    uint8_t *known = own % known_one_in == 0
                         ? &context.known[own / known_one_in * threads + worker->number]
                         : nullptr;
    value *value = context.index.find(key_of<Bytes>(options, number));
    worker->wrong += !use_value(options, value, number, known, updates);
}

template <size_t Bytes> void build(const options &options, struct context<Bytes> &context) {
    phase_begin("load", context.count);
    for (size_t i = 0; i < context.count; i++) {
        const auto number = static_cast<uint32_t>(2 * i);
        context.index.insert(key_of<Bytes>(options, number), new_value(options, number));
        phase_step(1);
    }
    phase_end();
    const size_t inserts = (context.count + context.gap - 1) / context.gap;
    popularity *order = popularity_new(inserts, 0);
    phase_begin("insert", inserts);
    for (size_t i = 0; i < inserts; i++) {
        const size_t which = popularity_object(order, i); /* each once, in no order */
        const auto number = static_cast<uint32_t>(2 * which * context.gap + 1);
        context.index.insert(key_of<Bytes>(options, number), new_value(options, number));
        phase_step(1);
    }
    phase_end();
    free(order);
}

template <size_t Bytes> int run(const options &options) {
    const size_t record_bytes =
        has_records(options) ? (options.object_least + options.object_most) / 2 : 0;
    const size_t count = options.data / (sizeof(leaf_node<Bytes>) / keys_a_node + record_bytes);
    if (count < options.threads * known_one_in || count > UINT32_MAX / 2) {
        refuse("--data: room for %zu keys, too few for the threads, or more than 2^31", count);
    }
    /* The tree is not taken down node by node; it ends with the process. */
    static struct context<Bytes> context = {
        .index = tree<Bytes>{options},
        .count = count,
        .gap = std::max(count / most_inserts, keys_an_insert),
        .popular = popularity_new(count, options.zipf),
        .known = std::vector<uint8_t>(count / known_one_in + options.threads),
    };
    build(options, context);
    result result = measure(&options, use_one<Bytes>, &context);
    result.more[0] = {"height", static_cast<double>(context.index.height())};
    result.more[1] = {"nodes", static_cast<double>(context.index.nodes())};
    result.more[2] = {"leaf_bytes", static_cast<double>(sizeof(leaf_node<Bytes>))};
    result.more[3] = {"inner_bytes", static_cast<double>(sizeof(inner_node<Bytes>))};
    result.more[4] = {"keys", static_cast<double>(count)};
    return report(&options, &result);
}

}  // namespace

int main(int argc, char **argv) {
    const options options = options_read(argc, argv, &bplus_tree);
    if (has_records(options)) {
        return run<record_key>(options);
    }
    if (options.object_least < shortest_key || options.object_most > longest_key) {
        refuse("--object: keys have %zu to %zu bytes, records more", shortest_key, longest_key);
    }
    const size_t most = options.object_most;
    return most <= 4    ? run<4>(options)
           : most <= 8  ? run<8>(options)
           : most <= 16 ? run<16>(options)
           : most <= 32 ? run<32>(options)
           : most <= 48 ? run<48>(options)
                        : run<64>(options);
}
