// A program that replaces `operator new` and counts its calls: the other forms, which are the
// library's, call it too.
#include <cstdio>
#include <cstdlib>
#include <new>

static int calls = 0;

void *operator new(std::size_t size) {
    calls++;
    if (void *block = std::malloc(size)) return block;
    throw std::bad_alloc();
}

void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }

int main() {
    void *blocks[] = {
        ::operator new(100),
        ::operator new[](100),
        ::operator new(100, std::nothrow),
    };
    for (void *block : blocks) ::operator delete(block);
    std::printf("%d of its own\n", calls);
    return 0;
}
