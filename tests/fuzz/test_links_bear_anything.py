"""Whatever a source says to a node that follows it, nothing is believed that cannot be so.

The source is `tests.fuzz.source`: it tells the truth of its documents, and so many lies. What must
hold is in `tests.fuzz.link_harness`. ``UPRMC_FUZZ_FRAMES=1000000 pytest tests/fuzz`` runs longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fuzz.link_harness import run
from uprmc.engine import replica
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import decode_failover_log
from uprmc.upr import link
from uprmc.upr.link import ReplicaLink
from uprmc.upr.receiver import Receiver
from uprmc.upr.undo import Undo

#: Connections of one seed, and about how many frames that are.
_CONNECTIONS, _FRAMES = 12, 250

_SEEDS = range(max(12, int(os.environ.get("UPRMC_FUZZ_FRAMES", "0")) // (3 * _FRAMES)))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D51")
def test_a_link_bears_any_source(seed: int, share: float) -> None:
    """Rollbacks, hand-overs, answers, markers, logs, bytes: any of them may be a lie."""
    run(seed, _CONNECTIONS, share)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D51")
def test_told_the_truth_a_replica_ends_equal(seed: int) -> None:
    """The source branches and purges, connections are cut, and the node crashes."""
    fuzz = run(seed, _CONNECTIONS, 0.0)
    assert not fuzz.errors, "the truth is taken for a lie"


def test_the_lies_reach_the_places_where_they_could_hurt() -> None:
    """Replicas get whole, are sent back and are taken over among all of it."""
    seen: set[str] = set()
    errors: list[str] = []
    for seed in (*range(20), *range(100, 104)):
        fuzz = run(seed, _CONNECTIONS, 0.02 if seed < 100 else 0.1)
        seen |= fuzz.seen
        errors += fuzz.errors
    assert seen >= {"whole", "back", "taken", "crashed", "hung up"}
    for words in (
        "after",
        "was cut short",
        "which has no stream",
        "was not requested",
        "a failover log",
    ):
        assert any(words in error for error in errors), words


# --- the net holds --------------------------------------------------------------------------------


def _caught(match: str, share: float = 0.1) -> None:
    with pytest.raises(AssertionError, match=match):
        _run_some(share)


def _run_some(share: float) -> None:
    for seed in range(300):  # the rarest fault shows once in a hundred and fifty
        run(seed, _CONNECTIONS, share)


def test_the_net_catches_an_error_that_gets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(link: ReplicaLink, request: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(link._HANDLERS, Opcode.UPR_DELETION, broken)
    _caught(r"seed \d+, share 0.1, .*ValueError: a bug")


def test_the_net_catches_a_whole_state_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = replica.apply_all

    def rash(vbucket: Any, *arguments: Any) -> None:
        adopt(vbucket, *arguments)
        vbucket.receiving = None

    monkeypatch.setattr("uprmc.upr.intake.apply_all", rash)
    _caught("never a whole state", 0.0)


def test_the_net_catches_a_hand_over_that_nobody_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(link._HANDLERS, Opcode.UPR_SET_VBUCKET_STATE, Receiver._set_state)
    _caught("nobody has asked for that")


def test_the_net_catches_a_log_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaLink, "read_log", lambda link, value: decode_failover_log(value))
    _caught("a failover log of")


def test_the_net_catches_versions_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that leaves out what was overwritten, so that the replica lacks documents."""
    roll_back = replica.roll_back

    def forgetful(bucket: Any, vbucket: Any, given: replica.Rewind, done: Any) -> None:
        roll_back(bucket, vbucket, given._replace(versions=given.versions[:-1]), done)

    monkeypatch.setattr("uprmc.upr.undo.roll_back", forgetful)
    _caught("never get equal", 0.0)


def test_the_net_catches_a_link_that_loses_count(monkeypatch: pytest.MonkeyPatch) -> None:
    came = Undo._came

    def twice(one: Undo, place: int, answer: Any) -> None:
        one._receiver.undos.asked -= 1
        came(one, place, answer)

    monkeypatch.setattr(Undo, "_came", twice)
    _caught("asked, .* wait", 0.0)
