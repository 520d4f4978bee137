"""conformance_results.py: reads what test suites report, and tells what is worse than before.

Part of conformance.py. Each reader takes what a step wrote and the status it ended with. One that
finds nothing that passed, failed or was skipped says so as a failure: silence is no success.
"""

import re
import tempfile
import xml.etree.ElementTree
from pathlib import Path


class Outcome:
    """What a step's tests came to. `fingerprint` is what must be the same under deepheap."""

    def __init__(self, passed=0, failed=(), skipped=0, fingerprint=None):
        self.passed, self.failed = passed, list(failed)
        self.skipped, self.fingerprint = skipped, fingerprint


def read_junit(path, said, status):
    """CPython's regrtest and pytest, by the XML that they write at the end."""
    outcome = Outcome()
    try:
        cases = xml.etree.ElementTree.parse(path).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError):
        outcome.failed.append(f"no results, status {status}")
        return outcome
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append("::".join(filter(None, (case.get("classname"),
                                                          case.get("name")))))
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            outcome.skipped += 1
        else:
            outcome.passed += 1
    # A file without any test, for example because a module is missing, is one that was skipped.
    if not outcome.passed and not outcome.failed and re.search(r"^test_\w+ skipped", said, re.M):
        outcome.skipped += 1
    elif status != 0 and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def read_tap(said, status):
    """TAP, what Perl's programs write; a test is known by its number."""
    outcome, planned, ran = Outcome(), None, 0
    for line in said.splitlines():
        if plan := re.match(r"1\.\.(\d+)(\s*#\s*skip)?", line, re.I):
            planned = int(plan[1])
            if planned == 0:
                outcome.skipped += 1
        elif test := re.match(r"(not )?ok\b(?:\s+(\d+))?(.*)", line):
            ran += 1
            if re.search(r"#\s*skip", test[3], re.I):
                outcome.skipped += 1
            elif test[1] is None or re.search(r"#\s*todo", test[3], re.I):
                outcome.passed += 1
            else:
                outcome.failed.append(f"test {test[2] or ran}")
        elif line.startswith("Bail out!"):
            outcome.failed.append("bailed out")
    if planned is None:
        outcome.failed.append("no plan")
    elif planned != ran:
        outcome.failed.append(f"{planned} tests planned, {ran} run")
    if status != 0 and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def read_redis(said, status):
    """Redis's runtest."""
    outcome = Outcome()
    for line in re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines():
        if line.startswith("[ok]"):
            outcome.passed += 1
        elif line.startswith(("[skip]", "[ignore]")):
            outcome.skipped += 1
        elif test := re.match(r"\[(err|exception|timeout)\]:? ?(.*?)(?: in tests/.*)?$", line):
            outcome.failed.append(f"{test[1]}: {test[2]}")
    if (status != 0 or not outcome.passed + outcome.skipped) and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def read_jq(said, status):
    """`jq --run-tests`; the summary counts, the lines before it name."""
    outcome = Outcome()
    number = "?"
    for line in said.splitlines():
        if test := re.match(r"Test #(\d+):", line):
            number = test[1]
        elif line.startswith("***"):
            outcome.failed.append(f"test {number}")
        elif total := re.match(r"(\d+) of (\d+) tests passed \((\d+) malformed", line):
            outcome.passed, outcome.skipped = int(total[1]), 0
            if int(total[2]) != int(total[1]) and not outcome.failed:
                outcome.failed.append("unnamed")
    if (status != 0 or not outcome.passed) and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def read_speedtest(said, status):
    """SQLite's speedtest1: its tests, and the hash over every answer."""
    outcome = Outcome(passed=len(re.findall(r"^ *\d+ - .*\.{3}.*s$", said, re.M)))
    outcome.fingerprint = "; ".join(re.findall(r"Verification Hash: *(.*)", said))
    if status != 0 or not outcome.fingerprint:
        outcome.failed.append(f"status {status}")
    return outcome


def read_stress_ng(said, status):
    """stress-ng: its instances passed if nothing was told of them and it ended well."""
    outcome = Outcome(failed=re.findall(r"\bfail: +\[\d+\] *(.*)", said))
    started = sum(int(count) for count in re.findall(r"dispatching hogs: (\d+)", said))
    if (status != 0 or not started) and not outcome.failed:
        outcome.failed.append(f"status {status}")
    if "skipped" in said:
        outcome.skipped = started
    elif not outcome.failed:
        outcome.passed = started
    return outcome


def read_status(_, status):
    """A program that checks itself and ends with 0 if all is right."""
    return Outcome(passed=1) if status == 0 else Outcome(failed=[f"status {status}"])


def read_exit_77(said, status):
    """The same, with 77 for a test that cannot be run here."""
    return Outcome(skipped=1) if status == 77 else read_status(said, status)


def read_lines(said, status, pattern, words):
    """Tests that tell a line each, which `pattern` finds: the test and a word, as `words` knows it.

    `words` are those of a test that passed, failed, was skipped.
    """
    outcome = Outcome()
    for test, word in re.findall(pattern, said, re.M):
        if word == words[0]:
            outcome.passed += 1
        elif word == words[1]:
            outcome.failed.append(test)
        else:
            outcome.skipped += 1
    if (status != 0 or not outcome.passed + outcome.skipped) and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def read_jemalloc(said, status):
    """jemalloc's tests; each may run several times, with other things going on in between."""
    return read_lines(said, status, r"^(\w+ \([\w-]+\)): (pass|fail|skip)$",
                      ("pass", "fail", "skip"))


def read_pg_regress(said, status):
    """PostgreSQL's pg_regress; a test whose failure its schedule ignores is skipped."""
    return read_lines(said, status, r"^(?:test| {4}) +(\S+) +\.\.\. (ok|FAILED|failed \(ignored\))",
                      ("ok", "FAILED", "failed (ignored)"))


def read_rocksdb(said, status):
    """RocksDB's programs: benchmarks that verify, and what they find of the same keys."""
    outcome = Outcome(passed=len(re.findall(r"^\w+ +: .* micros/op|Success\.$", said, re.M)))
    outcome.fingerprint = "; ".join(re.findall(r"\d+ of \d+ found|Keys in range: \d+", said))
    outcome.failed = re.findall(r"^.*(?:Corruption|[Vv]erif\w* (?:failed|error)).*$", said, re.M)
    if (status != 0 or not outcome.passed) and not outcome.failed:
        outcome.failed.append(f"status {status}")
    return outcome


def differences(alone, under):
    """What is worse under deepheap; empty if it conforms."""
    found = [f"{name} fails" for name in sorted(set(under["failed"]) - set(alone["failed"]))]
    if not found and under["passed"] < alone["passed"]:
        found.append(f"{alone['passed'] - under['passed']} tests less pass")
    if alone["fingerprint"] != under["fingerprint"]:
        found.append(f"{under['fingerprint']} where alone it is {alone['fingerprint']}")
    return found


def self_test():
    """What can be checked without a suite: the readers, and that a difference is seen."""
    tap = "1..4\nok 1 - a\nnot ok 2 - b\nok 3 # skip c\nnot ok 4 # TODO d\n"
    outcome = read_tap(tap, 0)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (2, ["test 2"], 1)
    assert read_tap("1..2\nok 1\n", 0).failed == ["2 tests planned, 1 run"]
    assert read_tap("ok 1\n", 0).failed == ["no plan"]
    assert read_tap("1..1\nok 1\n", -11).failed == ["status -11"]
    assert read_tap("1..0 # SKIP none\n", 0).skipped == 1
    redis = "\x1b[0;32;49m[ok]: a (1 ms)\n[\x1b[31merr\x1b[0m]: b in tests/unit/x.tcl\n"
    outcome = read_redis(redis, 1)
    assert (outcome.passed, outcome.failed) == (1, ["err: b"])
    outcome = read_jq("Test #1: 'a'\nTest #2: 'b'\n*** Expected 1\n1 of 2 tests passed "
                      "(0 malformed)\n", 1)
    assert (outcome.passed, outcome.failed) == (1, ["test 2"])
    assert read_jq("", -7).failed == ["status -7"]
    outcome = read_speedtest(" 100 - 5000 INSERTs.......   0.010s\n"
                             "Verification Hash: 12 ab\n", 0)
    assert (outcome.passed, outcome.failed, outcome.fingerprint) == (1, [], "12 ab")
    stress = "stress-ng: info:  [1] dispatching hogs: 2 malloc\n"
    outcome = read_stress_ng(stress, 0)
    assert (outcome.passed, outcome.failed) == (2, [])
    outcome = read_stress_ng(stress + "stress-ng: fail:  [1] malloc: wrong data\n", 2)
    assert (outcome.passed, outcome.failed) == (0, ["malloc: wrong data"])
    assert read_stress_ng(stress, -11).failed == ["status -11"]
    assert read_exit_77("", 77).skipped == 1 and read_exit_77("", 1).failed == ["status 1"]
    outcome = read_jemalloc("a (non-reentrant): pass\na (libc-reentrant): fail\n"
                            "b (non-reentrant): skip\n--- pass: 1/3 ---\n", 2)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, ["a (libc-reentrant)"], 1)
    outcome = read_pg_regress("test a                   ... ok          377 ms\n"
                              "parallel group (2 tests):  c b\n"
                              "     b                   ... ok          215 ms\n"
                              "     c                   ... FAILED       77 ms\n", 1)
    assert (outcome.passed, outcome.failed) == (2, ["c"])
    assert read_pg_regress("", 2).failed == ["status 2"]
    outcome = read_rocksdb("readrandom   :       4.1 micros/op 2 ops/sec; (632 of 1000 found)\n"
                           "Keys in range: 632\n", 0)
    assert (outcome.passed, outcome.failed) == (1, [])
    assert outcome.fingerprint == "632 of 1000 found; Keys in range: 632"
    assert read_rocksdb("Corruption: block\n", 1).failed == ["Corruption: block"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        assert read_junit(path, "", -6).failed == ["no results, status -6"]
        path.write_text('<testsuites><testcase name="a"/><testcase name="b"><failure/></testcase>'
                        '<testcase name="c"><skipped/></testcase></testsuites>')
        outcome = read_junit(path, "", 2)
        assert (outcome.passed, outcome.failed, outcome.skipped) == (1, ["b"], 1)
    good = vars(Outcome(passed=2, failed=["a"], fingerprint="x"))
    assert differences(good, good) == []
    assert differences(good, vars(Outcome(2, ["a", "b"], 0, "x"))) == ["b fails"]
    assert differences(good, vars(Outcome(1, ["a"], 1, "x"))) == ["1 tests less pass"]
    assert differences(good, vars(Outcome(2, [], 0, "y"))) == ["y where alone it is x"]
    return 0
