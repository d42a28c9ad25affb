"""Which node has which vBucket, and how far each vBucket is: asked of the nodes themselves.

Every node tells the vBuckets that it has active; its cluster map tells how many there are in all,
and of other nodes. After a failover the old active may come back and believe in itself:
`remote.placement` says which of two is followed. No node is followed before all were asked, and a
connection that was kept open and fails is no silent node: it is dialled once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Connection, given_back, taken
from uprmc.columnar.errors import (
    BadOption,
    NoVBucket,
    Refused,
    SparkError,
    Unreachable,
    VBucketsChanged,
)
from uprmc.columnar.retry_policy import Busy, patiently
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.binary import OBSERVE_SEQNO_REQUEST, decode_observe_seqno
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import (
    VBUCKET_SEQNOS_EXTRAS,
    decode_vbucket_seqno_terms,
    decode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.cluster_map import COUNT_GROUP, count_in
from uprmc.remote.history import read_log
from uprmc.remote.placement import OtherBucket, Placement
from uprmc.units import in_ranges

#: vBuckets of which an error says why they are refused.
_REASONS_MAX = 5

T = TypeVar("T")

#: By vBucket, (high seqno, term) of each that a node has active.
_Active = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class Standing:
    """How far one vBucket is.

    Attributes:
        place: HOST:PORT of the node that has it active.
        high_seqno: of its newest change.
        log: newest first.
        items: documents; 0 unless they were asked for.
        term: counts promotions; 0 = the node knows none.
    """

    vbucket: int
    place: str
    high_seqno: int
    log: FailoverLog
    items: int = 0
    term: int = 0


class Nodes:
    """The nodes of a cluster, as they describe themselves.

    Connections are kept open; used by one thread at a time.

    Attributes:
        owners: the node of each that is active, by number; or that has the replica to be read.
        copied: those of them that are replicas there.
        silent: why nodes did not answer when they were asked last.

    Raises:
        Unreachable: no node answers.
        VBucketsChanged: the nodes do not make one bucket.
        Refused, ProtocolError, LoginRefused, TlsFailed.
    """

    def __init__(self, access: Access) -> None:
        if not access.servers:
            raise BadOption("servers: name at least one node, as HOST:PORT")
        self._access = access
        self._placement = Placement(access.servers, terms=access.terms)
        self._connections: dict[str, Connection] = {}
        self._seqnos: dict[int, int] = {}
        self.silent: list[SparkError] = []
        self.owners: dict[int, str] = {}
        self.copied: frozenset[int] = frozenset()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def vbuckets(self) -> int:
        """How many there are in all, active somewhere or not."""
        return self._placement.vbuckets

    @property
    def terms(self) -> dict[int, int]:
        """The highest term that was ever heard of, by vBucket."""
        return self._placement.terms

    # --- questions ------------------------------------------------------------------------------

    def connection(self, place: str) -> Connection:
        """Return the connection to a node, dialled if need be."""
        found = self._connections.get(place)
        if found is None:
            found = self._connections[place] = taken(place, self._access)
        return found

    def drop(self, place: str) -> None:
        """Hang up on a node: an answer may still be on its way."""
        found = self._connections.pop(place, None)
        if found is not None:
            found.close()

    def at(self, place: str, ask: Callable[[Connection], T]) -> T:
        """Return what `ask` gets from a node; lost connections and busy nodes are tried again."""

        def attempt() -> T:
            try:
                return ask(self.connection(place))
            except Busy:
                raise
            except BaseException:
                self.drop(place)
                raise

        return patiently(self._access, attempt)

    def refresh(self) -> None:
        """Ask every node again what it has; one that does not answer has nothing.

        Raises:
            As the class.
        """
        patiently(self._access, self._refresh)

    def seqnos(self) -> dict[int, int]:
        """Return the high seqnos of all that are active, as of now; raises as the class."""
        self.refresh()
        return dict(sorted(self._seqnos.items()))

    def standings(
        self, vbuckets: Iterable[int] | None = None, items: bool = False
    ) -> dict[int, Standing]:
        """Return how far vBuckets are, all that are active unless some are named.

        Args:
            vbuckets: by number.
            items: whether to count their documents, too.

        Raises:
            NoVBucket: one of them is active nowhere.
            As the class.
        """
        seqnos = self.seqnos()
        wanted = sorted(seqnos) if vbuckets is None else sorted(set(vbuckets))
        found: dict[int, Standing] = {}
        for place, numbers in self.by_place(wanted).items():
            logs, counts = self.at(place, partial(_survey, numbers, items))
            for number, log in zip(numbers, logs, strict=True):
                term = self.terms.get(number, 0)
                count = counts.get(number, 0)
                found[number] = Standing(number, place, seqnos[number], log, count, term)
        return {number: found[number] for number in wanted}

    def by_place(self, vbuckets: Iterable[int]) -> dict[str, list[int]]:
        """Return vBuckets grouped by the node that has them; raises `NoVBucket`."""
        places: dict[str, list[int]] = {}
        numbers = sorted(set(vbuckets))
        missing = [number for number in numbers if number not in self.owners]
        if missing:
            raise NoVBucket(self.absent(missing))
        for number in numbers:
            places.setdefault(self.owners[number], []).append(number)
        return places

    def persisted(self, vbucket: int, uuid: int) -> int:
        """Return up to where a vBucket's present history is on its node's disk.

        Args:
            vbucket: by number.
            uuid: the history that is believed in; 0 is returned if it is not the present one.

        Raises:
            NoVBucket, Refused: it is not there, or knows nothing of that history.
        """
        (place,) = self.by_place([vbucket])
        value = OBSERVE_SEQNO_REQUEST.pack(uuid)
        request = RequestFrame(Opcode.OBSERVE_SEQNO, value=value, vbucket=vbucket)

        def ask(connection: Connection) -> int:
            (answer,) = connection.require([request])
            try:
                seen = decode_observe_seqno(answer.value)
            except RemoteProtocolError as error:
                raise connection.protocol_error(str(error)) from None
            return seen.persisted_seqno if seen.same_history else 0

        return self.at(place, ask)

    def close(self) -> None:
        """Let go of all connections."""
        while self._connections:
            _, connection = self._connections.popitem()
            given_back(connection, self._access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- who has what ---------------------------------------------------------------------------

    def _refresh(self) -> None:
        active: dict[str, _Active] = {}
        silent: list[SparkError] = []
        for place in self._placement.places:  # grows with what the first ones tell
            try:
                active[place] = self._told_by(place)
            except (Unreachable, Busy) as error:
                silent.append(error)
        if not active:
            raise _summed_up(silent)
        if not self.vbuckets:
            raise Refused(f"{', '.join(active)}: no node tells how many vBuckets it has")
        self.silent = silent
        told = {
            place: {number: term for number, (_, term) in each.items()}
            for place, each in active.items()
        }
        self._placement.settle(told, self._logs_at)
        for place, frames in self._placement.to_tell(self._logs_at).items():
            try:
                self.connection(place).ask(frames)
            except SparkError:
                self.drop(place)
        choices = sorted(self._placement.choices.items())
        self.owners = {number: choice.place for number, choice in choices if choice.place}
        self._seqnos = {number: active[place][number][0] for number, place in self.owners.items()}
        if self._access.copies != "none":
            self._use_copies(place for place in self._access.servers if place in active)

    def _use_copies(self, places: Iterable[str]) -> None:
        """Have replicas read that the named nodes have; of several the newest."""
        known = self.owners if self._access.copies == "missing" else {
            number: place
            for number, place in self.owners.items()
            if place in self._access.servers
        }  # fmt: skip
        found: dict[int, tuple[int, str]] = {}
        for place in places:
            for number, (seqno, _) in self.at(place, partial(_told, VBucketState.REPLICA)).items():
                if number not in known:
                    found[number] = max(found.get(number, (-1, "")), (seqno, place))
        self.copied = frozenset(found)
        self.owners |= {number: place for number, (_, place) in found.items()}
        self._seqnos |= {number: seqno for number, (seqno, _) in found.items()}

    def _told_by(self, place: str) -> _Active:
        """Ask a node; one whose connection was kept open gets another if that one fails."""
        kept = place in self._connections
        try:
            connection = self.connection(place)
            self._learn(connection)
            told = _told(VBucketState.ACTIVE, connection)
            self._placement.check_active(place, told)
            return told
        except BaseException as error:
            self.drop(place)
            if isinstance(error, OtherBucket):
                raise VBucketsChanged(str(error)) from None
            if not (kept and isinstance(error, Unreachable)):
                raise
        return self._told_by(place)

    def _learn(self, connection: Connection) -> None:
        """Take from the node's map how many vBuckets there are, and which other nodes."""
        (answer,) = connection.ask([RequestFrame(Opcode.GET_CLUSTER_CONFIG)])
        self._placement.take_map(connection.place, answer)
        if not self.vbuckets:
            with suppress(Refused):
                count = count_in(connection.stats(COUNT_GROUP))
                self._placement.take_count(connection.place, count)

    def _logs_at(self, place: str, vbuckets: list[int]) -> dict[int, FailoverLog]:
        """Return failover logs, none if the node does not tell."""
        try:
            logs = _logs(self.connection(place), vbuckets)
        except SparkError:
            self.drop(place)
            return {}
        return dict(zip(vbuckets, logs, strict=True))

    def absent(self, vbuckets: Sequence[int]) -> str:
        """Return what to say of vBuckets that are active on no node."""
        foreign = [each for each in vbuckets if each >= self.vbuckets]
        if foreign:
            return f"vb={in_ranges(foreign)}: there are only {self.vbuckets}"
        choices = self._placement.choices
        nowhere = [each for each in vbuckets if each not in choices]
        refused = list(dict.fromkeys(choices[n].why for n in vbuckets if n in choices))
        words = [*refused[:_REASONS_MAX], *(each.text for each in self.silent)]
        if nowhere:
            are = "is" if len(nowhere) == 1 else "are"
            places = ", ".join(self._placement.places)
            words.insert(0, f"vb={in_ranges(nowhere)} {are} active on none of {places}")
        if len(refused) > _REASONS_MAX:
            words.append(f"and {len(refused) - _REASONS_MAX} vBuckets more like these")
        return "; ".join(words)


def _survey(
    numbers: list[int], items: bool, connection: Connection
) -> tuple[list[FailoverLog], dict[int, int]]:
    """Ask one node for failover logs, all in one pipeline, and for the numbers of documents."""
    return _logs(connection, numbers), details(connection, "num_items") if items else {}


def _told(state: VBucketState, connection: Connection) -> _Active:
    """Return the vBuckets that a node has in a state."""
    extras = VBUCKET_SEQNOS_EXTRAS.pack(state)
    (answer,) = connection.require([RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras)])
    try:
        if connection.knows_terms:
            rows = decode_vbucket_seqno_terms(answer.value)
            return {number: (seqno, term) for number, seqno, term in rows}
        return {number: (seqno, 0) for number, seqno in decode_vbucket_seqnos(answer.value)}
    except RemoteProtocolError:
        raise connection.protocol_error("a torn list of seqnos") from None


def _logs(connection: Connection, numbers: Iterable[int]) -> list[FailoverLog]:
    wanted = list(numbers)
    requests = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=number) for number in wanted]
    answers: list[ResponseFrame] = connection.require(requests)
    try:
        return [read_log(answer.value) for answer in answers]
    except RemoteProtocolError as error:
        raise connection.protocol_error(str(error)) from None


def details(connection: Connection, wanted: str) -> dict[int, int]:
    """Return a number that a node tells of each vBucket that it has; raises as `stats`."""
    found: dict[int, int] = {}
    for name, value in connection.stats("vbucket-details").items():
        vbucket, _, field = name.partition(":")
        if field == wanted and value.isdigit() and vbucket[3:].isdigit():
            found[int(vbucket[3:])] = int(value)
    return found


def _summed_up(errors: list[SparkError]) -> SparkError:
    text = "; ".join(dict.fromkeys(each.text for each in errors))
    return type(errors[0])(text).doubting(errors[0].doubtful_place)
