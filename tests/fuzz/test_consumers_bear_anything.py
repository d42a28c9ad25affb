"""Whatever nodes say to a consumer, its handler and its state get nothing that cannot be so.

The nodes are `tests.fuzz.source`. What must hold is in `tests.fuzz.client_harness`.
``UPRMC_FUZZ_FRAMES=1000000 pytest tests/fuzz`` runs longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fuzz.client_harness import run
from uprmc.client.position import PositionWriter, VBucketPlace
from uprmc.client.streams import ClientStreams
from uprmc.remote.batch import Received

#: Lives of one seed, and about how often something is received in them.
_LIVES, _FRAMES = 10, 250

_SEEDS = range(1, 1 + max(10, int(os.environ.get("UPRMC_FUZZ_FRAMES", "0")) // (3 * _FRAMES)))


@pytest.mark.parametrize("share", [0.005, 0.03, 0.2])
@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D44", "D45")
def test_a_consumer_bears_any_node(seed: int, share: float) -> None:
    """Errors have names, positions were really given, every key can be undone."""
    run(seed, _LIVES, share)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D44", "D45", "D49")
def test_told_the_truth_a_consumer_ends_equal(seed: int) -> None:
    """Histories branch and begin anew, deletions are purged, the consumer dies again and again."""
    fuzz = run(seed, _LIVES, 0.0)
    assert not fuzz.errors, "the truth is taken for a lie"


def test_the_lies_reach_the_places_where_they_could_hurt() -> None:
    """Snapshots get whole, keys are undone, and most kinds of nonsense are found."""
    seen: set[str] = set()
    errors: list[str] = []
    for seed in range(1, 13):
        fuzz = run(seed, _LIVES, 0.02)
        seen |= fuzz.judge.seen
        errors += fuzz.errors
    assert seen >= {"whole", "rolled back", "undone"}
    for words in ("outside of its snapshot", "before any snapshot", "no UPR", "never requested"):
        assert any(words in error for error in errors), words


# --- the net holds --------------------------------------------------------------------------------


def _caught(match: str, share: float) -> None:
    with pytest.raises(AssertionError, match=match):
        _run_some(share)


def _run_some(share: float) -> None:
    for seed in range(30):
        run(seed, _LIVES, share)


def test_the_net_catches_an_error_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(streams: ClientStreams, route: Any, words: str) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(ClientStreams, "ended", broken)
    _caught(r"seed \d+, share 0.05, .*ValueError: a bug", 0.05)


def test_the_net_catches_a_key_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row D44: a key is written before its change is handed over."""
    monkeypatch.setattr(PositionWriter, "_remember", lambda *_: None)
    _caught("not in the ring", 0.0)


def test_the_net_catches_data_outside_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Received.begin

    def silent(received: Received, stream: Any, marker: Any) -> None:
        begin(received, stream, marker)
        assert received.batch is not None
        received.batch.runs[-1].begun = None

    monkeypatch.setattr(Received, "begin", silent)
    _caught("outside of a snapshot", 0.0)


def test_the_net_catches_a_place_ahead_of_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VBucketPlace, "begin", lambda place, end, purge_seqno: place.complete(end))
    _caught("is saved|nobody was ever|an end of no snapshot|never get equal", 0.0)


def test_the_net_catches_keys_that_are_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_above = PositionWriter.keys_above

    def forgetful(writer: PositionWriter, vbucket: int, seqno: int) -> list[bytes]:
        return keys_above(writer, vbucket, seqno)[:-1]

    monkeypatch.setattr(PositionWriter, "keys_above", forgetful)
    _caught("never get equal|cannot be undone", 0.0)
