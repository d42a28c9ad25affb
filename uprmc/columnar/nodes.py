"""Which node has which vBucket, and how far each vBucket is: asked of the nodes themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from uprmc.columnar.access import Access
from uprmc.columnar.connection import given_back, patiently, taken
from uprmc.columnar.errors import BadOption, NoVBucket, VBucketsChanged
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.protocol.binary import OBSERVE_SEQNO_REQUEST, decode_observe_seqno
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.blocking import KeptConnections, NodeConnection
from uprmc.remote.directory import Directory, NotTold, Why, log_request
from uprmc.remote.errors import Busy, ClientError, NodeNonsense, NodeUnreachable, Refused
from uprmc.remote.history import read_log

T = TypeVar("T")

#: What is raised of a node that has not told what it has. Trying again helps after the first.
_RAISED: dict[Why, type[ClientError]] = {
    Why.LATER: Busy,
    Why.REFUSED: Refused,
    Why.NONSENSE: NodeNonsense,
    Why.FOREIGN: VBucketsChanged,
}


@dataclass(frozen=True)
class NodeStanding:
    """How far one vBucket is."""

    vbucket: int
    place: str  # HOST:PORT of the node that has it active
    high_seqno: int  # of its newest change
    log: FailoverLog  # newest first
    items: int = 0  # documents; 0 unless they were asked for
    term: int = 0  # counts promotions; 0 = the node knows none


class BulkNodes:
    """The nodes of a cluster, as they describe themselves.

    Connections are kept open; used by one thread at a time.

    Raises:
        NodeUnreachable: no node answers.
        VBucketsChanged: the nodes do not make one bucket.
        Refused, NodeNonsense, LoginFailed, TlsFailed.
    """

    def __init__(self, access: Access) -> None:
        if not access.servers:
            raise BadOption("servers: name at least one node, as HOST:PORT")
        self._access = access
        self.directory = Directory(access.servers, terms=access.terms)
        self._connections = KeptConnections(
            partial(taken, access=access), partial(given_back, access=access)
        )
        self.connection, self.drop = self._connections.at, self._connections.drop
        self._copied: dict[int, tuple[int, str]] = {}
        # The node of each that is active, by number; or that has the replica to be read.
        self.owners: dict[int, str] = {}
        self.copied: frozenset[int] = frozenset()  # those of them that are replicas there
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def vbuckets(self) -> int:
        """How many there are in all, active somewhere or not."""
        return self.directory.vbuckets

    @property
    def terms(self) -> dict[int, int]:
        """The highest term that was ever heard of, by vBucket."""
        return self.directory.terms

    # --- questions ------------------------------------------------------------------------------

    def at(self, place: str, ask: Callable[[NodeConnection], T]) -> T:
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
        copied, seqno = self._copied, self.directory.seqno
        return {n: copied[n][0] if n in copied else seqno(n) for n in sorted(self.owners)}

    def standings(
        self, vbuckets: Iterable[int] | None = None, items: bool = False
    ) -> dict[int, NodeStanding]:
        """Return how far vBuckets are, all that are active unless some are named.

        With `items` their documents are counted, too.

        Raises:
            NoVBucket: one of them is active nowhere.
            As the class.
        """
        seqnos = self.seqnos()
        wanted = sorted(seqnos) if vbuckets is None else sorted(set(vbuckets))
        found: dict[int, NodeStanding] = {}
        for place, numbers in self.by_place(wanted).items():
            logs, counts = self.at(place, partial(_survey, numbers, items))
            for number, log in zip(numbers, logs, strict=True):
                term = self.terms.get(number, 0)
                count = counts.get(number, 0)
                found[number] = NodeStanding(number, place, seqnos[number], log, count, term)
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

        0 if `uuid` is another history.

        Raises:
            NoVBucket, Refused: it is not there, or knows nothing of that history.
        """
        (place,) = self.by_place([vbucket])
        value = OBSERVE_SEQNO_REQUEST.pack(uuid)
        request = RequestFrame(Opcode.OBSERVE_SEQNO, value=value, vbucket=vbucket)

        def ask(connection: NodeConnection) -> int:
            (answer,) = connection.require([request])
            try:
                seen = decode_observe_seqno(answer.value)
            except RemoteProtocolError as error:
                raise connection.protocol_error(str(error)) from None
            return seen.persisted_seqno if seen.same_history else 0

        return self.at(place, ask)

    def close(self) -> None:
        """Let go of all connections."""
        self._connections.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- who has what ---------------------------------------------------------------------------

    def _refresh(self) -> None:
        directory, access = self.directory, self._access
        copies = access.servers if access.copies != "none" else ()
        self._connections.survey(directory, replicas_at=copies)
        silent = directory.silent.values()
        for each in silent:
            if each.error is not None and not isinstance(each.error, NodeUnreachable | Busy):
                raise each.error
            if each.why not in (Why.LOST, Why.LATER):
                raise _RAISED[each.why](each.words)
        if not directory.facts:
            raise _summed_up(list(silent))
        if not self.vbuckets:
            nodes = ", ".join(directory.facts)
            raise Refused(f"{nodes}: no node tells how many vBuckets it has")
        self.owners = directory.owners()
        self._copied = self._copies() if copies else {}
        self.copied = frozenset(self._copied)
        self.owners |= {number: place for number, (_, place) in self._copied.items()}

    def _copies(self) -> dict[int, tuple[int, str]]:
        """Return the replicas to read that the named nodes have; of several the newest."""
        named = self._access.servers
        known = {
            number
            for number, place in self.owners.items()
            if self._access.copies == "missing" or place in named
        }
        found: dict[int, tuple[int, str]] = {}
        for place in named:
            facts = self.directory.facts.get(place)
            for number, seqno in facts.replicas.items() if facts is not None else ():
                if number not in known:
                    found[number] = max(found.get(number, (-1, "")), (seqno, place))
        return found

    def absent(self, vbuckets: Iterable[int]) -> str:
        """Return what to say of vBuckets that no node can be used for."""
        return str(self.directory.missing(vbuckets))


def _survey(
    numbers: list[int], items: bool, connection: NodeConnection
) -> tuple[list[FailoverLog], dict[int, int]]:
    """Ask one node for failover logs, all in one pipeline, and for the numbers of documents."""
    return _logs(connection, numbers), details(connection, "num_items") if items else {}


def _logs(connection: NodeConnection, numbers: Iterable[int]) -> list[FailoverLog]:
    wanted = list(numbers)
    answers = connection.require([log_request(number) for number in wanted])
    try:
        return [read_log(answer.value) for answer in answers]
    except RemoteProtocolError as error:
        raise connection.protocol_error(str(error)) from None


def details(connection: NodeConnection, wanted: str) -> dict[int, int]:
    """Return a number that a node tells of each vBucket that it has; raises as `statistics`."""
    found: dict[int, int] = {}
    for name, value in connection.statistics("vbucket-details").items():
        vbucket, _, field = name.partition(":")
        if field == wanted and value.isdigit() and vbucket[3:].isdigit():
            found[int(vbucket[3:])] = int(value)
    return found


def _summed_up(silent: list[NotTold]) -> ClientError:
    text = "; ".join(dict.fromkeys(each.words for each in silent))
    first = silent[0].error
    if isinstance(first, ClientError):
        return type(first)(text).doubting(first.doubtful_place)
    return _RAISED[silent[0].why](text)
