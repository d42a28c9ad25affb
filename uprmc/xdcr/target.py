"""A connection that sends a link's items: what the node has, and what is sent to it.

Before anything is sent the node says which vBuckets it has, and the failover log and high seqno of
each: the link decides by these where to go on. This is asked again on every connection, because a
node that was restarted may have lost what it had acknowledged.

Answers to items are understood by `windows`; what an answer means is told to the link's
`ItemSource`, and what becomes of the connection to its `TargetOwner`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from uprmc.config import Settings
from uprmc.errors import InvalidArguments
from uprmc.model import FailoverLog, Origin, VBucketState
from uprmc.ports import Clock
from uprmc.protocol.binary import OBSERVE_SEQNO_REQUEST
from uprmc.protocol.header import Frame, ResponseFrame
from uprmc.protocol.management import WITH_META_NMETA_EXTRAS
from uprmc.protocol.opcodes import Feature, Opcode, Status
from uprmc.protocol.origins import ORIGIN_META_BYTES, encode_origin
from uprmc.protocol.upr import decode_term
from uprmc.remote.cluster_map import ClusterMap, map_of
from uprmc.remote.directory import News, seqno_rows, seqnos_request, telling
from uprmc.remote.history import read_log
from uprmc.remote.login import Login
from uprmc.remote.requests import IN_TIME
from uprmc.xdcr.frames import LinkMeta, read_meta
from uprmc.xdcr.node_session import Answered, Lost, TargetSession, begun_again
from uprmc.xdcr.received import ToldRecord, told_of
from uprmc.xdcr.windows import Item, LinkWindow, Windows

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

#: The histories of so many vBuckets are told when records are asked for.
_HISTORIES_AT_ONCE = 64

#: Records in one request.
RECORDS_AT_ONCE = 50


class TargetVBucket(NamedTuple):
    """What a node has of a vBucket; an empty failover log means that it tells none.

    Attributes:
        term, seqno, log: its term, high seqno and failover log.
        purged: up to where it has purged deletions; 0 if it does not say.
    """

    term: int = 0
    seqno: int = 0
    log: FailoverLog = ()
    purged: int = 0

    @property
    def uuid(self) -> int:
        """Of its newest branch; 0 = the node tells none."""
        return self.log[0].uuid if self.log else 0


class ItemSource(Protocol):
    """What sends a link's items, and learns what becomes of them."""

    def fill(self, target: Target, out: list[bytes], budget: int) -> int:
        """Add what is to be sent next, by `Target.windows`; return how many bytes."""

    def looked_up(self, target: Target, item: Item, theirs: tuple[bool, LinkMeta] | None) -> bool:
        """Tell whether an item wins against the target's version, ``None`` = there is none."""

    def sent_later(self, size: int) -> None:
        """Take note of bytes that are sent because of a look-up."""

    def refused(self, target: Target, item: Item, status: int) -> bool:
        """Take note that the node refuses an item; return whether to send it again later."""

    def settled(self, window: LinkWindow) -> None:
        """Take note that a batch is settled."""


class TargetOwner(Protocol):
    """The link that a connection belongs to."""

    @property
    def bucket_uuid(self) -> str:
        """Of our own data, 32 hex digits."""

    def histories(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """Return the newest vb_uuids of those of some vBuckets that the link sends."""

    @property
    def sender(self) -> ItemSource:
        """What sends its items."""

    def surveyed(self, target: Target) -> None:
        """Take note that the node has told what it has."""

    def pause_target(self, target: Target, seconds: float) -> None:
        """Wake the connection after a while: what was refused for now is sent again."""

    def failed(self, target: Target, why: str, *, final: bool) -> None:
        """Take note that the connection is of no use; `final` = another one would not be either."""

    def lost(self, target: Target) -> None:
        """Take note that the connection has ended."""


class Target(TargetSession):
    """A connection to a node of the target that sends items.

    Attributes:
        windows: what is under way.
        ready: whether it has told what it has.
        map: its cluster map, ``None`` = it tells none.
        bucket_uuid: of its data, 32 hex digits; empty = it tells none.
        policy: how it resolves conflicts, as Couchbase names it; empty = it does not say.
        records: checkpoints of our source that it has, by vBucket.
        others: checkpoints of other sources that share a history with ours: we were their replica.
        held: its active vBuckets; ``None`` = it does not say which.
        links: number of links that it has itself; ``None`` = it does not say.
    """

    def __init__(
        self,
        place: str,
        owner: TargetOwner,
        login: Login | None,
        settings: Settings,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.ready = False
        self.map: ClusterMap | None = None
        self.held: dict[int, TargetVBucket] | None = {}
        self.bucket_uuid = self.policy = ""
        self.records: dict[int, list[ToldRecord]] = {}
        self.others: dict[int, list[ToldRecord]] = {}
        self.links: int | None = None
        self._purged: dict[int, int] = {}
        self._untold: set[str] = set()
        self.windows = Windows(owner.sender.settled, settings.xdcr)
        self._owner, self._sender = owner, owner.sender
        super().__init__(place, _FEATURES, login, settings, clock, wake)

    # --- what the node has ----------------------------------------------------------------------

    def survey(self) -> None:
        """Ask what the node has; `TargetOwner.surveyed` is called when it has told."""
        self.ready = False
        self._untold = {"seqnos"}
        self._ask(Opcode.GET_CLUSTER_CONFIG, self._mapped)
        self._ask(Opcode.STAT, self._statistic)
        if Feature.CHECKPOINTS in self.granted:
            self._untold.add("records")
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

    def _ask_for_records(self, found: dict[int, list[ToldRecord]], first: int) -> None:
        histories = self._owner.histories(range(first, first + _HISTORIES_AT_ONCE))
        given = {"source": self._owner.bucket_uuid, "first": first, "histories": histories}
        asked = json.dumps(given).encode()
        self._ask(Opcode.XDCR, partial(self._recorded, found, first), key=b"records", value=asked)

    def _recorded(
        self, found: dict[int, list[ToldRecord]], first: int, reply: ResponseFrame
    ) -> None:
        """Take the checkpoints of some vBuckets, and ask for those of the next ones."""
        following = None
        if reply.status == Status.SUCCESS:
            try:
                told = json.loads(reply.value)
                for row in told["records"]:
                    found.setdefault(int(row["vbucket"]), []).append(told_of(row))
                following = told["next"]
            except (ValueError, TypeError, KeyError, InvalidArguments):
                found.clear()
        if isinstance(following, int) and first < following < VBUCKETS_MAX:
            self._ask_for_records(found, following)
            return
        source = self._owner.bucket_uuid
        self.records, self.others = (
            {
                number: [each for each in told if (each.source == source) is ours]
                for number, told in found.items()
            }
            for ours in (True, False)
        )
        self._has_told("records")

    def ask_for_links(self) -> None:
        """Ask whether the node has links itself; the answer is in `links`."""
        if Feature.CHECKPOINTS in self.granted:
            self._ask(Opcode.XDCR, self._linked, key=b"list")

    def _linked(self, reply: ResponseFrame) -> None:
        self.links = None
        if reply.status == Status.SUCCESS:
            with suppress(ValueError, TypeError):
                self.links = len(json.loads(reply.value))

    def tell_records(
        self, rows: Sequence[Mapping[str, Any]], done: Callable[[str], None] = lambda _: None
    ) -> None:
        """Tell the node checkpoints that it is to keep, `RECORDS_AT_ONCE` at most.

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

    def _surveyed(self, held: dict[int, TargetVBucket] | None) -> None:
        self.held = held
        self._has_told("seqnos")

    def _has_told(self, what: str) -> None:
        if what not in self._untold:
            return  # it was asked twice
        self._untold.discard(what)
        if self._untold:
            return
        self.ready = True
        self._owner.surveyed(self)
        self.wake()

    def ask_seqnos(
        self, done: Callable[[dict[int, TargetVBucket] | None], None], lost: Lost = begun_again
    ) -> None:
        """Ask for the active vBuckets: term, high seqno, then the failover log of each.

        `done` gets ``None`` from a node that does not say which vBuckets it has; `lost` is called
        instead if the connection ends before it has said all.
        """
        if Feature.CHECKPOINTS in self.granted:
            self._ask(Opcode.XDCR, self._purged_told, key=b"purged")
        asked = seqnos_request(VBucketState.ACTIVE)
        self._ask(asked.opcode, partial(self._seqnos, done, lost), extras=asked.extras, lost=lost)

    def _purged_told(self, reply: ResponseFrame) -> None:
        self._purged = {}
        if reply.status == Status.SUCCESS:
            with suppress(ValueError, TypeError, AttributeError):
                told = json.loads(reply.value)
                self._purged = {int(number): int(seqno) for number, seqno in told.items()}

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
        held = {
            number: TargetVBucket(term, seqno)
            for number, seqno, term in rows
            if number < VBUCKETS_MAX
        }
        waiting = set(held)
        if not held:
            done(held)
            return

        def lose() -> None:
            if waiting:
                waiting.clear()
                lost()

        for number in held:
            self._ask(
                Opcode.GET_FAILOVER_LOG,
                partial(self._log, number, held, waiting, done),
                vbucket=number,
                lost=lose,
            )

    def _log(
        self,
        number: int,
        held: dict[int, TargetVBucket],
        waiting: set[int],
        done: Callable[[dict[int, TargetVBucket] | None], None],
        reply: ResponseFrame,
    ) -> None:
        waiting.discard(number)
        if reply.status == Status.SUCCESS:
            term = max(held[number].term, decode_term(reply.extras))
            log, purged = read_log(reply.value), self._purged.get(number, 0)
            held[number] = held[number]._replace(term=term, log=log, purged=purged)
        elif reply.status == Status.NOT_MY_VBUCKET:
            del held[number]
        if not waiting:
            done(held)

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
        self._owner.lost(self)

    def _fail(self, why: str, *, final: bool) -> None:
        self.hang_up()
        self._owner.failed(self, why, final=final)

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
            self._owner.pause_target(self, self.windows.paused_until - now)

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
