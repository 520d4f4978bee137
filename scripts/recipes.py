#!/usr/bin/env python3
"""recipes.py check|measure [NAME...]: runs the recipes of docs/recipes.md that have programs of
their own, each alone and under deepheap, and compares what they print.

`check` runs them small. `measure` runs them with some 300 MiB to 1 GiB, gives deepheap half of the
memory that was at most resident alone, and prints the seconds. With `--limit FOLDER`, a memory
cgroup (of the first version) of the caller's own, it also runs them in it, with as much RAM as
a process of it had under deepheap, on swap if the machine has some.

Guarantees: writes below target/recipes only, where pip puts the packages, too. A recipe whose
packages cannot be had is left out, with a sentence. Needs the commands of `make build`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "recipes"
PYTHON = WORK / "venv/bin/python"
RECIPES = ROOT / "examples/recipes"
WORKLOADS = ROOT / "papers/src/real/workloads"
#: Modules that are not called as their packages.
MODULES = {"faiss-cpu": "faiss", "scikit-learn": "sklearn", str(ROOT / "python"): "deepheap"}

MAKE_UNITS = """
for unit in range(2):
    with open(f"unit{unit}.c", "w") as source:
        for number in range(SIZE):
            source.write(f"int f{unit}_{number}(int a, int b) {{ int s = {number}; "
                         f"for (int i = 0; i < a; i++) {{ s += (i ^ b) * {number + 3}; "
                         f"if (s % 7 == 3) s -= i * f{unit}_{max(0, number - 1)}(b, s); }} "
                         "return s; }\\n")
with open("main.c", "w") as source:
    source.write("int f0_0(int, int), f1_0(int, int);\\n"
                 "int main(void) { return f0_0(3, 4) + f1_0(5, 6) == 7; }\\n")
"""

MAKE_VERSIONS = """
import random
random.seed(1)
lines = [f"{random.getrandbits(256):x}" for _ in range(SIZE)]
for version in range(30):
    for _ in range(200):
        lines[random.randrange(len(lines))] = f"{random.getrandbits(256):x}"
    text = "\\n".join(lines)
    print(f"commit refs/heads/main\\ncommitter a <a@b> {version} +0000\\ndata 1\\n.\\n"
          f"M 100644 inline table\\ndata {len(text)}\\n{text}")
"""

KERNEL = """{"argv": ["deepheap", "run", "--ram", "RAM", "--store", ".", "--",
 "python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
 "display_name": "Python on deepheap", "language": "python"}
"""


class Recipe(NamedTuple):
    """One recipe; in its commands and files SIZE stands for its size, and RAM for deepheap's."""

    packages: list  #: Of Python, that pip installs.
    sizes: tuple  #: Of `check`, and of `measure`.
    ram: int  #: That `check` gives deepheap, in MiB.
    command: list
    before: str = ""  #: A line of the shell that makes the input.
    files: dict = {}  #: Other files of the recipe's folder.
    pool: bool = False  #: Its processes share the RAM.
    under: list = None  #: The command with deepheap, where that is not `deepheap run`.
    large: bool = False  #: Its packages are too large for `check`.


def python(script, *arguments):
    """A command that runs a script of Python."""
    return ["python", str(script), *arguments, "SIZE"]


SEARCH, TENSORS = RECIPES / "search.py", RECIPES / "tensors.py"
RECIPES_BY_NAME = {
    "faiss-ivf": Recipe(["numpy", "faiss-cpu"], (40_000, 700_000), 48, python(SEARCH, "ivf")),
    "faiss-hnsw": Recipe(["numpy", "faiss-cpu"], (20_000, 250_000), 24, python(SEARCH, "hnsw")),
    "hnswlib": Recipe(["numpy", "hnswlib"], (20_000, 250_000), 24, python(SEARCH, "hnswlib")),
    "duckdb": Recipe(["duckdb"], (400_000, 1_500_000), 64, python(WORKLOADS / "analytics.py")),
    "polars": Recipe(
        ["numpy", "polars"], (300_000, 2_000_000), 64, python(WORKLOADS / "columns.py")),
    "pyarrow": Recipe(
        ["numpy", "pyarrow"], (200_000, 1_200_000), 96, python(RECIPES / "arrow.py")),
    "scikit-learn": Recipe(
        ["numpy", "scikit-learn"], (200_000, 700_000), 192, python(RECIPES / "forest.py"),
        pool=True),
    "jupyter": Recipe(
        ["numpy", "ipykernel", "jupyter_client"], (128, 640), 96,
        ["python", str(RECIPES / "notebook.py"), "python3", "SIZE"],
        files={"kernels/deepheap/kernel.json": KERNEL},
        under=["python", str(RECIPES / "notebook.py"), "deepheap", "SIZE"]),
    "torch": Recipe(
        ["numpy", "torch", str(ROOT / "python")], (100_000, 1_000_000), 32,
        [*python(TENSORS), "plain"], large=True,
        under=["env", "DEEPHEAP_CONF=ram:RAM,store:.", *python(TENSORS)]),
    "git": Recipe(
        [], (40_000, 250_000), 32,
        ["sh", "-c", "cp -r history repacked; git -C repacked -c pack.threads=1 gc -q;"
         "ls repacked/.git/objects/pack/*.pack; git -C repacked rev-parse main; rm -r repacked"],
        before="git init -q -b main history; python3 versions.py | "
               "git -C history fast-import --quiet --depth=0",
        files={"versions.py": MAKE_VERSIONS}, pool=True),
    "lto": Recipe(
        [], (4_000, 16_000), 40,
        ["sh", "-c", "gcc -O2 -flto=2 main.o unit0.o unit1.o -o linked; sha256sum linked"],
        before="python3 units.py; for unit in main unit0 unit1; do "
               "gcc -O2 -flto -frandom-seed=1 -c $unit.c; done",
        files={"units.py": MAKE_UNITS}, pool=True),
}


def can_have(recipe, measured):
    """Whether the packages are installed, or can be; why not."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(WORK / "venv")], check=True)
    if not recipe.packages:
        return True, ""
    modules = [MODULES.get(name, Path(name).name) for name in recipe.packages]
    if subprocess.run([PYTHON, "-c", f"import {', '.join(modules)}"], check=False,
                      stderr=subprocess.DEVNULL).returncode == 0:
        return True, ""
    if recipe.large and not measured:
        return False, "its packages are too large to be fetched for a check"
    pip = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if subprocess.run([*pip, *recipe.packages], check=False).returncode:
        return False, f"pip cannot install {' '.join(recipe.packages)}"
    return True, ""


def fill(folder, recipe, size, ram):
    """Writes the recipe's files."""
    for name, text in recipe.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("RAM", f"{ram}M").replace("SIZE", str(size)))


def run(command, folder, environment, limit=None):
    """Runs a command: what it prints, its seconds, and the most KiB that a process of it had."""
    start = time.monotonic()
    with open(folder / "said", "w+", encoding="utf-8") as said:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said,
            preexec_fn=limit and (lambda: Path(limit, "cgroup.procs").write_text(str(os.getpid()))))
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return said.read(), child.returncode, time.monotonic() - start, usage.ru_maxrss


def run_in_cgroup(command, folder, environment, limit, kib):
    """Runs a command in a memory cgroup with so much RAM: the seconds, and how it ended."""
    Path(limit, "memory.limit_in_bytes").write_text(str(kib << 10))
    _, status, seconds, _ = run(command, folder, environment, limit)
    return f"{seconds:.1f} s" if status == 0 else f"ended with {status} after {seconds:.1f} s"


def compare(name, recipe, measured, limit):
    """Runs a recipe alone and under deepheap; tells the outcome, and whether it is as it should."""
    possible, why = can_have(recipe, measured)
    if not possible:
        print(f"recipes: {name} is left out: {why}", flush=True)
        return True
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = f"{PYTHON.parent}:{TARGET}/release:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "JUPYTER_PATH": str(folder)}
    size = recipe.sizes[measured]

    def filled(command):
        return [word.replace("SIZE", str(size)).replace("RAM", f"{ram}M") for word in command]

    ram = recipe.ram
    fill(folder, recipe, size, ram)
    if recipe.before:
        subprocess.run(filled(["sh", "-ec", recipe.before]), cwd=folder, env=environment,
                       check=True)
    alone, status, seconds, peak = run(filled(recipe.command), folder, environment)
    if measured:
        ram = peak // 2 >> 10
        fill(folder, recipe, size, ram)
    pool = ["--pool", f"recipes-{os.getpid()}"] if recipe.pool else []
    prefix = ["deepheap", "run", "--ram", "RAM", "--store", ".", *pool, "--"]
    under = filled(recipe.under or [*prefix, *recipe.command])
    managed, its_status, its_seconds, its_peak = run(under, folder, environment)
    line = (f"recipes: {name} {size}: {seconds:.1f} s and {peak >> 10} MiB alone, "
            f"{its_seconds:.1f} s and {its_peak >> 10} MiB in {ram} MiB")
    if limit:
        line += ", swap " + run_in_cgroup(filled(recipe.command), folder, environment, limit,
                                          its_peak)
    print(line, flush=True)
    shutil.rmtree(folder)
    if status or its_status or alone != managed or not alone:
        print(f"recipes: {name}: alone ({status}) it says\n{alone}"
              f"and under deepheap ({its_status})\n{managed}")
        return False
    return True


def main():
    """Runs the recipes that are named, or all."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", choices=["check", "measure"])
    reader.add_argument("names", nargs="*", metavar="NAME")
    reader.add_argument("--limit", help="a memory cgroup")
    asked = reader.parse_intermixed_args()
    if unknown := set(asked.names) - set(RECIPES_BY_NAME):
        sys.exit(f"recipes: no recipe is called {', '.join(sorted(unknown))}")
    WORK.mkdir(parents=True, exist_ok=True)
    names = asked.names or RECIPES_BY_NAME
    measured = asked.what == "measure"
    wrong = [name for name in names
             if not compare(name, RECIPES_BY_NAME[name], measured, asked.limit)]
    sys.exit(f"recipes: {', '.join(wrong)} did not give the same answers" if wrong else None)


main()
