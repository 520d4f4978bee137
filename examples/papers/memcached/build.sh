#!/usr/bin/env bash
# build.sh: builds Debian's memcached twice: as it is, and with its items as objects of deepheap.
#
#     examples/papers/memcached/build.sh
#
# Environment: OUT (where the programs go, target/apps/memcached), DEEPHEAP (the folder of
# libdeepheap.so, target/release), INCLUDE (that of deepheap.h), DEBIAN_MIRROR.
#
# Guarantees: fetches the source of Debian 12 whatever the machine's sources are, and leaves those
# alone; writes only below OUT; what is built already is not built again. Prints how many lines the
# edit changes. Exit status 3 if packages are missing or the source cannot be fetched, 1 if what was
# fetched cannot be built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "${OUT:=$target/apps/memcached}"
out=$(cd "$OUT" && pwd)
deepheap=${DEEPHEAP:-$target/release}
include=${INCLUDE:-$root/include}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg

fail() {
    echo "memcached: $*" >&2
    exit 1
}

# Command or header, and the Debian package that brings it.
missing() {
    local need
    for need in apt-get:apt dpkg-source:dpkg-dev cc:build-essential make:make patch:patch; do
        command -v "${need%%:*}" >/dev/null || echo "${need##*:}"
    done
    echo '#include <event.h>' | cc -E - >/dev/null 2>&1 || echo libevent-dev
    [ -r "$keys" ] || echo debian-archive-keyring
}

# Downloads the source into the folder `fetched`, with lists of packages of its own.
fetch() {
    rm -rf "$out/fetched"
    mkdir -p "$out/fetched"/{lists,cache/archives}/partial
    (
        cd "$out/fetched"
        echo "deb-src [signed-by=$keys] $mirror bookworm main" >sources.list
        options=(-q -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null
            -o "Dir::State::lists=$PWD/lists" -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=root)
        apt-get "${options[@]}" update
        apt-get "${options[@]}" source --download-only memcached
        dpkg-source --no-check -x memcached_*.dsc source
        mv source ..
    )
    rm -rf "$out/fetched"
}

# Lines of the edit that start with a sign and hold code.
code_lines() {
    grep "^$1[^$1]" "$here/objects.patch" | grep -vcE "^.[[:space:]]*(\*|/\*|//|$)"
}

prepare() {
    local packages
    packages=$(missing)
    # shellcheck disable=SC2086 # one word a package
    [ -z "$packages" ] || fail "missing; install: sudo apt-get install" $packages
    rm -rf "$out/source"
    fetch
}

build() {
    [ -e "$deepheap/libdeepheap.so" ] ||
        fail "$deepheap/libdeepheap.so is missing; run \`make build\`"
    cd "$out/source"
    # Its own defaults, without the tier of flash and the sandbox, which forbids userfaultfd.
    ./configure --disable-dependency-tracking --disable-docs --disable-extstore --disable-seccomp \
        CFLAGS="-O2 -g"
    make memcached
    cp memcached "$out/memcached"
    patch -p1 <"$here/objects.patch"
    # As an installed deepheap is linked to: by the name that the library has for programs.
    ln -sf "$(cd "$deepheap" && pwd)/libdeepheap.so" "$out/libdeepheap.so.0"
    make memcached CPPFLAGS="-I$include" LIBS="-levent $out/libdeepheap.so.0 -Wl,-rpath,$out"
    cp memcached "$out/memcached-objects"
}

# Ends the script if a step failed, with a status and with what it had said.
ended() {
    [ "$1" -eq 0 ] && return
    tail -n 20 "$out/build.log" >&2
    echo "memcached: $3; all of it is in $out/build.log" >&2
    exit "$2"
}

if [ ! "$out/memcached-objects" -nt "$here/objects.patch" ]; then
    # Behind `||` or `if` a failure inside would not end the step.
    set +e
    (set -e && prepare) >"$out/build.log" 2>&1
    ended $? 3 "its source cannot be had"
    (set -e && build) >>"$out/build.log" 2>&1
    ended $? 1 "building failed"
    set -e
fi
echo "memcached $("$out/memcached" --version | cut -d' ' -f2):" \
    "$(code_lines +) lines added or changed, $(code_lines -) gone"
