#!/usr/bin/env bash
# fuzz.sh [SECONDS|short] [TARGET...]: fuzzes each target (all, if none is named) for so many
# seconds, guided by coverage, from the inputs in fuzz/corpus. short: the same 1000 inputs each
# time.
#
#     scripts/fuzz.sh 60                        # a minute each
#     scripts/fuzz.sh 3600 settings map_log     # an hour each of two of them
#     KEEP=1 scripts/fuzz.sh 600                # inputs that reach new code go to fuzz/corpus
#
# libFuzzer needs no more of rustc than LLVM's own pass that counts what runs, so the pinned
# toolchain does. (cargo-fuzz does the same with a nightly one.)
#
# Guarantees: exit status 1 if an input found a defect, whose file is named, and after which the
# other targets go on. Writes below target/fuzz; with KEEP=1 below fuzz/corpus, too.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fuzz
case ${1:-60} in
short)
    length=(-runs=1000 -seed=1)
    # What earlier runs found would make others of them.
    rm -rf "$work/found"
    ;;
*) length=("-max_total_time=${1:-60}") ;;
esac
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/corpus && printf '%s\n' *)

flags=(
    -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    -Cdebug-assertions=yes -Coverflow-checks=yes -Clto=no -Cembed-bitcode=no --cfg=fuzzing
)
# With a target of its own, what runs while building is not instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="${flags[*]}" CARGO_PROFILE_RELEASE_LTO=off "$cargo" build --release --quiet \
    -p deepheap-fuzz --features libfuzzer --target "$host" --target-dir "$work"
fuzz=$work/$host/release/fuzz

failed=0
for target in "${targets[@]}"; do
    found=$work/found/$target log=$work/$target.log
    mkdir -p "$found" "$work/defects"
    echo "fuzz: $target, ${length[*]}"
    export DEEPHEAP_FUZZ_TARGET=$target
    if ! "$fuzz" "${length[@]}" -max_len=4096 -timeout=120 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="$work/defects/$target-" \
        "$found" "fuzz/corpus/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz: FAILED: $target; play it again: DEEPHEAP_FUZZ_TARGET=$target $fuzz FILE" >&2
        failed=1
    fi
    awk '/DONE/ { print "fuzz:   " substr($1, 2), "inputs played,", $3, $4, $7, $8 }' "$log"
    if [ -n "${KEEP:-}" ]; then
        "$fuzz" -set_cover_merge=1 -max_len=4096 "fuzz/corpus/$target" "$found" >>"$log" 2>&1
    fi
done
exit $failed
