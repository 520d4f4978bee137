"""A plugin of pytest: writes what became of each test to a file, to be compared with another run.

    python -m pytest -p numpy_outcomes --pyargs numpy.lib    # NUMPY_OUTCOMES names the file
"""

import os
import re

outcomes = {}


def pytest_runtest_logreport(report):
    # Some names have an address in them.
    name = re.sub("0x[0-9a-f]+", "0x", report.nodeid)
    if report.when == "call" or report.outcome != "passed":
        how = report.outcome if report.when == "call" else f"{report.outcome} in its {report.when}"
        if hasattr(report, "wasxfail"):
            how = f"{how}, and was to fail"
        outcomes.setdefault(name, set()).add(how)


def pytest_unconfigure(config):
    with open(os.environ["NUMPY_OUTCOMES"], "w", encoding="utf-8") as file:
        for name, how in sorted(outcomes.items()):
            print(", ".join(sorted(how)), name, sep="\t", file=file)
