#!/bin/sh
# demo_cache.sh: the index of a cache in a durable heap is killed with -9 while four threads insert,
# again and again; each time it is there again at once, warm, and every set of it is compared.
#
#     scripts/demo_cache.sh [--short]
set -eu
cd "$(dirname "$0")/.."

sets=4194304 kills=5 seconds=10
for argument in "$@"; do
    case $argument in
    --short) sets=262144 kills=2 seconds=2 ;;
    *)
        echo "demo_cache: unknown option $argument; there is --short" >&2
        exit 2
        ;;
    esac
done
target=${CARGO_TARGET_DIR:-target}
library=$target/release/libdeepheap.a
if [ ! -e "$library" ]; then
    echo "demo_cache: $library is missing; run \`make build\`" >&2
    exit 2
fi
work=$(mktemp -d "$target/demo-cache.XXXXXX")
killed=
cleanup() {
    [ -z "$killed" ] || kill -9 "$killed" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

${CC:-cc} -O2 -Wall -Iinclude examples/cache_index.c "$library" -lpthread -ldl -lm -lgcc_s \
    -o "$work/cache_index"
DEEPHEAP_CONF="ram:64M,store:$work"
CACHE_INDEX_OPTIONS="ram:40M,size:16G"
CACHE_INDEX_SETS=$sets
export DEEPHEAP_CONF CACHE_INDEX_OPTIONS CACHE_INDEX_SETS
cache() { "$work/cache_index" "$work/cache.dh" "$@"; }

echo "== A cache's index of $((sets / 8192)) MiB, with 40 MiB of RAM"
number=1
while [ "$number" -le "$kills" ]; do
    echo "== kill -9 while four threads insert, time $number of $kills"
    "$work/cache_index" "$work/cache.dh" fill >"$work/log" &
    killed=$!
    sleep "$seconds"
    kill -9 "$killed"
    wait "$killed" 2>/dev/null || true
    killed=
    tail -n 1 "$work/log"
    told=$(sed -n 's/.* s  \([0-9]*\) inserts are durable.*/\1/p' "$work/log" | tail -n 1)
    cache ask
    cache check | tee "$work/check"
    found=$(sed -n 's/^\([0-9]*\) inserts, .* each holds .*/\1/p' "$work/check")
    if [ "${found:-0}" -lt "${told:-1}" ]; then
        echo "demo_cache: $told inserts were durable, ${found:-0} are there" >&2
        exit 1
    fi
    number=$((number + 1))
done
echo "== Nothing that was said to be durable is missing"
