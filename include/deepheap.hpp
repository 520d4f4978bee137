// deepheap.hpp - deepheap's memory for C++17: a polymorphic memory resource and an allocator.
//
//     deepheap::memory_resource deep;
//     std::pmr::unordered_map<std::string, std::string> table{&deep};
//
//     std::vector<double, deepheap::allocator<double>> samples(1'000'000'000);
//
// Guarantees: both honour over-aligned types, throw std::bad_alloc when neither RAM budget nor
// store can take the memory, and are stateless: any instance frees what any other allocated.
#ifndef DEEPHEAP_HPP
#define DEEPHEAP_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "deepheap.hpp needs C++17: compile with -std=c++17 or later"
#endif

#include "deepheap.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <new>
#include <type_traits>

namespace deepheap {

namespace detail {

// What dh_malloc aligns to by itself.
inline constexpr std::size_t malloc_alignment = 16;

inline void *allocate(std::size_t bytes, std::size_t alignment) {
    // An allocation of no bytes still needs an address of its own.
    const std::size_t size = bytes == 0 ? 1 : bytes;
    void *ptr = alignment <= malloc_alignment ? dh_malloc(size) : dh_aligned_alloc(alignment, size);
    if (ptr == nullptr) {
        throw std::bad_alloc();
    }
    return ptr;
}

} // namespace detail

// The heap as a std::pmr::memory_resource. All instances are equal.
class memory_resource final : public std::pmr::memory_resource {
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        return detail::allocate(bytes, alignment);
    }

    void do_deallocate(void *ptr, std::size_t, std::size_t) override { dh_free(ptr); }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        return dynamic_cast<const memory_resource *>(&other) != nullptr;
    }
};

// A resource that lives as long as the program, for std::pmr::set_default_resource and the like.
inline memory_resource *resource() noexcept {
    // Never destroyed: containers with static storage may still give memory back at exit.
    alignas(memory_resource) static unsigned char storage[sizeof(memory_resource)];
    static memory_resource *const instance = ::new (static_cast<void *>(storage)) memory_resource;
    return instance;
}

// The heap as a standard allocator.
template <class T> class allocator {
  public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;

    allocator() noexcept = default;
    template <class U> allocator(const allocator<U> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return static_cast<T *>(detail::allocate(count * sizeof(T), alignof(T)));
    }

    void deallocate(T *ptr, std::size_t) noexcept { dh_free(ptr); }
};

template <class T, class U>
bool operator==(const allocator<T> &, const allocator<U> &) noexcept {
    return true;
}

template <class T, class U>
bool operator!=(const allocator<T> &, const allocator<U> &) noexcept {
    return false;
}

} // namespace deepheap

#endif // DEEPHEAP_HPP
