"""Taking vBuckets over from another node: a line of its own, one verdict for each vBucket.

It is over when each is decided. A source that falls silent is given up by the link, and one that
speaks while nothing gets on is given up here, so it does not last for ever: it may have stopped
persistence, or this node may have, and neither side promises anything before the disk has it.

Row D52.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.model import VBucketState
from uprmc.ports import Dial
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.replication import Outcome
from uprmc.remote import features
from uprmc.upr.hub import Hub
from uprmc.upr.link import LinkCall, ReplicaLink, other_count

#: vBuckets that are not decided are given up when none has made progress for this long.
_STILL_S = 60.0

#: Called with what became of each vBucket, and the last reason for one that was not taken.
HandoverDone = Callable[[dict[int, Outcome], str], None]


class Handover:
    """One hand-over of some vBuckets. Implements `LinkOwner`."""

    def __init__(
        self,
        hub: Hub,
        dial: Dial,
        place: str,
        name: bytes,
        numbers: list[int],
        now: float,
        on_end: Callable[[Handover], None],
    ) -> None:
        """Prepare it; `on_end` is called once, when all is decided."""
        self.place = place  # the source, HOST:PORT
        self.numbers = numbers  # what was asked for
        self.outcomes: dict[int, Outcome] = {}  # what has been decided
        self.error = ""  # why the last one that was not taken was not
        self._hub = hub
        self._granted: set[int] = set()
        self._opened = False
        self._began_at = self._moved_at = now
        self._steps = 0
        self._on_end: Callable[[Handover], None] | None = on_end
        self._call: LinkCall | None = LinkCall(hub, dial, place, name, self)

    def start(self) -> None:
        """Dial; all may be decided before this returns."""
        if self._call is not None:
            self._call.start()

    def tick(self, now: float) -> None:
        """Give up a source that does not answer."""
        call = self._call
        if call is None:
            return
        link = call.link
        if link is not None:
            link.tick(now)
        if not self._opened:
            if now - self._began_at >= self._hub.settings.dial_timeout_s:
                call.give_up()
        elif link is not None and link.steps != self._steps:
            self._steps, self._moved_at = link.steps, now
        elif now - self._moved_at >= _STILL_S:
            self.close(f"no progress for {_STILL_S:g} s: {self._likely_cause()}")

    def _likely_cause(self) -> str:
        bucket = self._hub.bucket
        if bucket.flusher.paused:
            return "persistence is stopped here, start it"
        if bucket.account.disk_reason:
            return f"the disk refuses here: {bucket.account.disk_reason}"
        return "does the source persist, and is there memory left here?"

    def give_up(self, numbers: list[int], why: str) -> None:
        """Take these over no more; what is taken already stays so."""
        link = self._call.link if self._call is not None else None
        undecided = [number for number in numbers if number not in self.outcomes]
        if link is not None:  # one that has failed, too, may be waiting for the disk
            link.leave([number for number in undecided if number in link.streams])
        for number in undecided:
            self.ended(number, why, False)

    def close(self, why: str) -> None:
        """Give up everything that is not decided."""
        self.give_up(self.numbers, why)

    # --- what the link tells --------------------------------------------------------------------

    def opened(self) -> None:
        """See `LinkOwner`."""
        self._opened = True
        link = self._call.link if self._call is not None else None
        if link is not None and features.is_ours(link.granted):
            link.ask(Opcode.GET_CLUSTER_CONFIG, partial(self._counted, link))
        elif link is not None:
            self._take_over(link)

    def _counted(self, link: ReplicaLink, answer: ResponseFrame) -> None:
        """Take nothing from a source with another number of vBuckets."""
        if other := other_count(answer, self._hub):
            self.close(f"{other}: none is taken over")
        else:
            self._take_over(link)

    def _take_over(self, link: ReplicaLink) -> None:
        link.take_over([number for number in self.numbers if number not in self.outcomes])

    def began(self, number: int) -> None:
        """See `LinkOwner`."""
        self._granted.add(number)

    def ended(self, number: int, why: str, _retry: bool) -> None:
        """See `LinkOwner`; what was refused is not asked for again by itself."""
        vbucket = self._hub.bucket.vbuckets.get(number)
        if vbucket is not None and vbucket.state == VBucketState.ACTIVE:
            self._decide(number, Outcome.TAKEN)
            return
        self.error = f"vBucket {number}: {why}"
        self._decide(number, Outcome.INTERRUPTED if number in self._granted else Outcome.REFUSED)

    def taken(self, number: int) -> None:
        """See `LinkOwner`."""
        self._decide(number, Outcome.TAKEN)

    def closed(self, why: str) -> None:
        """See `LinkOwner`."""
        for number in self.numbers:
            if number not in self.outcomes:
                self.ended(number, why, False)
        self._call = None

    def _decide(self, number: int, outcome: Outcome) -> None:
        if number not in self.numbers or number in self.outcomes:
            return
        self.outcomes[number] = outcome
        if len(self.outcomes) < len(self.numbers):
            return
        call, self._call = self._call, None
        on_end, self._on_end = self._on_end, None
        if call is not None:
            call.hang_up()
        if on_end is not None:
            on_end(self)
