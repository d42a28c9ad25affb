"""A cluster whose worker has pyspark, pyarrow and numpy, and gets the rest as a zip."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from interop.server_process import ServerProcess
from tests.bulk import here
from tests.spark import bare_python
from tests.spark.conftest import SPARK_SETTINGS
from uprmc.spark.shipping import NAME, write_zip

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("cluster_program.py")
TIMEOUT_S = 240


def test_workers_need_nothing_but_the_zip(java: str, node: ServerProcess, tmp_path: Path) -> None:
    here.put(node, here.numbered(500))
    environment = bare_python.make(tmp_path / "bare")
    settings = {
        **SPARK_SETTINGS,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    out = tmp_path / "out.json"
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--master",
        "local-cluster[1,2,1024]",
        "--py-files",
        str(write_zip(tmp_path / NAME)),
        *[word for pair in settings.items() for word in ("--conf", "=".join(pair))],
        str(PROGRAM),
        str(node.upr),
        str(out),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    found = json.loads(out.read_text())
    for home, others in found["workers"]:
        assert NAME in home
        assert others == []
    assert found["read"] == {
        key.decode(): value.decode() for key, value in here.numbered(500).items()
    }
    written = {f"w-{n}".encode(): str(n).encode() for n in range(300)}
    assert here.contents(node) == {**here.numbered(500), **written}
