#!/bin/sh
# demo_durable.sh: builds an index in a durable heap, is killed in the middle of updates again and
# again, and opens it again each time; every word is checked.
#
#     scripts/demo_durable.sh [--short]
set -eu
cd "$(dirname "$0")/.."

documents=1000000 kills=5
for argument in "$@"; do
    case $argument in
    --short) documents=60000 kills=2 ;;
    *)
        echo "demo_durable: unknown option $argument; there is --short" >&2
        exit 2
        ;;
    esac
done
target=${CARGO_TARGET_DIR:-target}
library=$target/release/libdeepheap.a
if [ ! -e "$library" ]; then
    echo "demo_durable: $library is missing; run \`make build\`" >&2
    exit 2
fi
work=$(mktemp -d "$target/demo-durable.XXXXXX")
killed=
cleanup() {
    [ -z "$killed" ] || kill -9 "$killed" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

${CC:-cc} -O2 -Wall -Iinclude examples/word_index.c "$library" -lpthread -ldl -lm -lgcc_s \
    -o "$work/word_index"
DEEPHEAP_CONF="ram:64M,store:$work"
WORD_INDEX_OPTIONS="ram:40M,size:16G"
export DEEPHEAP_CONF WORD_INDEX_OPTIONS
index() { "$work/word_index" "$work/index.dh" "$@"; }

echo "== An index of $documents documents, with 40 MiB of RAM"
index add "$documents" $((documents / 4))
du -h "$work/index.dh" | sed 's/\t.*/ of disk/'

echo "== Opened by another process, and asked at once"
index find 7 4711 199999

number=1
while [ "$number" -le "$kills" ]; do
    echo "== kill -9 in the middle of updates, time $number of $kills"
    "$work/word_index" "$work/index.dh" add 100000000 2000 >"$work/log" &
    killed=$!
    sleep 2
    kill -9 "$killed"
    wait "$killed" 2>/dev/null || true
    killed=
    tail -n 1 "$work/log"
    told=$(sed -n 's/.* \([0-9]*\) documents are durable.*/\1/p' "$work/log" | tail -n 1)
    index check | tee "$work/check"
    found=$(sed -n 's/^\([0-9]*\) documents, .*/\1/p' "$work/check")
    if [ "$found" -lt "${told:-0}" ]; then
        echo "demo_durable: $told documents were durable, $found are there" >&2
        exit 1
    fi
    number=$((number + 1))
done
echo "== Nothing that was said to be durable is missing"
