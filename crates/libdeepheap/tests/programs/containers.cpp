// Containers of the standard library on deepheap's allocator and memory resource.
#include "deepheap.hpp"

#include "check.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

struct alignas(256) Wide {
    unsigned char bytes[256];
};

static void vectors_grow_copy_move_and_swap() {
    using vector = std::vector<std::uint64_t, deepheap::allocator<std::uint64_t>>;
    vector numbers;
    for (std::uint64_t i = 0; i < 500'000; i++) {
        numbers.push_back(i * i);
    }
    vector copy = numbers;
    vector moved = std::move(numbers);
    check(copy == moved, "a moved vector differs from its copy");
    check(dh_usable_size(copy.data()) >= copy.size() * 8, "a vector does not live on deepheap");
    vector empty;
    swap(empty, moved);
    check(moved.empty() && empty[499'999] == 499'999ull * 499'999ull, "swapping loses values");
}

static void node_containers_rebind_the_allocator() {
    std::map<int, int, std::less<int>, deepheap::allocator<std::pair<const int, int>>> squares;
    std::list<Wide, deepheap::allocator<Wide>> wides;
    for (int i = 0; i < 1000; i++) {
        squares[i] = i * i;
        wides.emplace_back();
        check(reinterpret_cast<std::uintptr_t>(&wides.back()) % 256 == 0, "not over-aligned");
    }
    check(squares.at(999) == 998'001, "a map loses a value");
    check(deepheap::allocator<int>{} == deepheap::allocator<Wide>{}, "allocators differ");
    check(!(deepheap::allocator<int>{} != deepheap::allocator<int>{}), "an allocator differs");
}

static void pmr_containers_use_the_resource() {
    deepheap::memory_resource deep;
    std::pmr::unordered_map<std::pmr::string, std::pmr::vector<int>> table{&deep};
    for (int i = 0; i < 20'000; i++) {
        std::pmr::string key{"a key that is too long to be stored in place ", &deep};
        key += std::to_string(i);
        table[key].assign(20, i);
    }
    for (int i = 0; i < 20'000; i++) {
        const std::string key =
            "a key that is too long to be stored in place " + std::to_string(i);
        const auto found = table.find(std::pmr::string{key});
        check(found != table.end() && found->second.back() == i, "a table loses a value");
        check(found->second.get_allocator().resource() == &deep, "a value lives elsewhere");
    }
    check(deep == *deepheap::resource(), "two resources differ");
    check(!(deep == *std::pmr::new_delete_resource()), "a stranger is taken for deepheap");
    void *aligned = deep.allocate(100, 4096);
    check(reinterpret_cast<std::uintptr_t>(aligned) % 4096 == 0, "not aligned");
    deep.deallocate(aligned, 100, 4096);
    std::pmr::monotonic_buffer_resource arena{&deep};
    check(arena.allocate(1 << 20) != nullptr, "an arena cannot draw on deepheap");
}

static void impossible_sizes_throw() {
    volatile std::size_t huge = std::numeric_limits<std::size_t>::max() / 2;
    bool thrown = false;
    try {
        deepheap::allocator<std::uint64_t>{}.deallocate(
            deepheap::allocator<std::uint64_t>{}.allocate(huge), huge);
    } catch (const std::bad_array_new_length &) {
        thrown = true;
    }
    check(thrown, "an overflowing count is accepted");
    thrown = false;
    try {
        deepheap::resource()->deallocate(deepheap::resource()->allocate(huge), huge);
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    check(thrown, "an impossible size is accepted");
}

int main() {
    vectors_grow_copy_move_and_swap();
    node_containers_rebind_the_allocator();
    pmr_containers_use_the_resource();
    impossible_sizes_throw();
    std::puts("containers hold");
}
