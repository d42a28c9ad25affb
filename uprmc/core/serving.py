"""Commands that the compiled core carries out without the session.

The interpreted form has nothing of the kind: there the session's own loop does all of it.
"""

from __future__ import annotations

from typing import Any, Protocol

from uprmc.core.form import COMPILED, FORM
from uprmc.core.numbered import Numbered


class Serving(Protocol):
    """Get and set of one protocol for one connection; in binary also sets with metadata.

    Attributes:
        with_seqnos: replies to changes carry (vb_uuid, seqno); binary only.
        unsent: bytes of replies; the session sets it before a call.
        hits: gets that found a document, since it was set to 0.
        misses: gets that found none.
        sets: sets.
        swaps: sets with a CAS, among these.
        versions: sets with metadata, not among these.
        lost: sets with metadata that were refused, because the document stays.
        ahead: how many of them have a CAS that is ahead of the clock, see `cas_clock.DRIFT_S`.
        behind: how many have one that is behind it.
    """

    with_seqnos: bool
    unsent: int
    hits: int
    misses: int
    sets: int
    swaps: int
    versions: int
    lost: int
    ahead: int
    behind: int

    def serve(
        self,
        data: bytes,
        position: int,
        out: list[bytes],
        limit: int,
        mask: int,
        now: int,
        max_body: int,
    ) -> int:
        """Carry out complete commands from `position` on, as long as nothing is special about them.

        Special is whatever a rule could refuse, delay or answer in another way: a document that is
        deleted, expired or only on disk, a datatype, an unknown vBucket, another CAS, a shortage of
        memory. Call it only while no document can be locked.

        Args:
            data: what the peer has sent.
            position: where the first command begins.
            out: gets the replies.
            limit: no command is begun with more unsent bytes than this.
            mask: number of vBuckets - 1 if the key chooses the vBucket, -1 if a frame names it.
            now: Unix time.
            max_body: longest body of a set, or in text key and value; -1 to carry out no set.

        Returns:
            the position of the first command that was not carried out; nothing of it was done.
        """


class Line(Protocol):
    """One connection whose chunks are mostly received, served and answered in one call."""

    def exchange(self) -> bytes | None:
        """Receive once, and do all of it if nothing is special about connection or chunk.

        Returns:
            ``None`` if that was all; otherwise what was received, of which nothing has been done,
            and which is empty if the peer has closed its half.

        Raises:
            OSError: as the socket's `recv`.
        """


def line(connection: Any, protocol: Any, session: Any, serving: Any, limit: int) -> Line | None:
    """Return the line of a binary connection, ``None`` in the interpreted form.

    Args:
        connection: the transport, a `server.transport.Direct`.
        protocol: the `server.adapter.SessionProtocol`.
        session: its `kv.binary.BinarySession`.
        serving: what serves that session.
        limit: as of `Serving.serve`.
    """
    if serving is None:
        return None
    from uprmc.core.native.line import Line as NativeLine

    made: Line = NativeLine(connection, protocol, session, serving, limit)
    return made


def binary_serving(lookups: Numbered[Any], active: Numbered[Any], account: Any) -> Serving | None:
    """Return what serves a binary connection, ``None`` in the interpreted form.

    Args:
        lookups: number -> `Records.lookup` of each active vBucket.
        active: number -> the vBucket itself.
        account: the memory account of all.
    """
    if FORM != COMPILED:
        return None
    from uprmc.core.native import binary

    return binary.BinaryServing(lookups.slots, active.slots, account)


def text_serving(lookups: Numbered[Any], active: Numbered[Any], account: Any) -> Serving | None:
    """Do the same for a text connection."""
    if FORM != COMPILED:
        return None
    from uprmc.core.native import text

    return text.TextServing(lookups.slots, active.slots, account)
