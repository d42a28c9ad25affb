"""``kill -9`` at any moment: what was confirmed as persisted is there after the restart.

A real ``uprmc serve`` is killed again and again on one data directory, each time at a random
moment of a busy writer; after every restart the judge compares all keys with what was confirmed.
``--crash-rounds N`` sets how often, ``--crash-seed N`` repeats the random choices of a run (the
server's own timing is not repeated, so a failure may need several tries).
"""

from __future__ import annotations

import secrets
import struct
import time
from pathlib import Path
from random import Random

import pytest

from interop.server_process import Address, ServerProcess, start_uprmc
from interop.wire import EXISTS, FLUSH, OK, SET, Wire, frame, store, vbucket_of
from tests.crash.judge import Judge, value_of
from tests.crash.writer import Writer, read_all, wait_until_persisted

pytestmark = pytest.mark.crash

KEYS = [b"crash-%d" % number for number in range(2_000)]
LONGEST_WRITING_S = 0.8

SET_WITH_META, STOP_PERSISTENCE = 0xA2, 0x80


def upr(server: ServerProcess) -> Address:
    assert server.upr is not None
    return server.upr


@pytest.mark.acceptance("D21")
def test_what_was_confirmed_as_persisted_survives_kill_9_at_any_moment(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = request.config.getoption("--crash-rounds")
    asked_for: int | None = request.config.getoption("--crash-seed")
    seed = secrets.randbits(32) if asked_for is None else asked_for
    print(f"repeat with: pytest tests/crash --crash-seed {seed} --crash-rounds {rounds}")  # noqa: T201 - shown when the test fails
    random, judge = Random(seed), Judge()
    version = confirmations = killed_with_open_writes = 0

    for number in range(rounds):
        with start_uprmc(tmp_path) as server:
            complaints = judge.restarted(read_all(upr(server), judge.keys))
            assert not complaints, f"seed {seed}, round {number}: " + "\n".join(complaints[:20])
            writer = Writer(upr(server), KEYS, random, judge, version)
            try:
                writer.write_until(time.monotonic() + random.uniform(0.01, LONGEST_WRITING_S))
                server.kill()
                writer.drain()
            finally:
                writer.close()
            version = writer.version
            confirmations += writer.confirmations
            killed_with_open_writes += judge.unconfirmed() > 0

    with start_uprmc(tmp_path) as server:
        complaints = judge.restarted(read_all(upr(server), judge.keys))
        assert not complaints, f"seed {seed}, at the end: " + "\n".join(complaints[:20])
        writer = Writer(upr(server), KEYS, random, judge, version)
        try:
            writer.write_until(time.monotonic() + 0.3)
            writer.finish(30.0)
        finally:
            writer.close()
        server.stop()
    judge.confirm_everything()

    with start_uprmc(tmp_path) as server:
        complaints = judge.restarted(read_all(upr(server), judge.keys))
        assert not complaints, f"seed {seed}, after SIGTERM: " + "\n".join(complaints[:20])
        server.stop()

    # A run in which nothing could have been lost, or nothing was promised, would prove nothing.
    assert killed_with_open_writes > rounds // 2
    assert confirmations > 50 * rounds


@pytest.mark.parametrize("protocol", ["text", "binary"])
@pytest.mark.parametrize("age", ["persisted", "just written"])
def test_nothing_old_is_readable_after_an_acknowledged_flush_and_kill_9(
    tmp_path: Path, age: str, protocol: str
) -> None:
    keys = KEYS[:1_000]
    with start_uprmc(tmp_path) as server:
        with Wire(upr(server)) as wire:
            wire.send(*(store(SET, k, value_of(k, 1), vbucket=vbucket_of(k)) for k in keys))
            assert {wire.reply().status for _ in keys} == {OK}
        if age == "persisted":
            wait_until_persisted(upr(server), keys)
        with Wire(server.memcached) as wire:
            if protocol == "text":
                wire.send(b"flush_all\r\n")
                assert wire.line() == b"OK\r\n"
            else:
                assert wire.ask(frame(FLUSH)).status == OK
        server.kill()
    with start_uprmc(tmp_path) as server:
        held = {key for key, value in read_all(upr(server), keys).items() if value is not None}
        assert held == set()
        with Wire(upr(server)) as wire:
            key = keys[0]
            new = store(SET, key, b"new", vbucket=vbucket_of(key))
            assert wire.ask(new).status == OK
        server.stop()
    with start_uprmc(tmp_path) as server:
        found = read_all(upr(server), keys)
        assert {key: value for key, value in found.items() if value is not None} == {key: b"new"}
        server.stop()


@pytest.mark.acceptance("D04")
def test_a_cas_that_was_lost_with_kill_9_never_matches_another_value(tmp_path: Path) -> None:
    """A peer a minute ahead had drawn the CAS values along, beyond what the clock says."""
    key = b"drawn along"
    place = vbucket_of(key)
    ahead = (int(time.time()) + 60) * 10**9
    with start_uprmc(tmp_path) as server, Wire(upr(server)) as wire:
        extras = struct.pack(">IIQQ", 0, 0, 1, ahead)
        taken = frame(SET_WITH_META, key, b"taken", extras=extras, vbucket=place)
        assert wire.ask(taken).status == OK
        wait_until_persisted(upr(server), [key])
        assert wire.ask(frame(STOP_PERSISTENCE)).status == OK
        lost = wire.ask(store(SET, key, b"lost", vbucket=place)).cas
        assert lost > ahead
        server.kill()
    with start_uprmc(tmp_path) as server, Wire(upr(server)) as wire:
        new = wire.ask(store(SET, key, b"new", vbucket=place)).cas
        assert new > ahead + 2**32 * 1_000
        late = wire.ask(store(SET, key, b"from the past", vbucket=place, cas=lost))
        assert late.status == EXISTS
        server.stop()
