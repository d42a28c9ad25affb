"""A Python that has pyspark, pyarrow and numpy and nothing else: not this project, not Twisted.

As on a cluster where nobody installed uprmc. It is the Python of these tests, told to see only
those packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

#: What the nodes of a cluster have.
PACKAGES = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pyarrow.libs")

#: In addition, for a client of Spark Connect.
CONNECT_PACKAGES = (
    "pandas",
    "pandas.libs",
    "dateutil",
    "pytz",
    "tzdata",
    "six.py",
    "grpc",
    "grpc_status",
    "google",
    "zstandard",
    "typing_extensions.py",
)


def make(directory: Path, packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Make the Python in a directory; return the environment in which Spark uses it.

    ``PYSPARK_PYTHON`` is the program. Everything of this process's environment that would lead
    back to its own packages is left out.
    """
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    site = Path(found.origin).parents[1]
    links = directory / "packages"
    links.mkdir(parents=True)
    for name in packages:
        if (site / name).exists():
            (links / name).symlink_to(site / name)
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(directory),
        "PYTHONPATH": str(links),
        "PYSPARK_PYTHON": str(program),
        "SPARK_HOME": str(site / "pyspark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
