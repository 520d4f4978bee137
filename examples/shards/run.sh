#!/usr/bin/env bash
# run.sh: three memcached servers as they are, each under deepheap with two thirds of the RAM that
# it wants, and a client that shares the keys among them (shards.py).
#
#     examples/shards/run.sh [FOLDER]
#
# FOLDER, on an SSD, is for their stores and sockets; without it one below /var/tmp is. On machines
# of their own the servers listen to ports (`-l 0.0.0.0 -p 11211`), and clients name HOST:PORT.
#
# Environment: SERVERS (how many, 3), RAM (the budget of each, 16M), DEEPHEAP (the command, else
# that of target/release, else that of the PATH).
#
# Guarantees: what it started and wrote is gone at the end.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
deepheap=${DEEPHEAP:-$here/../../target/release/deepheap}
[ -x "$deepheap" ] || deepheap=deepheap
memcached=$(command -v memcached) || {
    echo "run.sh: memcached is missing: apt-get install memcached" >&2
    exit 2
}
folder=$(mktemp -d "${1:-/var/tmp}/deepheap-shards.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$folder"' EXIT

user=()
if [ "$(id -u)" -eq 0 ]; then
    user=(-u root) # memcached refuses to be root unless it is told
fi
addresses=()
processes=()
for ((number = 1; number <= ${SERVERS:-3}; number++)); do
    address=$folder/server$number
    "$deepheap" run --ram "${RAM:-16M}" --store "$folder" -- \
        "$memcached" "${user[@]}" -s "$address" -m 1024 -t 2 &
    processes+=($!)
    addresses+=("$address")
done
for address in "${addresses[@]}"; do
    for ((wait = 0; wait < 100; wait++)); do
        [ ! -S "$address" ] || break
        sleep 0.1
    done
done
python3 "$here/shards.py" check "${addresses[@]}"
for process in "${processes[@]}"; do
    "$deepheap" stat "$process" | grep -E '^(memcached|memory|heap)'
done
