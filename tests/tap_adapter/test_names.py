"""TAP clients by name: who takes over, who is resumed, who is forgotten; `transcripts/*.names`.

Their form is that of `tests.transcripts`. Commands:

==============================  ================================================================
settings keepalive_s=30         of the adapter
connect x REGISTERED            a client of that name; it is `x` from now on (anonymous: ``-``)
moved x, moved x 14             it has acknowledged up to 10, or so far
leave x, finish x, save x       it goes, for good; its place is saved (the answers are in `saved`)
wait 29.9, tick 10              time passes; the adapter learns so
restart, deregister x           a new process; a name is forgotten
disk patient, works, fails      and ``finish`` what is under way
==============================  ================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tap_adapter.names_rig import LIVE, REGISTERED, UNIX, FakeProducer, Place, moved, why
from tests.transcripts import Script, cases
from uprmc.config import TapSettings
from uprmc.errors import InvalidArguments
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import ConnectFlag
from uprmc.tap_adapter.cursor import (
    CHECKPOINTS_KEPT,
    CHECKPOINTS_LEAST,
    CHECKPOINTS_OF_A_CLIENT,
    TapCursor,
    decode_position,
    encode_position,
)
from uprmc.tap_adapter.names import NAME_BYTES_MAX, TapName


class Play(Script):
    """One case."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Place()
        self.clients: dict[str, TapName] = {}
        self.served: dict[str, FakeProducer] = {}
        self.saved: list[bool] = []

    def names(self) -> dict[str, Any]:
        place, keeper = self.place, self.place.keeper
        names: dict[str, Any] = {"place": place, "names": place.names, "keeper": keeper}
        names |= {"saved": self.saved, "served": self.served, "why": why, "UNIX": UNIX}
        names |= {"on_disk": place.on_disk, "documents": keeper.documents, "Range": SnapshotRange}
        names |= {"written": encode_position, "read": decode_position, "TapCursor": TapCursor}
        return names | {each.name: each for each in ConnectFlag if each.name} | self.clients

    def do_settings(self, *words: str) -> None:
        pairs = [each.split("=") for each in words]
        settings = {"keepalive_s": 0.0} | {
            name: int(text) if name == "names" else float(text) for name, text in pairs
        }
        self.place = Place(TapSettings(**settings))  # type: ignore[arg-type]

    def do_connect(self, name: str, *words: str) -> None:
        flags, rest = 0, {}
        for each in words:
            option, _, text = each.partition("=")
            if text:
                rest[option] = self.value(text)
            elif each in ("LIVE", "REGISTERED"):
                flags |= LIVE if each == "LIVE" else REGISTERED
            else:
                flags |= ConnectFlag[each]
        asked = b"" if name == "-" else name.encode()
        known = self.place.connect(asked, flags, **rest)
        self.clients[name.replace("-", "anonymous")] = known
        assert isinstance(known.producer, FakeProducer)
        self.served[name] = known.producer

    def do_moved(self, name: str, acked: str = "10") -> None:
        moved(self.clients[name], int(acked))

    def do_leave(self, name: str) -> None:
        self.place.leave(self.clients[name])

    def do_finish(self, name: str) -> None:
        self.place.leave(self.clients[name], finished=True)

    def do_save(self, name: str) -> None:
        self.clients[name].save(self.saved.append)

    def do_wait(self, seconds: str) -> None:
        self.place.now += float(seconds)

    def do_tick(self, seconds: str = "0") -> None:
        self.place.tick(float(seconds))

    def do_restart(self) -> None:
        self.place.restart()

    def do_deregister(self, name: str) -> None:
        self.place.names.deregister(name.encode())

    def do_disk(self, what: str) -> None:
        keeper = self.place.keeper
        if what in ("finish", "finish_all"):
            getattr(keeper, what)()
        elif what == "patient":
            keeper.patient = True
        else:
            keeper.works = what == "works"


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("commands", cases(Path(__file__).parent / "transcripts", "*.names"))
def test_names_are_known_as_the_transcript_says(commands: list[str]) -> None:
    play = Play()
    for command in commands:
        play.do(command)


def test_the_longest_name_is_taken_and_one_byte_more_is_not() -> None:
    place = Place()
    place.connect(b"n" * NAME_BYTES_MAX)
    with pytest.raises(InvalidArguments):
        place.connect(b"n" * (NAME_BYTES_MAX + 1))
    assert len(place.names) == 1


# --- checkpoints ----------------------------------------------------------------------------------


def test_the_newest_closed_checkpoints_are_remembered() -> None:
    known = Place().connect(b"node1")
    known.cursors[3] = cursor = TapCursor()
    for number in range(1, CHECKPOINTS_KEPT + 1):
        known.closed(3, number, number * 10)
    assert len(cursor.closed) == CHECKPOINTS_KEPT
    assert cursor.closed[1] == 10
    known.closed(3, CHECKPOINTS_KEPT + 1, 5)
    assert len(cursor.closed) == CHECKPOINTS_KEPT
    assert 1 not in cursor.closed
    assert cursor.closed[CHECKPOINTS_KEPT + 1] == 5


def test_a_client_with_many_vbuckets_keeps_fewer_of_each() -> None:
    known = Place().connect(b"node1")
    for vbucket in range(1_024):
        known.cursors[vbucket] = TapCursor()
        for number in range(1, 10):
            known.closed(vbucket, number, number)
    total = sum(len(cursor.closed) for cursor in known.cursors.values())
    assert total < CHECKPOINTS_OF_A_CLIENT * 3
    assert list(known.cursors[1_023].closed) == [6, 7, 8, 9]
    known.cursors = {vbucket: TapCursor() for vbucket in range(CHECKPOINTS_OF_A_CLIENT)}
    for number in range(1, 10):
        known.closed(3, number, number)
    assert list(known.cursors[3].closed) == [8, 9], "the last two in any case"
    assert CHECKPOINTS_LEAST == 2


def test_a_checkpoint_that_is_closed_twice_is_the_newest_again() -> None:
    cursor = TapCursor(closed={1: 10, 2: 20})
    cursor.close_checkpoint(1, 11, kept=2)
    assert list(cursor.closed.items()) == [(2, 20), (1, 11)]


def test_above_a_branch_of_history_no_place_is_left_to_resume_from() -> None:
    cursor = TapCursor(
        acked=30,
        snapshot=SnapshotRange(20, 40),
        sent=35,
        checkpoint_id=4,
        closed={1: 10, 2: 15, 3: 20},
        checkpoint_after=20,
    )
    cursor.branched(15)
    assert (cursor.acked, cursor.snapshot, cursor.sent) == (15, SnapshotRange(15, 15), 35)
    assert (cursor.closed, cursor.checkpoint_id, cursor.checkpoint_after) == ({1: 10, 2: 15}, 4, 15)
    cursor = TapCursor(acked=10, snapshot=SnapshotRange(5, 20), sent=18)
    cursor.branched(15)
    assert (cursor.acked, cursor.snapshot) == (10, SnapshotRange(5, 20))


def test_a_backfill_is_no_checkpoint_to_restart() -> None:
    cursor = TapCursor(acked=14)
    cursor.restart_checkpoint()
    assert cursor.acked == 14
