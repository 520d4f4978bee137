#!/usr/bin/env bash
# package.sh: Debian packages, and all that a release consists of, in dist/.
#
#     scripts/package.sh deb        deepheap, libdeepheap0 and libdeepheap-dev, checked with lintian
#     scripts/package.sh release    those, a tarball, wheel, crates, and the checksums of all
#
# The packages carry what `make install` installs, from target/release: run `make build` first. A
# release is built anew, in target/portable, against an old glibc, and runs with every later one.
#
# Guarantees: writes below target/ and dist/ only; changes nothing of the system. lintian's errors
# and warnings end it, and so does a program or library that needs a later glibc.
set -euo pipefail
cd "$(dirname "$0")/.."
make=${MAKE:-make}
cargo=${CARGO:-cargo}

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
major=${version%%.*}
revision=$version-1
architecture=$(dpkg --print-architecture)
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
maintainer="deepheap maintainers <deepheap@example.org>"
# Reproducible: all files carry the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/package
dist=$PWD/dist
# The glibc that is linked with, if it is not the system's.
old=

fail() {
    echo "package: $*" >&2
    exit 1
}

# Moves files of the installed tree to where they are in a package.
take() {
    local package=$1 path
    shift
    for path in "$@"; do
        mkdir -p "$work/$package/$(dirname "$path")"
        mv "$work/tree/$path" "$work/$package/$path"
    done
}

# What each package has beside its files: documents, control file, checksums.
finish() {
    local package=$1 section=$2 depends=$3 summary=$4 text=$5
    local root=$work/$package documents=$work/$package/usr/share/doc/$package
    mkdir -p "$documents" "$root/DEBIAN"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: deepheap"
        echo
        echo "Files: *"
        echo "Copyright: 2026 the deepheap maintainers"
        echo "License: Expat or Apache-2.0"
        echo
        echo "License: Expat"
        sed -n '/^Permission/,$p' LICENSE-MIT | sed 's/^$/./; s/^/ /'
        echo
        echo "License: Apache-2.0"
        echo " On Debian systems, the text of this licence is in"
        echo " /usr/share/common-licenses/Apache-2.0."
    } >"$documents/copyright"
    {
        echo "deepheap ($revision) unstable; urgency=medium"
        echo
        echo "  * Version $version; see CHANGELOG.md of the source."
        echo
        echo " -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9n >"$documents/changelog.Debian.gz"
    {
        echo "Package: $package"
        echo "Source: deepheap"
        echo "Version: $revision"
        echo "Architecture: $architecture"
        echo "Maintainer: $maintainer"
        echo "Installed-Size: $(du -sk "$root" | cut -f 1)"
        [ -z "$depends" ] || echo "Depends: $depends"
        echo "Section: $section"
        echo "Priority: optional"
        echo "Description: $summary"
        echo " ${text//$'\n'/$'\n' }"
    } >"$root/DEBIAN/control"
    find "$root" -type d -exec chmod 755 {} +
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
        >"$root/DEBIAN/md5sums"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$dist/${package}_${revision}_$architecture.deb" \
        >/dev/null
}

# The libraries of Debian that programs and libraries are linked with.
libraries() {
    mkdir -p "$work/debian"
    printf 'Source: deepheap\n\nPackage: deepheap\nArchitecture: any\n' >"$work/debian/control"
    (cd "$work" && dpkg-shlibdeps --warnings=0 -O ${old:+-S"$old"} \
        -l"$work/libdeepheap$major/usr/lib/$triplet" "$@" 2>/dev/null) |
        sed -n 's/^shlibs:Depends=//p'
}

build_debs() {
    [ -x "${CARGO_TARGET_DIR:-target}/release/deepheap" ] || fail "run \`make build\` first"
    rm -rf "$work"
    mkdir -p "$work" "$dist"
    "$make" --no-print-directory -s install DESTDIR="$work/tree" PREFIX=/usr \
        LIBDIR="/usr/lib/$triplet"
    cd "$work/tree"
    # Names of manual pages that are links lead to the compressed page.
    find usr/share/man -type l | while read -r link; do
        ln -sf "$(readlink "$link").gz" "$link.gz"
        rm "$link"
    done
    find usr/share/man -type f -exec gzip -9n {} +
    strip --strip-unneeded usr/bin/* usr/lib/deepheap/*.so "usr/lib/$triplet"/libdeepheap.so.*.*
    strip --strip-debug "usr/lib/$triplet/libdeepheap.a"
    cd - >/dev/null

    take "libdeepheap$major" "usr/lib/$triplet/libdeepheap.so.$version" \
        "usr/lib/$triplet/libdeepheap.so.$major"
    take libdeepheap-dev usr/include usr/share/man/man3 "usr/lib/$triplet"
    take deepheap usr
    mkdir -p "$work/deepheap/usr/share/doc/deepheap/examples"
    install -m 644 packaging/deepheap.conf packaging/Containerfile examples/*.c examples/*.cpp \
        "$work/deepheap/usr/share/doc/deepheap/examples"

    # The loader's cache, and what programs that are linked with the library depend on.
    mkdir -p "$work/libdeepheap$major/DEBIAN"
    echo "libdeepheap $major libdeepheap$major" >"$work/libdeepheap$major/DEBIAN/shlibs"
    echo "activate-noawait ldconfig" >"$work/libdeepheap$major/DEBIAN/triggers"

    local about="deepheap lets programs use an SSD as more memory, with ordinary pointers:
what is used stays in RAM, within a budget; what is not is compressed, and
moves to the SSD. A touch brings it back."
    finish "libdeepheap$major" libs \
        "$(libraries "libdeepheap$major/usr/lib/$triplet/libdeepheap.so.$version")" \
        "heap deeper than RAM: library" "$about
.
This package has the library that programs are linked with."
    finish libdeepheap-dev libdevel "libdeepheap$major (= $revision)" \
        "heap deeper than RAM: headers" "$about
.
This package has headers, the static library, manual pages, and files for
pkg-config and CMake."
    finish deepheap utils \
        "$(libraries deepheap/usr/bin/deepheap deepheap/usr/lib/deepheap/libdeepheap_preload.so)" \
        "heap deeper than RAM: command" "$about
.
This package has the command, which gives unmodified programs such a heap."
    if command -v lintian >/dev/null; then
        lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
            --allow-root "$dist"/*"_${revision}_$architecture.deb"
    else
        echo "package: lintian is not installed: the packages are not checked" >&2
    fi
}

# The crates that are for others to depend on. Each was built and tested as it stands.
build_crates() {
    local -a without=()
    local manifest
    while read -r manifest; do
        without+=(--exclude "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)")
    done < <(grep -l '^publish = false' crates/*/Cargo.toml bench/Cargo.toml papers/Cargo.toml)
    "$cargo" package --quiet --workspace "${without[@]}" --no-verify --allow-dirty
    cp "$CARGO_TARGET_DIR"/package/*.crate "$dist"
}

# What `make install` installs, to be unpacked anywhere.
build_tarball() {
    local name=deepheap-$version-x86_64-linux
    "$make" --no-print-directory -s install DESTDIR="$work/tarball" PREFIX=/usr/local
    mv "$work/tarball/usr/local" "$work/tarball/$name"
    cp README.md CHANGELOG.md LICENSE-* "$work/tarball/$name"
    # pkg-config finds it wherever it is.
    sed -i "s|^prefix=.*|prefix=\${pcfiledir}/../..|; s|/usr/local|\${prefix}|" \
        "$work/tarball/$name/lib/pkgconfig/deepheap.pc"
    strip --strip-unneeded "$work/tarball/$name/bin/deepheap" \
        "$work/tarball/$name"/lib/{deepheap/*.so,*.so."$version"}
    strip --strip-debug "$work/tarball/$name/lib/libdeepheap.a"
    tar -C "$work/tarball" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"
}

build_release() {
    local folder
    old=$(realpath -m "${CARGO_TARGET_DIR:-target}")/glibc-2.31
    folder=$old/usr/lib/x86_64-linux-gnu
    scripts/old_glibc.sh fetch "$old"
    export CARGO_TARGET_DIR
    CARGO_TARGET_DIR=$(dirname "$old")/portable
    work=$CARGO_TARGET_DIR/package-files
    # For Rust, and for the wheel's module in C. Before glibc 2.34 some of what is wrapped was in
    # libraries of its own: they are to be there from the start, where the wrappers look for it.
    RUSTFLAGS="-C link-arg=--sysroot=$old -C link-arg=-B$folder -C link-arg=-L$folder \
        -C link-arg=-Wl,--allow-shlib-undefined \
        -C link-arg=-Wl,--push-state,--no-as-needed,-lrt,-lutil,-lresolv,--pop-state" \
        "$cargo" build --release
    rm -rf "$dist"
    build_debs
    build_tarball
    LDFLAGS="--sysroot=$old -B$folder -L$folder" scripts/python.sh wheel "$dist"
    scripts/old_glibc.sh check "$CARGO_TARGET_DIR"/release/{deepheap,libdeepheap.so} \
        "$CARGO_TARGET_DIR/release/libdeepheap_preload.so" \
        "$CARGO_TARGET_DIR"/python/build/lib.*/deepheap/_native*.so
    if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then
        scripts/old_glibc.sh run "$(dirname "$old")/debian-11" "$dist"
    else
        echo "package: it takes root and debootstrap to run the release with an old glibc" >&2
    fi
    build_crates
    (cd "$dist" && sha256sum -- * >SHA256SUMS)
    ls -l "$dist"
}

case ${1:-} in
deb)
    build_debs
    ls -1 "$dist"/*.deb
    ;;
release) build_release ;;
*) fail "use: package.sh deb | release" ;;
esac
