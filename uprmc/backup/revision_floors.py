"""What a backup keeps of deletions that were dropped for good: their highest revision.

A node gives a key that begins again a revision above those of all deletions that it ever had, the
dropped ones included, or the document would lose against the same deletion in another cluster. Each
increment has this floor of every vBucket; a restore gives it to the nodes after the documents.

See `docs/extensions.md`, VBUCKET_FACTS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from uprmc.backup.manifest import Manifest
from uprmc.columnar.access import Access
from uprmc.columnar.lease import BulkLease
from uprmc.columnar.nodes import BulkNodes, details
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.remote.blocking import NodeConnection

_NOT_KNOWN = frozenset((Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED))


def told_floors(access: Access, lease: BulkLease) -> dict[int, int]:
    """Return the floors of a lease's vBuckets, as the nodes tell that hold it.

    Raises:
        NodeUnreachable, ...: as `BulkNodes`.
    """
    found: dict[int, int] = {}
    with BulkNodes(access) as nodes:
        for grant in lease.grants:
            told = nodes.at(grant.place, lambda connection: details(connection, "max_deleted_rev"))
            found |= {number: told.get(number, 0) for number in grant.vbuckets}
    return found


def floors_in(chain: Iterable[Manifest], vbuckets: Collection[int] | None) -> dict[int, int]:
    """Return the highest floors in a chain, of some vBuckets or all, without those that are 0."""
    found: dict[int, int] = {}
    for manifest in chain:
        for number, part in manifest.vb.items():
            if part.rev_floor and (vbuckets is None or number in vbuckets):
                found[number] = max(found.get(number, 0), part.rev_floor)
    return found


def raise_floors(access: Access, floors: Mapping[int, int], vbuckets: int) -> list[str]:
    """Tell floors to the nodes that have the vBuckets now; return those that cannot take them.

    `vbuckets` says how many there are where the floors come from. A target with another number gets
    the highest floor everywhere: a key may be in any vBucket there.

    Raises:
        Refused, NodeUnreachable, NoVBucket, ...: a floor was not raised for another reason.
    """
    if not floors:
        return []
    ignorant = []
    with BulkNodes(access) as nodes:
        if nodes.vbuckets != vbuckets:
            floors = dict.fromkeys(range(nodes.vbuckets), max(floors.values()))
        for place, numbers in nodes.by_place(floors).items():
            if not nodes.at(place, _Raising({number: floors[number] for number in numbers})):
                ignorant.append(place)
    return ignorant


class _Raising:
    """Raises the floors of one node's vBuckets; says whether it knows the command."""

    def __init__(self, floors: Mapping[int, int]) -> None:
        self._requests = [
            RequestFrame(
                Opcode.VBUCKET_FACTS, extras=VBUCKET_FACTS_EXTRAS.pack(0, floor), vbucket=number
            )
            for number, floor in floors.items()
        ]

    def __call__(self, connection: NodeConnection) -> bool:
        answers = connection.ask_all(self._requests)
        refused = [answer for answer in answers if answer.status]
        if refused and refused[0].status not in _NOT_KNOWN:
            raise connection.refusal(refused[0], "VBUCKET_FACTS")
        return not refused
