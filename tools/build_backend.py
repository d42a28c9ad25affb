"""setuptools, asked for mypyc as well where there is a C compiler that could use it.

A machine without one installs the package without fetching what it could not use.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # the other hooks

MYPYC = "mypy[mypyc]>=2,<3"


def can_compile() -> bool:
    """Tell whether a C compiler and Python's headers are here, and wanted."""
    if os.environ.get("UPRMC_CORE") == "interpreted":
        return False
    compilers = [os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc", "cc", "gcc"]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(shutil.which(each.split()[0]) for each in compilers)


def get_requires_for_build_wheel(
    config_settings: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what a build needs besides setuptools."""
    required: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*required, MYPYC] if can_compile() else required


get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Install from the source tree by a plain path, unless told otherwise.

    Spark looks for formats only in modules that it can list, and setuptools' usual way, a hook,
    lists none.
    """
    settings = {"editable_mode": "compat", **(config_settings or {})}
    made: str = build_meta.build_editable(wheel_directory, settings, metadata_directory)
    return made
