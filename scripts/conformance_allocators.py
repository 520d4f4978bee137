"""conformance_allocators.py: the suites of conformance.py that are about memory itself."""

import shutil
import subprocess

from conformance_fetch import Missing, Step, Suite, call, unpack_binaries, unpack_source
from conformance_results import (read_exit_77, read_jemalloc, read_status, read_stress_ng)


class StressNg(Suite):
    """Stressors of stress-ng, each of which verifies what it does."""

    name, title, home = "stress-ng", "stress-ng, `--verify`", "stress-ng"
    quick = ("malloc", "fork")
    # The stressor, and options that make it want more than the budget or end in time.
    stressors = {
        "malloc": "--malloc-bytes 64M --malloc-ops 20000", "bigheap": "--bigheap-ops 1000",
        "vm": "--vm-bytes 64M --vm-ops 10000", "fork": "--fork-ops 400", "vfork": "--vfork-ops 400",
        "qsort": "--qsort-size 1000000 --qsort-ops 2", "mergesort": "--mergesort-ops 10",
        "tsearch": "--tsearch-ops 10", "tree": "--tree-size 200000 --tree-ops 2",
        "judy": "--judy-ops 2", "matrix": "--matrix-size 512 --matrix-ops 10",
        "str": "--str-ops 1000", "zlib": "--zlib-ops 10", "pthread": "--pthread-ops 1000",
        "mutex": "--mutex-ops 10000", "sem": "--sem-ops 10000", "sigsegv": "--sigsegv-ops 1000",
        "pipe": "--pipe-ops 10000",
    }

    def fetch(self):
        unpack_binaries(self.folder, "stress-ng", "libipsec-mb1", "libjudydebian1", "libsctp1")

    def version(self):
        return next(deb.name.split("_")[1] for deb in self.folder.glob("debs/stress-ng*.deb"))

    def steps(self):
        program = self.folder / "root/usr/bin/stress-ng"
        for stressor, options in self.stressors.items():
            yield Step(stressor, [program, "--verify", "--temp-path", ".", "--timeout", "20s",
                                  f"--{stressor}", "2", *options.split()],
                       read_stress_ng, self.folder, self.libraries())


class Mimalloc(Suite):
    """mimalloc's stress test on malloc itself: threads hand blocks on, each with its content."""

    name, title, home = "mimalloc", "mimalloc, `test-stress` on `malloc`", "mimalloc"
    quick = ("4 threads",)

    def fetch(self):
        unpack_source(self.folder, "mimalloc")
        call("cc", "-O2", "-DUSE_STD_MALLOC", "-Isource/include", "source/test/test-stress.c",
             "-o", "test-stress", "-lpthread", cwd=self.folder)

    def steps(self):
        for name, threads, scale, rounds in (("4 threads", 4, 20, 10), ("8 threads", 8, 50, 20),
                                             ("32 threads", 32, 20, 20)):
            yield Step(name, ["./test-stress", threads, scale, rounds], read_status, self.folder)


class StressNgVm(StressNg):
    """Every method by which stress-ng fills memory with patterns and verifies them."""

    name, title = "stress-ng-vm", "stress-ng, `--vm-method`, each"
    quick = ("flip", "rand-set")

    def steps(self):
        program = self.folder / "root/usr/bin/stress-ng"
        said = subprocess.run([program, "--vm-method", "which"], env=self.libraries(), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()
        for method in said.partition("must be one of:")[2].split():
            yield Step(method, [program, "--verify", "--temp-path", ".", "--timeout", "4s", "--vm",
                                "2", "--vm-bytes", "64M", "--vm-method", method, "--vm-ops",
                                "100"], read_stress_ng, self.folder, self.libraries())


class Glibc(Suite):
    """glibc's own tests of malloc, of what its support library and they can be compiled outside.

    Those that include what only glibc's own build has are skipped.
    """

    name, title, home = "glibc", "glibc, `malloc/tst-*.c`", "glibc"
    quick = ("tst-malloc", "tst-mallocfork2", "tst-memalign")
    # Headers of glibc's build that need nothing else of it.
    headers = ("include/array_length.h", "include/libc-diag.h", "include/libc-pointer-arith.h",
               "include/intprops.h", "include/scratch_buffer.h", "include/alloc_buffer.h",
               "sysdeps/generic/malloc-size.h", "sysdeps/generic/malloc-alignment.h")
    # What the build defines.
    macros = {"TEST_NO_MALLOPT": "", "TIMEOUTFACTOR": "20", "libc_hidden_proto(name)": "",
              "libc_hidden_def(name)": "", **{f"{folder}_PATH": '"."' for folder in (
                  "SRCDIR", "OBJDIR", "OBJDIR_ELF_LDSO", "INSTDIR", "LIBDIR", "BINDIR", "SBINDIR",
                  "SLIBDIR", "ROOTSBINDIR", "COMPLOCALEDIR")}}
    # Tests with a malloc of their own, and the file that brings it.
    with_malloc = {f"tst-interpose-{kind}thread": f"tst-interpose-aux-{of}thread"
                   for kind, of in (("", ""), ("no", "no"), ("static-", ""), ("static-no", "no"))}

    def tests(self):
        """The names of all tests."""
        return sorted(file.stem for pattern in ("tst-*.c", "mallocbug.c")
                      for file in (self.folder / "source/malloc").glob(pattern)
                      if "interpose-aux" not in file.stem and "skeleton" not in file.stem)

    def fetch(self):
        unpack_source(self.folder, "glibc")
        source, include = self.folder / "source", self.folder / "include"
        include.mkdir()
        for header in self.headers:
            shutil.copy(source / header, include)
        (include / "config.h").touch()
        compile_it = ["cc", "-O2", "-w", "-std=gnu11", "-fno-builtin", "-D_GNU_SOURCE",
                      *[f"-D{name}={value}" for name, value in self.macros.items()], "-include",
                      "limits.h", f"-I{include}", f"-I{source}/support", "-idirafter", source]
        objects = []
        for file in sorted(file for pattern in (
                "support/*.c", "malloc/scratch_buffer_*.c", "malloc/alloc_buffer_*.c",
                "malloc/dynarray_*.c") for file in source.glob(pattern)):
            try:
                call(*compile_it, "-c", file, "-o", self.folder / f"{file.stem}.o")
                objects.append(self.folder / f"{file.stem}.o")
            except Missing:
                # What needs it cannot be linked either, and is skipped.
                pass
        call("ar", "rcs", self.folder / "libsupport.a", *objects)
        for test in self.tests():
            rest = [source / f"malloc/{self.with_malloc[test]}.c"] if test in self.with_malloc \
                else []
            rest += ["-static"] if "static" in test else []
            try:
                call(*compile_it, source / f"malloc/{test}.c", *rest, "-o", self.folder / test,
                     self.folder / "libsupport.a", "-lpthread", cwd=self.folder)
            except Missing:
                pass
        if not any((self.folder / test).exists() for test in self.tests()):
            raise Missing("none of its tests can be compiled")

    def steps(self):
        for test in self.tests():
            yield Step(test, ["sh", "-c", f"test -x {test} || exit 77; exec ./{test}"],
                       read_exit_77, self.folder)


# jemalloc's header for tests, without jemalloc: what it calls is libc's, and what a test asks or
# orders of jemalloc alone does nothing, but that the largest size of all is PTRDIFF_MAX.
JEMALLOC_TEST = """
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define JEMALLOC_DIAGNOSTIC_PUSH
#define JEMALLOC_DIAGNOSTIC_POP
#define JEMALLOC_DIAGNOSTIC_IGNORE_ALLOC_SIZE_LARGER_THAN
#define JEMALLOC_FORMAT_PRINTF(a, b)
#define LG_SIZEOF_PTR 3
#define SIZE_T_MAX SIZE_MAX
#define BUFERROR_BUF 64
#define TEST_MALLOC_SIZE malloc_usable_size
#define malloc_snprintf snprintf
#define malloc_printf printf
#define malloc_cprintf(write, opaque, ...) printf(__VA_ARGS__)
#define malloc_vcprintf(write, opaque, format, list) vprintf(format, list)
#define not_reached abort
#define unreachable abort
#define nallocx(size, flags) (size)
#define get_errno() errno
#define set_errno(value) (errno = (value))
#define buferror(error, text, size) snprintf(text, size, "%s", strerror(error))
static void (*test_hooks_arena_new_hook)(), (*test_hooks_libc_hook)();
static inline int mallctl(const char *name, void *old, size_t *size, void *new_, size_t new_size) {
    return 0;
}
static inline int mallctlnametomib(const char *name, size_t *mib, size_t *length) { return 0; }
static inline int mallctlbymib(const size_t *mib, size_t length, void *old, size_t *size,
                               void *new_, size_t new_size) {
    *(size_t *)old = PTRDIFF_MAX;
    return 0;
}
#ifdef __cplusplus
extern "C" {
#endif
#include "../source/test/include/test/test.h"
#ifdef __cplusplus
}
#endif
"""


class Jemalloc(Suite):
    """jemalloc's tests of the functions that every malloc has, on malloc itself."""

    name, title, home = "jemalloc", "jemalloc, its tests of plain `malloc`", "jemalloc"
    quick = ("malloc", "posix_memalign")
    tests = ("malloc.c", "aligned_alloc.c", "posix_memalign.c", "overflow.c", "cpp/basic.cpp",
             "cpp/infallible_new_false.cpp")

    def fetch(self):
        unpack_source(self.folder, "jemalloc")
        (self.folder / "include/test").mkdir(parents=True)
        (self.folder / "include/test/jemalloc_test.h").write_text(JEMALLOC_TEST)
        options = ["-O2", "-w", "-fno-builtin", "-Iinclude"]
        call("cc", *options, "-c", "source/test/src/test.c", "-o", "test.o", cwd=self.folder)
        for test in self.tests:
            name = test.split("/")[-1].split(".")[0]
            call("c++" if test.endswith(".cpp") else "cc", *options,
                 f"source/test/integration/{test}", "test.o", "-o", name, cwd=self.folder)

    def steps(self):
        for test in self.tests:
            name = test.split("/")[-1].split(".")[0]
            yield Step(name, [f"./{name}"], read_jemalloc, self.folder)
