"""Who has the memory of a node."""

from __future__ import annotations

from pathlib import Path

from tests.documents import HandDrivenNode
from uprmc.server.stats.engine import MemoryHolder, holders, resident_bytes


def by_name(node: HandDrivenNode) -> dict[str, MemoryHolder]:
    found = holders(node.node)
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_holders_explain_the_memory_of_the_process(tmp_path: Path) -> None:
    node = HandDrivenNode(tmp_path / "data", **{"engine.vbuckets": 4})
    try:
        bucket = node.node.bucket
        for number in range(2_000):
            bucket.of_key(b"key-%06d" % number).store(b"key-%06d" % number, b"v" * 1_000, 0, 0)
        found = by_name(node)
        counted = sum(each.bytes for each in found.values() if each.in_quota)
        assert counted == bucket.account.used
        assert found["values"].bytes >= 2_000 * 1_000 * 0.99
        assert (found["values"].number, found["queue"].number) == (2_000, 2_000)
        assert abs(sum(each.bytes for each in found.values()) - resident_bytes()) < 5_000_000
        node.write_to_disk()
        for vbucket in bucket.vbuckets.values():
            for key in list(vbucket.table):
                vbucket.eject(key)
        found = by_name(node)
        assert (found["values"].bytes, found["values"].number) == (0, 0)
        assert found["keys"].bytes == bucket.account.used
        assert found["queue"].bytes == 0
    finally:
        node.close()
