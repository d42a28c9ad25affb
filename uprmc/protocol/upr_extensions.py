"""Bodies of what this server adds to UPR: barriers, rounds, leases, facts about vBuckets.

A server without them answers "unknown command". None of the frames below is sent on a connection
that did not enable it with a control key.

Leases: design, decision 12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from construct import (
    Const,
    GreedyRange,
    Int16ub,
    Int32ub,
    Int64ub,
    Terminated,
)
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import TERM_MAX, FailoverEntry
from uprmc.protocol.derive import derive
from uprmc.protocol.rows import pack_rows, unpack_rows

# --- barriers and rounds ------------------------------------------------------------------------

#: Longest cookie of a barrier, in bytes.
COOKIE_MAX_BYTES = 128

#: Extras of the reply to BARRIER_ADD: the producer's position when the cookie arrived.
BarrierAddReplyExtras = Layout("cycle" / Int32ub, "vbucket" / Int16ub, "unused" / Const(0, Int16ub))
BARRIER_ADD_REPLY_EXTRAS = derive(BarrierAddReplyExtras)

#: Extras of BARRIER_REACHED; its key is the cookie, its opaque that of the BARRIER_ADD.
BarrierReachedExtras = Layout("cycle" / Int32ub, "frames" / Int32ub)
BARRIER_REACHED_EXTRAS = derive(BarrierReachedExtras)

#: Extras of PARTITION_START: the vBucket's turn in a round begins; `first_seqno` is exclusive.
PartitionStartExtras = Layout("first_seqno" / Int64ub, "last_seqno" / Int64ub, "cycle" / Int32ub)
PARTITION_START_EXTRAS = derive(PartitionStartExtras)

#: Extras of ROUND_COMPLETE: every vBucket had its turn or was skipped.
RoundCompleteExtras = Layout("cycle" / Int32ub, "visited" / Int32ub, "skipped" / Int32ub)
ROUND_COMPLETE_EXTRAS = derive(RoundCompleteExtras)

#: Extras of SNAPSHOT_END: everything up to `end_seqno` was sent, in this many items.
SnapshotEndExtras = Layout("end_seqno" / Int64ub, "items" / Int32ub)
SNAPSHOT_END_EXTRAS = derive(SnapshotEndExtras)

# --- facts --------------------------------------------------------------------------------------

#: Extras of VBUCKET_FACTS: deletions up to `purge_seqno` may be missing from the snapshots that
#: follow, and no deletion ever had a revision above `rev_floor`, whether it still exists or not. As
#: a manager's request it raises an active vBucket's floor; `purge_seqno` is 0.
VBucketFactsExtras = Layout("purge_seqno" / Int64ub, "rev_floor" / Int64ub)
VBUCKET_FACTS_EXTRAS = derive(VBucketFactsExtras)

# --- terms --------------------------------------------------------------------------------------

#: A request with TELL_TERMS has so many rows at most.
TERMS_MAX = 1_024

_TOLD_TERM = Layout("vbucket" / Int16ub, "term" / Int64ub, "uuid" / Int64ub)
TOLD_TERM = derive(_TOLD_TERM)

#: Value of TELL_TERMS: the highest term that is known of a vBucket, with a history that belongs to
#: it; a vBucket may have several rows.
TellTermsValue = Layout("entries" / GreedyRange(_TOLD_TERM), Terminated)


def encode_terms(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the value of TELL_TERMS."""
    return pack_rows(TOLD_TERM, rows)


def decode_terms(value: bytes) -> list[tuple[int, ...]]:
    """Read it: (vBucket, term, vb_uuid); raises `RemoteProtocolError`."""
    rows = list(unpack_rows(TOLD_TERM, value))
    if len(rows) > TERMS_MAX or any(term > TERM_MAX for _, term, _ in rows):
        raise RemoteProtocolError(f"at most {TERMS_MAX} terms, each at most {TERM_MAX}")
    return rows


# --- leases -------------------------------------------------------------------------------------

#: Extras of LEASE_ACQUIRE: the lifetime; its value names vBuckets, none = all active ones. Its key
#: is the id of the registered client that reads, if there is one.
LeaseAcquireExtras = Layout("lifetime_s" / Int32ub)
LEASE_ACQUIRE_EXTRAS = derive(LeaseAcquireExtras)

#: The same from who can wait: that many leases must stay free for others.
LeaseAcquireSparingExtras = Layout("lifetime_s" / Int32ub, "spare" / Int32ub)
LEASE_ACQUIRE_SPARING_EXTRAS = derive(LeaseAcquireSparingExtras)

#: Extras of LEASE_RENEW: for how long from now.
LeaseRenewExtras = Layout("lease" / Int64ub, "lifetime_s" / Int32ub)
LEASE_RENEW_EXTRAS = derive(LeaseRenewExtras)

#: Extras of LEASE_RELEASE.
LeaseReleaseExtras = Layout("lease" / Int64ub)
LEASE_RELEASE_EXTRAS = derive(LeaseReleaseExtras)

#: Extras of LEASE_ROWS: at which seqno this number of changes after `seqno` is reached.
LeaseRowsExtras = Layout("lease" / Int64ub, "seqno" / Int64ub, "rows" / Int32ub)
LEASE_ROWS_EXTRAS = derive(LeaseRowsExtras)

#: Extras of its reply: the seqno, and how many changes there are up to it.
LeaseRowsReplyExtras = Layout("seqno" / Int64ub, "rows" / Int32ub)
LEASE_ROWS_REPLY_EXTRAS = derive(LeaseRowsReplyExtras)

#: Extras of the reply to LEASE_ACQUIRE and LEASE_RENEW: what was granted.
LeaseGrantExtras = Layout("lease" / Int64ub, "lifetime_s" / Int32ub)
LEASE_GRANT_EXTRAS = derive(LeaseGrantExtras)

#: Value of LEASE_ACQUIRE.
LeaseAcquireValue = Layout("entries" / GreedyRange(Int16ub), Terminated)
LEASE_VBUCKET = derive(Layout("vbucket" / Int16ub))

_LEASED = Layout(
    "vbucket" / Int16ub,
    "uuid" / Int64ub,
    "high_seqno" / Int64ub,
    "purge_seqno" / Int64ub,
)
LEASED_VBUCKET = derive(_LEASED)

#: Value of its reply: the content of the lease, by vBucket number.
LeaseGrantValue = Layout("entries" / GreedyRange(_LEASED), Terminated)


class LeasedVBucket(NamedTuple):
    """One vBucket of a lease: its history and the seqno at which the lease keeps it."""

    vbucket: int
    uuid: int
    high_seqno: int
    purge_seqno: int


def encode_lease_vbuckets(vbuckets: Iterable[int]) -> bytes:
    """Return the value of LEASE_ACQUIRE; raises `LocalProtocolError` above 0xffff."""
    return pack_rows(LEASE_VBUCKET, [(number,) for number in vbuckets])


def decode_lease_vbuckets(value: bytes) -> list[int]:
    """Read the value of LEASE_ACQUIRE; raises `RemoteProtocolError` on an odd length."""
    return [number for (number,) in unpack_rows(LEASE_VBUCKET, value)]


def encode_lease_grant(leased: Iterable[LeasedVBucket]) -> bytes:
    """Return the value of the reply to LEASE_ACQUIRE; raises `LocalProtocolError`."""
    return pack_rows(LEASED_VBUCKET, leased)


def decode_lease_grant(value: bytes) -> list[LeasedVBucket]:
    """Read the value of the reply to LEASE_ACQUIRE; raises `RemoteProtocolError`."""
    return [LeasedVBucket(*entry) for entry in unpack_rows(LEASED_VBUCKET, value)]


# --- the value of a stream request --------------------------------------------------------------


#: Longest value of a stream request: it is parsed in one turn, and 100 known versions fit easily.
STREAM_OPTIONS_MAX_BYTES = 16_384

_STREAM_OPTIONS = {"known_versions", "log", "lease", "term"}

_HEX_ID = re.compile(r"[0-9a-fA-F]{16}")


class StreamOptions(NamedTuple):
    """Options of a stream request in its value, as JSON."""

    # histories that the client has followed, newest first (``known_versions``).
    known_versions: Sequence[FailoverEntry] = ()
    # whether the reply shall contain the complete failover log (``log``: ``full``) or only its
    # newest entry (``current``).
    whole_log: bool = True
    lease: int = 0  # read from this lease instead of from the present (``lease``), 0 = none
    term: int = 0  # the highest term of the vBucket that the client knows (``term``), 0 = none


def encode_stream_options(options: StreamOptions) -> bytes:
    """Return options as a stream request's value, ``b""`` if all are defaults.

    Raises:
        LocalProtocolError: an id or a seqno of more than 64 bits.
    """
    document: dict[str, Any] = {}
    if options.known_versions:
        document["known_versions"] = [
            {"id": _hex_text(entry.uuid), "seq": _fitting(entry.seqno)}
            for entry in options.known_versions
        ]
    if not options.whole_log:
        document["log"] = "current"
    if options.lease:
        document["lease"] = _hex_text(options.lease)
    if options.term:
        document["term"] = _fitting(options.term)
    return json.dumps(document, separators=(",", ":")).encode() if document else b""


def decode_stream_options(value: bytes) -> StreamOptions:
    """Read a stream request's value; an empty one means the defaults.

    Raises:
        RemoteProtocolError: too long, not a JSON object, an unknown name, or a value of the wrong
            type.
    """
    if not value:
        return StreamOptions()
    if len(value) > STREAM_OPTIONS_MAX_BYTES:
        raise RemoteProtocolError(f"the value of a stream request has {len(value)} bytes")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the value of a stream request is not JSON: {error}") from None
    if not isinstance(document, dict) or document.keys() - _STREAM_OPTIONS:
        raise RemoteProtocolError("the value of a stream request has an unknown field")
    log = document.get("log", "full")
    if log not in ("full", "current"):
        raise RemoteProtocolError(f"log is 'full' or 'current', not {log!r}")
    lease = _hex_number(document["lease"]) if "lease" in document else 0
    if "lease" in document and not lease:
        raise RemoteProtocolError("no lease has the id 0")
    known = _known_versions(document.get("known_versions", []))
    return StreamOptions(known, log == "full", lease, _term(document.get("term", 0)))


def _term(term: Any) -> int:
    if type(term) is not int or not 0 <= term <= TERM_MAX:
        raise RemoteProtocolError("a term is a number of promotions")
    return term


def _known_versions(entries: Any) -> tuple[FailoverEntry, ...]:
    if not isinstance(entries, list):
        raise RemoteProtocolError("known_versions is not a list")
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.keys() != {"id", "seq"}:
            raise RemoteProtocolError("a known version is an object with 'id' and 'seq'")
        seqno = entry["seq"]
        if type(seqno) is not int or not 0 <= seqno < 2**64:
            raise RemoteProtocolError("the seq of a known version is not a seqno")
        found.append(FailoverEntry(_hex_number(entry["id"]), seqno))
    return tuple(found)


def _hex_number(text: Any) -> int:
    if not isinstance(text, str) or not _HEX_ID.fullmatch(text):
        raise RemoteProtocolError("an id is written as 16 hex digits")
    return int(text, 16)


def _hex_text(number: int) -> str:
    return f"{_fitting(number):016x}"


def _fitting(number: int) -> int:
    if not 0 <= number < 2**64:
        raise LocalProtocolError(f"cannot be put on the wire: {number}")
    return number
