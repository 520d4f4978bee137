#!/usr/bin/env bash
# kernels.sh: runs this tree's tests under other kernels, each in a virtual machine whose root is
# this machine's, with all that it writes on a disk of its own.
#
#     scripts/kernels.sh                       # the kernels that Debian 12 is run with
#     scripts/kernels.sh linux-image-6.12.111+deb12-amd64
#     TESTS='forking|budget' scripts/kernels.sh
#
# A kernel is a Debian package; it is downloaded and unpacked, never installed. The processors are
# emulated, so that it works in a virtual machine, too; all tests take hours on two of them, and ten
# times as long where other work wants the processors.
#
# Environment: TESTS (which tests, an extended regular expression for CRATE/TEST), CPUS (4, or what
# there are: one that waits for another to be emulated holds both up), MEMORY (6G), DISK (12G),
# PATIENCE (seconds for one test, 1800).
#
# Guarantees: writes only below target/kernels; exit status 1 if a test failed or did not run; the
# machine and its disk are gone at the end, also when this is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/kernels
# Not here: what measures, what reads this tree only, what needs swap files and cgroups.
tests=${TESTS:-^(cli|libdeepheap|preload|runtime|pager|store|heap|sys)/}
patience=${PATIENCE:-1800}
processors=$(nproc)
processors=${CPUS:-$((processors < 4 ? processors : 4))}

fail() {
    echo "kernels: $*" >&2
    exit 1
}

missing=()
for need in setpriv:util-linux qemu-system-x86_64:qemu-system-x86 busybox:busybox-static \
    depmod:kmod cpio:cpio mkfs.ext4:e2fsprogs apt-get:apt dpkg:dpkg jq:jq; do
    command -v "${need%%:*}" >/dev/null || missing+=("${need##*:}")
done
[ ${#missing[@]} -eq 0 ] ||
    fail "missing; install: sudo apt-get install --no-install-recommends ${missing[*]}"

# The package that stands behind that of the latest kernel of a series.
latest() {
    apt-cache depends "$1" 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}

kernels=("$@")
if [ ${#kernels[@]} -eq 0 ]; then
    for series in linux-image-amd64 linux-image-6.12-amd64; do
        package=$(latest "$series")
        if [ -n "$package" ]; then
            kernels+=("$package")
        else
            echo "kernels: apt-get knows no $series here" >&2
        fi
    done
fi
[ ${#kernels[@]} -gt 0 ] || fail "no kernel to test with"

mkdir -p "$work"
disk=$work/disk.img
trap 'rm -f "$disk"' EXIT
trap 'exit 1' INT TERM

# What the tests build by themselves is built here, where it is fast.
"$cargo" build --quiet --workspace
"$cargo" test --quiet --workspace --no-run --message-format=json |
    jq -r 'select(.executable != null and .profile.test) |
        [.executable, (.manifest_path | split("/") | .[-2]), .target.name] | join(" ")' |
    while read -r program crate name; do
        if [[ $crate/$name =~ $tests ]]; then
            echo "$program $crate $name"
        fi
    done >"$work/tests"
[ -s "$work/tests" ] || fail "no test is called $tests"

# Unpacks the kernel of a package, and makes what it boots with: the modules for disk and root.
unpack() {
    local package=$1 folder=$work/$1
    if [ ! -s "$folder/initrd" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        (cd "$folder" && apt-get download -q "$package" >/dev/null && dpkg -x ./*.deb . &&
            rm ./*.deb) ||
            fail "$package: cannot be downloaded; apt-get update, and apt-cache search linux-image"
        local version first=$folder/first module
        version=$(basename "$folder"/lib/modules/*)
        depmod -b "$folder" "$version"
        mkdir -p "$first"/{bin,modules,proc,sys,dev,lower,upper,newroot}
        cp "$(command -v busybox)" "$first/bin/busybox"
        for module in virtio_pci virtio_blk virtio_rng 9pnet_virtio 9p overlay ext4; do
            modprobe -d "$folder" -S "$version" --show-depends "$module" 2>/dev/null || true
        done | awk '/^insmod/ && !seen[$2]++ { print $2 }' >"$folder/modules"
        while read -r module; do
            cp "$module" "$first/modules/"
            case $module in *.xz) xz -d "$first/modules/$(basename "$module")" ;; esac
            basename "$module" .xz >>"$first/order"
        done <"$folder/modules"
        cat >"$first/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod /modules/$module; done </order
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower
$b mount -t ext4 /dev/vda /upper
$b mkdir -p /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work over /newroot
for kind in proc:proc sysfs:sys devtmpfs:dev; do
    $b mount -t ${kind%:*} none /newroot/${kind#*:}
done
$b mkdir -p /newroot/dev/pts /newroot/dev/shm
$b mount -t devpts none /newroot/dev/pts
$b mount -t tmpfs none /newroot/dev/shm
exec $b switch_root /newroot /bin/bash INSIDE
INIT
        sed -i "s|INSIDE|$work/inside.sh|" "$first/init"
        chmod +x "$first/init"
        (cd "$first" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$folder/made"
        rm -rf "$first"
        mv "$folder/made" "$folder/initrd"
    fi
}

# What runs inside, in place of init.
cat >"$work/inside.sh" <<INSIDE
export PATH=$PATH HOME=$HOME CARGO=$(command -v "$cargo") CARGO_NET_OFFLINE=true TMPDIR=/var/tmp
export DEEPHEAP_TEST_PATIENCE=$patience
ip link set lo up
echo # what the firmware left of its line
echo "kernels: Linux \$(uname -r), \$(nproc) processors, up after \$(cut -d. -f1 /proc/uptime) s"
while read -r program crate name; do
    cd "$root/crates/\$crate"
    begin=\$SECONDS
    status=0
    timeout -s KILL $patience "\$program" >/var/tmp/said 2>&1 </dev/null || status=\$?
    echo "kernels: \$crate/\$name: status \$status, \$((SECONDS - begin)) s," \
        "\$(grep -a '^test result' /var/tmp/said | tail -n 1)"
    [ "\$status" -eq 0 ] || tail -n 60 /var/tmp/said
done <"$work/tests"
echo "kernels: the end"
sync
echo o >/proc/sysrq-trigger
sleep 60
INSIDE

failed=0
for package in "${kernels[@]}"; do
    unpack "$package"
    rm -f "$disk"
    truncate -s "${DISK:-12G}" "$disk"
    mkfs.ext4 -q -F "$disk"
    kernel=$(echo "$work/$package"/boot/vmlinuz-*)
    log=$work/$package.log
    # It ends with this script, which waits for it so that a signal is seen to at once. Emulated,
    # copies between kernel and programs are faster without smap, and so are clocks with the counter
    # of the processor, which the kernel distrusts by itself. A KVM that has to interpret the kernel
    # is slower than this, and stops at int3, which every kernel tries as it boots. A busy machine
    # may be too slow for the kernel's test of its timer, and it would panic.
    setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-smap \
        -smp "$processors" -m "${MEMORY:-6G}" -nographic -no-reboot -net none -kernel "$kernel" \
        -initrd "$work/$package/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check" \
        -drive "file=$disk,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci \
        -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" \
        -device virtio-9p-pci,fsdev=root,mount_tag=root </dev/null |
        sed -u 's|\r||g' | tee "$log" | grep --line-buffered -aE '^kernels:|Kernel panic' &
    wait $! || true
    passed=$(grep -a -c '^kernels: .*: status 0,' "$log" || true)
    all=$(wc -l <"$work/tests")
    echo "kernels: $package: $passed of $all tests pass; $log"
    [ "$passed" -eq "$all" ] || failed=1
done
exit $failed
