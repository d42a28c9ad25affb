"""The zip for ``--py-files``: all that a worker needs, and the same bytes each time."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import uprmc.spark
from uprmc.remote.errors import NodeUnreachable
from uprmc.spark.shipping import write_zip, zipped

#: What must not be needed on a worker, nor what only the driver has.
FORBIDDEN = ("twisted", "sortedcontainers", "lmdb", "click", "rich", "pandas", "uprmc.engine")

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import importlib, pkgutil
import uprmc.spark
import construct
for each in uprmc, construct:
    assert each.__file__.startswith(sys.argv[1]), each.__file__
for package in ("backup", "columnar", "jobs", "load", "spark"):
    package = importlib.import_module(f"uprmc.{package}")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        name = module.name.rpartition(".")[2]
        if name != "worker" and (sys.argv[2] == "spark" or name not in sys.argv[3]):
            importlib.import_module(module.name)
print(sorted(each for each in sys.argv[4].split(",") if each in sys.modules))
"""

#: The modules that may import pyspark when they are imported.
OF_SPARK = ("source", "stream_source", "sink", "session", "spark_engine")


def test_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = write_zip(tmp_path / "new" / "a.zip"), write_zip(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()


def test_it_holds_what_tasks_import_and_construct() -> None:
    with zipfile.ZipFile(io.BytesIO(zipped())) as archive:
        names = archive.namelist()
    assert {"uprmc/spark/source.py", "uprmc/remote/directory.py"} <= set(names)
    held = ("backup", "columnar", "config", "jobs", "load", "login", "protocol", "remote", "spark")
    packages = ("construct/", *(f"uprmc/{name}/" for name in held))
    outside = [name for name in names if not name.startswith(packages)]
    ours = [
        "__init__",
        "children",
        "connecting",
        "errors",
        "model",
        "places",
        "ports",
        "regular",
        "rollback",
        "units",
    ]
    ours += ["core/__init__", "core/form", "core/sources"]
    assert outside == sorted(["uprmc/py.typed", *(f"uprmc/{name}.py" for name in ours)])


def test_everything_in_it_can_be_imported_from_it_without_the_rest_of_uprmc(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "uprmc_spark.zip")
    words = [str(path), "spark", ",".join(OF_SPARK), ",".join(FORBIDDEN)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_what_needs_no_jvm_needs_no_pyspark(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "uprmc_spark.zip")
    words = [str(path), "plain", ",".join(OF_SPARK), "pyspark"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_errors_of_the_public_face_begin_with_their_words() -> None:
    with pytest.raises(NodeUnreachable, match=r"^UPRMC_UNREACHABLE no node answers at 127"):
        uprmc.spark.current_offsets("127.0.0.1:1", retries=0)


def test_every_name_of_the_public_face_leads_to_something() -> None:
    for name in uprmc.spark.__all__:
        assert callable(getattr(uprmc.spark, name)), name
    assert set(uprmc.spark.__all__) <= set(dir(uprmc.spark))
