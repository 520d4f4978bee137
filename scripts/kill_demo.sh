#!/bin/sh
# kill_demo.sh: what the demos that kill a program share. They source it, from the root of the
# repository.
#
# Guarantees: what it makes and starts is gone when the demo ends.
#
#     is_short      whether --short was asked for: true or false
#     work          a folder of the demo's own
#     build NAME    makes examples/NAME.c into $work/NAME
#     kill_after SECONDS PROGRAM...   runs it until it has said that something is durable, then for
#                   so long, and kills it with -9; shows its last line, and leaves all of its output
#                   in $work/log
# shellcheck disable=SC2034 # is_short is for who sources this
set -eu
demo=$(basename "$0" .sh)
is_short=false
for argument in "$@"; do
    case $argument in
    --short) is_short=true ;;
    *)
        echo "$demo: unknown option $argument; there is --short" >&2
        exit 2
        ;;
    esac
done

target=${CARGO_TARGET_DIR:-target}
library=$target/release/libdeepheap.a
if [ ! -e "$library" ]; then
    echo "$demo: $library is missing; run \`make build\`" >&2
    exit 2
fi
work=$(mktemp -d "$target/$demo.XXXXXX")
DEEPHEAP_CONF="ram:64M,store:$work"
export DEEPHEAP_CONF
killed=
cleanup() {
    [ -z "$killed" ] || kill -9 "$killed" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

build() {
    ${CC:-cc} -O2 -Wall -Iinclude "examples/$1.c" "$library" -lpthread -ldl -lm \
        -o "$work/$1"
}

kill_after() {
    pause=$1
    shift
    "$@" >"$work/log" &
    killed=$!
    # A slow machine needs longer until there is something to lose.
    tries=0
    until grep -q durable "$work/log"; do
        if [ "$tries" -ge 1200 ] || ! kill -0 "$killed"; then
            echo "$demo: nothing became durable" >&2
            exit 1
        fi
        tries=$((tries + 1))
        sleep 0.1
    done
    sleep "$pause"
    kill -9 "$killed"
    wait "$killed" 2>/dev/null || true
    killed=
    tail -n 1 "$work/log"
}
