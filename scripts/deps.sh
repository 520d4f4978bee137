#!/usr/bin/env bash
# deps.sh: installs what building, testing and the demo need; otherwise says what is missing.
#
#     scripts/deps.sh [real|containers]
#
#     real   installs the programs of `make bench-real` instead, and with pip the modules of Python
#            that they need, into target/real-python
#     containers   installs what `make containers-check` needs instead
#
# Guarantees: installs with apt-get only as root or with a sudo that asks nothing; a package that
# is installed here does not start its service. Exit status 1 if something is still missing.
set -euo pipefail

# Command, or file, and the Debian package that brings it.
needs=(
    cc:build-essential
    c++:build-essential
    nm:binutils
    readelf:binutils
    make:make
    pkg-config:pkg-config
    cmake:cmake
    python3:python3
    redis-server:redis-server
    redis-cli:redis-tools
    redis-benchmark:redis-tools
    memcached:memcached
    fallocate:util-linux
    mkswap:util-linux
    losetup:mount
    mkfs.ext4:e2fsprogs
    strace:strace
    shellcheck:shellcheck
    /usr/include/openssl/sha.h:libssl-dev
    /usr/include/event.h:libevent-dev
    dpkg-source:dpkg-dev
    patch:patch
    /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
)

# What the python3 that is found must be able to do, and the Debian package that brings it.
python_needs=(
    "import ensurepip:python3-venv"
    "from sysconfig import get_path as path; open(path('include') + '/Python.h'):python3-dev"
)

if [ "${1:-}" = real ]; then
    python_needs=()
    # Module, and the package of PyPI that brings it.
    python_modules=(
        numpy:numpy
        pandas:pandas
        polars:polars
        duckdb:duckdb
        faiss:faiss-cpu
        sklearn:scikit-learn
    )
    needs=(
        redis-server:redis-server
        memcached:memcached
        sqlite3:sqlite3
        /usr/lib/postgresql:postgresql
        /usr/bin/python3:python3
        /usr/lib/python3/dist-packages/pip:python3-pip
        lua5.4:lua5.4
        tclsh:tcl
        perl:perl
        xz:xz-utils
        convert-im6.q16:imagemagick
        gcc:gcc
        node:nodejs
        javac:default-jdk-headless
        spin:spin
    )
fi

if [ "${1:-}" = containers ]; then
    python_needs=()
    needs=(
        podman:podman
        runc:runc
        debootstrap:debootstrap
        /usr/share/containers/seccomp.json:golang-github-containers-common
    )
fi

# Tells whether a command or a file is there.
is_there() {
    # mkswap and its like live where an ordinary user's PATH does not look.
    [[ $1 == /* && -e $1 ]] || PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null
}

# Prints the packages of what is not there, each once.
missing_packages() {
    local need
    for need in "${needs[@]}"; do
        is_there "${need%%:*}" || echo "${need##*:}"
    done | sort -u
    if [ "${#python_needs[@]}" -gt 0 ] && is_there python3; then
        for need in "${python_needs[@]}"; do
            python3 -c "${need%%:*}" 2>/dev/null || echo "${need##*:}"
        done
    fi
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Installs packages; services among them are not started, whatever their scripts want.
install_packages() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064 # the path is meant to be expanded now
        trap "as_root rm -f '$policy'" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root apt-get -q -y update || true
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y install --no-install-recommends "$@"
}

if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "deps: cargo is missing; install Rust from https://rustup.rs and run this again" >&2
    exit 1
fi

mapfile -t packages < <(missing_packages)
if [ "${#packages[@]}" -gt 0 ] && command -v apt-get >/dev/null &&
    { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }; then
    echo "deps: installing ${packages[*]}"
    install_packages "${packages[@]}"
    mapfile -t packages < <(missing_packages)
fi
if [ "${#packages[@]}" -gt 0 ]; then
    echo "deps: missing; install these Debian packages, or what they are called elsewhere:" >&2
    echo "    sudo apt-get install ${packages[*]}" >&2
    exit 1
fi

# What is not there is installed with all the others, whose versions have to fit.
modules=${CARGO_TARGET_DIR:-target}/real-python
for module in ${python_modules[@]+"${python_modules[@]}"}; do
    if [ ! -e "$modules/${module%%:*}" ]; then
        echo "deps: installing modules of Python into $modules"
        exec /usr/bin/python3 -m pip install -q --upgrade --only-binary=:all: \
            --target "$modules" "${python_modules[@]##*:}"
    fi
done
