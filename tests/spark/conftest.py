"""What the tests of the Spark side share: a node, and one Spark for everything that needs a JVM.

A JVM takes longer to start than most of these tests take together, so there is one of each worker
of pytest-xdist, whatever the tests want of it. It tries a failed task once more (`local[2,2]`): so
tests of repeated tasks can use it too, and a task that must fail does not fail four times.

Tests that need no JVM are elsewhere (`tests.columnar`, `backup`, `load`, `jobs`) but for those of
modules of `uprmc.spark` itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.bulk.nodes import VBUCKETS, fresh_node, node, servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["VBUCKETS", "fresh_node", "node", "servers"]

#: Loopback only, little memory, no compilation that never pays in a test of seconds.
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def java() -> str:
    """The program; skips the test where Spark has none that it can use."""
    from uprmc.columnar.errors import JavaMissing
    from uprmc.spark.session import find_java

    try:
        return find_java()
    except JavaMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two tasks at a time, two attempts of each; time zone UTC; two shuffle partitions."""
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark would take any python3 there is
    builder: Any = SparkSession.builder
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    found = (
        builder.master("local[2,2]")
        .appName("uprmc tests")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .getOrCreate()
    )
    yield found
    found.stop()
    shutil.rmtree(home, ignore_errors=True)
