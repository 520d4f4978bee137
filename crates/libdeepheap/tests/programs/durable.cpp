// Durable heaps from C++: containers of one process are there again in the next.
#include "deepheap.hpp"

#include "check.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

template <class T> using in_heap = dh::durable_allocator<T>;
using text = std::basic_string<char, std::char_traits<char>, in_heap<char>>;
using numbers = std::vector<std::uint64_t, in_heap<std::uint64_t>>;
using table = std::unordered_map<std::uint64_t, text, std::hash<std::uint64_t>,
                                 std::equal_to<std::uint64_t>,
                                 in_heap<std::pair<const std::uint64_t, text>>>;

const char *const FILE_NAME = "containers.dh";
const char *const OPTIONS = "ram:24M,size:1G";
constexpr std::uint64_t COUNT = 50'000;

std::string value_of(std::uint64_t key, std::uint64_t round) {
    return "the value of " + std::to_string(key) + " in round " + std::to_string(round);
}

table *table_of(dh::durable_heap &heap) {
    return heap.find_or_construct<table>(
        "table", heap.allocator<std::pair<const std::uint64_t, text>>());
}

numbers *numbers_of(dh::durable_heap &heap) {
    return heap.find_or_construct<numbers>("numbers", heap.allocator<std::uint64_t>());
}

void fill(dh::durable_heap &heap, std::uint64_t round) {
    table &all = *table_of(heap);
    for (std::uint64_t key = 0; key < COUNT; key++) {
        const std::string value = value_of(key, round);
        const text kept{value.c_str(), heap.allocator<char>()};
        all.insert_or_assign(key, kept);
        numbers_of(heap)->push_back(key * round);
    }
}

void check_round(dh::durable_heap &heap, std::uint64_t rounds) {
    const table &all = *table_of(heap);
    check(all.size() == COUNT, "the table has another size");
    for (std::uint64_t key = 0; key < COUNT; key++) {
        const auto found = all.find(key);
        check(found != all.end(), "a key is not there");
        check(found->second.c_str() == value_of(key, rounds), "a value is another");
    }
    const numbers &kept = *numbers_of(heap);
    check(kept.size() == COUNT * rounds, "the vector has another length");
    for (std::uint64_t at = 0; at < kept.size(); at++) {
        check(kept[at] == at % COUNT * (at / COUNT + 1), "a number is another");
    }
}

// Ends the process without closing anything.
[[noreturn]] void crash() {
    std::_Exit(0);
}

[[noreturn]] void build() {
    dh::durable_heap heap{FILE_NAME, OPTIONS};
    check(heap.root<void>("table") == nullptr, "a new heap has a root");
    fill(heap, 1);
    const dh::checkpoint_ticket ticket = heap.checkpoint_async();
    const struct dh_checkpoint made = ticket.wait();
    check(made.number >= 2 && heap.newest_checkpoint().number == made.number, "another number");
    // After the checkpoint: lost.
    fill(heap, 3);
    crash();
}

void go_on() {
    dh::durable_heap first{FILE_NAME, OPTIONS};
    dh::durable_heap heap = std::move(first);
    check(first.get() == nullptr && heap.get() != nullptr, "a moved heap is in two places");
    check_round(heap, 1);
    fill(heap, 2);
    check_round(heap, 2);
    check(heap.checkpoint().objects > 0, "nothing was written");
    table &all = *table_of(heap);
    check(all.get_allocator() == heap.allocator<int>(), "the allocator is that of the heap");
    // The destructor closes.
}

void look_again() {
    dh::durable_heap heap{FILE_NAME, OPTIONS};
    check_round(heap, 2);
    bool is_refused = false;
    try {
        dh::durable_heap other{FILE_NAME, "ram:16M"};
    } catch (const dh::durable_error &error) {
        is_refused = std::strstr(error.what(), "has the heap open") != nullptr;
    }
    check(is_refused, "a heap that is open is opened again");
    is_refused = false;
    try {
        int outside = 0;
        heap.set_root("outside", &outside);
    } catch (const dh::durable_error &) {
        is_refused = true;
    }
    check(is_refused, "a root outside of the heap");
    dh_heap *handle = heap.get();
    heap.close();
    check(dh_heap_malloc(handle, 1) == nullptr && dh_checkpoint(handle) == DH_EINVAL &&
              dh_close(handle) == DH_EINVAL && dh_checkpoint_async(handle, nullptr) == DH_EINVAL,
          "a closed heap is used");
}

} // namespace

int main(int count, char **arguments) {
    if (count == 1) {
        for (const char *act : {"build", "go on", "look again"}) {
            const std::string line = "'" + std::string{arguments[0]} + "' '" + act + "'";
            check(std::system(line.c_str()) == 0, act);
        }
        std::puts("containers are there again");
        return 0;
    }
    const std::string act = arguments[1];
    try {
        if (act == "build") {
            build();
        } else if (act == "go on") {
            go_on();
        } else {
            look_again();
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s: %s\n", act.c_str(), error.what());
        return 1;
    }
    return 0;
}
