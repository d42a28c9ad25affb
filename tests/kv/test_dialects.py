"""Commands of all dialects: replies and counters are those that memcached was measured to have."""

from __future__ import annotations

import re
from itertools import count

import pytest

from interop.dialects import CLOSED, COUNTED, outcome, table
from tests.kv.binary_peer import Peer
from tests.kv.harness import Rig, drained


class Sessions:
    """A session of each dialect; the disk works while one waits for it.

    With `ejected` no command finds the value of its key in memory.
    """

    def __init__(self, *, ejected: bool) -> None:
        self.rig, self.ejected = Rig(), ejected
        self.sessions = {"text": self.rig.text(), "binary": Peer(self.rig).session}

    def ask(self, dialect: str, data: bytes) -> bytes:
        session = self.sessions[dialect]
        if self.ejected:
            self.rig.eject(*filter(self.rig.resident, set(re.findall(rb"k\d+", data))))
        session.receive_data(data)
        said = drained(session)
        while session.input_full:
            self.rig.flush()
            self.rig.fetch()
            said += drained(session)
        if not session.closing:
            return said
        made = {"text": self.rig.text, "binary": lambda: Peer(self.rig).session}
        self.sessions[dialect] = made[dialect]()
        return said + CLOSED

    def counters(self) -> dict[str, int]:
        stats = self.rig.bucket.stats.items()
        return {name: number for name, number in stats if COUNTED.fullmatch(name)}

    def wait(self, seconds: float) -> None:
        self.rig.clock.time += seconds
        self.rig.bucket.tick()


@pytest.mark.parametrize("ejected", [False, True])
@pytest.mark.parametrize("dialect", ["text", "binary"])
def test_each_command_answers_and_counts_as_memcached(dialect: str, ejected: bool) -> None:
    sessions, names = Sessions(ejected=ejected), count(1)
    wrong = []
    for row in table():
        if ejected and "k" * 251 in row.request:
            continue  # such a line is refused before what is on disk is read, and touched
        if row.dialect == dialect:
            found = outcome(row, b"k%d" % next(names), sessions)
            if found != (row.reply, row.counters):
                wrong.append((str(row), found))
    assert wrong == []
