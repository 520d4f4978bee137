#!/usr/bin/env bash
# unit.sh: runs the tests of all crates, three programs side by side: most of them wait for a disk
# or for a child, and one at a time leaves more than half of two processors idle.
#
# Guarantees: exit status 1 if a test failed; nothing goes on when it is interrupted. What a lane
# says is printed when it has ended, whole. Every program is in one lane, whatever its name: the
# last one has all that the others have not.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
work=${CARGO_TARGET_DIR:-target}/unit
mkdir -p "$work"

"$cargo" test --workspace --no-run

lanes=()
trap 'kill "${lanes[@]%%:*}"; exit 1' INT TERM
lane() { # NAME, and what cargo runs in it
    local name=$1
    shift
    exec timeout --kill-after=30 40m "$cargo" test --workspace --no-fail-fast "$@" \
        >"$work/$name.log" 2>&1
}
lane a-d --test '[a-d]*' & lanes+=("$!:a-d")
lane p-s --test '[p-s]*' & lanes+=("$!:p-s")
lane others --lib --bins --test '[!a-dp-s]*' & lanes+=("$!:others")

failed=0
for each in "${lanes[@]}"; do
    wait "${each%%:*}" || failed=1
    cat "$work/${each#*:}.log"
done
"$cargo" test --workspace --doc || failed=1
exit $failed
