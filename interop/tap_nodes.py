"""Nodes joined by a TAP pipe, and what they must agree on.

TAP tells less than UPR: seqnos, how a deletion came about and when do not cross it. So two nodes
agree when every document is the same in value, flags, expiry, CAS and revision, and no other is
there. The source is read as a stream; a destination, which streams no snapshot of which it has
only a part, is asked key by key.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence

from interop import upr_wire as u
from interop import wire as w
from interop.comparison import everything_of
from interop.load import Acknowledged, Load
from interop.replica_pair import Node, states_of
from interop.server_process import Address
from interop.tap_copy import Document, Documents
from interop.upr_wire import UprWire, item_counts
from interop.wire import frame

_GET_VERSION = 0xE7
_ANY_SEQNO = struct.pack(">Q", u.NEVER)
_DOCUMENT = 0
_BATCH = 500

_LEVEL_S = 40.0
_ASK_AGAIN_S = 0.2
_SHOWN = 8


def documents_of(address: Address, vbuckets: Iterable[int]) -> Documents:
    """Every document of these vBuckets, as a UPR consumer reads them."""
    return {
        name: Document(found.value, found.flags, found.time, found.cas, found.rev)
        for name, found in everything_of(address, vbuckets).items()
        if found.is_document
    }


def documents_at(node: Address, names: Iterable[tuple[int, bytes]]) -> Documents:
    """What a node has of these documents, whatever it streams; not for pending or dead vBuckets."""
    wanted = list(names)
    found: Documents = {}
    with UprWire(node, 30) as wire:
        for place in range(0, len(wanted), _BATCH):
            part = wanted[place : place + _BATCH]
            requests = [
                frame(_GET_VERSION, key, extras=_ANY_SEQNO, vbucket=vbucket, opaque=number)
                for number, (vbucket, key) in enumerate(part)
            ]
            for reply in wire.replies_until_noop(*requests):
                if reply.status == w.NOT_FOUND:
                    continue
                assert reply.status == w.OK, reply
                _, rev, flags, expiration, life = struct.unpack(">QQIIB", reply.extras)
                if life == _DOCUMENT:
                    document = Document(reply.value, flags, expiration, reply.cas, rev)
                    found[part[reply.opaque]] = document
    return found


def apart(one: Documents, other: Documents) -> list[str]:
    """What is not the same, the first few; nothing when both are equal."""
    names = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    shown = [f"{name}:\n   {one.get(name)}\n   {other.get(name)}" for name in names[:_SHOWN]]
    return [f"{len(names)} documents are not the same", *shown] if names else []


def differences(wanted: Documents, destination: Address, vbuckets: Sequence[int]) -> list[str]:
    """What a node has not the same, or has beside these documents."""
    with UprWire(destination, 30) as wire:
        counts = item_counts(wire)
    count = sum(counts.get(number, 0) for number in vbuckets)
    if count != len(wanted):
        return [f"it has {count} documents, not {len(wanted)}"]
    return apart(wanted, documents_at(destination, wanted))


def wait_until_same(
    source: Address, destination: Address, vbuckets: Sequence[int], timeout_s: float = _LEVEL_S
) -> Documents:
    """Wait until both hold the same; meaningful once nobody writes any more. Gives what it is."""
    deadline = time.monotonic() + timeout_s
    wanted = documents_of(source, vbuckets)
    while found := differences(wanted, destination, vbuckets):
        assert time.monotonic() < deadline, "\n".join(found)
        time.sleep(_ASK_AGAIN_S)
    return wanted


def make(node: Node, state: int, vbuckets: Iterable[int]) -> None:
    """New and empty vBuckets of this state."""
    with node.wire() as wire:
        for number in vbuckets:
            wire.remake(number, state)


def states(node: Node, vbuckets: Sequence[int]) -> dict[int, int]:
    with node.wire() as wire:
        return states_of(wire, vbuckets)


def fill(node: Node, vbuckets: Iterable[int], each: int, size: int = 100) -> None:
    """So many documents in each vBucket."""
    with node.wire() as wire:
        for number in vbuckets:
            pairs = ((b"fill-%d-%d" % (number, n), bytes([n % 251]) * size) for n in range(each))
            wire.put_many(number, pairs)


def write_unpersisted(node: Node, vbuckets: Iterable[int]) -> None:
    """After `fill`: change, make and delete documents that a kill takes back; the disk rests."""
    with node.wire() as wire:
        wire.command(frame(u.STOP_PERSISTENCE))
        for number in vbuckets:
            wire.put(number, b"fill-%d-1" % number, b"forgotten")
            wire.put(number, b"forgotten", b"altogether")
            wire.delete(number, b"fill-%d-2" % number)


def lost(load: Load, held: Documents) -> list[str]:
    """What a load was promised and a node does not hold: the newest version of each key."""
    newest: dict[tuple[int, bytes], Acknowledged] = {}
    for each in load.acknowledged:
        newest[each.vbucket, each.key] = each
    complaints = []
    for name, promised in newest.items():
        found = held.get(name)
        if promised.value is None:
            same = found is None
        else:
            wanted = (promised.value, promised.flags, promised.cas)
            same = found is not None and (found.value, found.flags, found.cas) == wanted
        if not same:
            complaints.append(f"{name}: {promised} was promised, {found} is there")
    return complaints


def active_at(node: Node, vbuckets: Sequence[int]) -> list[int]:
    return [number for number, state in states(node, vbuckets).items() if state == u.ACTIVE]
