// operator new and delete in all their forms, and what the standard library builds on them.
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
            std::_Exit(9);                                                \
        }                                                                 \
    } while (0)

struct alignas(256) Wide {
    char bytes[700];
};

struct Throws {
    Throws() { throw std::runtime_error("constructor"); }
};

static int handler_calls = 0;

static void handler() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

int main() {
    for (std::size_t size = 0; size < 100000; size = size * 2 + 1) {
        void *p = ::operator new(size);
        CHECK(p && reinterpret_cast<std::uintptr_t>(p) % 16 == 0);
        ::operator delete(p, size);
        p = ::operator new[](size);
        ::operator delete[](p, size);
        p = ::operator new(size, std::nothrow);
        ::operator delete(p, std::nothrow);
        p = ::operator new[](size, std::nothrow);
        ::operator delete[](p);
        p = ::operator new(size, std::align_val_t(512));
        CHECK(p && reinterpret_cast<std::uintptr_t>(p) % 512 == 0);
        ::operator delete(p, size, std::align_val_t(512));
        p = ::operator new[](size, std::align_val_t(4096), std::nothrow);
        CHECK(p && reinterpret_cast<std::uintptr_t>(p) % 4096 == 0);
        ::operator delete[](p, std::align_val_t(4096));
    }
    delete static_cast<int *>(nullptr);
    auto wide = std::make_unique<Wide[]>(33);
    CHECK(reinterpret_cast<std::uintptr_t>(wide.get()) % 256 == 0);

    volatile std::size_t huge = PTRDIFF_MAX;
    std::set_new_handler(handler);
    bool threw = false;
    try {
        ::operator delete(::operator new(huge));
    } catch (const std::bad_alloc &) {
        threw = true;
    }
    CHECK(threw && handler_calls == 3);
    CHECK(::operator new(huge, std::nothrow) == nullptr);

    for (int i = 0; i < 1000; i++) {
        try {
            delete new Throws;
        } catch (const std::runtime_error &error) {
            CHECK(std::string(error.what()) == "constructor");
        }
    }

    std::unordered_map<std::string, std::vector<int>> map;
    for (int i = 0; i < 40000; i++) map["key" + std::to_string(i)].assign(40, i);
    std::thread([&] {
        std::map<int, std::string> local;
        for (int i = 0; i < 50000; i++) local[i] = std::string(100, char('a' + i % 26));
        for (int i = 0; i < 50000; i++) CHECK(local[i] == std::string(100, char('a' + i % 26)));
    }).join();
    for (int i = 0; i < 40000; i++) {
        const auto &list = map["key" + std::to_string(i)];
        CHECK(list.size() == 40 && list[0] == i && list[39] == i);
    }
    std::puts("new and delete hold");
}
