/* Memory that the program gives up reads as zeros, and is not read from the store for that. */
#include "pressure.h"

#include <sys/mman.h>
#include <sys/resource.h>

enum { MIB = 1 << 20, GIVEN_UP = 24 * MIB, KEPT = 8 * MIB };

/* Bytes read from devices by this process. */
static long read_bytes(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_inblock * 512;
}

int main(void) {
    unsigned char *block = aligned_alloc(PAGE, KEPT + GIVEN_UP + KEPT);
    fill(block, KEPT + GIVEN_UP + KEPT, 7);
    press();
    const long before = read_bytes();
    CHECK(madvise(block + KEPT, GIVEN_UP, MADV_DONTNEED) == 0);
    CHECK(read_bytes() - before < GIVEN_UP / 8);
    for (int i = 0; i < GIVEN_UP; i += 4000) CHECK(block[KEPT + i] == 0);
    for (int i = 0; i < KEPT; i++) {
        CHECK(block[i] == byte_at(i, 7));
        CHECK(block[KEPT + GIVEN_UP + i] == byte_at(KEPT + GIVEN_UP + i, 7));
    }
    for (int i = 0; i < GIVEN_UP; i += PAGE) block[KEPT + i] = 9;
    press();
    for (int i = 0; i < GIVEN_UP; i++) CHECK(block[KEPT + i] == (i % PAGE == 0 ? 9 : 0));
    puts("what is given up is zero");
    return 0;
}
