"""Registered clients of all kinds: an index, a backup, a link to another cluster, and others.

Each follows one vBucket, wherever it is active, and has one instance id for all its lives. What it
has on its disk is what it reports. It crashes, stays away, comes to the wrong node, is removed.

Source: `reference/systems.md` a.1 to a.4; contracts of the systems to come, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.sim import codec
from tests.sim.codec import Frame
from tests.sim.consumer import Connection, Consumer, Kind, Manners, Stream
from tests.sim.judges import complain
from tests.sim.net import FAR_AWAY, SLOW_READER
from tests.sim.operators import Operator
from tests.sim.stream_judges import Copy, StreamJudge
from tests.sim.truth import Histories, Seen
from tests.sim.watermark_judges import Moment, Place, WatermarkJudge

_HWT = "uprmc_hwt"

#: Kind of consumer -> its number on the wire. A backup is away for longer than its row lives; what
#: moves a vBucket takes long and breaks off again and again.
KINDS = {
    Kind("other", Manners(controls=(_HWT,)), moody=0.05, absent_s=0.3): 0,
    Kind(
        "xdcr",
        Manners(controls=(_HWT, "uprmc_versions"), buffer_bytes=1_000, profile=FAR_AWAY),
        versions=True,
        moody=0.03,
        absent_s=1.0,
    ): 1,
    Kind(
        "index",
        Manners(
            controls=(_HWT,), buffer_bytes=250, ack_delay_max_s=0.3, noop_s=0.5, profile=SLOW_READER
        ),
        keep=5,
        whole_only=True,
        moody=0.02,
        absent_s=1.0,
    ): 2,
    Kind("rebalance", Manners(controls=(_HWT,), buffer_bytes=150), moody=0.15): 4,
    Kind("backup", Manners(controls=(_HWT, "uprmc_snapshots")), moody=0.3, absent_s=6.0): 5,
}

NAMES = tuple(kind.name for kind in KINDS)

#: Chances of a thought: to go to a node that may be the wrong one, to look whether this one is, to
#: report, to write down half a snapshot, to give up its registration.
_ASTRAY, _DOUBTS, _REPORTS, _SAVES, _REMOVES = 0.1, 0.1, 0.3, 0.1, 0.002


class _FromElsewhere:
    """A node's truth for a client that was at other nodes: it may lack what those had purged."""

    def __init__(self, histories: Histories, name: str) -> None:
        self._purged = histories.purged
        self._truth = histories.node(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._truth, name)

    def branch(self, vbucket: int, uuid: int) -> Any:
        """Return a branch; of an older one, others may have purged what is shared with it."""
        log = self._truth.now(vbucket).log
        ends = [codec.NEVER, *(begin for _, begin in log)]

        def purged() -> int:
            seen = [self._purged.get((vbucket, each), 0) for each, _ in log]
            return max(map(min, seen, ends), default=0)

        return Seen(self._truth.branch(vbucket, uuid), purged)


@dataclass(slots=True)
class Fate:
    """What registered clients went through."""

    reports: int = 0
    refused: int = 0
    outpaced: int = 0
    removed: int = 0
    rebuilt: int = 0
    moved: int = 0


class Registered(Consumer):
    """See the module docstring."""

    _flags = codec.ACTIVE_ONLY

    def __init__(
        self,
        histories: Histories,
        operator: Operator,
        judge: WatermarkJudge,
        kind: str,
        vbucket: int,
        lifetime_s: int,
        loses: float = 0.0,
    ) -> None:
        """Make it; at each thought it loses its disk with the chance `loses`."""
        self._loses = loses
        self._histories, self._operator = histories, operator
        self._judge = judge
        self._vbucket = vbucket
        self._lifetime_s = lifetime_s
        self._home = operator.wanted[vbucket]
        self._reported: tuple[int, int] | None = None
        self._removals = 0
        self.fate = Fate()  # what became of its reports
        node = operator.node(self._home)
        truth = histories.node(self._home)
        super().__init__(
            operator.net.world,
            node,
            truth,
            0,
            next(each for each in KINDS if each.name == kind),
            vbucket,
        )  # type: ignore[arg-type]
        self.instance = kind.encode()  # its id
        self.copies = {vbucket: Copy(self.kind.keep)}
        self._stored = {vbucket: self.copies[vbucket].stored()}

    @property
    def _place(self) -> Place:
        return self._home, self._vbucket, self.instance

    # --- where it goes ----------------------------------------------------------------------------

    def _connect(self) -> None:
        self._go_to(self._wanted())
        super()._connect()
        if self.connection is not None:
            self._report(self.connection)

    def _wanted(self) -> str:
        if not self.calm and self._world.chance(_ASTRAY):
            return self._world.random.choice(self._operator.names)
        return self._operator.wanted[self._vbucket]

    def _go_to(self, name: str) -> None:
        self.fate.moved += name != self._home
        self._home = name
        self._node = self._operator.node(name)
        self._truth = self._requests._truth = _FromElsewhere(self._histories, name)  # type: ignore[assignment]

    def _live(self, connection: Connection) -> None:
        chance = self._world.chance
        if self._home != self._operator.wanted[self._vbucket] and chance(_DOUBTS):
            connection.hang_up()
            return
        super()._live(connection)
        if self.connection is not connection:
            return
        if not self.calm and chance(self._loses):
            self._lose_all(connection)
        elif not self.calm and chance(_REMOVES):
            self._remove(connection)
        elif chance(_REPORTS):
            self._report_news(connection)

    def _lose_all(self, connection: Connection) -> None:
        """It comes back with nothing but its id."""
        self.fate.rebuilt += 1
        connection.hang_up()
        self.copies = {self._vbucket: Copy(self.kind.keep)}
        self._save()

    # --- its row ----------------------------------------------------------------------------------

    def _durable(self) -> tuple[int, int]:
        """Return the end of the last complete snapshot on its disk, and a history that has it."""
        stored = self._stored[self._vbucket]
        whole = stored.boundaries[-1]
        known = [uuid for uuid, begin in stored.log if begin <= whole]
        return whole, known[0] if whole and known else 0

    def _report_news(self, connection: Connection) -> None:
        if self._durable() != self._reported or self._world.chance(0.1):
            self._report(connection)

    def _report(self, connection: Connection) -> None:
        watermark, uuid = self._reported = self._durable()
        place, sent, removals = self._place, self._judge.moment, self._removals
        extras = codec.report_extras(
            watermark, KINDS[self.kind], self._lifetime_s if watermark % 2 else 0, uuid=uuid
        )
        self._judge.sent(place, watermark)
        self.fate.reports += 1
        connection.report(
            self._vbucket,
            self.instance,
            extras,
            lambda reply: (
                self._answered(place, sent, watermark, reply)
                if removals == self._removals
                else None
            ),
        )

    def _answered(self, place: Place, sent: Moment, watermark: int, reply: Frame) -> None:
        if reply.place == codec.OK:
            purge, high, lifetime_s = codec.report_answer(reply)
            if not watermark <= high or not lifetime_s > 0:
                complain(f"{place}: {watermark} is accepted with {purge} {high} {lifetime_s}")
            node = self._operator.node(place[0])
            self._judge.accepted(place, node, sent, lifetime_s)
            return
        self._judge.refused(place)
        self.fate.refused += 1
        self.fate.outpaced += reply.place == codec.ROLLBACK and len(reply.extras) == 24
        if reply.place not in (
            codec.NOT_MY_VBUCKET,
            codec.ROLLBACK,
            codec.OUT_OF_RANGE,
            codec.TRY_AGAIN,
        ):
            complain(f"{place}: a report of {watermark} is refused: {reply}")

    def _remove(self, connection: Connection) -> None:
        """End the registration; it comes back as if it had none."""
        self.fate.removed += 1
        self._removals += 1
        place = self._place
        extras = codec.report_extras(0, 0, 0, remove=True)
        connection.report(self._vbucket, self.instance, extras, lambda _: self._judge.forget(place))
        self._judge.forget(place)
        self._reported = None

    # --- its streams ------------------------------------------------------------------------------

    def _ask(self, connection: Connection, number: int) -> None:
        if not self.copies[number].last:
            self._judge.builds(self._place)
        super()._ask(connection, number)

    def _judge_answer(self, stream: Stream, status: int, value: bytes) -> None:
        purge = max(look.purge for look in self._truth.since(self._vbucket, stream.step))
        spared = self._judge.spares(self._place, purge)
        self._requests.answered(
            self._vbucket, stream.asked, stream.step, status, value, notifier=False, spared=spared
        )
        if status == codec.OK:
            self._judge.goes_on(self._place, stream.asked.start)

    def _fall_back(self, copy: Copy, seqno: int) -> None:
        super()._fall_back(copy, seqno)
        self._save()
        if self.connection is not None:
            self._report(self.connection)

    def _item(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        if not self.copies[self._vbucket].last and judge.marker is not None:
            self._judge.built_upto(self._place, judge.marker[1])
        super()._item(stream, judge, frame)
        if self._world.chance(_SAVES):
            self._save()

    def _save(self) -> None:
        self._stored[self._vbucket] = self.copies[self._vbucket].stored()
