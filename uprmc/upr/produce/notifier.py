"""A stream that only says that there is news, once.

Source: UPR reference 4.5.
"""

from __future__ import annotations

from uprmc.protocol.opcodes import EndReason
from uprmc.upr.produce.stream import Stream


class NotifierStream(Stream):
    """Ends as soon as the vBucket has passed the seqno that was asked for; sends nothing else."""

    __slots__ = ()

    def begin(self) -> None:
        """Start; ends at once when there is news already."""
        self.vbucket.watchers.append(self)
        self.changed()

    def changed(self) -> None:
        """Tell the peer if what it waits for has come."""
        self._waiting = False
        if self.vbucket.high_seqno > self.request.start_seqno:
            self.end(EndReason.OK)
        else:
            self.rest()
