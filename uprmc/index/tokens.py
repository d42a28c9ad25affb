"""Whether a version is indexed, will be, or never can be: pure rules over failover logs.

A failover log is newest first; each entry names what was written after its seqno, up to where the
entry before it begins. A version (U, s) is part of a history if that has U, and s is not above the
end of U's part.

Source: systems reference c.8; acceptance rows I26, I27.
"""

from __future__ import annotations

from uprmc.index.model import Token
from uprmc.index.tree import Position
from uprmc.model import SEQNO_MAX, FailoverLog


def part_ends(log: FailoverLog, vb_uuid: int) -> int | None:
    """Return the last seqno that a history has of `vb_uuid`, ``None`` = it has nothing of it."""
    end = SEQNO_MAX
    for entry in log:
        if entry.uuid == vb_uuid:
            return end
        end = entry.seqno
    return None


def is_of(log: FailoverLog, token: Token) -> bool:
    """Return whether a history has a version."""
    end = part_ends(log, token.vb_uuid)
    return end is not None and token.seqno <= end


def is_reached(position: Position | None, log: FailoverLog, token: Token) -> bool:
    """Return whether an index that stands at `position` of this history has a version."""
    return position is not None and position.seqno >= token.seqno and is_of(log, token)
