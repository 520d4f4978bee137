#!/usr/bin/env python3
"""walk.py PAGE...: does what a page of the documents tells, from its top to its end, in a scratch
folder of its own.

A block of a language whose first line names a file (`/* users.c */`, `// src/main.rs`, `# near.py`)
is written there; a block of `diff` is applied by `patch`. In blocks of `console` each line behind
`$ ` is a command (a line that ends in a backslash goes on in the next); the other lines are what it
prints, shortened. All commands of a page run in one bash, and each has to succeed. Of what is
printed the numbers are others from day to day: of each shown line the first word has to begin a
line of the command's output.

`<!-- not here: REASON -->` in front of a block leaves it out.

Guarantees: writes only below /var/tmp; what it wrote and started is gone at the end.
Environment: the commands of the page on PATH; WALK_CARGO_TARGET, where cargo builds; WALK_SHOW:
what is printed is shown. `/path/to/deepheap` stands for this tree.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from shlex import quote

ROOT = Path(__file__).resolve().parent.parent
MARK = "@@walk "
#: Seconds for a page.
LIMIT = 300

BLOCK = re.compile(r"(<!-- not here: .*? -->\n)?^```(\w+)\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"(?:/\*|//|#) (\S+\.\w+)")
#: Lines that anything may stand for, and first words that are no numbers.
LEFT_OUT, WORD = "...", re.compile(r"\s*([A-Za-z_][\w.:-]*)")


def commands_of(block):
    """The commands of a block of `console`, each with the lines shown below it."""
    commands = []
    goes_on = False
    for line in block.splitlines():
        if goes_on:
            commands[-1][0] += "\n" + line
        elif line.startswith("$ "):
            commands.append([line[2:], []])
        else:
            commands[-1][1].append(line)
            continue
        goes_on = line.endswith("\\")
    return commands


def script_of(text):
    """The page as a script, and its commands."""
    lines, commands = ["set -eo pipefail"], []
    for left_out, language, block in BLOCK.findall(text):
        named = NAMED.match(block)
        if left_out:
            continue
        if language == "console":
            for command, shown in commands_of(block):
                lines += [f"echo; echo '{MARK}{len(commands)}'", command]
                commands.append((command, shown))
        elif language == "diff":
            lines.append(f"patch --quiet -p0 <<'END_OF_BLOCK'\n{block}END_OF_BLOCK")
        elif named:
            lines += [f"mkdir -p {quote(os.path.dirname(named[1]) or '.')}"]
            lines += [f"cat >{quote(named[1])} <<'END_OF_BLOCK'\n{block}END_OF_BLOCK"]
    return "\n".join(lines) + "\n", commands


def missing(shown, said):
    """First words that are shown and that no line begins with."""
    begins = {match[1] for line in said.splitlines() if (match := WORD.match(line))}
    words = [WORD.match(line) for line in shown if LEFT_OUT not in line]
    return [word[1] for word in words if word and word[1] not in begins]


def walk(page):
    """Does what a page tells; returns how many commands that were, or ends this process."""
    script, commands = script_of(page.read_text(encoding="utf-8"))
    if not commands:
        sys.exit(f"walk: {page} has no commands")
    environment = dict(os.environ)
    for name in ("DEEPHEAP_CONF", "LD_PRELOAD"):
        environment.pop(name, None)
    if built := os.environ.get("WALK_CARGO_TARGET"):
        environment |= {"CARGO_TARGET_DIR": built, "CARGO_NET_OFFLINE": "true"}
    # Not in /tmp, which may be RAM; nor in this tree, of which a package of its own is no part.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="deepheap-walk.") as folder:
        script = script.replace("/path/to/deepheap", str(ROOT))
        log = Path(folder, ".walk.log")
        with log.open("w") as to, subprocess.Popen(
            ["bash", "-c", script], cwd=folder, stdin=subprocess.DEVNULL, stdout=to, stderr=to,
            start_new_session=True, env=environment,
        ) as shell:
            try:
                status = shell.wait(LIMIT)
            except subprocess.TimeoutExpired:
                status = f"more than {LIMIT} s"
            finally:
                try:
                    os.killpg(shell.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        said = re.split(rf"^{MARK}\d+$", log.read_text(errors="replace"), flags=re.M)[1:]
    if status != 0:
        command = commands[max(len(said) - 1, 0)][0]
        sys.exit(f"walk: {page}: '{command}' ended with {status}:\n{said[-1] if said else ''}")
    for (command, shown), output in zip(commands, said):
        if words := missing(shown, output):
            sys.exit(f"walk: {page}: '{command}' does not print {words}:\n{output}")
        if os.environ.get("WALK_SHOW"):
            print(f"$ {command}{output.rstrip()}")
    return len(commands)


def main():
    """Walks through the pages."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[1:]:
        print(f"walk: {name}: {walk(Path(name))} commands run")


if __name__ == "__main__":
    main()
