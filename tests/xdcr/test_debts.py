"""How far a vBucket of a link has arrived while its target refuses some versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from uprmc.model import SnapshotRange
from uprmc.xdcr.shipment import NOWHERE, Debt, Debts, LinkPosition, Shipment
from uprmc.xdcr.windows import LinkWindow

KEYS = (b"a", b"b", b"c")


class Way:
    """A vBucket whose items are sent in batches; each has one seqno, from 1."""

    def __init__(self) -> None:
        vbucket: Any = SimpleNamespace(id=0)
        stream: Any = None
        self.shipment = Shipment(vbucket, "n", stream, (0, 0), NOWHERE, {}, Debts(1_000, 1_000))
        self.items: list[tuple[bytes, LinkWindow]] = []
        self.answers: dict[int, bool] = {}

    def send(self, keys: list[bytes]) -> None:
        """Send a batch."""
        window = LinkWindow(len(self.items))
        for key in keys:
            self.items.append((key, window))
            window.open += 1
            if key in self.shipment.debts:
                self.shipment.debts[key].replaced_in = window
        high = len(self.items)
        self.shipment.sent(window, LinkPosition(high, SnapshotRange(high, high)))
        self._end(window)

    def _end(self, window: LinkWindow) -> None:
        window.open -= 1
        if not window.open:
            for arrived in window.arrivals:
                arrived(window)

    @property
    def open(self) -> list[int]:
        """Seqnos that have no answer yet."""
        return [n for n in range(1, len(self.items) + 1) if n not in self.answers]

    def answer(self, seqno: int, *, accepted: bool) -> None:
        key, window = self.items[seqno - 1]
        self.answers[seqno] = accepted
        if not accepted:
            self.shipment.owe(key, Debt(b"frame", "", 0.0, window, seqno))
        self._end(window)

    def judge(self) -> None:
        """All that it says to have arrived was accepted, or a newer version was."""
        for seqno in range(1, self.shipment.through.seqno + 1):
            key = self.items[seqno - 1][0]
            newer = [n for n, (other, _) in enumerate(self.items, 1) if other == key and n >= seqno]
            assert any(self.answers.get(n) for n in newer), seqno


@given(st.data())
def test_a_link_says_of_nothing_that_is_refused_that_it_has_arrived(data: st.DataObject) -> None:
    way = Way()
    for keys in data.draw(st.lists(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))):
        way.send(keys)
        for _ in range(data.draw(st.integers(0, len(way.open)))):
            seqno = data.draw(st.sampled_from(way.open))
            way.answer(seqno, accepted=data.draw(st.booleans()))
            way.judge()


def test_two_versions_of_a_key_are_refused_before_the_batch_of_the_first_is_settled() -> None:
    way = Way()
    way.send([b"a", b"b"])
    way.send([b"a"])
    way.answer(1, accepted=False)
    way.answer(3, accepted=False)
    way.answer(2, accepted=True)
    assert way.shipment.through.seqno == 0
    way.shipment.paid(b"a")
    assert way.shipment.through.seqno == 3
