#!/usr/bin/env bash
# install_check.sh: installs into scratch folders and uses what is there as a user would, with
# pkg-config, with CMake and by hand; then uninstalls and looks for what is left.
#
# Guarantees: writes only below a scratch folder in target/, which is gone at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
make=${MAKE:-make}

root=$(mktemp -d "${CARGO_TARGET_DIR:-target}/install-check.XXXXXX")
root=$(realpath "$root")
trap 'rm -rf "$root"' EXIT
# A store and a budget for the programs that run here.
export DEEPHEAP_CONF="ram:64M,store:$root"
unset LD_PRELOAD

fail() {
    echo "install-check: $*" >&2
    exit 1
}

# Compiles an example with the flags that follow, runs it against the library of a folder.
try() {
    local what=$1 source=$2 library=$3
    shift 3
    local compiler=(cc -std=c99)
    [ "${source##*.}" = c ] || compiler=(c++ -std=c++17)
    "${compiler[@]}" -Wall -Wextra -Werror "$source" -o "$root/program" "$@" ||
        fail "$what: $source does not compile"
    (cd "$root" && LD_LIBRARY_PATH=$library ./program >/dev/null) ||
        fail "$what: $source does not run"
    echo "install-check: $what: $source runs"
}

prefix=$root/prefix
"$make" --no-print-directory -s install PREFIX="$prefix"

# What must be there.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for file in bin/deepheap lib/libdeepheap.so lib/libdeepheap.so.0 \
    "lib/libdeepheap.so.$version" lib/libdeepheap.a lib/deepheap/libdeepheap_preload.so \
    include/deepheap.h include/deepheap.hpp include/deepheap/ssdalloc.h \
    include/deepheap/nvmalloc.h include/deepheap/memory.h include/deepheap/durable.h \
    include/deepheap/map.h lib/pkgconfig/deepheap.pc \
    lib/cmake/deepheap/deepheapConfig.cmake \
    share/man/man1/deepheap.1 share/man/man1/deepheap-run.1 \
    share/man/man3/dh_malloc.3 share/man/man3/dh_stats.3 share/man/man3/dh_oalloc.3 \
    share/man/man3/dh_ostride.3 share/man/man3/dh_read.3 share/man/man3/dh_advise.3 \
    share/man/man3/deepheap.h.3 share/man/man3/dh_open.3 share/man/man3/dh_checkpoint.3 \
    share/bash-completion/completions/deepheap share/zsh/site-functions/_deepheap \
    share/fish/vendor_completions.d/deepheap.fish; do
    [ -s "$prefix/$file" ] || fail "$file is not installed"
done
if grep -rIl '@[A-Z]*@' "$prefix/lib/pkgconfig" "$prefix/lib/cmake"; then
    fail "the files above have places left to fill in"
fi

# pkg-config, shared and static.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
[ "$(pkg-config --modversion deepheap)" = "$version" ] || fail "pkg-config tells another version"
read -ra flags < <(pkg-config --cflags --libs deepheap)
for source in examples/hello.c examples/packet_cache.c examples/pmr.cpp; do
    try pkg-config "$source" "$prefix/lib" "${flags[@]}"
done
cat >"$root/papers.c" <<'C'
/* The papers' names, as installed. */
#include <deepheap/nvmalloc.h>
#include <deepheap/ssdalloc.h>
int main(void) {
    ssd_free(ssd_oalloc(1, 200));
    nv_free(nv_realloc(nv_malloc(100), 300));
    return dh_ostride(200) == 0;
}
C
try papers "$root/papers.c" "$prefix/lib" "${flags[@]}"
try static examples/hello.c /nonexistent -I"$prefix/include" "$prefix/lib/libdeepheap.a" \
    -lpthread -ldl -lm
# The compiler adds the unwinder that fits: libgcc_eh here, libgcc_s above.
read -ra static < <(pkg-config --static --cflags --libs deepheap)
try "static as a whole" examples/hello.c /nonexistent -static "${static[@]}"

# The programs of docs/languages.md, with its own lines, as somebody copies them: first to last.
mkdir "$root/languages"
awk -v tree="$PWD" '
    /^```c$/ { file = "program.c" }
    /^```cpp$/ { file = "program.cpp" }
    /^```rust$/ { file = "src/main.rs" }
    /^```$/ && file { print "END_OF_BLOCK"; file = ""; next }
    /^```/ && file { print "cat >" file " <<\"END_OF_BLOCK\""; next }
    file { print; next }
    /^    (cc|c\+\+) .*program/ || /^    (DEEPHEAP_CONF=[^ ]* )?(\.\/program|cargo)/ {
        sub("/path/to/deepheap", tree)
        print
    }
' docs/languages.md >"$root/languages.sh"
(
    cd "$root/languages"
    # For the program in Rust: a package that is no part of the tree it lies in. `cargo init` would
    # make it one.
    mkdir src
    echo 'fn main() {}' >src/main.rs
    printf '%s\n' '[package]' 'name = "program"' 'edition = "2024"' '[workspace]' >Cargo.toml
    cp "$OLDPWD/Cargo.lock" .
    unset DEEPHEAP_CONF
    CARGO_NET_OFFLINE=true CARGO_TARGET_DIR="$root/languages-target" CARGO_TERM_QUIET=true \
        bash -e "$root/languages.sh"
) >"$root/languages.txt" ||
    fail "the lines of docs/languages.md do not run: $(cat "$root/languages.sh")"
diff - "$root/languages.txt" <<'TEXT' ||
128 MiB in 32 MiB of RAM, all of them 'x'
1 word, 8000000 samples
134217728 bytes
64 read, the first of 1 visits
TEXT
    fail "the programs of docs/languages.md print something else"
echo "install-check: the programs of docs/languages.md run as they are written"
scripts/docs_check.sh "$prefix"
PATH=$prefix/bin:$PATH WALK_CARGO_TARGET=$root/languages-target \
    scripts/walk.py docs/tutorials/{operator,c,rust}.md

# CMake, from the installed place and from where the tree was moved to.
try_cmake() {
    local from=$1
    rm -rf "$root/cmake" && mkdir "$root/cmake"
    cp examples/hello.c examples/pmr.cpp "$root/cmake"
    cat >"$root/cmake/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(check C CXX)
find_package(deepheap 0.1 REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello deepheap::deepheap)
add_executable(pmr pmr.cpp)
target_compile_features(pmr PRIVATE cxx_std_17)
target_link_libraries(pmr deepheap::static)
CMAKE
    if ! { cmake -S "$root/cmake" -B "$root/cmake/build" -DCMAKE_PREFIX_PATH="$from" &&
        cmake --build "$root/cmake/build"; } >"$root/cmake.log" 2>&1; then
        cat "$root/cmake.log" >&2
        fail "CMake cannot use the package of $from"
    fi
    (cd "$root" && cmake/build/hello >/dev/null && cmake/build/pmr >/dev/null) ||
        fail "what CMake built does not run"
    echo "install-check: cmake: hello and pmr run"
}
try_cmake "$prefix"
mv "$prefix" "$root/moved"
try_cmake "$root/moved"
mv "$root/moved" "$prefix"

# The installed command finds its libraries without help.
"$prefix/bin/deepheap" run --ram 64M --store "$root" -- /bin/true ||
    fail "the installed command does not run a program"

# Nothing stays behind; a package maker's DESTDIR is honoured, and so are folders.
"$make" --no-print-directory -s uninstall PREFIX="$prefix"
left=$(find "$prefix" ! -type d)
[ -z "$left" ] || fail "uninstall leaves $left"
folders=(PREFIX=/usr BINDIR=/usr/games/bin LIBDIR=/usr/lib/x86_64-linux-gnu)
"$make" --no-print-directory -s install DESTDIR="$root/package" "${folders[@]}"
grep -q '^libdir=/usr/lib/x86_64-linux-gnu$' \
    "$root/package/usr/lib/x86_64-linux-gnu/pkgconfig/deepheap.pc" ||
    fail "deepheap.pc does not know the library folder"
"$root/package/usr/games/bin/deepheap" run --ram 64M --store "$root" -- /bin/true ||
    fail "the command does not find its library where the folders are others"
"$make" --no-print-directory -s uninstall DESTDIR="$root/package" "${folders[@]}"
left=$(find "$root/package" ! -type d)
[ -z "$left" ] || fail "uninstall leaves $left"
echo "install-check: passed"
