// Containers, pools and pins of deepheap.hpp on objects.
#include "deepheap.hpp"

#include "check.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

struct alignas(64) Wide {
    unsigned char bytes[192];
};

struct alignas(8192) Huge {
    unsigned char bytes[8192];
};

// Counts how many of it live.
struct Counted {
    static int live;
    int value;
    unsigned char weight[150];

    explicit Counted(int number) : value(number), weight{} {
        if (number < 0) {
            throw std::domain_error("negative");
        }
        live++;
    }
    ~Counted() { live--; }
};
int Counted::live = 0;

template <class T> static bool is_aligned(const T *ptr) {
    return reinterpret_cast<std::uintptr_t>(ptr) % alignof(T) == 0;
}

static void nodes_are_objects() {
    using pair = std::pair<const std::uint64_t, std::uint64_t>;
    using map = std::map<std::uint64_t, std::uint64_t, std::less<std::uint64_t>,
                         dh::object_allocator<pair>>;
    using table = std::unordered_map<std::uint64_t, std::uint64_t, std::hash<std::uint64_t>,
                                     std::equal_to<std::uint64_t>, dh::object_allocator<pair>>;
    constexpr std::uint64_t count = 30'000;
    map ordered;
    table hashed;
    for (std::uint64_t i = 0; i < count; i++) {
        const std::uint64_t key = i * 0x9E3779B97F4A7C15u;
        ordered[key] = i;
        hashed[key] = i;
    }
    for (std::uint64_t i = 0; i < count; i += 2) {
        ordered.erase(i * 0x9E3779B97F4A7C15u);
        hashed.erase(i * 0x9E3779B97F4A7C15u);
    }
    for (std::uint64_t i = 0; i < count; i++) {
        const std::uint64_t key = i * 0x9E3779B97F4A7C15u;
        const auto in_order = ordered.find(key);
        const auto by_hash = hashed.find(key);
        check((in_order != ordered.end()) == (i % 2 == 1), "a map keeps or loses the wrong key");
        check((by_hash != hashed.end()) == (i % 2 == 1), "a table keeps or loses the wrong key");
        check(i % 2 == 0 || (in_order->second == i && by_hash->second == i), "a value is lost");
    }
    map copy = ordered;
    map moved = std::move(ordered);
    check(copy == moved, "a moved map differs from its copy");
    map other;
    swap(other, moved);
    check(moved.empty() && other.size() == count / 2, "swapping loses values");
    moved = other;
    check(moved == other, "assignment loses values");
}

static void lists_and_sets_hold_wide_values() {
    std::list<Wide, dh::object_allocator<Wide>> wides;
    std::set<std::string, std::less<>, dh::object_allocator<std::string>> names;
    for (int i = 0; i < 2000; i++) {
        wides.emplace_back();
        wides.back().bytes[191] = static_cast<unsigned char>(i);
        check(is_aligned(&wides.back()), "a node is not aligned for its type");
        names.insert("a name that is too long for its place " + std::to_string(i));
    }
    int i = 0;
    for (const Wide &wide : wides) {
        check(wide.bytes[191] == static_cast<unsigned char>(i++), "a list loses a value");
    }
    check(names.size() == 2000, "a set loses a value");
}

static void allocators_are_equal_and_arrays_are_arrays() {
    using allocator = dh::object_allocator<int>;
    using traits = std::allocator_traits<allocator>;
    static_assert(traits::is_always_equal::value);
    static_assert(traits::propagate_on_container_swap::value);
    static_assert(std::is_same_v<traits::rebind_alloc<Wide>, dh::object_allocator<Wide>>);
    check(allocator{} == dh::object_allocator<Wide>{}, "allocators differ");
    check(!(allocator{} != allocator{}), "an allocator differs from itself");
    std::vector<int, allocator> numbers;
    for (int i = 0; i < 100'000; i++) {
        numbers.push_back(i);
    }
    check(numbers[99'999] == 99'999, "a vector loses a value");
    auto shared = std::allocate_shared<Wide>(dh::object_allocator<Wide>{});
    check(is_aligned(shared.get()), "a shared object is not aligned");
    dh::object_allocator<Huge> huge;
    Huge *one = huge.allocate(1);
    check(is_aligned(one), "an object of more than a page is not aligned");
    huge.deallocate(one, 1);
}

static void pools_free_what_is_left() {
    {
        dh::object_pool<Counted> pool;
        std::vector<Counted *> objects;
        for (int i = 0; i < 5000; i++) {
            objects.push_back(pool.construct(i));
        }
        for (int i = 0; i < 5000; i++) {
            check(objects[static_cast<std::size_t>(i)]->value == i, "a pool loses a value");
            check(pool.is_from(objects[static_cast<std::size_t>(i)]), "a pool disowns an object");
        }
        for (int i = 0; i < 5000; i += 2) {
            pool.destroy(objects[static_cast<std::size_t>(i)]);
        }
        check(Counted::live == 2500 && pool.size() == 2500, "destroying counts wrong");
        for (int i = 0; i < 5000; i++) {
            const bool is_live = i % 2 == 1;
            check(pool.is_from(objects[static_cast<std::size_t>(i)]) == is_live,
                  "destroying one object loses another");
        }
        bool thrown = false;
        try {
            pool.destroy(objects[0]);
        } catch (const std::invalid_argument &) {
            thrown = true;
        }
        check(thrown, "an object is destroyed twice");
        thrown = false;
        try {
            static_cast<void>(pool.construct(-1));
        } catch (const std::domain_error &) {
            thrown = true;
        }
        check(thrown && pool.size() == 2500, "a constructor that throws leaves an object");
        dh::object_pool<Counted> taken{std::move(pool)};
        check(taken.size() == 2500 && Counted::live == 2500, "moving a pool moves no object");
        taken = dh::object_pool<Counted>{};
        check(Counted::live == 0, "what a pool held outlives it");
        static_cast<void>(taken.construct(7));
    }
    check(Counted::live == 0, "what is left in a pool outlives it");
}

struct Plain {
    int id;
    double weight;
};

static void objects_of_a_pool_are_read_and_written_by_copies() {
    dh::object_pool<Plain> pool;
    Plain *plain = pool.construct();
    pool.write(plain, Plain{7, 1.5});
    check(plain->id == 7 && plain->weight == 1.5, "a value is not written");
    pool.write(plain, &Plain::weight, 2.5);
    check(pool.view(plain, &Plain::id) == 7, "a member is not read");
    const Plain copy = pool.read(plain);
    check(copy.id == 7 && copy.weight == 2.5, "a copy is not the object");
    pool.destroy(plain);
    bool thrown = false;
    try {
        static_cast<void>(pool.read(plain));
    } catch (const dh::error &error) {
        thrown = error.code() == DH_EOBJECT;
    }
    check(thrown, "what is freed is read");
}

static void pins_last_as_long_as_they_live() {
    dh::object_pool<Wide> pool;
    Wide *wide = pool.construct();
    wide->bytes[0] = 77;
    {
        dh::pinned pin{wide};
        dh::pinned moved{std::move(pin)};
        check(moved.get() == wide && wide->bytes[0] == 77, "a pin is not of its object");
    }
    bool thrown = false;
    try {
        dh::pinned pin{nullptr};
    } catch (const dh::error &error) {
        thrown = error.code() == DH_EOBJECT && error.what() != nullptr;
    }
    check(thrown, "nothing is pinned");
}

int main() {
    nodes_are_objects();
    lists_and_sets_hold_wide_values();
    allocators_are_equal_and_arrays_are_arrays();
    pools_free_what_is_left();
    objects_of_a_pool_are_read_and_written_by_copies();
    pins_last_as_long_as_they_live();
    std::puts("containers of objects hold");
}
