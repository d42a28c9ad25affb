"""A Spark session for the command line: Java found, the package shipped, errors that help.

Programs that have a session of their own need nothing of this. A session that exists already (under
``spark-submit``) is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uprmc.columnar.errors import JavaMissing, MissingPackage
from uprmc.spark.versions import require_sources

#: The oldest Java that Spark 4 runs on.
JAVA_MIN = 17

_ADVICE = (
    "install one (Debian: apt-get install openjdk-17-jre-headless), set JAVA_HOME to it, or do "
    "without Spark: --engine local"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_JAVA_TIMEOUT_S = 60.0

#: Spark's setting for filters of Python's sources. It is off by default, and harmless to others.
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

#: What is set unless the user says otherwise. A local Spark stays on this machine.
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    PUSHDOWN: "true",
}
_LOCAL_ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1"}
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def find_java(environment: Mapping[str, str] | None = None) -> str:
    """Return the Java that Spark will start, by an environment or that of this process.

    Raises:
        JavaMissing: there is none, it does not run, or it is older than `JAVA_MIN`.
    """
    known = os.environ if environment is None else environment
    home = known.get("JAVA_HOME")
    program = (
        str(Path(home) / "bin" / "java") if home else shutil.which("java", path=known.get("PATH"))
    )
    if program is None:
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer, there is none: {_ADVICE}")
    try:
        told = subprocess.run(
            [program, "-version"], capture_output=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME={home}" if home else program
        raise JavaMissing(f"{where} has no Java that runs ({error}): {_ADVICE}") from None
    text = told.stderr.decode(errors="replace") + told.stdout.decode(errors="replace")
    found = _VERSION.search(text)
    if found is None:
        raise JavaMissing(f"{program} -version says nothing of a version: {_ADVICE}")
    if int(found[1]) < JAVA_MIN:
        raise JavaMissing(
            f"{program} is Java {found[1]}, Spark needs {JAVA_MIN} or newer: {_ADVICE}"
        )
    return program


def session(
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    name: str = "uprmc",
) -> Any:
    """Return a session, with the format registered and, if need be, the package shipped to it.

    Args:
        master: where to run: ``local[*]``, ``spark://...``; ``None`` = as ``spark-submit`` says, or
            ``local[*]``.
        remote: ``sc://HOST:PORT`` of a Spark Connect server, in place of a master.
        conf: further settings of Spark.
        name: of the application.

    Raises:
        MissingPackage: pyspark, or what Spark Connect needs, is not installed.
        JavaMissing: see `find_java`.
    """
    require("pyspark", "pip install 'uprmc[spark]', or --engine local")
    require("pyarrow", "pip install 'uprmc[spark]'")
    require_sources()
    if remote is not None:
        return _connected(remote, conf or {})
    find_java()
    return _started(master, conf or {}, name)


def require(module: str, advice: str) -> None:
    """Raise `MissingPackage` when a module is not installed."""
    if find_spec(module) is None:
        raise MissingPackage(f"{module} is not installed: {advice}")


def register(spark: Any) -> None:
    """Make ``format("uprmc")`` known to a session, and have Spark hand filters to its sources."""
    from uprmc.spark.source import UprmcDataSource

    try:
        spark.dataSource.register(UprmcDataSource)
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0, which has found it itself
            raise
    spark.conf.set(PUSHDOWN, "true")


def ship(spark: Any) -> None:
    """Send the package to the workers of a session; those that have it do not mind.

    Shipped files stay with the session: a second call finds the same bytes there.
    """
    from uprmc.spark.shipping import NAME, write_zip

    with tempfile.TemporaryDirectory(prefix="uprmc-") as directory:
        spark.addArtifacts(str(write_zip(Path(directory) / NAME)), pyfile=True)


def _started(master: str | None, conf: Mapping[str, str], name: str) -> Any:
    from pyspark.sql import SparkSession

    # Spark plans and runs Python sources with any python3 on the path unless it is told.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    chosen = master or ("local[*]" if _alone() else None)
    settings = dict(_SETTINGS) if _alone() else {}
    if chosen is not None:
        builder = builder.master(chosen).appName(name)
        if chosen.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= _LOCAL_SETTINGS
    for key, value in {**settings, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not spark.sparkContext.master.startswith("local["):
        ship(spark)
    register(spark)
    return spark


def _alone() -> bool:
    """Tell whether this process was started by itself, not by ``spark-submit``."""
    from pyspark.sql import SparkSession

    under_submit = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    return not under_submit and SparkSession.getActiveSession() is None


def _connected(remote: str, conf: Mapping[str, str]) -> Any:
    for module in ("pandas", "grpc", "google.rpc"):
        require_found(module)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote(remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    ship(spark)
    register(spark)
    return spark


def require_found(module: str) -> None:
    """Raise `MissingPackage` when a part of what Spark Connect needs is not installed."""
    try:
        missing = find_spec(module) is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise MissingPackage(f"{module} is not installed: pip install 'uprmc[spark-connect]'")


def _size_bytes(names: Iterable[str] = ("pyspark", "py4j", "pyarrow", "pandas", "numpy")) -> int:
    """Return how many bytes of the disk distributions take; those that are missing take none."""
    found = 0
    for name in names:
        with suppress(PackageNotFoundError):
            paths = (Path(str(each.locate())) for each in distribution(name).files or ())
            found += sum(path.stat().st_size for path in paths if path.is_file())
    return found


#: A program as users write it; it needs no node, because nothing is read.
_TRIAL = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
try:
    spark.read.format("uprmc").option("servers", "127.0.0.1:11210").load()
    print("found")
except Exception as error:
    print(str(error).partition("\\n")[0])
spark.stop()
"""
_TRIAL_S = 300.0


def try_format() -> str:
    """Start Spark elsewhere and use the format; return why that fails, empty = it works."""
    environment = {**_LOCAL_ENVIRONMENT, **os.environ, "PYSPARK_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory(prefix="uprmc-") as elsewhere:
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-c", _TRIAL],
                cwd=elsewhere,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TRIAL_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    said = [*ended.stderr.strip().splitlines(), *ended.stdout.strip().splitlines()]
    return "" if said[-1:] == ["found"] else (said or ["Spark said nothing"])[-1]


def _told() -> tuple[str, int]:
    """Return for people whether Spark and the format work here, and the exit code."""
    version = import_module("pyspark").__version__
    version += f" ({_size_bytes() / 1e6:.0f} MB on disk with what it needs)"
    try:
        java = find_java()
    except JavaMissing as error:
        return f"Spark {version} is installed, but {error}", 0
    trouble = try_format()
    if trouble:
        return (
            f'Spark {version} runs on {java}, but format("uprmc") does not work: {trouble}; '
            "install uprmc again: pip install -e '.[spark]'"
        ), 1
    return (
        f'Spark {version} runs on {java}, and format("uprmc") works; go on with '
        "examples/, or: uprmc backup --engine spark"
    ), 0


if __name__ == "__main__":
    TEXT, CODE = _told()
    print(TEXT)  # noqa: T201
    sys.exit(CODE)
