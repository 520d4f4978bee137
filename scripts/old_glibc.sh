#!/usr/bin/env bash
# old_glibc.sh: the glibc that a release is linked with, and whether the release runs with it.
#
#     scripts/old_glibc.sh fetch FOLDER    unpacks Debian 11's glibc 2.31, for linking, into FOLDER
#     scripts/old_glibc.sh check FILE...   fails if a program or library needs a later symbol
#     scripts/old_glibc.sh run FOLDER DIST makes a Debian 11 in FOLDER, and runs in it the tarball
#                                          and the packages of DIST; needs root and debootstrap
#
# Guarantees: writes below FOLDER only, and to FOLDER.log; its mounts end with it. What `fetch`
# unpacks has the checksums below.
set -euo pipefail

glibc=2.31
version=2.31-13+deb11u11
packages=(
    e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3:libc6-dev
    05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282:libc6
)
# Packages that are no longer at the first are at the second.
mirrors=(http://deb.debian.org/debian http://archive.debian.org/debian)

fail() {
    echo "old-glibc: $*" >&2
    exit 1
}

fetch() {
    local folder=$1 sum name mirror link to
    [ ! -e "$folder/complete" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    for package in "${packages[@]}"; do
        sum=${package%%:*} name=${package#*:}_${version}_amd64.deb
        for mirror in "${mirrors[@]}"; do
            curl -sSf -o "$folder/$name" "$mirror/pool/main/g/glibc/$name" && break
        done
        echo "$sum  $folder/$name" | sha256sum --check --status ||
            fail "$name cannot be had, or is another one"
        dpkg-deb --extract "$folder/$name" "$folder"
        # libc6's, the last, lists its symbols: packages depend on it as that list says.
        dpkg-deb --control "$folder/$name" "$folder/DEBIAN"
        rm "$folder/$name"
    done
    # Links from the root would lead out of the folder.
    find "$folder" -type l -lname '/*' | while read -r link; do
        to=$(readlink "$link")
        ln -sfnr "$folder$to" "$link"
    done
    touch "$folder/complete"
}

check() {
    local file later
    for file; do
        readelf -h "$file" >/dev/null 2>&1 || fail "$file is no program and no library"
        later=$(readelf -W --dyn-syms "$file" | grep -o '[^ ]*@GLIBC_[0-9.]*' | sort -u |
            awk -F '@GLIBC_' -v most="$glibc" '
                { split($2, has, "."); split(most, may, ".") }
                has[1] > may[1] || has[1] == may[1] && has[2] + 0 > may[2] + 0') || true
        [ -z "$later" ] || fail "$file needs more than glibc $glibc: ${later//$'\n'/ }"
    done
    echo "old-glibc: $# files need no symbol of a later glibc than $glibc"
}

# Some programs within 16 MiB, with the command $1: they answer as without it.
# shellcheck disable=SC2016 # For the shell in FOLDER to expand.
programs='
set -euo pipefail
cd /store
deep="$1 run --ram 16M --store /store --"
"$1" doctor --store /store
$deep true
[ "$($deep sh -c "echo it runs")" = "it runs" ]
# One write of more memory than there is RAM, and one read.
$deep perl -e "open F, q(+>), q(large); \$it = q(0123456789abcdef) x 4000000;
    syswrite(F, \$it) == 64000000 && sysseek(F, 0, 0) &&
    sysread(F, \$again, 64000000) == 64000000 && \$again eq \$it or die"
sort lines >plain
$1 run --ram 16M --store /store --show-stats -- sort -S 1G --parallel=2 lines >deep
cmp plain deep
'

run() {
    local folder=$1 dist=$2
    if [ ! -e "$folder" ]; then
        rm -rf "$folder.new"
        debootstrap --variant=minbase bullseye "$folder.new" "${mirrors[0]}" >"$folder.log" ||
            fail "debootstrap cannot make a Debian 11: see $folder.log"
        mv "$folder.new" "$folder"
    fi
    rm -rf "$folder/opt" "$folder/store"
    mkdir "$folder/opt" "$folder/store"
    tar -C "$folder/opt" --strip-components=1 -xf "$dist"/deepheap-*-linux.tar.gz
    cp "$dist"/*.deb "$folder/store"
    seq 1000000 | rev >"$folder/store/lines"
    # shellcheck disable=SC2016 # As above.
    unshare --mount bash -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount --rbind /sys "$1/sys"
        chroot "$1" bash -c "$2" bash /opt/bin/deepheap
        chroot "$1" sh -c "dpkg --install /store/*.deb"
        chroot "$1" bash -c "$2" bash /usr/bin/deepheap
    ' bash "$folder" "$programs" >"$folder.log" 2>&1 ||
        fail "the release does not run in a Debian 11: see $folder.log"
    echo "old-glibc: in a Debian 11 tarball and packages run programs as without them"
}

case ${1:-} in
fetch | check | run) "$@" ;;
*) fail "use: old_glibc.sh fetch FOLDER | check FILE... | run FOLDER DIST" ;;
esac
