"""Whatever a peer sends, a session goes on or hangs up; it never raises and never hoards.

``UPRMC_FUZZ_FRAMES=1000000 pytest tests/fuzz`` sends that many requests in all instead of 20,000.
"""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest

from tests.fuzz import grammar, upr_grammar
from tests.fuzz.harness import run
from uprmc.kv.binary import HANDLERS
from uprmc.kv.conversation import Conversation

#: Requests of one seed; more requests mean more seeds.
_SHARE = 2_500

_filling = upr_grammar.filling_request

_SEEDS = range(max(1, int(os.environ.get("UPRMC_FUZZ_FRAMES", "20000")) // (2 * _SHARE)))


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_binary_session_bears_any_bytes(seed: int) -> None:
    """Half of the connections send nonsense among valid frames, some nothing but nonsense."""
    run(seed, _SHARE, grammar.binary_request, grammar.spoil_header)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_upr_session_bears_any_bytes(seed: int) -> None:
    """Streams, barriers and leases asked for in every way, amid writes."""
    run(seed, _SHARE, grammar.upr_conversation, grammar.spoil_header, upr_grammar.upr_greeting)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_session_that_fills_replicas_bears_any_bytes(seed: int) -> None:
    """Streams added to it, and answers and frames of producers that nobody has spliced."""
    run(seed, _SHARE, _filling, grammar.spoil_header, upr_grammar.filling_greeting)


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_text_session_bears_any_bytes(seed: int) -> None:
    """The same with lines and data blocks."""
    run(seed, _SHARE, grammar.text_request, grammar.spoil_line)


def test_the_nonsense_reaches_the_places_where_it_could_hurt() -> None:
    """Some connections are hung up on, and some commands wait for the disk."""
    for request, spoil in (
        (grammar.binary_request, grammar.spoil_header),
        (grammar.text_request, grammar.spoil_line),
    ):
        fuzz = run(0, 2 * _SHARE, request, spoil)
        assert fuzz.closed
        assert fuzz.fetches


def test_the_nonsense_of_upr_peers_does_not_keep_them_from_streaming() -> None:
    """Markers, mutations, deletions and stream ends are sent among it."""
    fuzz = run(
        0, 4 * _SHARE, grammar.upr_conversation, grammar.spoil_header, upr_grammar.upr_greeting
    )
    assert fuzz.closed
    assert fuzz.streamed >= {0x55, 0x56, 0x57, 0x58}


def test_the_nonsense_reaches_what_operates_replicas() -> None:
    """Sources are followed, dialled and taken over from; versions asked for; replicas filled."""
    wanted = {0xD7, 0xD8, 0xD9, 0xE7}
    granted: set[int] = set()
    for seed in range(12):  # one seed may be without a takeover
        if granted >= wanted:
            break
        fuzz = run(
            seed,
            4 * _SHARE,
            grammar.upr_conversation,
            grammar.spoil_header,
            upr_grammar.upr_greeting,
        )
        granted |= fuzz.granted
        assert fuzz.dialler.connected
    assert granted >= wanted
    fuzz = run(0, _SHARE, _filling, grammar.spoil_header, upr_grammar.filling_greeting)
    assert fuzz.granted >= {0x51}
    assert fuzz.streamed >= {0x53}


def test_connections_leave_nothing_behind() -> None:
    """Memory after twice as many connections is what it was after half of them."""
    sizes = []
    tracemalloc.start()
    try:
        for requests in (500, 1_000):
            run(1, requests, grammar.binary_request, grammar.spoil_header)
            run(1, requests, grammar.text_request, grammar.spoil_line)
            run(
                *(1, requests, grammar.upr_conversation, grammar.spoil_header),
                greeting=upr_grammar.upr_greeting,
            )
            gc.collect()  # construct leaves cycles, which the server's collector tends to
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 20_000


def test_the_net_catches_a_command_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one command is found, with the seed that shows it."""

    def broken(session: object, request: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(HANDLERS, 0x0A, broken)
    with pytest.raises(AssertionError, match=r"seed 0, .*ValueError: a bug"):
        run(0, _SHARE, grammar.binary_request, grammar.spoil_header)


def test_the_net_catches_a_session_that_hoards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that keeps what it has used."""
    monkeypatch.setattr(Conversation, "_take_input", lambda session: b"".join(session._chunks))
    with pytest.raises(AssertionError, match=r"held|what it holds"):
        run(0, _SHARE, grammar.binary_request, grammar.spoil_header)


def test_the_net_catches_a_session_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that forgets to go on when its value has come."""
    monkeypatch.setattr(Conversation, "resume", lambda session: None)
    with pytest.raises(AssertionError, match="does not go on"):
        run(0, _SHARE, grammar.binary_request, grammar.spoil_header)
