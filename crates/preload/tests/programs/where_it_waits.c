// Waits in faults in one function, `touch_cold`, called by `middle`, in ways that make its stack
// hard to read. The argument says how:
//   plain  from main, and in a forked child as well
//   stack  on a stack in memory of malloc, most of which is evicted meanwhile
//   broken with a stack pointer that points nowhere
//   made   from code that is made at run time, and named in /tmp/perf-PID.map
//   long   until it is killed
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8192, STACK = 1 << 20, DEEP = 150 };

static unsigned char *cold;
static unsigned wrong;

__attribute__((noinline)) void touch_cold(unsigned rounds) {
    unsigned at = 1;
    for (unsigned i = 0; i < rounds * PAGES; i++) {
        at = at * 1664525 + 1013904223;
        unsigned page = (at >> 8) % PAGES;
        wrong += cold[(size_t)page * PAGE] != (unsigned char)page;
    }
}

__attribute__((noinline)) void middle(unsigned rounds) {
    touch_cold(rounds);
    wrong += rounds == 0;  // not its last call
}

__attribute__((noinline)) static void deeper(unsigned depth) {
    volatile unsigned char frame[PAGE];
    memset((void *)frame, (int)depth, PAGE);
    if (depth > 0)
        deeper(depth - 1);
    else
        middle(1);
    wrong += frame[PAGE / 2] != (unsigned char)depth;
}

static void on_stack(void) { deeper(DEEP); }

static void once(void) {
    middle(1);
    __asm__ volatile("");  // nor this
}

__attribute__((noinline)) static void made(void) {
    // sub rsp, 8; call rdi; add rsp, 8; ret: as Python's trampolines are.
    static const unsigned char code[] = {0x48, 0x83, 0xec, 8,    0xff, 0xd7,
                                         0x48, 0x83, 0xc4, 8, 0xc3};
    int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *page = mmap(NULL, PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    fprintf(map, "%lx %zx py::cook:/srv/kitchen.py\n", (unsigned long)page, sizeof code);
    fclose(map);
    void (*cook)(void (*)(void));
    memcpy(&cook, &page, sizeof cook);
    cook(once);
}

// Touches pages while rsp points to memory that is not there.
__attribute__((noinline)) static void broken(void) {
    for (size_t page = 0; page < PAGES; page++) {
        unsigned char byte;
        __asm__ volatile("mov %%rsp, %%rbx\n\tmov $0x10, %%rsp\n\tmovb (%1), %0\n\tmov %%rbx, %%rsp"
                         : "=&r"(byte)
                         : "r"(cold + page * PAGE)
                         : "rbx", "memory");
        wrong += byte != (unsigned char)page;
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cold = malloc((size_t)PAGES * PAGE);
    for (size_t i = 0; i < (size_t)PAGES * PAGE / 8; i++)
        ((uint64_t *)cold)[i] = i * 0x9e3779b97f4a7c15u ^ i << 7;
    for (size_t page = 0; page < PAGES; page++)
        cold[page * PAGE] = (unsigned char)page;
    if (strcmp(argv[1], "plain") == 0) {
        pid_t child = fork();
        middle(1);
        if (child == 0)
            _exit(wrong != 0);
        int status = 0;
        wrong += waitpid(child, &status, 0) != child || status != 0;
    } else if (strcmp(argv[1], "stack") == 0) {
        static ucontext_t here, there;
        getcontext(&there);
        there.uc_stack.ss_sp = malloc(STACK);
        there.uc_stack.ss_size = STACK;
        there.uc_link = &here;
        makecontext(&there, on_stack, 0);
        swapcontext(&here, &there);
    } else if (strcmp(argv[1], "broken") == 0) {
        broken();
    } else if (strcmp(argv[1], "made") == 0) {
        made();
    } else {
        puts("filled");
        fflush(stdout);
        for (;;)
            middle(1);
    }
    printf("%d %u wrong\n", getpid(), wrong);
    return wrong != 0;
}
