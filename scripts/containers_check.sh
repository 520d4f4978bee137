#!/usr/bin/env bash
# containers_check.sh: deepheap in containers: Redis and the Python package in those of Podman, and
# Redis in one of Docker.
#
#     scripts/containers_check.sh
#
# Root makes the root file system of the containers from Debian's packages (debootstrap) below
# target/containers, where it stays for the next time; everybody may run containers from it. Root
# checks containers of root, and then rootless ones, as `nobody`; an ordinary user only those of
# their own. Where Docker's daemon is installed, root starts one of this script's own, and ends it.
# Redis answers for every value that it holds (scripts/redis_values.py), and the Python program
# checks each number.
#
# Environment: CHECK_DEVICE, a device node of userfaultfd that this user may open, in place of
# /dev/userfaultfd.
#
# Guarantees: writes below target/ only; containers and what they wrote are gone at the end. Exit
# status 0 if all that could be tried was right; what could not be tried is told in a line each, and
# where Podman or the network is missing that is all.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
release=$target/release
folder=$target/containers
root=$folder/rootfs
profile=/usr/share/containers/seccomp.json

skip() {
    echo "containers-check: SKIPPED: $*"
    exit 0
}

fail() {
    echo "containers-check: $*" >&2
    [ ! -s "$work/said" ] || tail -n 40 "$work/said" >&2
    exit 1
}

[ -x "$release/deepheap" ] || {
    echo "containers-check: $release/deepheap is missing; run \`make build\`" >&2
    exit 2
}
command -v podman >/dev/null || skip "podman is missing: scripts/deps.sh containers"
[ -f "$profile" ] || skip "$profile is missing: scripts/deps.sh containers"
node=${CHECK_DEVICE:-/dev/userfaultfd}
[ -c "$node" ] || skip "this kernel has no /dev/userfaultfd (Linux 6.1 and later have)"

# The root file system, made once: whole, or not there.
if [ ! -d "$root" ]; then
    [ "$(id -u)" -eq 0 ] || skip "$root is missing: run this as root once"
    command -v debootstrap >/dev/null || skip "debootstrap is missing: scripts/deps.sh containers"
    mkdir -p "$folder"
    rm -rf "$root.new"
    if ! timeout --kill-after=10 100 debootstrap --variant=minbase \
        --include=redis-server,redis-tools,python3,python3-numpy \
        bookworm "$root.new" >"$folder/debootstrap.log" 2>&1; then
        tail -n 1 "$folder/debootstrap.log" >&2
        rm -rf "$root.new"
        skip "Debian's packages cannot be had"
    fi
    # Where things are mounted; a rootless container may make nothing here.
    mkdir -p "$root.new"/{store,deepheap/scripts,deepheap/target/release,site}
    mv "$root.new" "$root"
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/deepheap-containers.XXXXXX")
pause=$work/home/libpod/tmp/pause.pid
daemon=
cgroup=deepheap-containers.$$
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    # Holds the name spaces of rootless containers.
    [ ! -s "$pause" ] || kill "$(cat "$pause")" || true
    # It ends its containers, and what holds its folders.
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } || true
    find /sys/fs/cgroup -depth -type d -name "$cgroup" -exec rmdir {} + 2>/dev/null || true
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/store"
chmod 777 "$work/store"
chmod 755 "$work"

# Runs a command in a container of this profile, with these options of Podman.
engine=()
mounts=(-v "$work/store:/store" -v "$PWD/scripts:/deepheap/scripts:ro"
    -v "$release:/deepheap/target/release:ro" --env DEMO_STORE=/store
    --env CARGO_TARGET_DIR=/deepheap/target)
contain() {
    timeout --kill-after=10 300 podman "${engine[@]}" --network none "${mounts[@]}" "$@" \
        >"$work/said" 2>&1
}

# Machines differ in what their engine can do: the first way that starts anything is taken.
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
found=
for way in "run --rm" "--runtime runc run --rm" "run --rm ${limits[*]}" \
    "--runtime runc run --rm ${limits[*]}"; do
    read -ra engine <<<"$way"
    if contain --rootfs "$root:O" true || contain --rootfs "$root" true; then
        found=yes
        break
    fi
done
[ -n "$found" ] || skip "podman starts no container here: $(tail -n 1 "$work/said")"
image=(--rootfs "$root:O")
contain "${image[@]}" true || image=(--rootfs "$root")
who=root
[ "$(id -u)" -eq 0 ] || who="$(id -un), rootless"
echo "containers-check: $(podman --version), podman ${engine[*]}, as $who"
doctor=(/deepheap/target/release/deepheap doctor --store /store)

# 1. The default profile, and nothing passed in: the cure is named.
if contain "${image[@]}" "${doctor[@]}"; then
    echo "containers-check: this engine's default profile allows userfaultfd"
else
    grep -q -e '--device /dev/userfaultfd' "$work/said" || fail "the device is not named"
fi

# 2. The device, and the default profile: all is well, or (before Linux 6.8) vmsplice and its cure
# are named.
device=(--device "$node:/dev/userfaultfd")
if ! [ -r "$node" ] || ! [ -w "$node" ]; then
    skip "this user may not open /dev/userfaultfd: sudo chmod 666 /dev/userfaultfd"
fi
security=()
if ! contain "${device[@]}" "${image[@]}" "${doctor[@]}"; then
    grep -q 'forbids vmsplice' "$work/said" || fail "with the device, and not for vmsplice:"
    examples/containers/seccomp.py <"$profile" >"$work/seccomp.json"
    security=(--security-opt "seccomp=$work/seccomp.json")
    contain "${device[@]}" "${security[@]}" "${image[@]}" "${doctor[@]}" ||
        fail "with the device and the profile:"
    echo "containers-check: this kernel needs a profile in which vmsplice is allowed"
fi
grep -E '^ *(ok|warn|!|-|✓)?.*(userfaultfd|exclusive|io_uring|batched)' "$work/said" || true

# 3. Redis holds more values than RAM; the demonstration checks each, and the peak of memory.
contain "${device[@]}" "${security[@]}" "${image[@]}" \
    bash /deepheap/scripts/demo.sh --short || fail "redis:"
tail -n 1 "$work/said"

# 4. An array of Python that is larger than RAM. Without the right to build a wheel here, by the one
# that root has built.
check_python() {
    local wheels version
    if [ -w "$folder" ]; then
        rm -rf "$folder/dist"
        if ! scripts/python.sh wheel "$folder/dist" >"$work/said" 2>&1; then
            tail -n 1 "$work/said" >&2
            echo "containers-check: SKIPPED: the wheel cannot be built here, so no Python"
            return
        fi
    fi
    wheels=("$folder"/dist/deepheap-*.whl)
    version=$(sed -n 's/.*-cp3\([0-9]*\)-.*/3.\1/p' <<<"${wheels[0]}")
    if ! [ -e "$root/usr/bin/python$version" ]; then
        echo "containers-check: SKIPPED: no wheel for Debian's Python, so no Python"
        return
    fi
    mkdir "$work/site"
    python3 -m zipfile -e "${wheels[0]}" "$work/site"
    cat >"$work/site/check.py" <<'EOF'
import numpy as np
import deepheap

deepheap.init(ram="32M", store="/store")
array = deepheap.zeros(16 << 20, dtype=np.int64)  # 128 MiB
array[:] = np.arange(len(array))
rows = np.arange(0, len(array), 4099)
assert (deepheap.gather(array.reshape(-1, 1), rows)[:, 0] == rows).all()
assert int(array.sum()) == len(array) * (len(array) - 1) // 2
print("python: 128 MiB in 32 MiB of RAM, every value right")
EOF
    contain "${device[@]}" "${security[@]}" -v "$work/site:/site:ro" --env PYTHONPATH=/site \
        "${image[@]}" python3 /site/check.py || fail "python:"
    tail -n 1 "$work/said"
}
check_python

# 5. Redis under Docker's default profile, with the device. The image has names only; /usr is that
# of the root file system.
contain_docker() {
    timeout --kill-after=10 300 "${docker[@]}" run --rm --network none --device /dev/userfaultfd \
        -v "$root/usr:/usr:ro" "${mounts[@]}" redis-check "$@" >"$work/said" 2>&1
}
check_docker() {
    local names=$work/names socket=unix://$work/docker.sock
    docker=(docker --host "$socket")
    if ! command -v docker >/dev/null || ! command -v dockerd >/dev/null; then
        echo "containers-check: SKIPPED: no Docker: apt-get install docker.io"
        return
    fi
    dockerd --host "$socket" --pidfile "$work/docker.pid" --data-root "$work/docker" \
        --exec-root "$work/docker-run" --bridge none --iptables=false --ip6tables=false \
        --storage-driver vfs --cgroup-parent "/$cgroup" >"$work/dockerd.log" 2>&1 &
    daemon=$!
    for ((attempt = 0; attempt < 600; attempt++)); do
        ! "${docker[@]}" version >/dev/null 2>&1 || break
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    mkdir -p "$names"/{dev,proc,sys,etc,usr,tmp,store,deepheap/{scripts,target/release}}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$names/$name"; done
    if ! tar -C "$names" -c . | "${docker[@]}" import - redis-check >/dev/null 2>"$work/said" ||
        ! contain_docker true; then
        echo "containers-check: SKIPPED: docker starts no container: $(tail -n 1 "$work/said")"
        return
    fi
    contain_docker bash /deepheap/scripts/demo.sh --short || fail "redis in Docker:"
    echo "containers-check: dockerd $("${docker[@]}" version -f '{{.Server.Version}}'), as root"
    tail -n 1 "$work/said"
}
[ "$(id -u)" -eq 0 ] || exit 0
check_docker

# 6. Without root: Podman's part of this once more as `nobody`, who gets a node of the device of
# their own, as no user but root may open the machine's.
mkdir "$work/home"
chown nobody "$work/home"
mknod -m 666 "$work/userfaultfd" c "0x$(stat -c %t /dev/userfaultfd)" \
    "0x$(stat -c %T /dev/userfaultfd)" || skip "no node can be made here, so no rootless containers"
rootless=(setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups env -i
    PATH=/usr/sbin:/usr/bin:/bin HOME="$work/home" XDG_RUNTIME_DIR="$work/home"
    CARGO_TARGET_DIR="$target" CHECK_DEVICE="$work/userfaultfd")
if ! "${rootless[@]}" test -x "$release/deepheap" -a -r "$PWD"; then
    skip "the user nobody cannot enter $PWD, so no rootless containers"
fi
"${rootless[@]}" scripts/containers_check.sh
