#!/usr/bin/env python3
"""guard.py: compares the speed of this tree with that of an earlier commit, case by case.

    scripts/guard.py                            # with where the branch left main, or HEAD~1 on main
    scripts/guard.py --commit v0.1.0 --only single-
    scripts/guard.py --ram 16M --rounds 1       # only to see that everything works
    scripts/guard.py self-test                  # its arithmetic, without any run

Both versions are built alike and run in turns, each with its own `deepheap-bench` and `deepheap`.
The cases are those of `deepheap-bench table` and `objects`, on deepheap alone and smaller, with
calls on objects in RAM, malloc, and a real program in half of its memory. The older version does
each case once for --seconds; that says how many operations both do from then on, with one seed, so
that their counters can be compared. What the older version cannot do is left out, and told.

A case is slower if the median of its pairs' ratios is more than 3 % below one, and all its pairs
but one are below one. One that looks so after --rounds runs again, up to 7 for each 3, and all its
pairs count. A counter that grew by more than 10 % is marked, whatever the speed.

Guarantees: writes below target only; the work tree of the commit is gone at the end, what was built
from it stays for the next comparison.
Exit status: 0 if nothing is slower, 1 if something is or failed, 2 if nothing could be compared.
Needs git and cargo, and nothing else but the standard library.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "guard"
SCRATCH = WORK / "scratch"
PROGRAM = ROOT / "papers/src/real/workloads/objects.py"
PACKAGES = ["-p", "deepheap-bench", "-p", "deepheap-cli", "-p", "deepheap-preload"]
# Slower by less is noise, and a counter that grew by less is chance.
SLOWER, GREW = 0.03, 0.10
# A counter that counts less than this says nothing, be it bytes or requests.
COUNTED_LEAST = 1000
# Seconds that a run may take before it is ended and has failed.
PATIENCE = 900
# An object of the real program takes so many bytes; it has 16 times the RAM of the other cases.
BYTES_PER_OBJECT, PROGRAM_RAM = 1100, 16

ARRAY, EACH, CALLS = {"allocate": "object-array"}, {"allocate": "objects"}, {"calls": True}
ZIPF = {"pattern": "zipf:0.99", "write": 50}
ONE, MANY, WRITES = {"threads": 1}, {"threads": 32}, {"write": 50}
SMALL, MEDIUM = {"object-size": 128}, {"object-size": 512}
HANDFUL = {"conf": "page_buffer:2M"}
PACKETS = {**EACH, **WRITES, **HANDFUL, "object-size": "104-1496", "whole": True}
FILL = {**ARRAY, **SMALL, **ONE, "ops": 1, "warm-up": 0}
HOT = {"pattern": "hot"}
# Options of `deepheap-bench run`, `data` as so many times the RAM; none for the other programs.
CASES = {
    "uniform-read-8": {},
    "uniform-read-32": MANY,
    "uniform-write-8": WRITES,
    "uniform-write-32": {**MANY, **WRITES},
    "zipf-write-8": ZIPF,
    "sequential-1": {**ONE, "pattern": "sequential"},
    "scans-write-1": {**ONE, **WRITES, "pattern": "scans:3"},
    "zipf-512": {**ARRAY, **MEDIUM, **ZIPF},
    "zipf-128": {**ARRAY, **SMALL, **ZIPF},
    "uniform-mixed": {**EACH, **MANY, **WRITES, "object-size": "128-2048"},
    "hot-set": {**ARRAY, **SMALL, **HOT},
    "single-hot": {**EACH, **SMALL, **HOT, **WRITES, "data": 17},
    "single-zipf": {**EACH, **SMALL, **ZIPF, "data": 17},
    "hot-set-calls": {**ARRAY, **SMALL, **HOT, **CALLS},
    "zipf-512-calls": {**ARRAY, **MEDIUM, **ZIPF, **CALLS},
    "gather": {**ARRAY, **SMALL, **ONE, "gather": 64},
    "updates-128": {**ARRAY, **SMALL, "write": 100},
    "updates-512": {**ARRAY, **MEDIUM, "write": 100},
    "packets-8": PACKETS,
    "packets-8-calls": {**PACKETS, **CALLS},
    "packets-1": {**PACKETS, **ONE},
    "packets-1-calls": {**PACKETS, **ONE, **CALLS},
    "cached-fault": {**ARRAY, **SMALL, **ONE, **HANDFUL, "data": 0.125},
    "fill-pointers": {**FILL, "data": 8},
    "fill-scatter": {**FILL, "data": 16, "fill": "scatter"},
    "calls-read-1": {**ARRAY, **SMALL, **ONE, **CALLS, "data": 0.25},
    "calls-read-8": {**ARRAY, **SMALL, **CALLS, "data": 0.25},
    "calls-write-1": {**ARRAY, **SMALL, **ONE, **CALLS, "data": 0.25, "write": 100},
    "calls-write-8": {**ARRAY, **SMALL, **CALLS, "data": 0.25, "write": 100},
    "malloc-1": None,
    "malloc-4": None,
    "python": None,
}

# Where the statistics of deepheap have what does not depend on how busy the machine is.
COUNTERS = {
    "stored faults": ("faults", "stored", "count"),
    "bytes read": ("device", "read_bytes"),
    "bytes written": ("device", "write_bytes"),
    "writes": ("device", "writes"),
    "page table bytes": ("memory", "page_table_bytes"),
}


class Failed(Exception):
    """A run that gave no result."""


def execute(command, **more):
    """Runs a command; its standard output."""
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "1"}
    for name in ("DEEPHEAP_CONF", "DEEPHEAP_SHOW_STATS", "LD_PRELOAD"):
        environment.pop(name, None)
    os.sync()
    try:
        done = subprocess.run(command, cwd=SCRATCH, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE, check=False, **more)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {PATIENCE} s") from None
    if done.returncode != 0:
        why = (done.stderr.strip() or "no message").splitlines()[0]
        raise Failed(f"status {done.returncode}: {why}")
    return done.stdout


def options_of(case, ram, amount):
    """The options of `deepheap-bench run` for a case."""
    options = {"on": "deepheap", "seed": 1, "ram": ram, "dir": SCRATCH, "data": 16,
               "hot-objects": ram * 800_000 >> 30, **amount, **case}
    options["data"] = int(options["data"] * ram)
    if "ops" in case:
        options.pop("seconds", None)
    words = []
    for name, value in options.items():
        words += [f"--{name}"] + ([] if value is True else [str(value)])
    return words


class Version:
    """One of the two: where its programs are."""

    def __init__(self, target):
        self.bench, self.deepheap = (target / "release" / f for f in ("deepheap-bench", "deepheap"))

    def measure(self, name, options, ops):
        """Runs a case, for so many operations or --seconds: speed, operations, and counters."""
        ram, seconds = options.ram, options.seconds
        if name.startswith("malloc"):
            report = json.loads(execute([self.deepheap, "run", "--ram", "1G", "--", self.bench,
                                         "malloc", "--threads", name[-1], "--seconds",
                                         str(seconds)]))
            return report["ops_per_second"], None, {}
        if name == "python":
            return self.program(ram * PROGRAM_RAM)
        amount = {"ops": ops} if ops else {"seconds": seconds}
        report = json.loads(execute([self.bench, "run", *options_of(CASES[name], ram, amount)]))
        speed = "filled_objects_per_second" if name.startswith("fill") else "ops_per_second"
        return report[speed], report["measured_ops"], counters(report["deepheap"])

    def program(self, ram):
        """Runs the real program in half of its memory."""
        statistics = SCRATCH / "statistics"
        statistics.unlink(missing_ok=True)
        started = time.monotonic()
        execute([self.deepheap, "run", "--ram", str(ram), "--store", SCRATCH, "--stats", statistics,
                 "--", "python3", PROGRAM, str(2 * ram // BYTES_PER_OBJECT)])
        speed = 1 / (time.monotonic() - started)
        return speed, None, counters(json.loads(statistics.read_text().splitlines()[0]))


def counters(statistics):
    """The counters that are there."""
    found = {}
    for name, path in COUNTERS.items():
        value = statistics
        for key in path:
            value = value.get(key, {})
        if value != {}:
            found[name] = value
    return found


class Pairs:
    """What both versions did in a case."""

    def __init__(self, name):
        self.name, self.ops, self.failure, self.is_suspicious = name, None, None, False
        self.old, self.new = [], []

    def add(self, versions, options, turn):
        """Runs both, in an order that changes from turn to turn."""
        results = {}
        for side in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            try:
                speed, _, counted = versions[side].measure(self.name, options, self.ops)
            except Failed as failure:
                self.fail(side, failure)
                return
            results[side] = (speed, counted)
        self.old.append(results["old"])
        self.new.append(results["new"])
        print(f"guard: {self.name} {len(self.old)}: {self.ratios()[-1]:.3f}", file=sys.stderr)

    def fail(self, side, failure):
        """Ends the case: what the older version cannot do is nobody's fault."""
        self.failure = f"**failed**: {failure}" if side == "new" else f"left out: {failure}"

    def ratios(self):
        """Speed now to speed then, of each pair."""
        return [new[0] / old[0] for old, new in zip(self.old, self.new)]

    def is_slower(self):
        """Whether the pairs show it."""
        ratios = self.ratios()
        below = sum(ratio < 1 for ratio in ratios)
        return bool(ratios) and median(ratios) < 1 - SLOWER and below >= len(ratios) - 1

    def grown(self):
        """Medians of each counter then and now, and whether it grew."""
        for name in COUNTERS:
            then, now = ([counted[name] for _, counted in side if name in counted]
                         for side in (self.old, self.new))
            if then and now:
                then, now = median(then), median(now)
                grew = now > COUNTED_LEAST and now > then * (1 + GREW)
                if max(then, now) > 0:
                    yield name, then, now, grew

    def row(self):
        """The columns of the table."""
        if self.failure:
            return [self.name, "-", "-", "-", self.failure]
        ratios = self.ratios()
        then, now = (median(speed for speed, _ in side) for side in (self.old, self.new))
        outcome = "**slower**" if self.is_slower() else ""
        return [self.name, f"{then:.4g}", f"{now:.4g}",
                f"{median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f}, {len(ratios)})",
                outcome]


def tables(all_pairs):
    """Both tables, in markdown, and what is slower or failed."""
    lines = ["| case | then /s | now /s | ratio (least..most, pairs) | |", "|---" * 5 + "|"]
    lines += [f"| {' | '.join(pairs.row())} |" for pairs in all_pairs]
    lines += ["", "| case | counter | then | now | |", "|---" * 5 + "|"]
    for pairs in all_pairs:
        for name, then, now, grew in pairs.grown():
            mark = f"**{now / max(then, 1):.2f}x**" if grew else ""
            lines.append(f"| {pairs.name} | {name} | {then:,.0f} | {now:,.0f} | {mark} |")
    bad = [pairs.name for pairs in all_pairs if "**" in pairs.row()[-1]]
    lines += ["", "slower: " + ", ".join(bad) if bad else "nothing is slower"]
    return "\n".join(lines), bad


def git(*arguments):
    """What git answers, or nothing."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def began():
    """Where the branch left main; on main, the commit before."""
    base = git("merge-base", "main", "HEAD")
    return base if base and base != git("rev-parse", "HEAD") else "HEAD~1"


def build(tree, target):
    """Builds a version as the other is built."""
    subprocess.run(["cargo", "build", "--release", *PACKAGES], cwd=tree, check=True,
                   env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    return Version(target)


def build_commit(commit):
    """Builds a commit in a work tree of its own, unless it is the one that was built last."""
    tree, target = WORK / "tree", WORK / "build"
    stamp = target / "commit"
    if stamp.exists() and stamp.read_text() == commit:
        return Version(target)
    stamp.unlink(missing_ok=True)
    # An earlier comparison may have been killed.
    shutil.rmtree(tree, ignore_errors=True)
    git("worktree", "prune")
    if git("worktree", "add", "--detach", str(tree), commit) is None:
        sys.exit(f"guard: git makes no work tree of {commit} in {tree}")
    try:
        version = build(tree, target)
    finally:
        git("worktree", "remove", "--force", str(tree))
    stamp.write_text(commit)
    return version


def compare(versions, options, names):
    """Runs the cases."""
    all_pairs = []
    for name in names:
        pairs = Pairs(name)
        all_pairs.append(pairs)
        try:
            if CASES[name] is not None:
                pairs.ops = versions["old"].measure(name, options, None)[1]
        except Failed as failure:
            pairs.fail("old", failure)
    for turn in range(options.rounds * 7 // 3):
        for pairs in all_pairs:
            if not pairs.failure and (turn < options.rounds or pairs.is_suspicious):
                pairs.add(versions, options, turn)
            if turn == options.rounds - 1:
                pairs.is_suspicious = pairs.is_slower()
    return all_pairs


def self_test():
    """The arithmetic."""
    def pairs_of(ratios, then=5000, now=5000):
        pairs = Pairs("x")
        pairs.old = [(100.0, {"writes": then}) for _ in ratios]
        pairs.new = [(100.0 * ratio, {"writes": now}) for ratio in ratios]
        return pairs

    for ratios, expected in (([0.96, 0.95, 1.2], True), ([0.96, 0.98, 0.97], False),
                             ([0.9, 1.01, 1.02], False), ([0.9] * 5 + [1.1] * 2, False),
                             ([0.9] * 6 + [1.1], True), ([1.0], False), ([], False)):
        assert pairs_of(ratios).is_slower() == expected, ratios
    for now, expected in ((5400, False), (5600, True), (100, False)):
        assert [grew for *_, grew in pairs_of([1.0], now=now).grown()] == [expected], now
    assert not any(grew for *_, grew in pairs_of([1.0], then=1, now=900).grown())
    lacking, broken = Pairs("lacking"), Pairs("broken")
    lacking.fail("old", "no such option")
    broken.fail("new", "no such option")
    assert tables([lacking, broken])[1] == ["broken"]
    text, bad = tables([pairs_of([0.5, 0.5, 0.5], now=6000), pairs_of([1.0])])
    assert bad == ["x"] and "0.500 (0.500..0.500, 3) | **slower**" in text, text
    assert "| x | writes | 5,000 | 6,000 | **1.20x** |" in text, text
    words = options_of(CASES["fill-scatter"], 1 << 20, {"seconds": 3})
    assert words.count("--ops") == 1 and "--seconds" not in words, words
    assert words[words.index("--data") + 1] == str(16 << 20), words
    assert counters({"device": {"writes": 7}}) == {"writes": 7}
    print("guard: the self-test passed")
    return 0


def size(text):
    """Bytes of a size in MiB, as 32M."""
    match = re.fullmatch(r"(\d+)M", text)
    if not match:
        raise argparse.ArgumentTypeError("give mebibytes, as 32M")
    return int(match[1]) << 20


def main():
    """Reads the arguments, builds, compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("run", "self-test"), default="run")
    parser.add_argument("--commit", help="the older version (where the branch left main)")
    parser.add_argument("--only", action="append", metavar="CASE",
                        help="cases whose name begins so; may be repeated")
    parser.add_argument("--ram", type=size, default="32M", help="RAM of a case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3, help="for each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="at first (%(default)s)")
    options = parser.parse_args()
    if options.what == "self-test":
        return self_test()
    commit = git("rev-parse", "--verify", "--quiet", f"{options.commit or began()}^{{commit}}")
    names = [name for name in CASES
             if not options.only or any(name.startswith(only) for only in options.only)]
    if commit is None or not names:
        print(f"guard: no such {'case' if commit else 'commit'}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    SCRATCH.mkdir(parents=True, exist_ok=True)
    try:
        versions = {"old": build_commit(commit), "new": build(ROOT, TARGET)}
        text, bad = tables(compare(versions, options, names))
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    print(f"\nSpeed against {commit[:10]}: {options.ram >> 20} MiB of RAM, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[2]:.1f} in the last quarter of an hour\n\n{text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
