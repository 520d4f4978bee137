"""conformance_suites.py: the test suites of conformance.py, how each is fetched, built and run."""

import os
import re
import shutil
from pathlib import Path

from conformance_allocators import Glibc, Jemalloc, Mimalloc, StressNg, StressNgVm
from conformance_fetch import Missing, Step, Suite, call, unpack_binaries, unpack_source
from conformance_results import (read_jq, read_junit, read_pg_regress, read_redis, read_rocksdb,
                                 read_speedtest, read_status, read_tap)


class CPython(Suite):
    """The tests of CPython that are about memory, threads, signals, processes, files and sockets.

    By itself CPython takes what is up to 512 bytes from arenas that it maps, which are no heap.
    """

    name, title, home = "cpython", "CPython, its own allocator for what is small", "cpython"
    quick = ("test_list", "test_mmap", "test_zlib")
    environment = {}
    files = (
        "test_list test_dict test_set test_gc test_weakref test_bytes test_unicode test_array "
        "test_buffer test_memoryview test_struct test_pickle test_json test_re test_itertools "
        "test_functools test_collections test_heapq test_random test_sort test_zlib test_bz2 "
        "test_lzma test_hashlib test_mmap test_io test_fileio test_os test_posix test_subprocess "
        "test_fork1 test_signal test_threadsignals test_faulthandler test_thread test_threading "
        "test_queue test_socket test_selectors test_ssl test_sqlite3 test_asyncio "
        "test_concurrent_futures"
    ).split()

    def fetch(self):
        unpack_binaries(self.folder, "python3.11", "python3.11-minimal", "libpython3.11-minimal",
                        "libpython3.11-stdlib", "libpython3.11-testsuite")

    def steps(self):
        python = self.folder / "root/usr/bin/python3.11"
        for file in self.files:
            results = self.folder / f"{file}.xml"

            def read(said, status, results=results):
                outcome = read_junit(results, said, status)
                results.unlink(missing_ok=True)
                return outcome

            # In a virtual machine the tests of sockets to its host may wait for ever.
            without = ["-i", "*VSOCK*"] if file == "test_socket" else []
            yield Step(file, [python, "-m", "test", "--junit-xml", results, *without, file], read,
                       self.folder, self.environment)


class CPythonMalloc(CPython):
    """The same with every object of CPython from malloc."""

    name, title = "cpython-malloc", "CPython, `PYTHONMALLOC=malloc`"
    environment = {"PYTHONMALLOC": "malloc"}


class Redis(Suite):
    """Units of Redis's own tests, with Debian's redis-server."""

    name, title, home = "redis", "Redis, `./runtest`", "redis"
    quick = ("unit/type/hash",)
    units = (
        "unit/type/string unit/type/list unit/type/hash unit/type/set unit/type/zset "
        "unit/type/stream unit/keyspace unit/expire unit/scan unit/sort unit/dump unit/multi "
        "unit/scripting unit/functions unit/bitops unit/lazyfree"
    ).split()

    def fetch(self):
        if shutil.which("tclsh8.6") is None:
            raise Missing("tclsh8.6 is missing; install tcl8.6")
        unpack_binaries(self.folder, "redis-server", "redis-tools", "libjemalloc2", "liblzf1",
                        "libatomic1")
        unpack_source(self.folder, "redis")
        for program in ("redis-server", "redis-cli", "redis-benchmark", "redis-check-rdb",
                        "redis-check-aof"):
            (self.folder / "source/src" / program).symlink_to(
                self.folder / "root/usr/bin" / program)

    def steps(self):
        for unit in self.units:
            yield Step(unit, ["./runtest", "--single", unit, "--clients", "1"], read_redis,
                       self.folder / "source", self.libraries())


class Memcached(Suite):
    """All of memcached's own tests, by the program that its source builds for them."""

    name, title, home = "memcached", "memcached, `t/*.t`", "memcached"
    quick = ("t/cas.t", "t/lru.t", "t/evictions.t", "t/touch.t")

    def fetch(self):
        if not Path("/usr/include/event.h").exists():
            raise Missing("event.h is missing; install libevent-dev")
        unpack_source(self.folder, "memcached")
        source = self.folder / "source"
        call("./configure", "--disable-dependency-tracking", "--disable-docs", cwd=source)
        call("make", "memcached-debug", "memcached", "timedrun", "testapp", "sizes", cwd=source)

    def steps(self):
        source = self.folder / "source"
        yield Step("testapp", ["./testapp"], read_tap, source)
        for test in sorted((source / "t").glob("*.t")):
            name = f"t/{test.name}"
            yield Step(name, ["perl", name], read_tap, source)


class Perl(Suite):
    """Perl's core tests, with Debian's perl and its modules."""

    name, title, home = "perl", "Perl, core tests", "perl"
    folders = "base cmd comp io re opbasic op uni mro".split()
    quick = ("op/sort.t", "op/hash.t", "op/split.t", "re/regexp.t")

    def fetch(self):
        unpack_binaries(self.folder, "perl", "perl-base", "perl-modules-5.36", "libperl5.36")
        unpack_source(self.folder, "perl")
        source, root = self.folder / "source", self.folder / "root/usr"
        # The tests want ./perl and ../lib as a build leaves them.
        for modules in ("share/perl/5.36.0", "lib/x86_64-linux-gnu/perl/5.36.0",
                        "lib/x86_64-linux-gnu/perl-base"):
            shutil.copytree(root / modules, source / "lib", dirs_exist_ok=True)
        for folder in (source, source / "t"):
            (folder / "perl").symlink_to(root / "bin/perl")

    def steps(self):
        folder = self.folder / "source/t"
        for test in sorted(test for kind in self.folders for test in (folder / kind).glob("*.t")):
            # As its own runner does: the switches of the first line, by which it is not started.
            first = test.read_bytes().split(b"\n", 1)[0].decode(errors="replace")
            switches = re.match(r"#!.*perl\S*\s+(-.*)", first)
            name = f"{test.parent.name}/{test.name}"
            yield Step(name, ["./perl", *(switches[1].split() if switches else ()), name],
                       read_tap, folder, {"PERL_CORE": "1"})


class Jq(Suite):
    """jq's own tests, with Debian's jq."""

    name, title, home = "jq", "jq, `--run-tests`, `shtest`", "jq"
    quick = ("jq.test",)

    def fetch(self):
        unpack_binaries(self.folder, "jq", "libjq1", "libonig5")
        unpack_source(self.folder, "jq")
        (self.folder / "source/jq").symlink_to(self.folder / "root/usr/bin/jq")

    def steps(self):
        folder = self.folder / "source"
        environment = {**self.libraries(), "NO_VALGRIND": "1"}
        for tests in ("jq", "onig", "base64", "optional"):
            yield Step(f"{tests}.test",
                       ["./jq", "-L", "tests/modules", "--run-tests", f"tests/{tests}.test"],
                       read_jq, folder, environment)
        for script in ("shtest", "utf8test"):
            yield Step(script, [f"tests/{script}"], read_status, folder, environment)


class Sqlite(Suite):
    """SQLite's speedtest1, which hashes every answer; the database is in the heap or a file."""

    name, title, home = "sqlite", "SQLite, `speedtest1 --verify`", "sqlite"
    quick = ("main, small",)

    def fetch(self):
        unpack_binaries(self.folder, "libsqlite3-0", "libsqlite3-dev")
        unpack_source(self.folder, "sqlite3")
        call("cc", "-O2", f"-I{self.folder}/root/usr/include", "source/test/speedtest1.c",
             "-o", "speedtest1", "root/usr/lib/x86_64-linux-gnu/libsqlite3.so.0", "-lm",
             cwd=self.folder)

    def steps(self):
        tests = [("main, small", "main", 20, ["--memdb"]), ("main", "main", 100, ["--memdb"]),
                 ("main, file", "main", 100, ["--cachesize", "20000", "speedtest.db"]),
                 ("cte", "cte", 100, ["--memdb"]), ("fp", "fp", 25, ["--memdb"]),
                 ("orm", "orm", 25, ["--memdb"]), ("rtree", "rtree", 25, ["--memdb"])]
        for name, group, size, rest in tests:
            yield Step(name, ["sh", "-c", 'rm -f speedtest.db; exec "$@"', "sh", "./speedtest1",
                              "--verify", "--testset", group, "--size", size, *rest],
                       read_speedtest, self.folder, self.libraries())


class Git(Suite):
    """git's own tests, by the program that its source builds for them."""

    name, title, home = "git", "git, `t/t*.sh`", "git"
    quick = ("t0000-basic", "t3700-add", "t5300-pack-object")
    chosen = ("t0*", "t1*", "t3*", "t53*", "t6*")
    # What is not there need not be built.
    without = ("CURL", "EXPAT", "GETTEXT", "TCLTK", "PYTHON", "OPENSSL")

    def fetch(self):
        if not Path("/usr/include/zlib.h").exists():
            raise Missing("zlib.h is missing; install zlib1g-dev")
        unpack_source(self.folder, "git")
        call("make", "-j2", "CFLAGS=-O1", *[f"NO_{part}=1" for part in self.without],
             cwd=self.folder / "source")

    def steps(self):
        folder = self.folder / "source/t"
        for script in sorted({script for kind in self.chosen
                              for script in folder.glob(f"{kind}-*.sh")}):
            yield Step(script.stem, ["sh", script.name], read_tap, folder)


class Postgres(Suite):
    """PostgreSQL's own tests, each schedule against an instance that it makes, starts and ends.

    Nobody may run PostgreSQL as root, so it is given up then.
    """

    name, title, home = "postgres", "PostgreSQL, `pg_regress`, `isolation`", "postgres"
    quick = ("basic",)
    # The folder of tests, the program that runs them, and what it runs.
    schedules = {
        "basic": ("regress", "pg_regress", "test_setup boolean int4 strings copy create_index"),
        "regress": ("regress", "pg_regress", "--schedule=parallel_schedule"),
        "isolation": ("isolation", "pg_isolation_regress", "--schedule=isolation_schedule"),
    }

    def fetch(self):
        unpack_binaries(self.folder, "postgresql-15", "postgresql-client-15",
                        "postgresql-server-dev-15", "libpq5")
        unpack_source(self.folder, "postgresql-15")
        server = self.folder / "root/usr/lib/postgresql/15"
        (self.folder / "modules").mkdir()
        for module in ("autoinc", "refint"):
            shutil.copy(server / f"lib/{module}.so", self.folder / "modules")
        include = self.folder / "root/usr/include/postgresql"
        call("cc", "-O2", "-w", "-shared", "-fPIC", f"-I{include}/15/server",
             self.folder / "source/src/test/regress/regress.c",
             "-o", self.folder / "modules/regress.so")

    def steps(self):
        server = self.folder / "root/usr/lib/postgresql/15"
        unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] \
            if os.geteuid() == 0 else []
        for name, (kind, program, tests) in self.schedules.items():
            folder = self.folder / "source/src/test" / kind
            script = ('"$@" --outputdir="$TMPDIR" --temp-instance="$TMPDIR/instance" ||'
                      ' { cat "$TMPDIR/regression.diffs"; exit 1; }')
            yield Step(name, [*unprivileged, "sh", "-c", script, "sh",
                              server / f"lib/pgxs/src/test/{kind}/{program}",
                              f"--bindir={server}/bin", f"--inputdir={folder}",
                              f"--dlpath={self.folder}/modules", "--no-locale", "--encoding=UTF8",
                              *tests.split()], read_pg_regress, folder, self.libraries())


class RocksDb(Suite):
    """RocksDB's db_bench with checks of what it reads; db_stress is in no package."""

    name, title, home = "rocksdb", "RocksDB, `db_bench`, `ldb`", "rocksdb"
    quick = ("mergers",)
    runs = {
        "fill, read": "--threads=1 --num=50000 --benchmarks=fillseq,readrandom,overwrite,"
                      "readrandom,readreverse,verifychecksum,compact,readrandom,seekrandom,"
                      "deleterandom,readrandom,verifychecksum",
        "large cache": "--threads=1 --num=20000 --cache_size=134217728 --benchmarks=fillrandom,"
                       "readrandom,readrandom,multireadrandom,updaterandom,appendrandom,readrandom,"
                       "verifychecksum",
        "mergers": "--threads=1 --num=50000 --merge_operator=uint64add --value_size=8 "
                   "--benchmarks=fillseq,mergerandom,readrandom,readrandommergerandom,compact,"
                   "readrandom,verifychecksum",
        "4 threads": "--threads=4 --num=20000 --benchmarks=fillrandom,readrandom,"
                     "overwrite,readrandom,seekrandom,compact,readrandom,verifychecksum",
    }

    def fetch(self):
        unpack_binaries(self.folder, "rocksdb-tools", "librocksdb7.8", "libsnappy1v5",
                        "libgflags2.2")

    def version(self):
        return next(deb.name.split("_")[1] for deb in self.folder.glob("debs/rocksdb-tools*.deb"))

    def steps(self):
        programs = self.folder / "root/usr/bin"
        for name, options in self.runs.items():
            script = '"$1" --db="$TMPDIR/db" --seed=1 $3 && "$2" --db="$TMPDIR/db" ' \
                     'checkconsistency && "$2" --db="$TMPDIR/db" dump --count_only'
            yield Step(name, ["sh", "-c", script, "sh", programs / "db_bench", programs / "ldb",
                              options], read_rocksdb, self.folder, self.libraries())


class Pytest(Suite):
    """Tests of a package of Python, with Debian's python3 and pytest."""

    ram = "128M"
    python = "/usr/bin/python3"
    # What pip installs below the folder.
    packages = ()

    def install(self):
        """Installs the packages below the folder."""
        call(self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--only-binary=:all:", "--target", self.folder / "packages", *self.packages)

    def version(self):
        return self.packages[0].rpartition("==")[2]

    def step(self, name, *tests, env=None):
        """A step of pytest."""
        results = self.folder / f"{name.replace('/', '_')}.xml"

        def read(said, status):
            outcome = read_junit(results, said, status)
            results.unlink(missing_ok=True)
            return outcome

        return Step(name, [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           f"--junitxml={results}", *tests], read, self.folder,
                    {"PYTHONPATH": str(self.folder / "packages"), "PYTHONDONTWRITEBYTECODE": "1",
                     **(env or {})})


class NumPy(Pytest):
    """NumPy's own tests, which its package brings; arrays come from malloc."""

    name, title, home = "numpy", "NumPy, `numpy.test()`", "numpy"
    quick = ("linalg",)
    packages = ("numpy==2.2.6", "pytest==8.4.1", "hypothesis==6.135.26")
    # Folders of tests.
    folders = "_core lib linalg ma fft random polynomial matrixlib".split()

    def fetch(self):
        self.install()

    def steps(self):
        for folder in self.folders:
            # Tests that want more memory than this are skipped, whatever the machine has.
            yield self.step(folder, "-m", "not slow", f"packages/numpy/{folder}/tests",
                            env={"NPY_AVAILABLE_MEM": "1 GB"})


SUITES = [suite() for suite in (CPython, CPythonMalloc, Redis, Memcached, Perl, Jq, Sqlite, Git,
                                Postgres, RocksDb, NumPy, StressNg, StressNgVm, Mimalloc, Jemalloc,
                                Glibc)]
