// Objects of one size by places that call `new`: many that are looked up here and there, many that
// are walked in the order of their allocation, and few. libstdc++'s `operator new` calls malloc for
// all of them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::_Exit(9); \
        } \
    } while (0)

struct record {
    std::uint64_t key, check;
    unsigned char payload[200 - 2 * 8];
    explicit record(std::uint64_t key) : key(key), check(~key), payload{} {}
};

static constexpr std::uint64_t many = 40000, few = 100, rounds = 2;
// Of so many one is looked up, again and again: its page has no other such.
static constexpr std::uint64_t hot = 16;
static std::vector<record *> looked_up(many), walked(many), rare(few);

static std::uint64_t mixed(std::uint64_t i) {
    i *= 0x9e3779b97f4a7c15u;
    return i ^ i >> 31;
}

// `new_...` are told by their name, as C functions are.
extern "C" {
__attribute__((noinline)) void new_looked_up(std::uint64_t i) { looked_up[i] = new record(i); }
__attribute__((noinline)) void new_walked(std::uint64_t i) {
    walked[i] = new (std::nothrow) record(i);
}
__attribute__((noinline)) void new_rare(std::uint64_t i) { rare[i] = new record(i); }
}

static void check(const record *record, std::uint64_t key) {
    CHECK(record->key == key && record->check == ~key);
}

int main() {
    // RAM is full before anything is tried.
    std::vector<unsigned char> ballast(16 << 20, 1);
    CHECK(ballast[ballast.size() / 2] == 1);
    for (std::uint64_t i = 0; i < many; i++) {
        new_walked(i);
        new_looked_up(i);
        if (i < few) new_rare(i);
    }
    for (std::uint64_t round = 0; round < rounds; round++) {
        for (std::uint64_t i = 0; i < many; i++) {
            check(walked[i], i);
            const std::uint64_t at = mixed(round * many + i) % (many / hot) * hot;
            check(looked_up[at], at);
            check(rare[i % few], i % few);
        }
    }
    for (std::uint64_t i = 0; i < many; i++) {
        delete looked_up[i];
        delete walked[i];
        new_looked_up(i);
        new_walked(i);
        check(rare[i % few], i % few);
    }
    std::puts("news hold");
    return 0;
}
