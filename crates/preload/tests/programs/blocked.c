/* Started with every signal blocked: it believes so, and uses its memory all the same. */
#define _GNU_SOURCE
#include "pressure.h"
#include <signal.h>

#define DATA ((size_t)20 << 20)

int main(void) {
    sigset_t now;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    CHECK(sigismember(&now, SIGBUS) && sigismember(&now, SIGTERM));
    unsigned char *data = evicted(DATA, 1);
    CHECK(is_filled(data, DATA, 1));
    puts("blocked holds");
    return 0;
}
