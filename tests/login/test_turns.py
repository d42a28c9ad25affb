"""A node that is dialled chooses how much a login computes; no turn of the reactor has it all."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from tests.codec.frames import HEADER, Frame, reply
from tests.kv.harness import Rig
from uprmc.client.tap_upstream import RemoteUpstream
from uprmc.login import scram
from uprmc.login.credentials import Credentials
from uprmc.login.scram import ITERATIONS_MAX, TURN_ITERATIONS
from uprmc.ports import Session
from uprmc.remote.login import login_in_turns
from uprmc.upr.link import ReplicaLink
from uprmc.xdcr.target import TargetSession

ANN = Credentials("ann", "pencil")
HELLO, LIST, AUTH, STEP = 0x1F, 0x20, 0x21, 0x22
CONTINUE = 0x21


class Linked(TargetSession):
    """A connection of a link, that goes on with nothing."""

    def _welcomed(self) -> None:
        """Be content."""

    def _fail(self, why: str, *, final: bool) -> None:
        raise AssertionError(why)

    def _lost(self) -> None:
        """Be content."""


def replica(rig: Rig, wake: Callable[[], None]) -> Session:
    hub = rig.services.upr
    hub.credentials = ANN
    return ReplicaLink(hub, b"name", wake, None, "127.0.0.1:1")


def link(rig: Rig, wake: Callable[[], None]) -> Session:
    login = login_in_turns(ANN, b"nonce", safe=True)
    return Linked("127.0.0.1:1", [], login, rig.settings, rig.clock, wake)


def tap_upstream(rig: Rig, wake: Callable[[], None]) -> Session:
    found: list[Session] = []

    def dial(place: str, make: Callable[[Callable[[], None]], Session], failed: object) -> Any:
        found.append(make(wake))

    RemoteUpstream(dial, "127.0.0.1:1", b"name", True, lambda: None, credentials=ANN)
    return found[0]


def asked(session: Session) -> list[Frame]:
    """Return the requests of one pull."""
    data, found = b"".join(session.data_to_send(1 << 20)), []
    while data:
        size = HEADER.size + int.from_bytes(data[8:12])
        found.append(Frame.of(data[:size]))
        data = data[size:]
    return found


@pytest.mark.parametrize("make", [replica, link, tap_upstream])
def test_a_proof_is_computed_in_turns_however_much_is_asked_for(
    make: Callable[[Rig, Callable[[], None]], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(scram.hashlib, "pbkdf2_hmac")  # all of it at once
    wakes: list[None] = []
    session = make(Rig(), lambda: wakes.append(None))
    last = asked(session)[-1]
    if last.opcode == HELLO:
        session.receive_data(reply(last))
        (last,) = asked(session)
    assert last.opcode == LIST
    session.receive_data(reply(last, value=b"SCRAM-SHA512"))
    (last,) = asked(session)
    assert last.opcode == AUTH
    nonce = last.value.rpartition(b"r=")[2]
    challenge = b"r=%bmore,s=%b,i=%d" % (nonce, b64encode(b"salt" * 4), ITERATIONS_MAX)
    session.receive_data(reply(last, CONTINUE, value=challenge))
    turns = 0
    while not (proof := asked(session)):
        turns += 1
        assert wakes.pop() is None  # or it would not be asked again
        wakes.clear()
    assert proof[0].opcode == STEP
    assert turns == ITERATIONS_MAX // TURN_ITERATIONS - 1  # the first came with the challenge
    session.connection_lost()


@pytest.mark.parametrize("make", [replica, link, tap_upstream])
def test_a_login_that_computes_ends_with_its_connection(
    make: Callable[[Rig, Callable[[], None]], Session],
) -> None:
    session = make(Rig(), lambda: None)
    last = asked(session)[-1]
    if last.opcode == HELLO:
        session.receive_data(reply(last))
        (last,) = asked(session)
    session.receive_data(reply(last, value=b"SCRAM-SHA1"))
    (last,) = asked(session)
    nonce = last.value.rpartition(b"r=")[2]
    challenge = b"r=%bmore,s=%b,i=4096" % (nonce, b64encode(b"salt" * 4))
    session.receive_data(reply(last, CONTINUE, value=challenge))
    session.connection_lost()
    assert session.closing
    assert all(asked(session) == [] for _ in range(20))
