"""The zip for ``--py-files``: what a worker needs that has pyarrow and numpy, but not this package.

It holds our modules and construct, which they declare the wire's layouts with.

    python -m uprmc.spark.shipping dist/uprmc_spark.zip

Spark looks for formats by itself only in installed packages: with the zip a program says
``uprmc.spark.register(spark)``. The same sources make the same bytes, so a zip can be compared.
"""

from __future__ import annotations

import io
import sys
import zipfile
from importlib import resources
from pathlib import Path

from uprmc.columnar.errors import MissingPackage
from uprmc.jobs.files import whole_file

#: The zip's name, wherever it is put.
NAME = "uprmc_spark.zip"

#: Modules and packages of `uprmc` that tasks import; of the core, what says that it is interpreted.
_ABOVE = (
    "__init__.py",
    "children.py",
    "connecting.py",
    "core/__init__.py",
    "core/form.py",
    "core/sources.py",
    "errors.py",
    "model.py",
    "places.py",
    "ports.py",
    "py.typed",
    "regular.py",
    "rollback.py",
    "units.py",
)
_PACKAGES = (
    "uprmc.backup",
    "uprmc.columnar",
    "uprmc.config",
    "uprmc.remote",
    "uprmc.jobs",
    "uprmc.load",
    "uprmc.login",
    "uprmc.protocol",
    "uprmc.spark",
    "construct",
    "construct.lib",
)
_WHEN = (1980, 1, 1, 0, 0, 0)


def zipped() -> bytes:
    """Return the zip.

    Raises:
        MissingPackage: the sources are not there to be read.
    """
    package = resources.files("uprmc")
    found = {f"uprmc/{name}": (package / name).read_bytes() for name in _ABOVE}
    for name in _PACKAGES:
        for each in resources.files(name).iterdir():
            if each.name.endswith(".py"):
                found[f"{name.replace('.', '/')}/{each.name}"] = each.read_bytes()
    if "uprmc/spark/shipping.py" not in found:
        raise MissingPackage("uprmc was installed without its sources: nothing to make a zip of")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(found):
            about = zipfile.ZipInfo(name, _WHEN)
            about.external_attr = 0o644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, found[name])
    return made.getvalue()


def write_zip(path: Path) -> Path:
    """Put the zip there, whole or not at all; directories are made."""
    made = zipped()
    with whole_file(path) as unfinished:
        unfinished.write_bytes(made)
    return path


if __name__ == "__main__":
    print(write_zip(Path(sys.argv[1] if len(sys.argv) > 1 else NAME)))  # noqa: T201
