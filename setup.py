"""Compile the core where that is possible; everything else about the package is in pyproject.toml.

Without a C compiler, mypyc or Python's headers the package is complete, too: its core is then
interpreted. ``UPRMC_CORE=interpreted`` compiles nothing.
"""

import os
import sys
from runpy import run_path

from setuptools import Extension, setup

#: Commands that build; others need no extensions, and each call of mypyc takes seconds.
_BUILDING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def extensions() -> list[Extension]:
    """Return what is to be compiled; where compiling fails, setuptools says so and goes on."""
    if os.environ.get("UPRMC_CORE") == "interpreted" or not _BUILDING & {*sys.argv}:
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    sources = run_path("uprmc/core/sources.py")
    sources["write_stamp"]()
    modules = [os.path.relpath(path) for path in (*sources["native_sources"](), sources["STAMP"])]
    try:
        # One library for all, inside of the package; no configuration: mypy's is for the tests.
        # Where this is built, what it imports need not be installed.
        options = ["--config-file=", "--strict", "--ignore-missing-imports"]
        made = mypycify([*options, *modules], group_name="uprmc.core.native.library")
    except SystemExit:
        sys.stderr.write("the core cannot be compiled and will be interpreted\n")
        return []
    for extension in made:
        extension.optional = True
    return made


setup(ext_modules=extensions())
