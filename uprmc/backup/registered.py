"""A backup directory is a registered client: nodes keep deletions until an increment has them.

Its row has the directory's own id, so it lives as long as the directory. While a backup is made,
the row says what the increment before has, and of a vBucket that has none, the moment of this one:
what is deleted before that moment is not in the backup. When the manifest is written, the row is
raised to that moment.

A node that does not answer keeps too much until the next backup reports, never too little.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uprmc.backup.manifest import Manifest, VBucketPart
from uprmc.backup.repository import Repository
from uprmc.columnar.access import Access
from uprmc.columnar.lease import BulkLease
from uprmc.columnar.registration import BulkRegistration, unregister
from uprmc.columnar.report import JsonReport
from uprmc.remote.ranges import named
from uprmc.remote.registering import Instance, kind_number, name_tag


@dataclass
class Forgotten(JsonReport):
    """What ending a registration came to."""

    id: str  # the directory's own
    vbuckets: list[int]  # those that kept deletions for it

    def summary(self) -> str:
        """Return it as one line."""
        if not self.vbuckets:
            return f"{self.id}: no node keeps deletions for it"
        return f"{self.id}: removed in {named(self.vbuckets)}"


class Registered:
    """The rows of one directory, as long as one run lasts."""

    def __init__(self, access: Access, repository: Repository) -> None:
        place = f"{socket.gethostname()}:{repository.path.absolute()}"
        kind, tag = kind_number("backup"), name_tag(place)
        instance = Instance(repository.id.encode(), kind, meta=tag)
        self._rows = BulkRegistration(access, instance, restarts=False)

    def begin(self, lease: BulkLease, last: Manifest | None) -> None:
        """Have kept what this increment and the next ones need.

        Args:
            lease: the moment of this increment.
            last: the increment before.
        """
        moment = {number: (each.high_seqno, each.uuid) for number, each in lease.held.items()}
        known = {} if last is None else _ends(last.vb)
        self._rows.begin(lambda number: known.get(number, moment[number]), lease.places)

    def finished(self, lease: BulkLease, manifest: Manifest) -> None:
        """Report what the directory has."""
        ends = _ends(manifest.vb)
        self._rows.begin(lambda number: ends[number], lease.places)
        self._rows.close()


def forget(access: Access, directory: Path) -> Forgotten:
    """Keep nothing for a directory any longer.

    Raises:
        BackupForeign: it is none.
        NodeUnreachable, ...: a node does not answer, or refuses.
    """
    name = Repository(directory).id
    return Forgotten(name, unregister(access, name.encode()))


def _ends(parts: Mapping[int, VBucketPart]) -> dict[int, tuple[int, int]]:
    return {number: (part.end, part.uuid if part.end else 0) for number, part in parts.items()}
