// deepheap.hpp - deepheap's memory for C++17: a polymorphic memory resource, allocators, a pool of
// objects, a pin, mapped files, and heaps that outlive the process. Namespace deepheap, or dh for
// short.
//
//     dh::memory_resource deep;
//     std::pmr::unordered_map<std::string, std::string> table{&deep};
//
//     std::vector<double, dh::allocator<double>> samples(1'000'000'000);
//
//     // Nodes as objects: kept in RAM and written to the SSD one by one, not by the page.
//     std::map<int, Order, std::less<int>,
//              dh::object_allocator<std::pair<const int, Order>>> orders;
//
//     dh::object_pool<Node> nodes;
//     Node *node = nodes.construct(1, 2);
//
//     // There again in the next process, with all that is in it.
//     dh::durable_heap heap{"samples.dh", "ram:1G,checkpoint:10s"};
//     using numbers = std::vector<double, dh::durable_allocator<double>>;
//     auto *kept = heap.find_or_construct<numbers>("samples", heap.allocator<double>());
//
//     // A file of floats, larger than RAM, as a span.
//     dh::mapped<const float> vectors{"vectors.bin"};
//
// Guarantees: all of them honour over-aligned types, and throw std::bad_alloc when neither the RAM
// budget nor the store can take the memory. Resource and allocators are stateless: any instance
// frees memory that any other allocated.
#ifndef DEEPHEAP_HPP
#define DEEPHEAP_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "deepheap.hpp needs C++17: compile with -std=c++17 or later"
#endif

#include "deepheap.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/stat.h>
#include <type_traits>
#include <utility>
#include <vector>

namespace deepheap {

namespace detail {

// The alignment of dh_malloc.
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

// The heap as a std::pmr::memory_resource. All instances are equal; without run-time type
// information (-fno-rtti) each is equal to itself only.
class memory_resource final : public std::pmr::memory_resource {
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        return detail::allocate(bytes, alignment);
    }

    void do_deallocate(void *ptr, std::size_t, std::size_t) override { dh_free(ptr); }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#if defined(__cpp_rtti)
        return dynamic_cast<const memory_resource *>(&other) != nullptr;
#else
        // Then two instances count as different, which costs a copy where memory could have been
        // moved.
        return this == &other;
#endif
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

namespace detail {

// The largest alignment of an object of dh_oalloc: the start of its page.
inline constexpr std::size_t object_alignment = 4096;

// Memory for one T as an object of its own. sizeof(T) is a multiple of alignof(T), so dh_oalloc
// aligns it as T needs.
template <class T> T *allocate_object() {
    if constexpr (alignof(T) > object_alignment) {
        return static_cast<T *>(allocate(sizeof(T), alignof(T)));
    } else {
        void *ptr = dh_oalloc(1, sizeof(T));
        if (ptr == nullptr) {
            throw std::bad_alloc();
        }
        return static_cast<T *>(ptr);
    }
}

} // namespace detail

// A standard allocator that makes single elements objects: the nodes of map, set, list,
// unordered_map. Arrays (buckets, the storage of a vector) are memory of dh_malloc.
template <class T> class object_allocator {
  public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    object_allocator() noexcept = default;
    template <class U> object_allocator(const object_allocator<U> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t count) {
        return count == 1 ? detail::allocate_object<T>() : allocator<T>{}.allocate(count);
    }

    void deallocate(T *ptr, std::size_t) noexcept { dh_free(ptr); }
};

template <class T, class U>
bool operator==(const object_allocator<T> &, const object_allocator<U> &) noexcept {
    return true;
}

template <class T, class U>
bool operator!=(const object_allocator<T> &, const object_allocator<U> &) noexcept {
    return false;
}

// An error code of a C function, as an exception.
class error : public std::runtime_error {
  public:
    // `code` is a DH_E...
    explicit error(int code) : std::runtime_error(dh_strerror(code)), code_(code) {}
    int code() const noexcept { return code_; }

  private:
    int code_;
};

namespace detail {

// A set of addresses: open addressing, at most three quarters full. Its memory is on the heap, too.
class address_set {
  public:
    bool contains(const void *ptr) const noexcept {
        return !slots_.empty() && slots_[find(ptr)] != nullptr;
    }

    // Afterwards one more address can be inserted without an exception.
    void reserve_one() {
        if ((count_ + 1) * 4 > slots_.size() * 3) {
            address_set larger;
            larger.slots_.resize(slots_.empty() ? 64 : slots_.size() * 2);
            for_each([&larger](void *ptr) { larger.insert(ptr); });
            *this = std::move(larger);
        }
    }

    void insert(void *ptr) noexcept {
        slots_[find(ptr)] = ptr;
        count_++;
    }

    bool erase(const void *ptr) noexcept {
        if (!contains(ptr)) {
            return false;
        }
        // An entry that follows and would not be found across the gap moves into it.
        const std::size_t mask = slots_.size() - 1;
        std::size_t gap = find(ptr);
        for (std::size_t at = (gap + 1) & mask; slots_[at] != nullptr; at = (at + 1) & mask) {
            if (((at - home(slots_[at])) & mask) >= ((at - gap) & mask)) {
                slots_[gap] = slots_[at];
                gap = at;
            }
        }
        slots_[gap] = nullptr;
        count_--;
        return true;
    }

    template <class F> void for_each(F each) const {
        for (void *ptr : slots_) {
            if (ptr != nullptr) {
                each(ptr);
            }
        }
    }

    std::size_t size() const noexcept { return count_; }

  private:
    std::size_t home(const void *ptr) const noexcept {
        const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(ptr));
        return static_cast<std::size_t>((address * 0x9E3779B97F4A7C15u) >> 32) &
               (slots_.size() - 1);
    }

    // The slot where the address is, or would be.
    std::size_t find(const void *ptr) const noexcept {
        std::size_t at = home(ptr);
        while (slots_[at] != nullptr && slots_[at] != ptr) {
            at = (at + 1) & (slots_.size() - 1);
        }
        return at;
    }

    std::vector<void *, allocator<void *>> slots_;
    std::size_t count_ = 0;
};

} // namespace detail

// A pool of objects in the manner of boost::object_pool: when the pool is destroyed, it destroys
// the objects that are left. For one thread at a time.
template <class T> class object_pool {
  public:
    using element_type = T;

    object_pool() = default;
    object_pool(object_pool &&other) noexcept { swap(other); }
    object_pool &operator=(object_pool &&other) noexcept {
        object_pool taken{std::move(other)};
        swap(taken);
        return *this;
    }
    object_pool(const object_pool &) = delete;
    object_pool &operator=(const object_pool &) = delete;

    ~object_pool() {
        // Objects without a destructor are freed without being fetched.
        live_.for_each([](void *ptr) { end(static_cast<T *>(ptr)); });
    }

    // A new object, constructed with these arguments.
    template <class... Arguments> [[nodiscard]] T *construct(Arguments &&...arguments) {
        live_.reserve_one();
        T *object = detail::allocate_object<T>();
        try {
            ::new (static_cast<void *>(object)) T(std::forward<Arguments>(arguments)...);
        } catch (...) {
            dh_free(object);
            throw;
        }
        live_.insert(object);
        return object;
    }

    // Destroys and frees an object of this pool; throws std::invalid_argument for anything else.
    void destroy(T *object) {
        if (!live_.erase(object)) {
            throw std::invalid_argument("deepheap::object_pool: not an object of this pool");
        }
        end(object);
    }

    // Copies of an object, and of one member of it, without a page fault: an object in RAM costs
    // the copy. They throw deepheap::error if the object cannot be read.
    [[nodiscard]] T read(const T *object) const {
        static_assert(std::is_default_constructible_v<T>);
        T value;
        copy_out(object, 0, value);
        return value;
    }

    template <class Member> [[nodiscard]] Member view(const T *object, Member T::*member) const {
        Member value;
        copy_out(object, offset_of(object, member), value);
        return value;
    }

    // Gives an object, or one member of it, another value, in the same way.
    void write(T *object, const T &value) { copy_in(object, 0, value); }

    template <class Member> void write(T *object, Member T::*member, const Member &value) {
        copy_in(object, offset_of(object, member), value);
    }

    bool is_from(const T *object) const noexcept { return live_.contains(object); }
    std::size_t size() const noexcept { return live_.size(); }

    void swap(object_pool &other) noexcept { std::swap(live_, other.live_); }

  private:
    // An address: nothing is read.
    template <class Member>
    static std::size_t offset_of(const T *object, Member T::*member) noexcept {
        return reinterpret_cast<std::uintptr_t>(std::addressof(object->*member)) -
               reinterpret_cast<std::uintptr_t>(object);
    }

    template <class Value>
    static void copy_out(const T *object, std::size_t offset, Value &value) {
        static_assert(std::is_trivially_copyable_v<Value>);
        if (const int code = dh_read(object, offset, &value, sizeof value); code != DH_OK) {
            throw error(code);
        }
    }

    template <class Value>
    static void copy_in(T *object, std::size_t offset, const Value &value) {
        static_assert(std::is_trivially_copyable_v<Value>);
        if (const int code = dh_write(object, offset, &value, sizeof value); code != DH_OK) {
            throw error(code);
        }
    }

    static void end(T *object) noexcept {
        if constexpr (!std::is_trivially_destructible_v<T>) {
            object->~T();
        }
        dh_free(object);
    }

    detail::address_set live_;
};

// Keeps an object in RAM for as long as this lives: it can be touched without a fault, and passed
// to system calls.
class pinned {
  public:
    // Throws deepheap::error if the object cannot be pinned.
    explicit pinned(const void *object) : object_(object) {
        if (const int code = dh_pin(object); code != DH_OK) {
            throw error(code);
        }
    }

    pinned(pinned &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    pinned &operator=(pinned &&other) noexcept {
        pinned taken{std::move(other)};
        std::swap(object_, taken.object_);
        return *this;
    }
    pinned(const pinned &) = delete;
    pinned &operator=(const pinned &) = delete;

    ~pinned() {
        if (object_ != nullptr) {
            dh_unpin(object_);
        }
    }

    const void *get() const noexcept { return object_; }

  private:
    const void *object_;
};

// Why a file cannot be mapped, or a map not be synced. The text says what to do.
class map_error : public std::runtime_error {
  public:
    // Of the last call of this thread.
    map_error() : std::runtime_error(dh_last_error()) {}
};

// A file of Ts, mapped: a span over all of it, which may be far larger than RAM. `mapped<const T>`
// cannot write. Other processes may change what is there at any time.
template <class T> class mapped {
    static_assert(std::is_trivially_copyable_v<std::remove_const_t<T>>,
                  "a file keeps bytes, no pointers and no invariants");

  public:
    using value_type = std::remove_const_t<T>;
    using iterator = T *;

    // Throws map_error. A part of a T at the end of the file is left out.
    explicit mapped(const char *path, std::uint32_t flags = DH_MAP_SHARED) {
        constexpr int protection = std::is_const_v<T> ? PROT_READ : PROT_READ | PROT_WRITE;
        data_ = static_cast<T *>(dh_map(path, 0, protection, flags));
        if (data_ == nullptr) {
            throw map_error();
        }
        struct stat status {};
        size_ = ::stat(path, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
        if (struct dh_map_stats stats{}; dh_map_stats(data_, &stats) == DH_OK) {
            size_ = static_cast<std::size_t>(stats.file_bytes);
        }
        size_ /= sizeof(T);
    }

    mapped(mapped &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    mapped &operator=(mapped &&other) noexcept {
        mapped taken{std::move(other)};
        std::swap(data_, taken.data_);
        std::swap(size_, taken.size_);
        return *this;
    }
    mapped(const mapped &) = delete;
    mapped &operator=(const mapped &) = delete;

    // If the changes cannot be written the file stays mapped; the exit of the process tries again.
    ~mapped() {
        if (data_ != nullptr) {
            dh_unmap(const_cast<value_type *>(data_));
        }
    }

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

    // Makes the stores of all processes until now durable, in all of it or in these elements.
    // Throws map_error.
    void sync() const { checked(dh_sync(data_, 0)); }
    void sync(std::size_t first, std::size_t count) const {
        if (count > 0) {
            checked(dh_sync(data_ + first, count * sizeof(T)));
        }
    }

    // Copies the elements that the indices name to `out`; those that are not in RAM are read side
    // by side. Throws map_error, also for an index beyond the end.
    template <class Index>
    void gather(const Index *indices, std::size_t count, value_type *out) const {
        constexpr std::size_t together = 256;
        void *list[together];
        for (std::size_t done = 0; done < count; done += together) {
            const std::size_t some = count - done < together ? count - done : together;
            for (std::size_t i = 0; i < some; ++i) {
                list[i] = const_cast<value_type *>(data_ + indices[done + i]);
            }
            if (dh_gather(list, some, 0, sizeof(T), out + done) !=
                static_cast<ssize_t>(some)) {
                throw map_error();
            }
        }
    }

    // Makes the file `count` elements long and maps all of it, maybe elsewhere. Throws map_error.
    void resize(std::size_t count) {
        void *moved = dh_remap(const_cast<value_type *>(data_), count * sizeof(T));
        if (moved == nullptr) {
            throw map_error();
        }
        data_ = static_cast<T *>(moved);
        size_ = count;
    }

    // Tells how it will be used: DH_MAP_RANDOM, DH_MAP_SEQUENTIAL and so on.
    void advise(int advice) const { checked(dh_map_advise(data_, 0, advice)); }

  private:
    static void checked(int code) {
        if (code != DH_OK) {
            throw map_error();
        }
    }

    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// Why a durable heap cannot be opened, or a checkpoint not be made. The text says what to do.
class durable_error : public std::runtime_error {
  public:
    // Of the last call of this thread.
    durable_error() : std::runtime_error(dh_last_error()) {}
};

// A standard allocator over a durable heap. It holds only the heap's handle, which is the same in
// every process. So a container can lie in the heap, with its allocator and its elements. Objects
// in the heap must not point to code or to other memory: no virtual functions.
template <class T> class durable_allocator {
  public:
    using value_type = T;
    using is_always_equal = std::false_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    explicit durable_allocator(dh_heap *heap) noexcept : heap_(heap) {}
    template <class U>
    durable_allocator(const durable_allocator<U> &other) noexcept : heap_(other.heap()) {}

    [[nodiscard]] T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        void *ptr = dh_heap_aligned_alloc(heap_, alignof(T), count * sizeof(T));
        if (ptr == nullptr) {
            throw std::bad_alloc();
        }
        return static_cast<T *>(ptr);
    }

    void deallocate(T *ptr, std::size_t) noexcept { dh_free(ptr); }

    dh_heap *heap() const noexcept { return heap_; }

  private:
    dh_heap *heap_;
};

template <class T, class U>
bool operator==(const durable_allocator<T> &one, const durable_allocator<U> &other) noexcept {
    return one.heap() == other.heap();
}

template <class T, class U>
bool operator!=(const durable_allocator<T> &one, const durable_allocator<U> &other) noexcept {
    return one.heap() != other.heap();
}

// A checkpoint that was asked for. Valid as long as the heap is open.
class checkpoint_ticket {
  public:
    // Waits until the content of the heap at the request is durable; tells of the newest
    // checkpoint. Throws durable_error if it could not be made.
    struct dh_checkpoint wait() const {
        struct dh_checkpoint info;
        if (dh_checkpoint_wait(heap_, number_, &info) != DH_OK) {
            throw durable_error();
        }
        return info;
    }

    std::uint64_t number() const noexcept { return number_; }

  private:
    friend class durable_heap;
    checkpoint_ticket(dh_heap *heap, std::uint64_t number) noexcept
        : heap_(heap), number_(number) {}

    dh_heap *heap_;
    std::uint64_t number_;
};

// A durable heap. The constructor opens it; the destructor makes a checkpoint and closes it.
// Nothing of its memory may be used after that.
class durable_heap {
  public:
    // `options` as for dh_open. Throws durable_error.
    explicit durable_heap(const char *path, const char *options = nullptr)
        : heap_(dh_open(path, options)) {
        if (heap_ == nullptr) {
            throw durable_error();
        }
    }

    durable_heap(durable_heap &&other) noexcept : heap_(std::exchange(other.heap_, nullptr)) {}
    durable_heap &operator=(durable_heap &&other) noexcept {
        durable_heap taken{std::move(other)};
        std::swap(heap_, taken.heap_);
        return *this;
    }
    durable_heap(const durable_heap &) = delete;
    durable_heap &operator=(const durable_heap &) = delete;

    // If the checkpoint fails, stderr says why and the heap stays open; call close() to handle it.
    ~durable_heap() {
        if (heap_ != nullptr && dh_close(heap_) != DH_OK) {
            std::fprintf(stderr, "deepheap: a durable heap is not closed: %s\n", dh_last_error());
        }
    }

    // Makes a checkpoint and closes the heap. If it throws durable_error the heap is still open.
    void close() {
        check(dh_close(heap_));
        heap_ = nullptr;
    }

    // The address that has this name; null if none has.
    template <class T> T *root(const char *name) const noexcept {
        return static_cast<T *>(dh_root(heap_, name));
    }

    // Gives an address of the heap a name, for the next process; null removes the name.
    void set_root(const char *name, const void *address) {
        check(dh_set_root(heap_, name, address));
    }

    // The T that has this name. The first time it is constructed with these arguments.
    template <class T, class... Arguments>
    T *find_or_construct(const char *name, Arguments &&...arguments) {
        if (T *known = root<T>(name)) {
            return known;
        }
        T *place = allocator<T>().allocate(1);
        try {
            ::new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...);
        } catch (...) {
            dh_free(place);
            throw;
        }
        set_root(name, place);
        return place;
    }

    template <class T> durable_allocator<T> allocator() const noexcept {
        return durable_allocator<T>{heap_};
    }

    // Makes the content of the heap durable, while other threads go on.
    struct dh_checkpoint checkpoint() {
        struct dh_checkpoint info;
        check(dh_checkpoint_info(heap_, &info));
        return info;
    }

    // The same by a thread of the heap; the ticket is there to wait for.
    checkpoint_ticket checkpoint_async() {
        std::uint64_t number = 0;
        check(dh_checkpoint_async(heap_, &number));
        return checkpoint_ticket{heap_, number};
    }

    // Makes a checkpoint and keeps it under a name, until remove_snapshot; see dh_snapshot. Both
    // throw durable_error.
    void snapshot(const char *name) { check(dh_snapshot(heap_, name)); }
    void remove_snapshot(const char *name) { check(dh_remove_snapshot(heap_, name)); }

    // The newest checkpoint, whoever made it. Throws durable_error if the heap's thread has failed
    // to make one since.
    struct dh_checkpoint newest_checkpoint() const {
        struct dh_checkpoint info;
        check(dh_checkpoint_wait(heap_, 0, &info));
        return info;
    }

    dh_heap *get() const noexcept { return heap_; }

  private:
    static void check(int code) {
        if (code != DH_OK) {
            throw durable_error();
        }
    }

    dh_heap *heap_;
};

} // namespace deepheap

namespace dh = deepheap;

#endif // DEEPHEAP_HPP
