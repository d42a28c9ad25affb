"""A stream that reads from a lease: one snapshot, the same bytes each time, then the end.

Source: design, decision 12.
"""

from __future__ import annotations

from uprmc.engine.reading import Lease, Reading
from uprmc.protocol.opcodes import EndReason, MarkerFlag
from uprmc.protocol.upr import StreamRequest
from uprmc.upr.produce.frames import Form
from uprmc.upr.produce.host import Host, StreamState
from uprmc.upr.produce.stream import Stream


class LeaseStream(Stream):
    """Sends the reading that a lease keeps.

    What happens to the vBucket meanwhile does not matter: it may be handed over, or removed.
    """

    __slots__ = ("_lease",)

    def __init__(
        self,
        host: Host[Stream],
        number: int,
        opaque: int,
        request: StreamRequest,
        form: Form,
        lease: Lease,
    ) -> None:
        super().__init__(host, lease.vbuckets[number], opaque, request, form)
        self._lease: Lease | None = lease

    def begin(self) -> None:
        """See `Stream`."""
        lease = self._lease
        assert lease is not None
        lease.readers[self._lease_ended] = None
        lease.reads += 1
        self.end_seqno = lease.readings[self.vbucket.id].end_seqno
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)
        else:
            self.tell_ready()

    def _lease_ended(self) -> None:
        self.end(EndReason.BACKFILL_FAILED)

    @property
    def reach_seqno(self) -> int:
        """See `Stream`."""
        return self.end_seqno

    def _take_reading(self, host: Host[Stream]) -> Reading | None:
        assert self._lease is not None
        return self._lease.readings[self.vbucket.id]

    def _has_news(self) -> bool:
        return True

    def _settle_state(self, reading: Reading) -> None:
        self.state = StreamState.BACKFILLING

    def news(self, limit: int) -> None:
        """See `Stream.news`; what is new does not matter."""

    def _marker_kind(self, *, from_disk: bool) -> int:
        return MarkerFlag.DISK

    def _let_reading_go(self, reading: Reading) -> None:
        """Leave the reading open: it belongs to the lease."""

    def close(self) -> None:
        """See `Stream`."""
        super().close()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.readers.pop(self._lease_ended, None)
