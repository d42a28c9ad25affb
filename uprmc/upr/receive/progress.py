"""How far a link has come: what the source has more, and what of it is on disk here.

The source is asked for its seqnos once a second, and told of every stream up to where all of it is
on our disk, if it wants to know.

Source: UPR reference 2.12, 6; docs/extensions.md.
"""

from __future__ import annotations

from typing import Protocol

from uprmc.protocol.header import ResponseFrame, encode_request
from uprmc.protocol.management import decode_vbucket_seqno_terms, decode_vbucket_seqnos
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import SEQNO_ACKNOWLEDGED_EXTRAS
from uprmc.remote import features
from uprmc.upr.receive.replica_stream import ReplicaState, ReplicaStream
from uprmc.upr.receive.term_watch import Asker, TermWatch

#: How often the source is asked for its seqnos, and how often at most it is told what is on disk.
_ASK_EVERY_S = 1.0
_TELL_EVERY_S = 0.1

#: A replica that lacks more is far behind: its disk can wait until it is nearer.
_FAR_ITEMS = 30_000


class Source(Asker, Protocol):
    """A connection to the source, as far as it is needed here.

    Attributes:
        streams: by vBucket.
        granted: keys of CONTROLs that it has accepted.
        terms: whether it tells terms.
    """

    streams: dict[int, ReplicaStream]
    granted: set[bytes]
    terms: bool

    def put(self, frame: bytes) -> None:
        """Send a frame that has no answer."""


class Progress:
    """How far one link has come.

    Times are monotonic seconds.

    Attributes:
        source_seqnos: high seqnos at the source, by vBucket, as it said last.
        level_at: when nothing was lacking the last time, of all that is streamed.
    """

    def __init__(self, link: Source) -> None:
        self.source_seqnos: dict[int, int] = {}
        self.level_at = 0.0
        self._link: Source | None = link
        self._terms = TermWatch()
        self._now = 0.0
        self._asked_at = -_ASK_EVERY_S
        self._told_at = 0.0
        self._waiting = False
        self._far = False

    def begin(self, now: float) -> None:
        """Count from now."""
        self.level_at = self._now = now

    def close(self) -> None:
        """Let go of the link."""
        self._note_far(False)
        self._link = None

    @property
    def lag_items(self) -> int:
        """How many seqnos the source is ahead, as far as known."""
        seqnos = self.source_seqnos
        return sum(
            max(0, seqnos.get(number, 0) - stream.vbucket.high_seqno)
            for number, stream in (self._link.streams if self._link else {}).items()
        )

    @property
    def lag_s(self) -> float:
        """For how long something has been lacking."""
        return max(0.0, self._now - self.level_at)

    def tick(self, now: float) -> None:
        """Ask and tell what is due."""
        self._now = now
        link = self._link
        if link is None:
            return
        ask = now - self._asked_at >= _ASK_EVERY_S
        if ask or self._far:
            self._note_far(self.lag_items > _FAR_ITEMS)
        if ask and not self._waiting:
            self._waiting, self._asked_at = True, now
            link.ask(Opcode.GET_ALL_VB_SEQNOS, self._seqnos_came)
        if features.PERSISTED in link.granted and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._tell_persisted(link)

    def _note_far(self, far: bool) -> None:
        """Tell the flusher whether this link is far behind."""
        if far is not self._far and self._link is not None:
            self._far = far
            self._link.hub.bucket.flusher.pace.filling += 1 if far else -1

    def _seqnos_came(self, reply: ResponseFrame) -> None:
        self._waiting = False
        if reply.status:
            return
        self.source_seqnos = self._learned(reply.value)
        lag_items = self.lag_items
        self._note_far(lag_items > _FAR_ITEMS)
        if not lag_items:
            self.level_at = self._asked_at

    def _learned(self, value: bytes) -> dict[int, int]:
        """Return seqnos by vBucket; terms that come with them may say that we were deposed."""
        link = self._link
        if link is None or not link.terms:
            return dict(decode_vbucket_seqnos(value))
        rows = decode_vbucket_seqno_terms(value)
        for number, _, term in rows:
            self._terms.shown(link, number, term)
        return {number: seqno for number, seqno, _ in rows}

    def _tell_persisted(self, link: Source) -> None:
        durable_seqno = link.hub.bucket.flusher.durable_seqno
        for number, stream in link.streams.items():
            vbucket = stream.vbucket
            if vbucket.persisted_seqno <= stream.told_seqno:
                continue  # so is what is durable, which is at most that
            seqno = durable_seqno(vbucket)
            if seqno > stream.told_seqno and stream.state is ReplicaState.READING:
                stream.told_seqno = seqno
                link.put(
                    encode_request(
                        Opcode.UPR_SEQNO_ACKNOWLEDGED,
                        extras=SEQNO_ACKNOWLEDGED_EXTRAS.pack(seqno),
                        vbucket=number,
                        opaque=stream.opaque,
                    )
                )
