"""What the TAP adapter asks a producer beside its streams, one task for each question.

Any producer since UPR 3.0 will do, so every question has a way round for who does not know it: the
statistics tell what GET_ALL_VB_SEQNOS (4.0) tells, controls that are refused are done without, and
single documents are only asked of a node of ours.

Source: UPR reference 2.1, 2.11, 6 and 6.1; ``docs/extensions.md``, GET_VERSION.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from uprmc import __version__
from uprmc.client.ask import Ask, Task
from uprmc.client.errors import OpenRefused, ProducerError
from uprmc.client.node_session import NodeSession
from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, Item, Life, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import VBUCKET_SEQNOS_EXTRAS, decode_vbucket_seqnos
from uprmc.protocol.opcodes import Opcode, OpenFlag, Status
from uprmc.remote import features, undo
from uprmc.tap_adapter.upstream import Standing

#: Interval of keep-alives; the shortest that 2014's documents allow.
NOOP_INTERVAL_S = 20.0

_LIVING = (VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING)
_STATES = {state.name.lower(): state for state in _LIVING}
_VBUCKET_ROW = re.compile(r"vb_([0-9]{1,5})(?::(high_seqno))?")
_VBUCKET_MAX = 0xFFFF

#: Refusals of a question that another one may replace.
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.INVALID_ARGUMENTS, Status.NOT_SUPPORTED})


class Statistics(NamedTuple):
    """A task yields this to be given the rows of a group, or ``None`` if it is refused."""

    group: str


def handshake(session: NodeSession, name: bytes, buffer_bytes: int, *, values: bool) -> Task:
    """Open the connection; who does not know "no values" sends them.

    Raises:
        OpenRefused: the producer does not want us.
    """
    yield from session.opening.log_in(in_turns=True)
    asked = features.TAP_UPSTREAM
    hello = asked.hello(b"uprmc tap-adapter/" + __version__.encode())
    _, opened = yield Ask([hello, asked.open(name, 0 if values else OpenFlag.NO_VALUE)])
    if opened.status == Status.INVALID_ARGUMENTS and not values:
        (opened,) = yield Ask([asked.open(name)])
    if opened.status:
        raise OpenRefused(f"{session.place} refuses a UPR connection: {opened.reason}")
    controls = asked.controls(buffer_bytes=buffer_bytes, interval_s=NOOP_INTERVAL_S)
    answers = yield Ask(controls)
    session.grant(features.granted(controls, answers))
    session.has_versions = features.is_ours(session.granted)
    session.open = True


# --- where vBuckets stand -------------------------------------------------------------------------


def survey(session: NodeSession, numbers: Sequence[int] | None) -> Task:
    """Return the `Standing` of each of the vBuckets that are there, by number; ``None`` = all.

    Raises:
        ProducerError: no such question is answered, or the answer makes no sense.
    """
    places = yield from _by_seqnos()
    if places is None:
        places = yield from _by_statistics()
    if places is None:
        raise ProducerError(
            f"the upstream at {session.place} does not tell its vBuckets, neither by "
            "GET_ALL_VB_SEQNOS nor by statistics"
        )
    wanted = sorted(places if numbers is None else places.keys() & set(numbers))
    logs = yield Ask([RequestFrame(Opcode.UPR_GET_FAILOVER_LOG, vbucket=n) for n in wanted])
    found: dict[int, Standing] = {}
    for number, answer in zip(wanted, logs, strict=True):
        if answer.status == Status.NOT_MY_VBUCKET:
            continue  # it has gone meanwhile
        if answer.status:
            raise ProducerError(
                f"the upstream at {session.place} does not tell the failover log of vBucket "
                f"{number}: {answer.reason}"
            )
        state, high_seqno = places[number]
        found[number] = Standing(state, high_seqno, session.decoder.log(answer, number)[0].uuid)
    return found


def _by_seqnos() -> Task:
    answers = yield Ask(
        [
            RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=VBUCKET_SEQNOS_EXTRAS.pack(state))
            for state in _LIVING
        ]
    )
    if any(answer.status in _UNKNOWN for answer in answers):
        return None
    found: dict[int, tuple[int, int]] = {}
    for state, answer in zip(_LIVING, answers, strict=True):
        found.update((number, (int(state), seqno)) for number, seqno in _seqnos(answer))
    return found


def _seqnos(answer: ResponseFrame) -> list[tuple[int, int]]:
    if answer.status:
        raise ProducerError(f"the upstream does not tell its seqnos: {answer.reason}")
    try:
        return decode_vbucket_seqnos(answer.value)
    except RemoteProtocolError as error:
        raise ProducerError(f"the upstream sent a torn list of seqnos: {error}") from None


def _by_statistics() -> Task:
    states = yield Statistics("vbucket")
    seqnos = yield Statistics("vbucket-seqno")
    if states is None or seqnos is None:
        return None
    highs = _high_seqnos(seqnos)
    found: dict[int, tuple[int, int]] = {}
    for name, text in states.items():
        matched = _VBUCKET_ROW.fullmatch(name)
        number = int(matched[1]) if matched and not matched[2] else -1
        if number in highs and text in _STATES:
            found[number] = (int(_STATES[text]), highs[number])
    return found


def _high_seqnos(rows: Mapping[str, str]) -> dict[int, int]:
    """Return one column of ``vbucket-seqno``."""
    found: dict[int, int] = {}
    for name, text in rows.items():
        matched = _VBUCKET_ROW.fullmatch(name)
        plausible = matched and matched[2] and re.fullmatch(r"[0-9]{1,20}", text)
        if matched and plausible and int(matched[1]) <= _VBUCKET_MAX:
            found[int(matched[1])] = min(int(text), SEQNO_MAX)
    return found


# --- single documents -----------------------------------------------------------------------------


def fetch(session: NodeSession, number: int, keys: Sequence[bytes]) -> Task:
    """Return the newest version of each key, in order; ``None`` = it cannot be had there.

    Raises:
        ProducerError: an answer makes no sense.
    """
    if not session.has_versions:
        return None  # many hang up on a command that they do not know
    answers = yield Ask([undo.question(number, key) for key in keys])
    found: list[Item] = []
    for key, answer in zip(keys, answers, strict=True):
        try:
            version = undo.version(key, answer)
        except undo.Refused:
            return None
        except RemoteProtocolError as error:
            words = f"the upstream at {session.place} sent a torn document: {error}"
            raise ProducerError(words) from None
        found.append(_missing(key) if version.item is None else version.item)
    return found


def _missing(key: bytes) -> Item:
    return Item(key, None, 0, 0, 0, 0, 0, life=Life.DELETED)
