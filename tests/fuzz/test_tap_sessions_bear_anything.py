"""Whatever a TAP client or a TAP master sends, its session goes on or hangs up, and no one else.

See `test_sessions_bear_anything`.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz import grammar, tap_grammar
from tests.fuzz.harness import Fuzz, run
from uprmc.tap_adapter.consumer import TapConsumer
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.session import TapRegistry

_SHARE = 2_500
_SEEDS = range(max(1, int(os.environ.get("UPRMC_FUZZ_FRAMES", "20000")) // (2 * _SHARE)))


def _clients(seed: int, requests: int = _SHARE) -> Fuzz:
    return run(
        *(seed, requests, tap_grammar.client_request, grammar.spoil_header),
        greeting=tap_grammar.greeting,
    )


def _masters(seed: int, requests: int = _SHARE) -> Fuzz:
    return run(
        *(seed, requests, tap_grammar.push, grammar.spoil_header),
        greeting=tap_grammar.push_greeting,
    )


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D56")
def test_a_tap_session_bears_any_bytes(seed: int) -> None:
    """Connects of all kinds, answers to everything and nothing, commands in between."""
    _clients(seed)


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.acceptance("D56")
def test_a_session_that_is_pushed_into_bears_any_bytes(seed: int) -> None:
    """Sections cut short, lengths that contradict each other, boundaries without a beginning."""
    _masters(seed)


def test_the_nonsense_of_tap_peers_reaches_the_places_where_it_could_hurt() -> None:
    """Streams go on among it: items, commands, checkpoints; pushes are taken and refused."""
    clients = _clients(0, 4 * _SHARE)
    assert clients.closed
    assert clients.streamed >= {0x41, 0x42, 0x44, 0x45, 0x46}
    masters = _masters(0, 2 * _SHARE)
    assert masters.closed
    assert masters.granted >= set(range(0x41, 0x48))


def test_the_net_catches_an_answer_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the producer is found, with the seed that shows it."""

    def broken(producer: TapProducer, opcode: int, opaque: int, status: int) -> None:
        raise KeyError(opaque)

    monkeypatch.setattr(TapProducer, "answered", broken)
    with pytest.raises(AssertionError, match=r"seed 0, .*KeyError"):
        _clients(0)


def test_the_net_catches_a_stream_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is gone, and its stream is not."""
    monkeypatch.setattr(TapRegistry, "close", lambda door, opened: None)
    with pytest.raises(AssertionError, match="stay"):
        _clients(0)


def test_the_net_catches_a_push_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of a master's connection."""
    monkeypatch.setattr(TapConsumer, "close", lambda consumer: None)
    with pytest.raises(AssertionError, match="stay"):
        _masters(0)
