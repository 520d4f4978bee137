// A mapped file is a span: elements, rows that a list names, another length.
#include <cstdio>
#include <cstdlib>
#include <deepheap.hpp>
#include <numeric>
#include <string>
#include <vector>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                \
                         dh_last_error());                                                         \
            std::_Exit(1);                                                                         \
        }                                                                                          \
    } while (0)

struct record {
    std::uint64_t number;
    double value;
};

int main() {
    constexpr std::size_t count = 1'000'000;
    const char *name = "mapped.bin";
    std::FILE *file = std::fopen(name, "w");
    CHECK(file != nullptr);
    for (std::size_t i = 0; i < count; ++i) {
        const record one{i, 0.5 * static_cast<double>(i)};
        CHECK(std::fwrite(&one, sizeof one, 1, file) == 1);
    }
    CHECK(std::fclose(file) == 0);
    {
        dh::mapped<record> records{name};
        CHECK(records.size() == count && records[count - 1].number == count - 1);
        std::vector<std::uint32_t> picked(1000);
        for (std::size_t i = 0; i < picked.size(); ++i) {
            picked[i] = static_cast<std::uint32_t>(i * 7919 % count);
        }
        std::vector<record> rows(picked.size());
        records.gather(picked.data(), picked.size(), rows.data());
        for (std::size_t i = 0; i < picked.size(); ++i) {
            CHECK(rows[i].number == picked[i]);
        }
        const std::uint64_t beyond = count;
        bool is_refused = false;
        try {
            records.gather(&beyond, 1, rows.data());
        } catch (const dh::map_error &) {
            is_refused = true;
        }
        CHECK(is_refused);
        records.advise(DH_MAP_SEQUENTIAL);
        for (record &one : records) {
            one.value += 1;
        }
        records.sync(10, 20);
        records.sync();
        records.resize(count + 5);
        CHECK(records.size() == count + 5 && records[count].number == 0);
        records.resize(count);
        dh::mapped<record> moved{std::move(records)};
        CHECK(moved.size() == count && records.empty());
    }
    dh::mapped<const record> again{name};
    const auto add = [](double all, const record &one) { return all + one.value; };
    const double sum = std::accumulate(again.begin(), again.end(), 0.0, add);
    CHECK(sum == 0.5 * static_cast<double>(count) * (count - 1) / 2 + count);
    {
        dh::mapped<record> own{name, DH_MAP_PRIVATE};
        CHECK(own.size() == count);
        own[3].value = -1;
        CHECK(again[3].value == 2.5);
    }
    bool is_refused = false;
    try {
        dh::mapped<const record> none{"no-such-file"};
    } catch (const dh::map_error &error) {
        is_refused = std::string{error.what()}.find("No such file") != std::string::npos;
    }
    CHECK(is_refused);
    std::remove(name);
    std::puts("spans hold");
}
