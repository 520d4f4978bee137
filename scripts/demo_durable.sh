#!/bin/sh
# demo_durable.sh: builds an index in a durable heap, is killed in the middle of updates again and
# again, and opens it again each time; every word is checked.
#
#     scripts/demo_durable.sh [--short]
set -eu
cd "$(dirname "$0")/.."
. scripts/kill_demo.sh

documents=1000000 kills=5
if $is_short; then
    documents=60000 kills=2
fi
build word_index
WORD_INDEX_OPTIONS="ram:40M,size:16G"
export WORD_INDEX_OPTIONS
index() { "$work/word_index" "$work/index.dh" "$@"; }

echo "== An index of $documents documents, with 40 MiB of RAM"
index add "$documents" $((documents / 4))
du -h "$work/index.dh" | sed 's/\t.*/ of disk/'

echo "== Opened by another process, and asked at once"
index find 7 4711 199999

number=1
while [ "$number" -le "$kills" ]; do
    echo "== kill -9 in the middle of updates, time $number of $kills"
    kill_after 2 "$work/word_index" "$work/index.dh" add 100000000 2000
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
