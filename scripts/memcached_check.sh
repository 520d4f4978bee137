#!/usr/bin/env bash
# memcached_check.sh: memcached holds more values than RAM, as pages and as objects; all are read
# back.
#
#     scripts/memcached_check.sh
#
# Environment: DEEPHEAP (the folder of deepheap and its libraries, target/release), APPS (where
# the applications are, target/apps), MEMCACHED_MAY_BE_MISSING (1: where its source cannot be had,
# that is told and no failure).
#
# Guarantees: servers of its own on a socket of its own, in a folder of its own; all of it is gone
# at the end, however it ends. Exit status 0 only if each server, with malloc, pages and objects,
# returned every value right and ended as it should.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
export DEEPHEAP=${DEEPHEAP:-$target/release}
apps=${APPS:-$target/apps}
export OUT=$apps/memcached
mib=64
ram=24M
if [ ! -x "$apps/memcached_load" ]; then
    echo "memcached-check: $apps/memcached_load is missing; run \`make apps\`" >&2
    exit 2
fi

mkdir -p "$OUT"
work=$(mktemp -d "$OUT/check.XXXXXX")
# The path of a socket has 107 bytes at most.
sockets=$(mktemp -d "${TMPDIR:-/tmp}/deepheap-memcached.XXXXXX")
export MEMCACHED_SOCKET=$sockets/socket
server=

# Takes down what this script put up.
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill -9 "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ] && [ -s "$work/stderr" ]; then
        echo "memcached-check: the server said:" >&2
        tail -n 20 "$work/stderr" >&2
    fi
    rm -rf "$work" "$sockets"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Starts the server that `run.sh` knows by this name, and waits until it listens.
start() {
    local attempt
    rm -f "$MEMCACHED_SOCKET"
    # Without the threads that walk through all items in the background.
    MEMCACHED_RAM=$ram MEMCACHED_STORE=$work examples/papers/memcached/run.sh "$1" \
        -s "$MEMCACHED_SOCKET" -m 1024 -o no_lru_crawler,no_lru_maintainer,hashpower=18 \
        2>"$work/stderr" &
    server=$!
    for ((attempt = 0; attempt < 600; attempt++)); do
        if [ -S "$MEMCACHED_SOCKET" ]; then
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "memcached-check: memcached with $1 does not start" >&2
    exit 1
}

# Ends the server; one that does not end well is an error.
stop() {
    kill "$server"
    wait "$server" || {
        echo "memcached-check: memcached with $1 ended with status $?" >&2
        exit 1
    }
    server=
}

built=0
examples/papers/memcached/build.sh || built=$?
if [ "$built" -eq 3 ] && [ "${MEMCACHED_MAY_BE_MISSING:-0}" -eq 1 ]; then
    echo "SKIPPED memcached-check: the source of memcached cannot be had here"
    exit 0
fi
[ "$built" -eq 0 ] || exit "$built"
for memory in malloc pages objects; do
    start "$memory"
    "$apps/memcached_load" --small --memory "$memory" --data "${mib}M" --object 512 \
        --operations 20000 --dir "$work" | tee "$work/report"
    stop "$memory"
    for name in misses not_stored; do
        if ! grep -q "^  $name: 0\$" "$work/report"; then
            echo "memcached-check: $(grep "$name" "$work/report"), though all have room" >&2
            exit 1
        fi
    done
    if [ "$memory" != malloc ]; then
        grep -E 'memory |stored ' "$work/stderr"
        # With no bytes read back from the store nothing has been checked.
        if ! grep -Eq ' [1-9][^ ]* stored ' "$work/stderr"; then
            echo "memcached-check: with $memory nothing left RAM" >&2
            exit 1
        fi
    fi
done
echo "memcached-check: $mib MiB of values right with malloc, and in $ram as pages and as objects"
