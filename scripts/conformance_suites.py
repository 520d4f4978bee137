"""conformance_suites.py: the test suites of conformance.py, how each is fetched, built and run.

Guarantees: writes below target/conformance only; Debian 12's packages come by lists and a cache of
their own, whatever this machine's sources are, and nothing is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from conformance_results import (read_jq, read_junit, read_redis, read_speedtest, read_status,
                                 read_stress_ng, read_tap)

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "conformance"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Missing(Exception):
    """What is needed cannot be had here, for the reason given."""


# --- Fetching and building -----------------------------------------------------------------------


def call(*command, cwd=None):
    """Runs a command of fetching or building; Missing with its last words if it fails."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise Missing(f"{command[0]} ended with {done.returncode}: {said[-1] if said else ''}")


class Apt:
    """Debian 12's packages, by lists and a cache of our own."""

    folder = WORK / "apt"
    is_updated = False

    @classmethod
    def get(cls, *arguments, cwd):
        """apt-get with nothing of this machine's configuration of sources."""
        options = [
            f"Dir::Etc::sourcelist={cls.folder}/sources.list", "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::lists={cls.folder}/lists", f"Dir::Cache={cls.folder}/cache",
            # Else what is installed counts as a version to be had.
            f"Dir::State::status={cls.folder}/status", "APT::Sandbox::User=root",
            "Debug::NoLocking=1",
        ]
        for need, package in (("apt-get", "apt"), ("dpkg-source", "dpkg-dev")):
            if shutil.which(need) is None:
                raise Missing(f"{need} is missing; install {package}")
        if not cls.is_updated:
            if not KEYS.exists():
                raise Missing(f"{KEYS} is missing; install debian-archive-keyring")
            for folder in ("lists/partial", "cache/archives/partial"):
                (cls.folder / folder).mkdir(parents=True, exist_ok=True)
            (cls.folder / "sources.list").write_text("".join(
                f"{kind} [signed-by={KEYS}] {MIRROR} bookworm main\n"
                for kind in ("deb", "deb-src")))
            (cls.folder / "status").touch()
            cls.is_updated = True
            cls.get("update", cwd=cls.folder)
        call("apt-get", "-q", "-y", *[word for option in options for word in ("-o", option)],
             *arguments, cwd=cwd)


def unpack_binaries(folder, *packages):
    """Unpacks packages below folder/root; installs nothing."""
    debs = folder / "debs"
    debs.mkdir()
    Apt.get("download", *packages, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        call("dpkg", "-x", deb, folder / "root")


def unpack_source(folder, package):
    """Unpacks a source package as folder/source."""
    Apt.get("source", "--download-only", package, cwd=folder)
    description = next(folder.glob("*.dsc"))
    call("dpkg-source", "--no-check", "-x", description, folder / "source")


def debian_version(folder):
    """The version of what was fetched: that of its source, else of its first package."""
    names = sorted(folder.glob("*.dsc")) + sorted(folder.glob("debs/*.deb"))
    # A file's name has an epoch's colon as %3a.
    return names[0].stem.split("_")[1].split("%3a")[-1] if names else "?"


class Step:
    """One command of a suite and how its results are read."""

    def __init__(self, name, command, read, cwd=WORK, env=None):
        self.name, self.command, self.read = name, [str(word) for word in command], read
        self.cwd, self.env = cwd, env or {}


class Suite:
    """A suite: where it comes from, its steps, the RAM that they get.

    `fetch` fills `folder`, once for all suites that share it; `steps` lists what there is then.
    """

    ram = "16M"
    # Steps that --quick runs.
    quick = ()
    # The folder's name below target/conformance, and the version of how it is filled.
    home, edition = "", 1

    @property
    def folder(self):
        """Where the suite is."""
        return WORK / self.home

    def is_fetched(self):
        """Whether the suite is there, built and whole."""
        return (self.folder / f"fetched-{self.edition}").exists()

    def prepare(self):
        """Fetches the suite unless that was done."""
        if self.is_fetched():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        print(f"conformance: {self.home} is fetched", file=sys.stderr, flush=True)
        self.fetch()
        (self.folder / f"fetched-{self.edition}").touch()

    def version(self):
        """What was fetched, as the table tells it."""
        return debian_version(self.folder)

    def libraries(self):
        """The environment for programs of unpacked packages."""
        return {"LD_LIBRARY_PATH": str(self.folder / "root/usr/lib/x86_64-linux-gnu")}

    def fetch(self):
        """Fills the folder; Missing if it cannot be filled."""
        raise NotImplementedError

    def steps(self):
        """The steps of what was fetched."""
        raise NotImplementedError


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


SUITES = [suite() for suite in (CPython, CPythonMalloc, Redis, Memcached, Perl, Jq, Sqlite,
                                StressNg, Mimalloc)]
