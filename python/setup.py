"""Builds the package: the extension module, and the library that `make build` has made.

The library and the command are taken from DEEPHEAP_LIBRARY_DIR, or from target/release of the
checkout. Everything is built below its target folder, nothing beside the sources.
"""

import os
import shutil
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
CARRIED = ("libdeepheap_preload.so", "deepheap")


class BuildWithLibrary(build_py):
    """Puts the library and the command into the package."""

    def run(self) -> None:
        super().run()
        source = Path(os.environ.get("DEEPHEAP_LIBRARY_DIR", TARGET / "release"))
        folder = Path(self.build_lib) / "deepheap" / "_lib"
        folder.mkdir(parents=True, exist_ok=True)
        for name in CARRIED:
            if not (source / name).is_file():
                raise SystemExit(
                    f"{source / name} is missing: run `make build` first, or say where the "
                    "library is with DEEPHEAP_LIBRARY_DIR"
                )
            shutil.copy(source / name, folder / name)


class BinaryDistribution(Distribution):
    """A wheel for one platform."""

    def has_ext_modules(self) -> bool:
        return True


built = TARGET / "python"
built.mkdir(parents=True, exist_ok=True)
setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithLibrary},
    ext_modules=[
        Extension(
            "deepheap._native",
            ["native/module.c", "native/calls.c"],
            depends=["native/calls.h"],
            include_dirs=[numpy.get_include()],
            libraries=["dl", "pthread"],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ],
    options={
        "build": {"build_base": str(built / "build")},
        "egg_info": {"egg_base": str(built)},
        "bdist_wheel": {"bdist_dir": str(built / "wheel")},
    },
)
