#!/usr/bin/env bash
# apps_check.sh: runs the applications of the papers, small, with every kind of memory that moves;
# they check their answers themselves.
#
#     scripts/apps_check.sh [APPLICATION...]
#
# Environment: APPS (the folder of the programs, target/apps), APPS_STORE (a folder on an SSD),
# APPS_RAM (the budget, 16M: half of their data and less).
#
# Guarantees: writes only below a scratch folder, which is gone at the end. Exit status 0 only if
# every run ended with 0, and every option that cannot work with 2 and a reason.
set -euo pipefail
cd "$(dirname "$0")/.."

apps=${APPS:-${CARGO_TARGET_DIR:-target}/apps}
ram=${APPS_RAM:-16M}
limit=600 # seconds for one run, on a slow and busy machine

# Those with a variant of explicit calls, and those without.
with_calls=(hashcache packets embeddings bloom_filter)
without_calls=(random_access bplus_tree quicksort)

names=("$@")
[ $# -gt 0 ] || names=("${with_calls[@]}" "${without_calls[@]}")

scratch=${APPS_STORE:-${CARGO_TARGET_DIR:-target}}
mkdir -p "$scratch"
scratch=$(mktemp -d "$scratch/apps-check.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
unset LD_PRELOAD
export DEEPHEAP_CONF="ram:$ram,store:$scratch"

fail() {
    echo "apps-check: $*" >&2
    exit 1
}

# Runs an application with the options that follow, and expects that all of its answers are right.
runs() {
    local name=$1 status=0
    shift
    timeout --kill-after=5 "$limit" "$apps/$name" --small --dir "$scratch" "$@" \
        >"$scratch/report" 2>"$scratch/errors" || status=$?
    if [ "$status" -ne 0 ]; then
        cat "$scratch/report" "$scratch/errors" >&2
        fail "$name $*: ended with status $status"
    fi
    printf 'apps-check: %-13s %-34s %s\n' "$name" "$*" \
        "$(sed -n 's/^ *\([0-9.]* k operations.s\).*/\1/p' "$scratch/report")"
}

# Runs an application with options that cannot work, and expects that it says so.
refuses() {
    local name=$1 status=0
    shift
    timeout --kill-after=5 "$limit" "$apps/$name" --small --dir "$scratch" "$@" \
        >"$scratch/report" 2>"$scratch/errors" || status=$?
    [ "$status" -eq 2 ] || fail "$name $*: ended with status $status, where 2 was expected"
    [ -s "$scratch/errors" ] || fail "$name $*: gives no reason"
}

has_calls() {
    local name
    for name in "${with_calls[@]}"; do
        [ "$name" != "$1" ] || return 0
    done
    return 1
}

"$apps/application_test" || fail "application_test: see above"
for name in "${names[@]}"; do
    [ -x "$apps/$name" ] || fail "$apps/$name is missing; run \`make apps\`"
    for memory in malloc pages objects; do
        runs "$name" --memory "$memory"
    done
    if has_calls "$name"; then
        runs "$name" --memory objects --calls
        refuses "$name" --memory pages --calls
    else
        refuses "$name" --memory objects --calls
    fi
    [ "$name" != bplus_tree ] || runs "$name" --memory objects --object 512 --writes 0
    refuses "$name" --memory swap
    refuses "$name" --data 0
    refuses "$name" --data 1K
    refuses "$name" --data 1000000G
    for memory in pages objects; do
        DEEPHEAP_CONF=$DEEPHEAP_CONF,store_size:16M refuses "$name" --memory "$memory"
    done
    refuses "$name" --object 1
    refuses "$name" --object 1000-100
    refuses "$name" --threads 0
    refuses "$name" --writes 101
    refuses "$name" --memory pages --dir "$scratch/missing"
    refuses "$name" surplus
done
echo "apps-check: passed"
