#!/usr/bin/env bash
# run.sh: runs memcached with its items where one wants them.
#
#     examples/papers/memcached/run.sh malloc|pages|objects [OPTIONS OF MEMCACHED]
#
#     malloc    memcached as it is: RAM, and swap if the machine has any
#     pages     memcached as it is, under `deepheap run`: its memory moves in pages of 4 KiB
#     objects   the edited memcached under `deepheap run`: its items move one by one
#
# Environment: MEMCACHED_RAM (the RAM of deepheap, 256M), MEMCACHED_STORE (a folder on an SSD, .),
# OUT (where build.sh put the programs, target/apps/memcached), DEEPHEAP (the folder of the command
# deepheap, target/release).
#
# Guarantees: memcached's signals and its exit status are those of this process.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
out=${OUT:-$target/apps/memcached}
deepheap=${DEEPHEAP:-$target/release}/deepheap

program=$out/memcached
launcher=("$deepheap" run --ram "${MEMCACHED_RAM:-256M}" --store "${MEMCACHED_STORE:-.}"
    --show-stats --)
case ${1:-} in
    malloc) launcher=() ;;
    pages) ;;
    objects) program=$out/memcached-objects ;;
    *)
        echo "usage: run.sh malloc|pages|objects [OPTIONS OF MEMCACHED]" >&2
        exit 2
        ;;
esac
shift
for file in "$program" "${launcher[@]:0:1}"; do
    if [ ! -x "$file" ]; then
        echo "run.sh: $file is missing; run \`make build\` and build.sh" >&2
        exit 2
    fi
done
# memcached refuses to be root unless it is told.
user=()
if [ "$(id -u)" -eq 0 ]; then
    user=(-u root)
fi
exec "${launcher[@]}" "$program" "${user[@]}" "$@"
