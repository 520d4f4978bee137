#!/usr/bin/env bash
# demo.sh: an unmodified redis-server holds four times its RAM budget; every value is verified.
#
#     scripts/demo.sh [--short] [--plain]
#
#     --short   64 MiB of values under 24 MiB, for CI
#     --plain   without deepheap, to compare
#
# Environment: DEMO_MIB (of values), DEMO_RAM (budget, in MiB), DEMO_VALUE_BYTES, DEMO_STORE (a
# folder on an SSD).
#
# Guarantees: a server of its own on a socket of its own, in a folder of its own; all of it is
# gone at the end, however it ends. Exit status 0 only if every value was right and the peak of
# memory stayed within the budget, the program's own, and 5 %.
set -euo pipefail
cd "$(dirname "$0")/.."

mib=${DEMO_MIB:-1024}
ram=${DEMO_RAM:-256}
size=${DEMO_VALUE_BYTES:-4096}
plain=
for argument; do
    case $argument in
        --short) mib=${DEMO_MIB:-64} ram=${DEMO_RAM:-24} ;;
        --plain) plain=yes ;;
        *)
            echo "demo: unknown option $argument; there are --short and --plain" >&2
            exit 2
            ;;
    esac
done
count=$((mib * 1024 * 1024 / size))

release=${CARGO_TARGET_DIR:-target}/release
store=${DEMO_STORE:-${CARGO_TARGET_DIR:-target}/demo-store}
deepheap=$release/deepheap
for command in redis-server redis-cli python3; do
    if ! command -v "$command" >/dev/null; then
        echo "demo: $command is missing; run \`make deps\`" >&2
        exit 2
    fi
done
if [ -z "$plain" ] && [ ! -x "$deepheap" ]; then
    echo "demo: $deepheap is missing; run \`make build\`" >&2
    exit 2
fi

mkdir -p "$store"
work=$(mktemp -d "${TMPDIR:-/tmp}/deepheap-demo.XXXXXX")
socket=$work/redis.sock
server=
watcher=

# Takes down what this script put up.
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill -9 "$server" 2>/dev/null || true
        wait "$launched" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ] && [ -s "$work/stderr" ]; then
        echo "demo: the server said:" >&2
        tail -n 20 "$work/stderr" "$work/redis.log" >&2 || true
    fi
    rm -rf "$work"
    rmdir "$store" 2>/dev/null || true
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints VmRSS + VmPTE of the server, in KiB; fails when it is gone. Forks nothing.
resident_kib() {
    local field value _ sum=0
    while read -r field value _; do
        case $field in
            VmRSS: | VmPTE:) sum=$((sum + value)) ;;
        esac
    done 2>/dev/null <"/proc/$server/status"
    [ "$sum" -gt 0 ] || return 1
    echo "$sum"
}

# Keeps the peak of resident_kib in a file while the server lives.
watch_peak() {
    local now peak=0
    while now=$(resident_kib); do
        if [ "$now" -gt "$peak" ]; then
            peak=$now
            echo "$peak" >"$work/peak.new" && mv "$work/peak.new" "$work/peak"
        fi
        sleep 0.1
    done
}

redis() {
    redis-cli -s "$socket" "$@"
}

echo "== $(redis-server --version | cut -d' ' -f1-3), unmodified: $mib MiB of values" \
    "($count of $size bytes)$([ -n "$plain" ] || echo ", RAM budget $ram MiB")"

launcher=()
if [ -z "$plain" ]; then
    launcher=("$deepheap" run --ram "${ram}M" --store "$store" --show-stats --)
fi
"${launcher[@]}" redis-server --port 0 --unixsocket "$socket" --dir "$work" \
    --logfile "$work/redis.log" --save '' --appendonly no --daemonize no 2>"$work/stderr" &
launched=$!
server=$launched
for ((attempt = 0; ; attempt++)); do
    if [ "$(redis PING 2>/dev/null || true)" = PONG ]; then
        break
    fi
    if ! kill -0 "$server" 2>/dev/null; then
        echo "demo: redis-server did not start" >&2
        exit 1
    fi
    if [ "$attempt" -ge 1200 ]; then
        echo "demo: redis-server does not answer within 2 minutes" >&2
        exit 1
    fi
    sleep 0.1
done
# The launcher stays as its parent.
server=$(redis INFO server | tr -d '\r' | sed -n 's/^process_id://p')
own=$(resident_kib)
watch_peak &
watcher=$!

python3 scripts/redis_values.py load --count "$count" --size "$size" |
    redis --pipe >"$work/pipe" || {
    cat "$work/pipe" >&2
    exit 1
}
if ! grep -q "errors: 0, replies: $count\$" "$work/pipe"; then
    echo "demo: loading went wrong: $(tail -n 1 "$work/pipe")" >&2
    exit 1
fi
python3 scripts/redis_values.py verify --count "$count" --size "$size" --socket "$socket" \
    >"$work/verified" || {
    cat "$work/verified" >&2
    exit 1
}

echo
echo "== $(cat "$work/verified")"
redis INFO memory | tr -d '\r' | sed -n 's/^used_memory_human:/   redis counts     /p'
resident=$(resident_kib)
peak=$(cat "$work/peak")
printf '   resident         %d MiB now, %d MiB at the peak, page tables included\n' \
    $((resident / 1024)) $((peak / 1024))
printf '   at the start     %d MiB, the program itself\n' $((own / 1024))
if [ -z "$plain" ]; then
    allowed=$(((ram * 1024 + own) * 105 / 100))
    printf '   allowed          %d MiB: budget, program and 5 %%\n' $((allowed / 1024))
    echo
    echo "== deepheap stat $server"
    "$deepheap" stat "$server"
fi

redis SHUTDOWN NOSAVE >/dev/null 2>&1 || true
wait "$launched" || {
    echo "demo: redis-server ended with status $?" >&2
    exit 1
}
server=
if [ -z "$plain" ]; then
    echo
    echo "== at the exit of the server"
    cat "$work/stderr"
    if [ "$peak" -gt "$allowed" ]; then
        echo "demo: the peak of $((peak / 1024)) MiB is above $((allowed / 1024)) MiB" >&2
        exit 1
    fi
    echo
    echo "== $mib MiB in $ram MiB of RAM, every value right"
fi
