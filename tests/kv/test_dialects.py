"""Commands of all dialects: replies and counters are those that memcached was measured to have."""

from __future__ import annotations

from itertools import count

import pytest

from interop.dialects import COUNTED, outcome, table
from tests.kv.binary_peer import Peer
from tests.kv.harness import Rig, drained_with_waits


@pytest.mark.parametrize("dialect", ["text", "binary"])
def test_each_command_answers_and_counts_as_memcached(dialect: str) -> None:
    rig, names = Rig(), count(1)
    text, binary = rig.text(), Peer(rig)

    def ask(asked: str, data: bytes) -> bytes:
        session = text if asked == "text" else binary.session
        session.receive_data(data)
        return drained_with_waits(session)

    def counters() -> dict[str, int]:
        return {
            name: number for name, number in rig.bucket.stats.items() if COUNTED.fullmatch(name)
        }

    for row in table():
        if row.dialect == dialect:
            found = outcome(row, b"k%d" % next(names), ask, counters)
            assert found == (row.reply, row.counters), row
