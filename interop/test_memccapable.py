"""libmemcached's memccapable, the reference check of what a memcached server can do.

Proves that all its 27 tests of the text protocol and all its 27 of the binary protocol pass, each
protocol in one run of the real program against an empty server.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from interop.server_process import ServerProcess

MEMCCAPABLE = shutil.which("memccapable") or shutil.which("memcapable")

pytestmark = pytest.mark.skipif(
    MEMCCAPABLE is None, reason="memccapable is not installed: apt-get install libmemcached-tools"
)

_RESULT = re.compile(r"^(?P<name>(?:ascii|binary) [\w ]*?)\s+\[(?P<result>\w+)\]", re.MULTILINE)


@pytest.mark.parametrize(("flag", "protocol"), [("-a", "ascii"), ("-b", "binary")])
def test_every_test_of_memccapable_passes(server: ServerProcess, flag: str, protocol: str) -> None:
    assert MEMCCAPABLE is not None
    address = server.memcached
    run = subprocess.run(
        [MEMCCAPABLE, "-h", address.host, "-p", str(address.port), "-t", "10", flag],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # a test's name goes to one, its [FAIL] to the other
        text=True,
        timeout=120,
        check=False,
    )
    results = dict(_RESULT.findall(run.stdout))
    assert {name for name, result in results.items() if result != "pass"} == set(), run.stdout
    assert len(results) == 27, run.stdout
    assert all(name.startswith(protocol) for name in results), run.stdout
    assert run.returncode == 0, run.stdout
