"""conformance_fetch.py: how the suites of conformance.py are fetched and built, and what one is.

Guarantees: writes below target/conformance only; Debian 12's packages come by lists and a cache of
their own, whatever this machine's sources are, and nothing is installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "conformance"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Missing(Exception):
    """What is needed cannot be had here, for the reason given."""


# --- Fetching and building -----------------------------------------------------------------------


def call(*command, cwd=None):
    """Runs a command of fetching or building; Missing with its last words if it fails."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise Missing(f"{command[0]} ended with {done.returncode}: {said[-1] if said else ''}")


class Apt:
    """Debian 12's packages, by lists and a cache of our own."""

    folder = WORK / "apt"
    is_updated = False

    @classmethod
    def get(cls, *arguments, cwd):
        """apt-get with nothing of this machine's configuration of sources."""
        options = [
            f"Dir::Etc::sourcelist={cls.folder}/sources.list", "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::lists={cls.folder}/lists", f"Dir::Cache={cls.folder}/cache",
            # Else what is installed counts as a version to be had.
            f"Dir::State::status={cls.folder}/status", "APT::Sandbox::User=root",
            "Debug::NoLocking=1",
        ]
        for need, package in (("apt-get", "apt"), ("dpkg-source", "dpkg-dev")):
            if shutil.which(need) is None:
                raise Missing(f"{need} is missing; install {package}")
        if not cls.is_updated:
            if not KEYS.exists():
                raise Missing(f"{KEYS} is missing; install debian-archive-keyring")
            for folder in ("lists/partial", "cache/archives/partial"):
                (cls.folder / folder).mkdir(parents=True, exist_ok=True)
            (cls.folder / "sources.list").write_text("".join(
                f"{kind} [signed-by={KEYS}] {MIRROR} bookworm main\n"
                for kind in ("deb", "deb-src")))
            (cls.folder / "status").touch()
            cls.is_updated = True
            cls.get("update", cwd=cls.folder)
        call("apt-get", "-q", "-y", *[word for option in options for word in ("-o", option)],
             *arguments, cwd=cwd)


def unpack_binaries(folder, *packages):
    """Unpacks packages below folder/root; installs nothing."""
    debs = folder / "debs"
    debs.mkdir()
    Apt.get("download", *packages, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        call("dpkg", "-x", deb, folder / "root")


def unpack_source(folder, package):
    """Unpacks a source package as folder/source."""
    Apt.get("source", "--download-only", package, cwd=folder)
    description = next(folder.glob("*.dsc"))
    call("dpkg-source", "--no-check", "-x", description, folder / "source")


def debian_version(folder):
    """The version of what was fetched: that of its source, else of its first package."""
    names = sorted(folder.glob("*.dsc")) + sorted(folder.glob("debs/*.deb"))
    # A file's name has an epoch's colon as %3a.
    return names[0].stem.split("_")[1].split("%3a")[-1] if names else "?"


class Step:
    """One command of a suite and how its results are read."""

    def __init__(self, name, command, read, cwd=WORK, env=None):
        self.name, self.command, self.read = name, [str(word) for word in command], read
        self.cwd, self.env = cwd, env or {}


class Suite:
    """A suite: where it comes from, its steps, the RAM that they get.

    `fetch` fills `folder`, once for all suites that share it; `steps` lists what there is then.
    """

    ram = "16M"
    # Steps that --quick runs.
    quick = ()
    # The folder's name below target/conformance, and the version of how it is filled.
    home, edition = "", 1

    @property
    def folder(self):
        """Where the suite is."""
        return WORK / self.home

    def is_fetched(self):
        """Whether the suite is there, built and whole."""
        return (self.folder / f"fetched-{self.edition}").exists()

    def prepare(self):
        """Fetches the suite unless that was done."""
        if self.is_fetched():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        print(f"conformance: {self.home} is fetched", file=sys.stderr, flush=True)
        self.fetch()
        (self.folder / f"fetched-{self.edition}").touch()

    def version(self):
        """What was fetched, as the table tells it."""
        return debian_version(self.folder)

    def libraries(self):
        """The environment for programs of unpacked packages."""
        return {"LD_LIBRARY_PATH": str(self.folder / "root/usr/lib/x86_64-linux-gnu")}

    def fetch(self):
        """Fills the folder; Missing if it cannot be filled."""
        raise NotImplementedError

    def steps(self):
        """The steps of what was fetched."""
        raise NotImplementedError
