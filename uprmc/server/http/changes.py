"""``/changes``: the changes of this node, as lines of JSON or as server-sent events, without end.

Each reader is a consumer of the node's own streams: the client library, over a socket pair that
ends in the node's own sessions. So the guarantees are those of every stream; snapshots, going back
and flow control included. While a reader does not read, its stream is held back.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import socket
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.client.errors import NotActive
from uprmc.client.handler import (
    Change,
    Handler,
    Rollback,
    Shown,
    SnapshotBegin,
    SnapshotEnd,
    as_fields,
)
from uprmc.client.state import Saved
from uprmc.client.twisted_client import TwistedUprClient
from uprmc.config import HttpSettings
from uprmc.engine.vbucket import VBucket
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.remote.ranges import named, parsed
from uprmc.rollback import history_of
from uprmc.server.http.endless import BadQuestion, Outflow, wants_events
from uprmc.server.log import Log
from uprmc.server.net.connections import Buffers

# --- tokens ---------------------------------------------------------------------------------------
# Tokens of ``/changes``: where a reader stands in each vBucket, as text that a URL can have.
#
# A token says of each vBucket which seqno the reader has, the snapshot that this seqno lies in, and
# the complete number of its history. So a reader goes on behind the last change that it has, also
# inside of a snapshot, and a node never takes another history for the reader's.
#
#     byte 0    `_FORMAT`
#     byte 1    width of seqnos
#     byte 2    width of numbers of histories
#     3 bytes   how many vBuckets stand at the end of a snapshot
#     of each   vBucket (2 bytes), seqno, history
#     of each inside of a snapshot   vBucket, seqno, history, start and end of the snapshot
#
# All in base64. With 1,024 vBuckets, seqnos below 2^32 and histories of a node of this library it
# takes 16 KiB, 27 KiB if the reader is inside of a snapshot in all of them, and never more than 47.


_FORMAT = 0x81
_HEAD_BYTES = 6


def encoded(places: Mapping[int, Saved]) -> str:
    """Return the token of some places; a vBucket at the beginning is left out."""
    rows = [
        (vbucket, *place[:2], history_of(place.log, place.seqno))
        for vbucket, place in sorted(places.items())
    ]
    whole = [row for row in rows if row[1] and not row[2].start < row[1] < row[2].end]
    inside = [row for row in rows if row[2].start < row[1] < row[2].end]
    width = _width(max((max(row[1], row[2].end) for row in rows), default=0))
    uuid_width = _width(max((row[3] for row in rows), default=0))
    pieces = [bytes([_FORMAT, width, uuid_width]), len(whole).to_bytes(3)]
    for vbucket, seqno, snapshot, uuid in (*whole, *inside):
        pieces += vbucket.to_bytes(2), seqno.to_bytes(width), uuid.to_bytes(uuid_width)
        if snapshot.start < seqno < snapshot.end:
            pieces += snapshot.start.to_bytes(width), snapshot.end.to_bytes(width)
    return urlsafe_b64encode(b"".join(pieces)).rstrip(b"=").decode()


def decoded(token: str) -> dict[int, Saved]:
    """Return where a token stands in each vBucket that it names.

    Raises:
        ValueError: it is no token.
    """
    try:
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, Base64Error):
        raise ValueError("this is no token") from None
    if len(data) < _HEAD_BYTES or data[0] != _FORMAT:
        raise ValueError("this is no token")
    width, uuid_width, whole = data[1], data[2], int.from_bytes(data[3:_HEAD_BYTES])
    row_bytes = 2 + width + uuid_width
    middle = _HEAD_BYTES + whole * row_bytes
    ends, insides = data[_HEAD_BYTES:middle], data[middle:]
    if len(ends) != whole * row_bytes or len(insides) % (row_bytes + 2 * width):
        raise ValueError("this is no token")
    found = dict(_rows(ends, width, uuid_width, bounds=0))
    found |= _rows(insides, width, uuid_width, bounds=width)
    return found


def _rows(data: bytes, width: int, uuid_width: int, *, bounds: int) -> Iterator[tuple[int, Saved]]:
    """Yield the places of rows; `bounds` = the width of a snapshot's bounds, 0 = there are none."""
    seqnos, uuids = (1 << 8 * width) - 1, (1 << 8 * uuid_width) - 1
    step = 2 + width + uuid_width + 2 * bounds
    for at in range(0, len(data), step):
        row = int.from_bytes(data[at : at + step])
        start, end, row = row >> 8 * bounds & seqnos, row & seqnos, row >> 16 * bounds
        uuid, row = row & uuids, row >> 8 * uuid_width
        seqno, vbucket = row & seqnos, row >> 8 * width
        if not bounds:
            start = end = seqno
        if not (seqno and start <= seqno <= end <= SEQNO_MAX and uuid < 1 << 64):
            raise ValueError("this is no token")
        log = (FailoverEntry(uuid, 0),) if uuid else ()
        yield vbucket, Saved(seqno, SnapshotRange(start, end), log, seqno)


def _width(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)


# --- readers --------------------------------------------------------------------------------------


#: Changes that are sent in one turn.
_AT_ONCE = 32

#: Streams that a reader asks for in one turn, and gets in another one.
_STARTS_MAX = 64

#: Readers of no more vBuckets than this get a token after each snapshot.
_TOKEN_VBUCKETS = 8

#: Everybody gets one this often, while there is something new; also inside of snapshots.
POSITION_S = 1.0

#: An answer that is to end waits so long for a vBucket that can be had nowhere.
_PATIENCE_S = 1.0

_NODE = "node:1"

_log = Log("http")


@dataclass(frozen=True)
class ChangesQuestion:
    """What a reader asks for."""

    since: str = "now"  # ``now``, ``0``, or a token
    vbuckets: tuple[int, ...] | None = None  # which, ``None`` = all that are active
    prefix: bytes = b""  # of the keys
    values: bool = True  # whether lines have them
    once: bool = False  # end when everything has come that was there


_NAMES = ("since", "vbuckets", "prefix", "values", "until")


def question_of(request: Request) -> ChangesQuestion:
    """Read the question of a request; raises `BadQuestion`."""
    given = {name.decode("utf-8", "replace"): values[-1] for name, values in request.args.items()}
    for name in given:
        if name not in _NAMES:
            raise BadQuestion(f"{name}: say one of {', '.join(_NAMES)}")
    text = {name: value.decode("utf-8", "replace") for name, value in given.items()}
    last = request.getHeader("last-event-id")
    return ChangesQuestion(
        last or text.get("since", "now"),
        _vbuckets(text.get("vbuckets", "")),
        given.get("prefix", b""),
        _word("values", text.get("values", "yes"), {"yes": True, "no": False}),
        _word("until", text.get("until", "stopped"), {"now": True, "stopped": False}),
    )


def _vbuckets(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        return parsed(text)
    except ValueError as error:
        raise BadQuestion(f"vbuckets={text}: say {error}") from None


def _word(name: str, text: str, words: Mapping[str, bool]) -> bool:
    if text not in words:
        raise BadQuestion(f"{name}={text}: say {' or '.join(words)}")
    return words[text]


class Changes:
    """Answers the readers of one node.

    Args:
        adopt: makes a socket a connection of the node's own sessions.
        vbuckets: of the node.
        settings: how many readers there may be, and what each may hold.
        buffers: counts what they hold.
    """

    def __init__(
        self,
        reactor: Any,
        adopt: Callable[[Any], None],
        vbuckets: Mapping[int, VBucket],
        settings: HttpSettings,
        buffers: Buffers,
    ) -> None:
        self._settings = settings
        self._buffers = buffers
        self._reactor = reactor
        self._adopt = adopt
        self._vbuckets = vbuckets
        self._readers: dict[Outflow, TwistedUprClient] = {}

    def admit(self, request: Request) -> bool:
        """Answer a request with changes until it ends; ``False`` = there are too many readers.

        Raises:
            BadQuestion: the question makes no sense.
        """
        question = question_of(request)
        wanted = self._wanted(question)
        known = self._known(question.since)
        settings = self._settings
        if len(self._readers) >= settings.change_readers:
            return False
        outflow = Outflow(
            self._reactor,
            request,
            self._left,
            events=wants_events(request),
            timeout_s=settings.reader_timeout_s,
        )
        outflow.on_room = partial(self._buffers.forget, outflow)
        followed = wanted or [each.id for each in self._vbuckets.values()]
        feed = ChangeFeed(
            self._reactor, outflow, question, known, each_token=len(followed) <= _TOKEN_VBUCKETS
        )
        client = TwistedUprClient(
            _NODE,
            feed,
            name="http-changes",
            vbuckets=wanted,
            start=known,
            values=question.values,
            buffer_bytes=settings.reader_buffer_bytes,
            starts_max=_STARTS_MAX,
            replicas=True,
            endpoint=lambda reactor, *_: _Pair(reactor, self._adopt),
            reactor=self._reactor,
            patience_s=_PATIENCE_S if question.once else None,
        )
        feed.places = client.places
        feed.on_hold = partial(self._holds, outflow, client)
        self._readers[outflow] = client
        self._reactor.callLater(0, self._run, outflow, feed, "now" if question.once else None)
        return True

    def _run(self, outflow: Outflow, feed: ChangeFeed, until: Literal["now"] | None) -> None:
        """Begin to stream, in a turn of its own."""
        client = self._readers.get(outflow)
        if client is not None:
            feed.begin()
            client.run(until).addBoth(self._ended, outflow, feed)

    def stop(self) -> None:
        """End all answers."""
        for outflow in list(self._readers):
            outflow.close()

    def _known(self, since: str) -> dict[int, Saved]:
        """Return where a reader stands; it stands at the beginning of what is left out."""
        if since == "now":
            return {one.id: _present(one) for one in self._vbuckets.values() if one.high_seqno}
        if since == "0":
            return {}
        try:
            places = decoded(since)
        except ValueError as error:
            raise BadQuestion(f"since: {error}: say now, 0, or the token of a line") from None
        return {number: place for number, place in places.items() if number in self._vbuckets}

    def _wanted(self, question: ChangesQuestion) -> list[int] | None:
        if question.vbuckets is None:
            return None
        absent = [number for number in question.vbuckets if number not in self._vbuckets]
        if absent:
            raise BadQuestion(f"vBucket {absent[0]}: this node does not have it")
        return list(question.vbuckets)

    def _left(self, outflow: Outflow) -> None:
        client = self._readers.pop(outflow, None)
        self._buffers.forget(outflow)
        if client is not None:
            client.stop()

    def _holds(self, outflow: Outflow, client: TwistedUprClient) -> None:
        """A reader does not read: count what its stream has brought meanwhile."""
        self._buffers.note(outflow, client.held_bytes, 0, began=False, took=False)

    def _ended(self, result: object, outflow: Outflow, feed: ChangeFeed) -> None:
        if isinstance(result, Failure) and outflow.open:
            reason = _reason(result)
            _log.warn("changes_ended", reason=reason)
            outflow.say(json.dumps({"op": "error", "reason": reason}).encode(), b"error")
        elif outflow.open:
            feed.tell_position()
        feed.stop_telling()
        outflow.close()


def _reason(failure: Failure) -> str:
    if isinstance(failure.value, NotActive):
        missing = named(failure.value.vbuckets)
        return f"{missing}: neither active nor a replica at this node: leave it out by vbuckets="
    return failure.getErrorMessage()


def _present(vbucket: VBucket) -> Saved:
    """Return the place behind everything that a vBucket has."""
    seqno = vbucket.high_seqno
    return Saved(seqno, SnapshotRange(seqno, seqno), tuple(vbucket.failover_log), seqno)


class ChangeFeed(Handler):
    """Writes what a stream brings to an endless answer.

    Args:
        known: where the reader stands.
        each_token: it gets a token after each snapshot.
    """

    native_rollback = True
    returns_anywhere = True

    def __init__(
        self,
        reactor: Any,
        outflow: Outflow,
        question: ChangesQuestion,
        known: dict[int, Saved],
        *,
        each_token: bool,
    ) -> None:
        self.on_hold: Callable[[], None] = lambda: None  # called when the reader is waited for
        # Tells where each vBucket stands; is told the last seqnos that were said.
        self.places: Callable[[Mapping[int, int]], dict[int, Saved]] = lambda _: {}
        self._reactor = reactor
        self._outflow = outflow
        self._prefix = question.prefix
        self._from_now = question.since == "now"
        self._known = known
        self._each_token = each_token
        self._position_at = reactor.seconds()
        self._telling: Any = None
        self._token = ""
        self._count = 0
        self._items: dict[int, int] = {}
        self._said: dict[int, int] = {}  # the last seqno that was said

    def begin(self) -> None:
        """Say what "now" is before anything comes: the reader may be lost before that does."""
        if self._from_now:
            self.tell_position()
            self._position_at = self._reactor.seconds()

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> None:
        self._items[vbucket] = 0
        self._say(SnapshotBegin(vbucket, start, end, from_disk))

    def mutation(self, change: Change) -> Any:
        return self._change(change)

    def deletion(self, change: Change) -> Any:
        return self._change(change)

    def snapshot_end(self, vbucket: int, end: int) -> Any:
        self._say(SnapshotEnd(vbucket, end, self._items.pop(vbucket, 0)))
        self._said[vbucket] = end
        self._count += 1
        if self._each_token:
            self.stop_telling()
            self._position_at = 0.0
        if self._telling is None:
            self._tell_soon()
        return self._breath()

    def rollback(self, vbucket: int, seqno: int) -> bool:
        self._items.pop(vbucket, None)
        self._said.pop(vbucket, None)
        self._say(Rollback(vbucket, seqno))
        return True

    def _tell_soon(self) -> None:
        delay_s = max(0.0, self._position_at - self._reactor.seconds())
        self._telling = self._reactor.callLater(delay_s, self.tell_position)

    def stop_telling(self) -> None:
        """Say nothing later."""
        if self._telling is not None and self._telling.active():
            self._telling.cancel()
        self._telling = None

    def _change(self, change: Change) -> Any:
        if change.key.startswith(self._prefix):
            self._say(change)
        self._items[change.vbucket] = self._items.get(change.vbucket, 0) + 1
        self._said[change.vbucket] = change.seqno
        self._count += 1
        if self._telling is None:
            self._tell_soon()
        return self._breath()

    def _breath(self) -> Any:
        """Return what is to be waited for: the reader, or the next turn now and then."""
        if self._outflow.paused:
            room = self._outflow.room()
            self.on_hold()
            return room
        if self._count >= _AT_ONCE:
            self._count = 0
            turn: Deferred[None] = Deferred()
            self._reactor.callLater(0, turn.callback, None)
            return turn
        return None

    def _say(self, event: Shown) -> None:
        fields = as_fields(event)
        self._outflow.say(json.dumps(fields).encode(), str(fields["op"]).encode())

    def tell_position(self) -> None:
        """Say where the reader stands."""
        self.stop_telling()
        self._position_at = self._reactor.seconds() + POSITION_S
        token = encoded({**self._known, **self.places(self._said)})
        if token != self._token and self._outflow.open:
            self._token = token
            line = json.dumps({"op": "position", "token": token}).encode()
            self._outflow.say(line, b"position", token.encode())


@implementer(IStreamClientEndpoint)
class _Pair:
    """Connects to the node's own sessions, within the process."""

    def __init__(self, reactor: Any, adopt: Callable[[Any], None]) -> None:
        self._reactor = reactor
        self._adopt = adopt

    def connect(self, factory: Any) -> Deferred[Any]:
        """See `IStreamClientEndpoint`."""
        ours, nodes = socket.socketpair()
        with ours, nodes:
            for each in (ours, nodes):
                each.setblocking(False)
            self._adopt(nodes)
            client = _Kept(factory)
            self._reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, client)
        return succeed(client.protocol)


class _Kept:
    """A factory of one connection that was there before; knows the protocol that it has made."""

    noisy = False

    def __init__(self, factory: Any) -> None:
        self._factory = factory
        self.protocol: Any = None

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802  # Twisted's name
        """Make the protocol."""
        self.protocol = self._factory.buildProtocol(addr)
        return self.protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)
