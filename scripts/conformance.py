#!/usr/bin/env python3
"""conformance.py: runs the test suites of other programs, alone and under deepheap.

    scripts/conformance.py                          # every suite, in turn
    scripts/conformance.py --quick                  # a few steps of each, once they are fetched
    scripts/conformance.py --only redis --only jq   # some suites
    scripts/conformance.py --only cpython --step test_gc --again
    scripts/conformance.py table                    # what came of earlier runs
    scripts/conformance.py self-test                # the readers of results, without any suite

Each step of a suite (a file of tests, mostly) runs twice: as it is, and under `deepheap run` with
a small RAM budget, together with all processes that it starts. deepheap conforms if under it
nothing fails that does not fail alone, nothing less passes, and what must be the same is the same.

Suites come from Debian's packages and source packages, whatever this machine's sources are; these
and the installed packages stay as they are. What cannot be had is skipped, with the reason.
Results are kept: what ran already is not run again, unless the suite, the budget or deepheap
itself is another one. Slowness is not a difference, but the seconds are told.

Guarantees: writes below target/conformance and in a folder of its own for temporary files, which
is gone at the end; every process that a step leaves behind is ended with it.
Exit status: 0 only if every step that ran conforms, 1 if not, 2 if nothing could be run.
Needs nothing but the standard library.
"""

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# No folder of compiled modules in the tree.
sys.dont_write_bytecode = True
from conformance_fetch import TARGET, WORK, Missing
from conformance_results import differences, self_test
from conformance_suites import SUITES

DEEPHEAP = TARGET / "release" / "deepheap"
LIBRARY = TARGET / "release" / "libdeepheap_preload.so"
# What a process and its children may write of the store.
STORE_SIZE = "8G"
# Seconds that a step may take, alone or under deepheap, before it is ended and has failed.
PATIENCE = 3600
# Names of failed tests that the summary tells of one step.
TOLD_MAX = 10
# prctl: what our descendants start and leave behind becomes our child, so it can be ended.
PR_SET_CHILD_SUBREAPER = 36


def descendants():
    """Processes below this one, as /proc tells them."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which may hold anything: state, parent.
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_leftovers():
    """Ends and reaps whatever a step left behind."""
    while processes := descendants():
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)


def read_statistics(path):
    """What processes did that outgrew their budgets, of the lines that they left at their ends."""
    total = {"paged": 0, "pages_out": 0, "bytes_read": 0}
    for line in path.read_text(errors="replace").splitlines():
        try:
            process = json.loads(line)
        except ValueError:
            continue
        total["paged"] += process["evictions"]["total"] > 0
        total["pages_out"] += process["evictions"]["total"]
        total["bytes_read"] += process["device"]["read_bytes"]
    return total


class Runner:
    """Runs steps and keeps what came of them."""

    def __init__(self, options):
        self.ram, self.again, self.patience = options.ram, options.again, options.patience
        self.runs = options.what == "run"
        self.build = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()[:12]
        self.temporary = Path(tempfile.mkdtemp(prefix="deepheap-conformance."))
        self.store = Path(tempfile.mkdtemp(prefix="stores.", dir=Path(options.store).resolve()))
        # Tests that give up their rights need them, too.
        self.temporary.chmod(0o1777)
        self.store.chmod(0o1777)

    def ram_of(self, suite):
        """The budget of a suite."""
        return self.ram or suite.ram

    def result(self, suite, step, is_under):
        """What came of a step, from an earlier run if there was one like it; None if not run."""
        mode = "under" if is_under else "alone"
        slug = re.sub(r"[^\w.-]+", "_", step.name)
        path = WORK / "results" / suite.name / f"{slug}.{mode}.json"
        key = {"command": step.command, "env": step.env, "version": suite.version()}
        if is_under:
            key.update(ram=self.ram_of(suite), build=self.build)
        if path.exists() and not self.again:
            kept = json.loads(path.read_text())
            if kept["key"] == key:
                return kept
        if not self.runs:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"key": key, "date": datetime.date.today().isoformat()}
        result.update(self.run(suite, step, is_under, path.with_suffix(".log")))
        # Whole or not at all, for the next run reads it.
        path.with_suffix(".new").write_text(json.dumps(result, indent=1))
        path.with_suffix(".new").rename(path)
        return result

    def run(self, suite, step, is_under, log):
        """Runs a step once."""
        statistics = self.temporary / "statistics"
        command = step.command
        if is_under:
            statistics.write_text("")
            statistics.chmod(0o666)
            command = [str(DEEPHEAP), "run", "--ram", self.ram_of(suite), "--store",
                       str(self.store), "--store-size", STORE_SIZE, "--stats", str(statistics),
                       "--", *command]
        temporary = Path(tempfile.mkdtemp(dir=self.temporary))
        temporary.chmod(0o1777)
        environment = {**os.environ, "TMPDIR": str(temporary), "LC_ALL": "C.UTF-8",
                       "TERM": "dumb", **step.env}
        for name in ("DEEPHEAP_CONF", "DEEPHEAP_SHOW_STATS", "LD_PRELOAD"):
            environment.pop(name, None)
        started = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(command, cwd=step.cwd, env=environment, stdout=output,
                                       stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                status = process.wait(self.patience)
            except subprocess.TimeoutExpired:
                status = f"none after {self.patience} s"
            finally:
                seconds = time.monotonic() - started
                end_leftovers()
                process.poll()
        outcome = step.read(log.read_text(errors="replace"), status)
        shutil.rmtree(temporary, ignore_errors=True)
        result = {**vars(outcome), "seconds": round(seconds, 1)}
        if is_under:
            result["statistics"] = read_statistics(statistics)
        return result

    def close(self):
        """Removes the temporary files."""
        end_leftovers()
        shutil.rmtree(self.temporary, ignore_errors=True)
        shutil.rmtree(self.store, ignore_errors=True)


class Row:
    """A suite's sums."""

    def __init__(self, suite, runner):
        self.suite, self.ram = suite, runner.ram_of(suite)
        self.reason, self.differences, self.slow = None, [], []
        self.alone, self.under = ({"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0}
                                  for _ in range(2))
        self.steps = self.steps_missing = self.steps_paged = self.paged = self.bytes_read = 0
        self.dates = set()

    def add(self, step, alone, under):
        """Adds a step's results; returns what differs."""
        self.steps += 1
        for total, result in ((self.alone, alone), (self.under, under)):
            total["passed"] += result["passed"]
            total["failed"] += len(result["failed"])
            total["skipped"] += result["skipped"]
            total["seconds"] += result["seconds"]
        self.dates |= {alone["date"], under["date"]}
        self.steps_paged += under["statistics"]["paged"] > 0
        self.paged += under["statistics"]["paged"]
        self.bytes_read += under["statistics"]["bytes_read"]
        if under["seconds"] > 10 and under["seconds"] > 4 * alone["seconds"]:
            self.slow.append(f"{step.name}: {alone['seconds']:.1f} s alone, "
                             f"{under['seconds']:.1f} s under deepheap")
        found = differences(alone, under)
        self.differences += [f"{step.name}: {difference}" for difference in found]
        return found

    def cells(self):
        """The columns of the table."""
        def counts(total):
            return f"{total['passed']} / {total['failed']} / {total['skipped']}"

        if self.reason is not None:
            return [self.suite.title, "-", "-", "-", "-", "-", "-", "-", f"skipped: {self.reason}"]
        verdict = "conforms" if self.steps else "-"
        if self.differences:
            verdict = f"**{len(self.differences)} worse**"
        if self.steps_missing:
            verdict += f"; {self.steps_missing} steps not run"
        return [
            self.suite.title, self.suite.version(), self.ram, str(self.steps),
            counts(self.alone), counts(self.under),
            f"{self.alone['seconds']:.0f} s / {self.under['seconds']:.0f} s",
            f"{self.paged} in {self.steps_paged} steps, {self.bytes_read >> 20} MiB", verdict,
        ]


COLUMNS = ["suite", "version", "RAM", "steps", "alone: passed / failed / skipped",
           "under deepheap", "time alone / under", "processes that paged; read from the store", ""]


def print_table(rows):
    """The summary, as Markdown."""
    print(f"\n| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |")
    for title, name in (("Differences:", "differences"), ("Slow:", "slow")):
        lines = [f"- {row.suite.name}: {line}" for row in rows for line in getattr(row, name)]
        if lines:
            print(f"\n{title}\n\n" + "\n".join(lines))
    dates = sorted(set().union(*(row.dates for row in rows)))
    print(f"\nRun {' to '.join(sorted({dates[0], dates[-1]})) if dates else 'never'} on "
          f"{os.cpu_count()} CPUs, Linux {platform.release()}; the logs are in {WORK}/results.")


def run_suite(suite, runner, options):
    """Runs one suite and returns its row."""
    row = Row(suite, runner)
    try:
        if not runner.runs and not suite.is_fetched():
            raise Missing("not fetched yet")
        suite.prepare()
    except Missing as reason:
        row.reason = str(reason)
        print(f"SKIPPED {suite.name}: {reason}", flush=True)
        return row
    steps = list(suite.steps())
    if options.quick:
        steps = [step for step in steps if step.name in suite.quick]
    if options.step:
        steps = [step for step in steps if step.name in options.step]
    for step in steps:
        alone = runner.result(suite, step, is_under=False)
        under = runner.result(suite, step, is_under=True)
        if alone is None or under is None:
            row.steps_missing += 1
            continue
        found = row.add(step, alone, under)
        print(f"{'DIFFERS ' if found else 'conforms'} {suite.name} {step.name}: "
              f"{alone['passed']} passed, {len(alone['failed'])} failed in "
              f"{alone['seconds']:.1f} s; {under['passed']}, {len(under['failed'])} in "
              f"{under['seconds']:.1f} s", flush=True)
        for difference in found[:TOLD_MAX]:
            print(f"    {difference}", flush=True)
        if len(found) > TOLD_MAX:
            print(f"    and {len(found) - TOLD_MAX} more", flush=True)
    return row


def main():
    """Reads the arguments and runs the suites."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("run", "table", "self-test"), default="run",
                        help="run what has no result yet, or tell only what came of earlier runs")
    parser.add_argument("--only", action="append", metavar="SUITE",
                        choices=[suite.name for suite in SUITES],
                        help="this suite, may be repeated: %(choices)s")
    parser.add_argument("--step", action="append", help="this step, may be repeated")
    parser.add_argument("--ram", metavar="SIZE", help="another RAM budget than the suite's own")
    parser.add_argument("--store", default=str(WORK), metavar="FOLDER",
                        help="the store's folder (target/conformance)")
    parser.add_argument("--quick", action="store_true", help="a few steps of each suite")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--patience", type=int, default=PATIENCE, metavar="SECONDS",
                        help="how long a step may take (%(default)s)")
    options = parser.parse_args()
    options.again = options.again and options.what == "run"
    if options.what == "self-test":
        return self_test()
    for need in (DEEPHEAP, LIBRARY):
        if not need.exists():
            print(f"conformance: {need} is missing; run `make build`", file=sys.stderr)
            return 2
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print(f"conformance: prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 2
    # A shell starts what is in the background without these, and tests want to send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    runner = Runner(options)
    try:
        rows = [run_suite(suite, runner, options) for suite in SUITES
                if not options.only or suite.name in options.only]
    except KeyboardInterrupt:
        print("conformance: interrupted; what ran is kept", file=sys.stderr)
        return 130
    finally:
        runner.close()
    print_table(rows)
    if not any(row.steps for row in rows):
        print("conformance: no step was run", file=sys.stderr)
        return 2
    return 1 if any(row.differences for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
