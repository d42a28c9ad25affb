"""Failover logs as nodes tell them: read, judged, and what follows for a reader.

A node refuses a stream whose beginning is not in its history, by `uprmc.rollback`. The driver of a
stream or of a backup asks for the failover logs first and decides by the same rule, so that nothing
is planned that would be refused. The node's answer N is not yet where to go on: what a reader holds
is a state the node ever had only at the end of a snapshot that was read completely. Therefore the
reader goes back to the newest such boundary at or below N (`newest_boundary`), which may be the
beginning.

Rows D12 to D14, P10. See `docs/streams.md`, rollback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.protocol.upr import FAILOVER_ENTRY, decode_failover_log

#: Longest failover log that is believed.
LOG_MAX_ENTRIES = 1000

#: Entries (vb_uuid, seqno after which the history begins), newest first.
Entries = Sequence[tuple[int, int]]


def read_log(value: bytes) -> FailoverLog:
    """Read the failover log in an answer.

    Raises:
        RemoteProtocolError: torn, empty, longer than `LOG_MAX_ENTRIES`, or not newest first.
    """
    entries = len(value) // FAILOVER_ENTRY.size
    if entries > LOG_MAX_ENTRIES:
        raise RemoteProtocolError(
            f"a failover log of {entries} entries, more than {LOG_MAX_ENTRIES} are not believed"
        )
    log = decode_failover_log(value)
    if any(older.seqno > newer.seqno for newer, older in pairwise(log)):
        raise RemoteProtocolError("a failover log that is not newest first")
    return log


def newest_entries(value: bytes, limit: int) -> FailoverLog:
    """Read at most `limit` entries of a failover log, in whatever order they are.

    Raises:
        RemoteProtocolError: torn or empty.
    """
    if len(value) % FAILOVER_ENTRY.size:
        raise RemoteProtocolError(f"a failover log of {len(value)} bytes")
    return decode_failover_log(value[: limit * FAILOVER_ENTRY.size])


def check_presentable(log: FailoverLog) -> None:
    """Refuse a log that could not be shown to others: no server would have made it.

    Raises:
        RemoteProtocolError: it has a uuid that is 0 or comes twice, or is not newest first.
    """
    uuids, seqnos = {entry.uuid for entry in log}, [entry.seqno for entry in log]
    if 0 in uuids or len(uuids) < len(log) or seqnos != sorted(seqnos, reverse=True):
        raise RemoteProtocolError(f"a failover log that makes no sense, at {seqnos[:5]}")


def newest_boundary(point: int, boundaries: Iterable[int]) -> int:
    """Return the newest of a reader's complete states that lies in shared history; 0 = none.

    Args:
        point: what `rollback.rollback_point` or a node's refusal says.
        boundaries: ends of snapshots that were read completely, in any order.
    """
    return max((each for each in boundaries if each <= point), default=0)
