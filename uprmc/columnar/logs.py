"""Failover logs: which histories a vBucket has been through."""

from __future__ import annotations

from itertools import pairwise

from uprmc.protocol.upr import FAILOVER_ENTRY

#: (vb_uuid, seqno after which it begins), newest first.
Log = tuple[tuple[int, int], ...]

#: Longest failover log that is believed.
LOG_MAX_ENTRIES = 1000


def parsed_log(value: bytes) -> Log:
    """Return the failover log that an answer holds; raises `ValueError` for what is none."""
    entries, rest = divmod(len(value), FAILOVER_ENTRY.size)
    if rest or not 0 < entries <= LOG_MAX_ENTRIES:
        raise ValueError(f"a failover log of {len(value)} bytes")
    log = tuple((uuid, seqno) for uuid, seqno in FAILOVER_ENTRY.iter_unpack(value))
    if any(older > newer for (_, newer), (_, older) in pairwise(log)):
        raise ValueError("a failover log that is not newest first")
    return log
