#!/bin/sh
# demo_cache.sh: the index of a cache in a durable heap is killed with -9 while four threads insert,
# again and again; each time it is there again at once, warm, and every set of it is compared.
#
#     scripts/demo_cache.sh [--short]
set -eu
cd "$(dirname "$0")/.."
. scripts/kill_demo.sh

sets=4194304 kills=5 seconds=10
if $is_short; then
    sets=262144 kills=2 seconds=2
fi
build cache_index
CACHE_INDEX_OPTIONS="ram:40M,size:16G"
CACHE_INDEX_SETS=$sets
export CACHE_INDEX_OPTIONS CACHE_INDEX_SETS
cache() { "$work/cache_index" "$work/cache.dh" "$@"; }

echo "== A cache's index of $((sets / 8192)) MiB, with 40 MiB of RAM"
number=1
while [ "$number" -le "$kills" ]; do
    echo "== kill -9 while four threads insert, time $number of $kills"
    kill_after "$seconds" "$work/cache_index" "$work/cache.dh" fill
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
