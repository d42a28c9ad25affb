"""In which order a link sends documents and checkpoints of others, seen on its connection.

The frames are read here with a layout of our own: what the link reads of its node (markers,
documents), what it sends to the target, and the answers that cover what was sent before.

Source: the thread about transitive checkpoints, steps 1 to 3; systems reference d.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.xdcr.cluster import DataCentres
from tests.xdcr.test_transitive import checkpoints, replicate, store, three, until_told
from uprmc.server.node import Node
from uprmc.xdcr import sender
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.reading import LinkReading
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import Windows

MARKER, MUTATION = 0x56, 0x57
SET, NOOP = 0xA3, 0x0A
REQUEST, RESPONSE = 0x80, 0x81


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links send little at a time and wait for the answers, so that much is in between."""
    monkeypatch.setattr(sender, "_PULL_BYTES", 600)
    monkeypatch.setattr(Windows, "has_room", property(lambda windows: not windows._under_way))


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        what: `snapshot` and `read` on the node's own stream, `sent`, `settled` and `record` on the
            connection.
        key: of a document.
        seqno: of a document that was read, the end of a snapshot, or of the source in a record.
    """

    what: str
    key: bytes = b""
    seqno: int = 0


class Trace:
    """Everything that the links to one target do, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, link_name: str) -> None:
        self.events: list[Event] = []
        self._fences: list[bytes] = []
        self._name = link_name
        pull, send, receive = LinkReading.pull, Target.data_to_send, Target.receive_data

        def pulled(reading: LinkReading, budget: int) -> Any:
            found = pull(reading, budget)
            if reading._row.endswith(link_name.encode()):
                self._read(bytes(found.data))
            return found

        def sent(target: Target, budget: int) -> list[bytes]:
            out = send(target, budget)
            if self._is_ours(target):
                self._sent(b"".join(out))
            return out

        def received(target: Target, data: bytes) -> None:
            if self._is_ours(target):
                self._received(bytes(data))
            receive(target, data)
            if self._is_ours(target) and target.ready:
                target._link.tick(target._clock.monotonic())

        monkeypatch.setattr(LinkReading, "pull", pulled)
        monkeypatch.setattr(Target, "data_to_send", sent)
        monkeypatch.setattr(Target, "receive_data", received)

    def _is_ours(self, target: Target) -> bool:
        return target._link.spec.name == self._name

    def _read(self, data: bytes) -> None:
        for frame in frames(data):
            if frame[1] == MARKER:
                end = 24 + (8 if frame[4] == 20 else 9)  # with a version the numbers follow it
                self.events.append(Event("snapshot", seqno=int.from_bytes(frame[end : end + 8])))
            elif frame[1] == MUTATION:
                key = key_of(frame)
                self.events.append(Event("read", key, int.from_bytes(frame[24:32])))

    def _sent(self, data: bytes) -> None:
        for frame in frames(data):
            if frame[1] == SET:
                self.events.append(Event("sent", key_of(frame)))
            elif frame[1] == NOOP and frame[0] == REQUEST:
                self._fences.append(frame[12:16])
                self.events.append(Event("fence"))
            elif key_of(frame) == b"record":
                for row in json.loads(frame[24 + len(b"record") :])["records"]:
                    if row["via"]:
                        self.events.append(Event("record", seqno=row["source_seqno"]))

    def _received(self, data: bytes) -> None:
        for frame in frames(data):
            if frame[1] == NOOP and frame[0] == RESPONSE and frame[12:16] in self._fences:
                self.events.append(Event("settled"))

    def judge(self, needed: Callable[[int], int]) -> int:
        """Return how many records were passed on; each of them came at an allowed point.

        Args:
            needed: returns, for a seqno of the source, the node's seqno that covers it.
        """
        read: list[Event] = []
        sent: set[bytes] = set()
        settled: set[bytes] = set()
        ends: list[int] = []
        records = 0
        fenced: list[set[bytes]] = []
        for event in self.events:
            if event.what == "snapshot":
                ends.append(event.seqno)
            elif event.what == "read":
                read.append(event)
            elif event.what == "sent":
                sent.add(event.key)
            elif event.what == "fence":
                fenced.append(set(sent))
            elif event.what == "settled":
                settled |= fenced.pop(0)
            elif event.what == "record":
                records += 1
                end = min(each for each in ends if each >= needed(event.seqno))
                of_it = {each.key for each in read if each.seqno <= end}
                assert of_it <= settled, (event, end, of_it - settled)
                assert max(each.seqno for each in read) >= end, "the snapshot was not read yet"
        return records


def frames(data: bytes) -> Iterator[bytes]:
    """Return the frames that begin in some bytes, complete ones only."""
    at = 0
    while at + 24 <= len(data):
        size = 24 + int.from_bytes(data[at + 8 : at + 12])
        yield data[at : at + size]
        at += size


def key_of(frame: bytes) -> bytes:
    start = 24 + frame[4]
    return frame[start : start + int.from_bytes(frame[2:4])]


def foo_bar(centres: DataCentres, nodes: tuple[Node, Node, Node]) -> None:
    """The story of the thread: 5 of A is 10 of B, and 15 of B is 7 of C."""
    a, b, _ = nodes
    for _ in range(5):
        store(b, b"of B")
    store(a, *(b"a%d" % number for number in range(5)))
    replicate(centres, a, b, "foo")
    for _ in range(5):
        store(b, b"of B, too")
    assert b.bucket.vbuckets[0].high_seqno == 15


@pytest.mark.acceptance("C03", "C12")
def test_a_record_follows_the_end_of_the_snapshot_that_it_lies_in(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = a, b, c = three(centres)
    foo_bar(centres, nodes)
    (full,) = checkpoints(centres, b, "received")
    assert (full["source_seqno"], full["target_seqno"]) == (5, 10)
    trace = Trace(monkeypatch, "baz")
    link = centres.link(b, c, "baz")
    centres.until_level(link)
    until_told(centres, c, a)
    (told,) = checkpoints(centres, c, "transitive")
    for name in ("source_bucket_uuid", "source_seqno", "link_id", "session_id"):
        assert told[name] == full[name]
    story = [event for event in trace.events if event.what not in ("fence", "settled")]
    assert [event for event in story if event.what == "snapshot"] == [Event("snapshot", seqno=15)]
    assert [event.seqno for event in story if event.what == "read"] == [5, 6, 7, 8, 9, 10, 15]
    assert story[-1] == Event("record", seqno=5), "not before the end, although 10 was passed"
    before = trace.events[trace.events.index(story[-1]) - 1]
    assert before.what == "settled", "and not before C has answered"
    assert trace.judge(lambda _: 10) == 1
    centres.command(b, "checkpoint", name="baz")
    row = next(each for each in checkpoints(centres, c, "received") if not each["via"])
    assert (row["source_seqno"], row["target_seqno"]) == (15, 7)


def many_snapshots(centres: DataCentres, nodes: tuple[Node, Node, Node]) -> dict[int, int]:
    """A and B are written all the time; return B's seqno for each record of A."""
    a, b, c = nodes
    centres.link(a, b, "ab")
    bc = centres.link(b, c, "bc", set={"batch_items": "10"})
    covered: dict[int, int] = {}
    for turn in range(12):
        store(b, *(b"b%d" % number for number in range(25)), value=b"%d" % turn)
        store(a, *(b"a%d" % number for number in range(3)), value=b"%d" % turn)
        centres.until_level(a.links.by_name["ab"])
        store(b, *(b"b%d" % number for number in range(25)), value=b"%d" % turn)
        centres.command(a, "checkpoint", name="ab")
        for row in checkpoints(centres, b, "received"):
            covered[row["source_seqno"]] = row["target_seqno"]
    centres.until_level(bc)
    centres.loop.until(
        lambda: [row["source_seqno"] for row in checkpoints(centres, c, "transitive")] == [36]
    )
    return covered


@pytest.mark.acceptance("C12", "C13")
def test_a_link_that_never_ends_passes_records_on_at_ends_of_snapshots_only(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch, "bc")
    nodes = three(centres)
    covered = many_snapshots(centres, nodes)
    assert trace.judge(covered.__getitem__) > 1
    assert sum(event.what == "snapshot" for event in trace.events) > 5


def test_a_record_that_comes_too_early_is_noticed(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Checkpointing, "_may_pass_on", lambda _, shipment: bool(shipment.through.seqno)
    )
    nodes = a, b, c = three(centres)
    foo_bar(centres, nodes)
    store(b, *(b"more %d" % number for number in range(60)))
    trace = Trace(monkeypatch, "baz")
    centres.until_level(centres.link(b, c, "baz", set={"batch_items": "10"}))
    until_told(centres, c, a)
    with pytest.raises(AssertionError):
        trace.judge(lambda _: 10)
