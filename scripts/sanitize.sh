#!/usr/bin/env bash
# sanitize.sh: runs the tests of the inner crates, and the inputs of the fuzzer's corpus, with
# AddressSanitizer: what is read or written outside of an allocation, or after its end, is found.
#
# The pinned compiler has the sanitizer, behind its name for what is not stable yet. Where managed
# memory is (pager, runtime), faults are deepheap's to serve, and the sanitizer has the same
# addresses and signals; those crates are not here.
#
# Guarantees: exit status 1 if a test fails or something is found. Writes below target/sanitize.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
host=$(rustc -vV | sed -n 's/^host: //p')
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize

# Leaks are none of its business: what a test forgets ends with it.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0
sanitized=("$cargo" test --target "$host" --target-dir "$work")
"${sanitized[@]}" -p deepheap-policy -p deepheap-heap -p deepheap-store -p deepheap-fuzz
# zstd's contexts have fixed memory, without room for what the sanitizer puts between their parts.
"${sanitized[@]}" -p deepheap-residency --lib -- --skip codec::dense
