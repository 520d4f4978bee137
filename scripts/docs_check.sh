#!/usr/bin/env bash
# docs_check.sh PREFIX: runs the commands and compiles the pieces of C of the documents, against
# what is installed below PREFIX. install_check.sh calls it, and runs docs/languages.md itself.
#
# A command is a line of four spaces that begins with a word of WORDS. Each has a row below: how it
# is run, smaller than it stands there, or why it is not. A new one without a row is an error.
#
# Guarantees: writes only below a scratch folder in target/, which is gone at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
tree=$PWD

root=$(mktemp -d "${CARGO_TARGET_DIR:-target}/docs-check.XXXXXX")
root=$(realpath "$root")
trap 'rm -rf "$root"' EXIT
unset LD_PRELOAD DEEPHEAP_CONF
export PATH=$prefix/bin:$PATH LD_LIBRARY_PATH=$prefix/lib PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra flags < <(pkg-config --cflags --libs deepheap)

fail() {
    echo "docs-check: $*" >&2
    exit 1
}

# The programs of the commands, and a trace of one.
cc -std=c99 "$tree/examples/packet_cache.c" -o "$root/packet_cache" "${flags[@]}"
cd "$root"
seq 500000 | shuf >numbers
printf '#!/bin/sh\nexec sort -S 1G numbers\n' >program
chmod +x program
cp program first
cp program second
echo 'print(sum(len(str(i)) for i in range(1000)))' >x.py
deepheap run --ram 24M --store . --trace FILE -- ./program >/dev/null

# Runs a command of a document, made smaller by the sed expressions that follow it.
run() {
    local line=$1
    shift
    for change; do line=$(sed "$change" <<<"$line"); done
    export DEEPHEAP_CONF=ram:64M,store:.
    bash -o pipefail -c "$line" >"$root/said" 2>&1 || {
        cat "$root/said" >&2
        fail "'$line' of a document does not run"
    }
    unset DEEPHEAP_CONF
    ran=$((ran + 1))
}

ran=0
elsewhere=0
WORDS='make|sudo|deepheap|pip|python|cc|c\+\+|cd|cargo'
WORDS+='|DEEPHEAP_CONF=.*|\./.*|examples/.*|scripts/.*'
while IFS= read -r command; do
    case $command in
        'deepheap run --ram 2G --store /mnt/nvme -- ./program --its --options')
            run "$command" 's/2G/64M/' 's|/mnt/nvme|.|' 's/ --its --options//'
            ;;
        'deepheap run --ram 2G --store /nvme --objects 100-1500 ./packet_cache')
            run "$command" 's/2G/64M/' 's|/nvme|.|'
            ;;
        'deepheap advise FILE'* | 'deepheap simulate FILE'*) run "$command" ;;
        'deepheap run --'*PROGRAM) run "$command" 's/PROGRAM/.\/program/' 's/4G/64M/' ;;
        'deepheap run --ram 64M --show-stats python3 x.py') run "$command" ;;
        'deepheap profile --ram 64M -o flame.svg -- python3 x.py' | \
            'deepheap profile --allocations --ram 64M -- python3 x.py')
            run "$command"
            ;;
        'deepheap run --pool night'*) run "$command" 's/8G/64M/' ;;
        # containers_check.sh runs it.
        examples/containers/seccomp.py\ *) elsewhere=$((elsewhere + 1)) ;;
        # Needs a program that runs: crates/preload/tests has it.
        'deepheap set PID --ram 2G' | 'deepheap profile --seconds 30 PID')
            elsewhere=$((elsewhere + 1))
            ;;
        # Runs until it is ended: crates/cli/tests has it.
        'deepheap serve --all') elsewhere=$((elsewhere + 1)) ;;
        # Of docs/languages.md: run by install_check.sh.
        cc\ * | c++\ * | cargo\ * | ./program | 'DEEPHEAP_CONF=ram:32M,store:. '*)
            elsewhere=$((elsewhere + 1))
            ;;
        # install_check.sh itself installs; builds and measurements take minutes to hours;
        # python/tests run the wheel.
        make\ * | 'sudo make install'* | 'DEEPHEAP_CONF="ram:16M,store:." target/apps/'* | \
            pip\ install\ *)
            elsewhere=$((elsewhere + 1))
            ;;
        *) fail "no row here says what becomes of '$command' of a document" ;;
    esac
done < <(
    for page in "$tree"/README.md "$tree"/python/README.md "$tree"/docs/*.md; do
        # Fences of a language hold no commands; one without a language may.
        awk -v words="^($WORDS)( |$)" '
            /^```/ { inside = !inside; commands = $0 == "```"; next }
            inside && commands && $0 ~ words { print }
            !inside && /^    / { sub(/^    /, ""); if ($0 ~ words) print }
        ' "$page"
    done | sort -u
)

# A piece of C (or C++) between what stands before and behind it.
compile() {
    local page=$1 number=$2 language=$3 source=$4
    awk -v number="$number" -v fence="\`\`\`$language" '
        $0 == fence { count++; inside = 1; next }
        /^```/ { inside = 0 }
        inside && count == number { print }
    ' "$tree/docs/$page" >piece
    [ -s piece ] || fail "$page has no block $number of $language"
    # Its includes go in front of all.
    {
        grep '^#include' piece || true
        sed -e '/^PIECE$/r'<(grep -v '^#include' piece) -e '/^PIECE$/d'
    } >"$source"
    case $language in
        c) cc -std=c11 -Wall -Werror "$source" -o piece.out "${flags[@]}" ;;
        cpp) c++ -std=c++17 -Wall -Werror "$source" -o piece.out "${flags[@]}" ;;
    esac || fail "block $number of $language in $page does not compile"
}

compile maps.md 1 c piece.c <<'C'
#include <deepheap.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
PIECE
}
C
truncate -s 100M samples.bin
DEEPHEAP_CONF=ram:16M ./piece.out
[ "$(od -An -t f8 -j $((12345678 * 8)) -N 8 samples.bin | tr -d ' ')" = 1 ] ||
    fail "the map of maps.md is not in its file"

compile maps.md 2 c piece.c <<'C'
#include <deepheap.h>
#include <stdint.h>
#include <sys/mman.h>
int main(void) {
    int from = 1, to = 2;
PIECE
    return accounts[from] + accounts[to] != 0;
}
C
sed -i 's/4UL << 30/4UL << 20/' piece.c
cc -std=c11 piece.c -o piece.out "${flags[@]}"
DEEPHEAP_CONF=ram:16M ./piece.out || fail "the accounts of maps.md do not add up"

compile porting.md 1 c piece.c <<'C'
#include <deepheap.h>
struct set { void *packet[8]; };
PIECE
int main(void) {
    void *sets = dh_oalloc(9, sizeof(struct set));
    set_at(sets, 8)->packet[7] = sets;
    dh_free(sets);
}
C
DEEPHEAP_CONF=ram:16M,store:. ./piece.out || fail "the array of porting.md does not run"

compile porting.md 1 cpp piece.cpp <<'C'
#include <string>
#include <unordered_map>
using Key = int;
using Value = std::string;
int main() {
PIECE
    table[7] = "seven";
    return table.at(7) != "seven";
}
C
DEEPHEAP_CONF=ram:16M,store:. ./piece.out || fail "the table of porting.md does not run"

echo "docs-check: $ran commands and 4 pieces of the documents run, $elsewhere elsewhere or not here"
