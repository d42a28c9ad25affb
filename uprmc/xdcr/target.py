"""A connection that sends a link's items: what the node has, and what is sent to it.

Before anything is sent the node says which vBuckets it has, and the failover log and high seqno of
each: the link decides by these where to go on. This is asked again on every connection, because a
node that was restarted may have lost what it had acknowledged.

Answers to items are understood by `windows`; the link's `sender` decides what follows from them,
and the link what follows from the end of the connection.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from uprmc.config import Settings
from uprmc.errors import InvalidArguments, ProtocolError
from uprmc.login.mechanisms import LoginRefused
from uprmc.model import FailoverLog, Origin, VBucketState
from uprmc.ports import Clock, Session
from uprmc.protocol.binary import OBSERVE_SEQNO_REQUEST, decode_hello, encode_hello
from uprmc.protocol.framer import BinaryFramer
from uprmc.protocol.header import Frame, ResponseFrame, encode_request
from uprmc.protocol.management import WITH_META_NMETA_EXTRAS
from uprmc.protocol.opcodes import Feature, Opcode, Status
from uprmc.protocol.origins import ORIGIN_META_BYTES, encode_origin
from uprmc.protocol.upr import decode_term
from uprmc.remote.cluster_map import ClusterMap, map_of
from uprmc.remote.conversation import (
    KEEP_ALIVES,
    Questions,
    Silence,
    keep_alive_answer,
    take_frames,
)
from uprmc.remote.directory import News, seqno_rows, seqnos_request, telling
from uprmc.remote.history import read_log
from uprmc.remote.login import Login
from uprmc.remote.requests import IN_TIME
from uprmc.xdcr.frames import read_meta
from uprmc.xdcr.received import ReceivedRecord, record_of
from uprmc.xdcr.windows import Item, Windows

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

# --- session --------------------------------------------------------------------------------------
# Greeting, login, questions with their answers, silence. `Target` sends a link's items over one of
# these, and `reconcile.FarDocuments` reads what the node has over another one.

_AGENT = b"uprmc-xdcr"
_BUCKET = b"default"

#: A node that was asked nothing for this long is asked whether it is there.
_ASK_S = 10.0

Answered = Callable[[ResponseFrame], None]
Lost = Callable[[], None]


def begun_again() -> None:
    """Do nothing when a question is lost: the owner learns that the connection has ended.

    This is for what the owner asks again on the next connection anyway.
    """


class Question(NamedTuple):
    """What follows from a question: one of both is called, once."""

    answered: Answered
    lost: Lost


class TargetSession(ABC):
    """A connection to one node of the target. Implements `ports.Session`."""

    successor: Session | None = None
    input_full = False

    def __init__(
        self,
        place: str,
        features: Iterable[Feature],
        login: Login | None,
        settings: Settings,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.place = place  # HOST:PORT of the node
        self.closing = False
        self.granted: tuple[int, ...] = ()  # features
        self.wake = wake  # called when something is to be sent
        self._login = login
        self._computing: Callable[[], None] | None = None  # the proof of a login, in turns
        self._framer = BinaryFramer(settings.kv.max_frame_bytes)
        self._questions: Questions[Question] = Questions(strict=False)
        self._silence = Silence()
        self._silence_s = settings.xdcr.silence_s
        self._frames: deque[bytes] = deque()
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._ask(Opcode.HELLO, self._greeted, key=_AGENT, value=encode_hello(features))

    # --- for those that stand on it -------------------------------------------------------------

    @abstractmethod
    def _welcomed(self) -> None:
        """Go on: the node has let us in."""

    @abstractmethod
    def _fail(self, why: str, *, final: bool) -> None:
        """Hang up and say why; `final` = another connection would not be better."""

    @abstractmethod
    def _lost(self) -> None:
        """Take note that the connection has ended."""

    @property
    def _is_waiting(self) -> bool:
        """Whether the node has something to say."""
        return bool(self._questions)

    def _take(self, frame: Frame) -> None:
        """Take a frame of the node."""
        if not isinstance(frame, ResponseFrame):
            if frame.opcode in KEEP_ALIVES:
                self._frames.append(keep_alive_answer(frame.opcode, frame.opaque))
            return
        if frame.status == Status.AUTH_ERROR and self._login is None:
            why = "it serves users only: make the link with --user and --password-file"
            self._fail(why, final=True)
            return
        more = frame.opcode == Opcode.STAT and frame.key
        find = self._questions.waiting_for if more else self._questions.answered
        question = find(frame.opcode, frame.opaque)
        if question is not None:
            question.answered(frame)

    def _ask(
        self,
        opcode: int,
        answered: Answered,
        *,
        vbucket: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        lost: Lost = begun_again,
    ) -> int:
        """Send a question; return its opaque.

        `answered` gets the answer; `lost` is called if the connection ends before.
        """
        opaque = self._questions.expect(opcode, Question(answered, lost))
        self._frames.append(
            encode_request(
                opcode, extras=extras, key=key, value=value, vbucket=vbucket, opaque=opaque, cas=cas
            )
        )
        self.wake()
        return opaque

    # --- the handshake --------------------------------------------------------------------------

    def _greeted(self, reply: ResponseFrame) -> None:
        if not reply.status:
            self.granted = tuple(decode_hello(reply.value))
        if self._login is None:
            self._select()
        else:
            self._log_in(self._login)

    def _log_in(self, login: Login, reply: ResponseFrame | None = None) -> None:
        """Take an answer, or compute for a turn."""
        try:
            request = login.send(reply)
        except StopIteration:
            self._select()
        except LoginRefused as error:
            self._fail(f"it {error}", final=True)
        else:
            go_on = partial(self._log_in, login)
            if request is None:
                self._computing = go_on
                self.wake()
            else:
                self._ask(request.opcode, go_on, key=request.key, value=request.value)

    def _select(self) -> None:
        if Feature.SELECT_BUCKET in self.granted:
            self._ask(Opcode.SELECT_BUCKET, lambda _: None, key=_BUCKET)
        self._welcomed()

    # --- the session's doors --------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        self._silence.broken = True
        try:
            for frame in self._framer.feed(data):
                if not self.closing:
                    self._take(frame)
        except ProtocolError as error:
            self._fail(f"it breaks the protocol: {error}", final=False)

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        out: list[bytes] = []
        if self.closing:
            return out
        computing, self._computing = self._computing, None
        if computing is not None:
            computing()
        take_frames(self._frames, out, budget)
        return out

    def tick(self, now: float) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        if not self._is_waiting:
            self._silence.heard(now)
            if now - self._asked_at > _ASK_S:
                self._asked_at = now
                self._ask_for_life()
        elif self._silence.lasts(now, self._silence_s):
            self._fail(f"it has said nothing for {self._silence_s:g} s", final=False)

    def _ask_for_life(self) -> None:
        self._ask(Opcode.VERSION, lambda _: None)

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`; what waits to be sent is a few questions."""
        return 0, 0

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        self.closing = True
        self._computing = None
        self._frames.clear()
        self._lose_questions()
        self._lost()

    def hang_up(self) -> None:
        """End the connection; what it was asked is lost at once."""
        self.closing = True
        self._lose_questions()
        self.wake()

    def _lose_questions(self) -> None:
        for question in self._questions.clear():
            question.lost()


# --- target ---------------------------------------------------------------------------------------

_FEATURES = (
    Feature.JSON,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.TERMS,
    Feature.ORIGINS,
    Feature.CHECKPOINTS,
)
_ITEMS = frozenset({Opcode.SETQ_WITH_META, Opcode.DELQ_WITH_META})
_REFUSED_LOGIN = (Status.AUTH_ERROR, Status.ACCESS_DENIED)

#: The statistic with the policy of conflict resolution.
_POLICY_KEY = b"ep_conflict_resolution_type"

#: No node has more vBuckets.
VBUCKETS_MAX = 1_024

#: Why there is no answer to a question.
_LOST = "the connection was lost before it had answered"

#: So many of the newest histories of so many vBuckets go with one question for records.
_HISTORIES, _HISTORIES_AT_ONCE = 8, 64

#: Records in one request.
RECORDS_AT_ONCE = 50


class TargetVBucket(NamedTuple):
    """What a node has of a vBucket."""

    term: int = 0
    seqno: int = 0  # the high one
    log: FailoverLog = ()  # empty = it tells none
    purged: int = 0  # up to where it has purged deletions; 0 if it does not say

    @property
    def uuid(self) -> int:
        """Of its newest branch; 0 = the node tells none."""
        return self.log[0].uuid if self.log else 0


class Target(TargetSession):
    """A connection to a node of the target that sends items."""

    def __init__(
        self, place: str, link: Link, login: Login | None, wake: Callable[[], None]
    ) -> None:
        self.ready = False  # it has said what it has
        self.drained = False  # see `ports.Draining`
        self.map: ClusterMap | None = None  # ``None`` = it has none
        self.active: dict[int, TargetVBucket] | None = {}  # ``None`` = it does not say which
        self.bucket_uuid = ""  # of its data, 32 hex digits; empty = it does not say
        self.policy = ""  # how it resolves conflicts, as Couchbase names it; empty likewise
        self.records: dict[int, list[ReceivedRecord]] = {}  # checkpoints of our source, by vBucket
        #: Those of other sources that share a history with ours: this node was their replica.
        self.others: dict[int, list[ReceivedRecord]] = {}
        self.links: int | None = None  # how many it has itself; ``None`` = it does not say
        self._purged: dict[int, int] = {}
        self._awaited: set[str] = set()
        self._link, self._sender = link, link.sender
        settings = link.bucket.settings
        self.windows = Windows(self._sender.settled, settings.xdcr)
        self._source = f"{link.world.bucket_uuid:032x}"
        super().__init__(place, _FEATURES, login, settings, link.clock, wake)

    # --- what the node has ----------------------------------------------------------------------

    def survey(self) -> None:
        """Ask what the node has; `Link.surveyed` is called when it has said so."""
        self.ready = False
        self._awaited = {"seqnos"}
        self._ask(Opcode.GET_CLUSTER_CONFIG, self._mapped)
        self._ask(Opcode.STAT, self._statistic)
        if Feature.CHECKPOINTS in self.granted:
            self._awaited.add("records")
            self._ask_for_records({}, 0)
        self.ask_for_links()
        self.ask_seqnos(self._surveyed)

    def _mapped(self, reply: ResponseFrame) -> None:
        self.map = map_of(reply)
        if self.map is not None:
            self.bucket_uuid = self.map.bucket_uuid

    def _statistic(self, reply: ResponseFrame) -> None:
        """Take one of the general statistics, of which one says how the node resolves conflicts."""
        if reply.key == _POLICY_KEY:
            self.policy = reply.value.decode("latin-1")

    def _ask_for_records(self, found: dict[int, list[ReceivedRecord]], first: int) -> None:
        active = self._link.bucket.active
        histories = {
            number: [str(entry.uuid) for entry in active[number].failover_log[:_HISTORIES]]
            for number in range(first, first + _HISTORIES_AT_ONCE)
            if number in active
        }
        given = {"source": self._source, "first": first, "histories": histories}
        asked = json.dumps(given).encode()
        self._ask(Opcode.XDCR, partial(self._recorded, found, first), key=b"records", value=asked)

    def _recorded(
        self, found: dict[int, list[ReceivedRecord]], first: int, reply: ResponseFrame
    ) -> None:
        """Take the checkpoints of some vBuckets, and ask for those of the next ones."""
        following = None
        if reply.status == Status.SUCCESS:
            try:
                answer = json.loads(reply.value)
                for row in answer["records"]:
                    found.setdefault(int(row["vbucket"]), []).append(record_of(row))
                following = answer["next"]
            except (ValueError, TypeError, KeyError, InvalidArguments):
                found.clear()
        if isinstance(following, int) and first < following < VBUCKETS_MAX:
            self._ask_for_records(found, following)
            return
        self.records, self.others = (
            {
                number: [each for each in answer if (each.source == self._source) is ours]
                for number, answer in found.items()
            }
            for ours in (True, False)
        )
        self._has_said("records")

    def ask_for_links(self) -> None:
        """Ask whether the node has links itself; the answer is in `links`."""
        if Feature.CHECKPOINTS in self.granted:
            self._ask(Opcode.XDCR, self._linked, key=b"list")

    def _linked(self, reply: ResponseFrame) -> None:
        self.links = None
        if reply.status == Status.SUCCESS:
            with suppress(ValueError, TypeError):
                self.links = len(json.loads(reply.value))

    def send_records(
        self, rows: Sequence[Mapping[str, Any]], done: Callable[[str], None] = lambda _: None
    ) -> None:
        """Send the node checkpoints that it is to keep, `RECORDS_AT_ONCE` at most.

        `done` is called when it has them, with an empty text, or with why it does not.
        """

        def answered(reply: ResponseFrame) -> None:
            done(f"it does not keep checkpoints: {reply.reason}" if reply.status else "")

        value = json.dumps({"records": rows}).encode()
        lost = partial(done, _LOST)
        self._ask(Opcode.XDCR, answered, key=b"record", value=value, lost=lost)

    def tell_terms(self, news: Iterable[News], heard: Callable[[], None]) -> None:
        """Tell the node of promotions elsewhere; `heard` is called when it has answered."""
        for asked in telling(news):
            self._ask(asked.opcode, lambda _: heard(), value=asked.value)

    def _surveyed(self, found: dict[int, TargetVBucket] | None) -> None:
        self.active = found
        self._has_said("seqnos")

    def _has_said(self, what: str) -> None:
        if what not in self._awaited:
            return  # it was asked twice
        self._awaited.discard(what)
        if self._awaited:
            return
        self.ready = True
        self._link.surveyed(self)
        self.wake()

    def ask_seqnos(
        self, done: Callable[[dict[int, TargetVBucket] | None], None], lost: Lost = begun_again
    ) -> None:
        """Ask for the active vBuckets: term, high seqno, then the failover log of each.

        `done` gets ``None`` from a node that does not say which vBuckets it has; `lost` is called
        instead if the connection ends before it has said all.
        """
        if Feature.CHECKPOINTS in self.granted:
            self._ask(Opcode.XDCR, self._purged_answered, key=b"purged")
        asked = seqnos_request(VBucketState.ACTIVE)
        self._ask(asked.opcode, partial(self._seqnos, done, lost), extras=asked.extras, lost=lost)

    def _purged_answered(self, reply: ResponseFrame) -> None:
        self._purged = {}
        if reply.status == Status.SUCCESS:
            with suppress(ValueError, TypeError, AttributeError):
                answer = json.loads(reply.value)
                self._purged = {int(number): int(seqno) for number, seqno in answer.items()}

    def _seqnos(
        self,
        done: Callable[[dict[int, TargetVBucket] | None], None],
        lost: Lost,
        reply: ResponseFrame,
    ) -> None:
        if reply.status in _REFUSED_LOGIN:
            self._fail(f"it gives no access: {reply.reason}", final=True)
            lost()
            return
        if reply.status in IN_TIME:
            self._fail(f"not ready: {reply.reason}", final=False)
            lost()
            return
        if reply.status:
            done(None)
            return
        rows = seqno_rows(reply.value, knows_terms=Feature.TERMS in self.granted)
        found = {
            number: TargetVBucket(term, seqno)
            for number, seqno, term in rows
            if number < VBUCKETS_MAX
        }
        waiting = set(found)
        if not found:
            done(found)
            return

        def lose() -> None:
            if waiting:
                waiting.clear()
                lost()

        for number in found:
            self._ask(
                Opcode.GET_FAILOVER_LOG,
                partial(self._log, number, found, waiting, done),
                vbucket=number,
                lost=lose,
            )

    def _log(
        self,
        number: int,
        found: dict[int, TargetVBucket],
        waiting: set[int],
        done: Callable[[dict[int, TargetVBucket] | None], None],
        reply: ResponseFrame,
    ) -> None:
        waiting.discard(number)
        if reply.status == Status.SUCCESS:
            term = max(found[number].term, decode_term(reply.extras))
            log, purged = read_log(reply.value), self._purged.get(number, 0)
            found[number] = found[number]._replace(term=term, log=log, purged=purged)
        elif reply.status == Status.NOT_MY_VBUCKET:
            del found[number]
        if not waiting:
            done(found)

    def delete(
        self,
        number: int,
        key: bytes,
        meta: tuple[int, int],
        origin: Origin,
        expected_cas: int,
        answered: Answered,
    ) -> None:
        """Delete a document if it has the CAS that is expected.

        Args:
            number: of the vBucket.
            key: of the document.
            meta: revision and CAS of the deletion.
            origin: of the deletion.
            expected_cas: another version is left alone.
            answered: called with the answer.
        """
        self._ask(
            Opcode.DEL_WITH_META,
            answered,
            vbucket=number,
            extras=WITH_META_NMETA_EXTRAS.pack(0, 0, *meta, ORIGIN_META_BYTES),
            key=key,
            value=encode_origin(origin),
            cas=expected_cas,
        )

    def observe(self, number: int, uuid: int, answered: Answered) -> None:
        """Ask how far a vBucket with this newest branch is on the node's disk."""
        value = OBSERVE_SEQNO_REQUEST.pack(uuid)
        self._ask(Opcode.OBSERVE_SEQNO, answered, vbucket=number, value=value)

    # --- the session's doors --------------------------------------------------------------------

    def _welcomed(self) -> None:
        self.survey()

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        out = super().data_to_send(budget)
        sent = sum(map(len, out))
        if self.ready and not self.closing and sent < budget:
            sent += self.windows.retry(out, self._clock.monotonic())
            self._sender.fill(self, out, budget - sent)
        self.drained = not self._frames and self._sender.is_drained(self.place)
        return out

    @property
    def _is_waiting(self) -> bool:
        return bool(self._questions or self.windows)

    def hang_up(self) -> None:
        """See `TargetSession`."""
        self.ready = False
        super().hang_up()

    def _lost(self) -> None:
        self.ready = False
        self._link.lost(self)

    def _fail(self, why: str, *, final: bool) -> None:
        self.hang_up()
        self._link.failed(self, why, final=final)

    # --- answers --------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if not isinstance(frame, ResponseFrame):
            super()._take(frame)
        elif frame.opcode in _ITEMS:
            self._item_refused(frame)
        elif frame.opcode == Opcode.GET_META:
            self._looked_up(frame)
        elif frame.opcode != Opcode.NOOP or not self.windows.fence_answered(frame.opaque):
            super()._take(frame)

    def _item_refused(self, frame: ResponseFrame) -> None:
        if not frame.status:
            return
        item = self.windows.find(frame.opaque)
        if item is None:
            return
        if frame.status in IN_TIME or self._sender.refused(self, item, frame.status):
            self._again(item)
        else:
            self.windows.refused(item)

    def _again(self, item: Item, *, counted: bool = False) -> None:
        now = self._clock.monotonic()
        waited = self.windows.paused_until
        self.windows.send_again(item, now, counted=counted)
        if not waited:
            self._link.world.later(max(0.0, self.windows.paused_until - now), self.wake)

    def _looked_up(self, frame: ResponseFrame) -> None:
        item = self.windows.find(frame.opaque)
        if item is None:
            return
        if frame.status in IN_TIME:
            self._again(item, counted=True)  # without a look-up: the target decides
            return
        theirs = None
        if frame.status == Status.SUCCESS:
            theirs = read_meta(frame.extras, frame.cas)
        elif frame.status != Status.KEY_NOT_FOUND:
            if self._sender.refused(self, item, frame.status):
                self._again(item, counted=True)
            else:
                self.windows.look_up_lost(item)
            return
        if self._sender.looked_up(self, item, theirs):
            pieces: list[bytes] = []
            self.windows.send_after_look_up(item, pieces)
            self._frames.extend(pieces)
            self._sender.sent_later(sum(map(len, pieces)))
        else:
            self.windows.look_up_lost(item)
