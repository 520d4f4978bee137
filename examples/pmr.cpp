// pmr.cpp - standard containers on deepheap, in C++17.
//
//     c++ -std=c++17 -O2 pmr.cpp -o pmr $(pkg-config --cflags --libs deepheap)
//     DEEPHEAP_CONF=ram:32M,store:. ./pmr
#include <deepheap.hpp>

#include <cstdio>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <vector>

int main() {
    // Everything the table holds, strings included, draws on one resource.
    deepheap::memory_resource deep;
    std::pmr::unordered_map<std::pmr::string, std::pmr::vector<int>> index{&deep};
    for (int document = 0; document < 1000; document++) {
        for (int word = 0; word < 100; word++) {
            std::pmr::string key{"word-", &deep};
            key += std::to_string(document * word % 5000);
            index[key].push_back(document);
        }
    }

    // Or one container at a time.
    std::vector<double, deepheap::allocator<double>> samples(1'000'000, 0.5);

    std::size_t postings = 0;
    for (const auto &entry : index) {
        postings += entry.second.size();
    }
    std::printf("%zu words, %zu postings, %zu samples\n", index.size(), postings, samples.size());
    return postings == 100'000 ? 0 : 1;
}
