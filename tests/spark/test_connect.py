"""Spark Connect: a client that speaks to a Spark elsewhere, which has never heard of uprmc.

The server has a Python with pyspark and what it needs, and gets uprmc from the client
(`session.session`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from interop.server_process import ServerProcess
from tests.bulk import here
from tests.spark import bare_python
from tests.spark.conftest import SPARK_SETTINGS

pytest.importorskip("grpc", reason="grpcio is not installed")

pytestmark = pytest.mark.spark

STARTED = re.compile(r"Spark Connect server started at: \S*?:(\d+)")
TIMEOUT_S = 120.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def remote(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server; its place."""
    home = tmp_path_factory.mktemp("connect")
    packages = (*bare_python.PACKAGES, *bare_python.CONNECT_PACKAGES)
    environment = bare_python.make(home / "bare", packages)
    settings = {
        **SPARK_SETTINGS,
        "spark.log.level": "INFO",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *[word for pair in settings.items() for word in ("--conf", "=".join(pair))],
        "spark-internal",
    ]
    server = subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        yield f"sc://127.0.0.1:{_port(server.stderr)}"
    finally:
        server.kill()
        server.wait()


def _port(log: IO[str]) -> str:
    """Return the port that the server tells; goes on reading, so that it never waits for us."""
    told: list[str] = []
    found = threading.Event()
    port = ""

    def read() -> None:
        nonlocal port
        for line in log:
            told.append(line)
            match = STARTED.search(line)
            if match:
                port = match[1]
                found.set()
        found.set()
        log.close()

    threading.Thread(target=read, daemon=True).start()
    assert found.wait(TIMEOUT_S)
    assert port, "".join(told[-30:])
    return port


def test_a_client_of_a_remote_spark_reads_and_writes(remote: str, node: ServerProcess) -> None:
    here.put(node, here.numbered(200))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_program", remote, str(node.upr)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    assert found["read"] == {
        key.decode(): value.decode() for key, value in here.numbered(200).items()
    }
    assert (found["report"]["rows"], found["report"]["existed"]) == (10, 10)
    written = {f"c-{n}".encode(): str(n).encode() for n in range(100)}
    assert here.contents(node) == {**here.numbered(200), **written}
