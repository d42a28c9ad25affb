"""What precedes the items of a stream's snapshots: markers, and facts that markers do not tell."""

from __future__ import annotations

from uprmc.engine.vbucket import VBucket
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import snapshot_marker, versioned_marker
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.protocol.upr_many import ANNOUNCED_SNAPSHOT
from uprmc.upr.produce.frames import Form


class Markers:
    """Announces the snapshots of one stream.

    Attributes:
        floor: where the snapshot that was announced last begins, while it is not complete; ``None``
            = between snapshots.
    """

    __slots__ = ("_facts", "_first_generation", "_opaque", "_vbucket", "_versioned", "floor")

    def __init__(
        self, vbucket: VBucket, opaque: int, form: Form, floor: int, *, first_generation: bool
    ) -> None:
        """Begin where the peer stands.

        Args:
            vbucket: what is streamed.
            opaque: the peer's name for the stream.
            form: which markers the peer understands, and whether it wants facts.
            floor: where the snapshot begins in which the peer stands.
            first_generation: markers say nothing but that a snapshot begins.
        """
        self._vbucket = vbucket
        self._opaque = opaque
        self._versioned = form.versioned_markers
        self._first_generation = first_generation
        self._facts: tuple[int, int] | None = (-1, -1) if form.facts else None
        self.floor: int | None = floor

    def announce(
        self, last_seqno: int, end_seqno: int, kind: int, purge_seqno: int, out: list[bytes]
    ) -> int:
        """Put out a marker for the items from `last_seqno` to `end_seqno`; return what it takes."""
        start = self._start(last_seqno)
        self.floor = start
        number, opaque = self._vbucket.id, self._opaque
        if self._first_generation:
            marker = encode_request(Opcode.UPR_SNAPSHOT_MARKER, vbucket=number, opaque=opaque)
        elif self._versioned:
            marker = versioned_marker(number, opaque, start, end_seqno, kind, purge_seqno)
        else:
            marker = snapshot_marker(number, opaque, start, end_seqno, kind)
        sent = self.tell_facts(purge_seqno, out)
        out.append(marker)
        return sent + len(marker)

    def row(self, last_seqno: int, end_seqno: int, kind: int, purge_seqno: int) -> bytes:
        """Return a row of SNAPSHOTS, which announces a snapshot as a marker does."""
        start = self._start(last_seqno)
        return ANNOUNCED_SNAPSHOT.pack(self._opaque, kind, start, end_seqno, purge_seqno)

    def _start(self, last_seqno: int) -> int:
        first = last_seqno + 1
        return first if self.floor is None else min(self.floor, first)

    def tell_facts(self, purge_seqno: int, out: list[bytes]) -> int:
        """Put out what holds for the snapshots from here on, if the peer wants and lacks it.

        Returns the bytes of the frame; 0 = there is none.
        """
        facts = (purge_seqno, self._vbucket.max_deleted_rev)
        if self._facts is None or self._facts == facts:
            return 0
        self._facts = facts
        frame = encode_request(
            Opcode.VBUCKET_FACTS,
            extras=VBUCKET_FACTS_EXTRAS.pack(*facts),
            vbucket=self._vbucket.id,
            opaque=self._opaque,
        )
        out.append(frame)
        return len(frame)
