"""What `packaging/` holds, as the programs see it that it is written for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PACKAGING = Path(__file__).parent.parent / "packaging"
_UNIT = _PACKAGING / "uprmc.service"
#: `systemd-analyze security`: 0 is nothing at all, 10 everything.
_EXPOSURE_MAX = 2.0


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "uprmc.service"
    text = _UNIT.read_text(encoding="utf-8").replace("/usr/bin/uprmc", sys.executable)
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M), encoding="utf-8")
    ended = _analyze("verify", "--man=no", unit)
    complaints = [line for line in ended.stderr.splitlines() if "uprmc.service" in line]
    assert (ended.returncode, complaints) == (0, [])


def test_the_unit_gives_the_node_little_more_than_it_needs() -> None:
    ended = _analyze("security", "--offline=true", "--no-pager", _UNIT)
    if "unrecognized option" in ended.stderr:
        pytest.skip("this systemd cannot judge a unit that is not loaded")
    found = re.search(r"exposure level for uprmc\.service: ([\d.]+)", ended.stdout)
    assert found is not None, ended
    assert float(found[1]) <= _EXPOSURE_MAX


def test_the_image_has_what_its_build_copies_and_settings_that_exist() -> None:
    text = (_PACKAGING / "Dockerfile").read_text(encoding="utf-8")
    given = dict(re.findall(r"\b(UPRMC_\w+)=(\S+) ?", text.partition("\nENV ")[2]))
    ended = subprocess.run(
        [sys.executable, "-m", "uprmc", "settings", "--effective"],
        env={"PATH": "/usr/bin:/bin", **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for variable, value in given.items():
        assert re.search(rf"= {re.escape(value)} +\({variable}\)", ended.stdout)
    wanted = re.findall(r"^!(.+)$", (_PACKAGING / "Dockerfile.dockerignore").read_text(), re.M)
    assert [name for name in wanted if not (_PACKAGING.parent / name).exists()] == []
