#!/usr/bin/env bash
# test.sh: all of CI, in three rows of stages side by side: what is built to be tested, what is
# built to be shipped, and what is built around that. One after the other they leave half of two
# processors idle.
#
# Guarantees: exit status 1 if a stage failed; its row ends there, and the others go on. A stage is
# a target of the Makefile; what it says is printed when it has ended, whole, with its time. Nothing
# goes on when this is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
make=${MAKE:-make}
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/test
mkdir -p "$work"

row() { # STAGES
    local stage began running outcome=passed
    trap 'kill "$running"; exit 1' INT TERM
    for stage in "$@"; do
        began=$SECONDS
        "$make" --no-print-directory ALL=--workspace "$stage" >"$work/$stage.log" 2>&1 &
        running=$!
        wait "$running" || outcome=FAILED
        {
            flock 9
            cat "$work/$stage.log"
            echo "test: $stage $outcome after $((SECONDS - began)) s"
        } 9>"$work/lock"
        [ "$outcome" = passed ] || return 1
    done
}

rows=()
trap 'kill "${rows[@]}"; exit 1' INT TERM
row lint unit scripts & rows+=("$!")
row install-check python-check containers-check demos-short & rows+=("$!")
row fuzz-short apps-check real-check hunt schedules models recipes-check & rows+=("$!")

failed=0
for each in "${rows[@]}"; do
    wait "$each" || failed=1
done
exit $failed
