"""What an increment will be, before it is read: which chain, which moment, what from where.

`backups` carries it out. A plan is a manifest without what only reading tells (`draft`), and a task
for each group of vBuckets. The moment is fixed first, by a lease over all of them; histories are
looked at after that, so nothing can branch in between unnoticed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from uprmc import __version__
from uprmc.backup.group_reading import COLUMNS, GroupTask
from uprmc.backup.increments import beginning, check_same_bucket, parts_of
from uprmc.backup.manifest import FULL, INCREMENTAL, Manifest, VBucketPart, group_of
from uprmc.backup.parts import check_compression, column_types
from uprmc.backup.repository import Chain, Repository, increments_of
from uprmc.columnar.access import Access
from uprmc.columnar.errors import (
    BackupForeign,
    BackupIncomplete,
    BadOption,
    VBucketsChanged,
)
from uprmc.columnar.lease import KeptLease, Lease, logs_of
from uprmc.columnar.nodes import Nodes
from uprmc.columnar.schema import Columns
from uprmc.rollback import Held

Kind = Literal["auto", "full", "incremental"]
KINDS: tuple[Kind, ...] = ("auto", "full", "incremental")

#: vBuckets in a directory; with fewer than 256 vBuckets there are still 16 directories.
GROUP_VBUCKETS, GROUPS_MIN = 16, 16


@dataclass(frozen=True)
class Wish:
    """What was asked for; see `backup`."""

    access: Access
    kind: Kind
    vbuckets: tuple[int, ...] | None
    groups: int | None
    compression: str
    values: bool
    deletes: bool
    lease_s: float
    rate: float | None
    check: bool = True


def check_wish(wish: Wish) -> None:
    check_compression(wish.compression)
    if wish.kind not in KINDS:
        raise BadOption(f"kind={wish.kind}: say {', '.join(KINDS)}")
    if wish.vbuckets is not None and not wish.vbuckets:
        raise BadOption("vbuckets: name at least one")
    if wish.groups is not None and wish.groups < 1:
        raise BadOption(f"groups={wish.groups}: say 1 or more")
    if wish.rate is not None and not wish.rate > 0:
        raise BadOption(f"rate={wish.rate}: say rows a second, above 0")


def chain_for(wish: Wish, repository: Repository | None) -> Chain | None:
    """Return the chain to add to; ``None`` = begin one."""
    if wish.kind == "full":
        return None
    try:
        if repository is None:
            raise BackupIncomplete("there is no backup yet")
        chain = repository.chain()
    except BackupIncomplete as error:
        nothing_yet = repository is None or not _has_finished(repository)
        if wish.kind == "auto" and nothing_yet:
            return None
        if nothing_yet:
            raise BackupIncomplete(f"{error.text}: make a full backup first") from None
        raise
    last = increments_of(chain)[-1]
    _check_same_wish(wish, last)
    return chain


def _has_finished(repository: Repository) -> bool:
    return any(
        any((repository.path / name).glob("*/manifest.json")) for name in repository.chain_names()
    )


def _check_same_wish(wish: Wish, last: Manifest) -> None:
    """See that an increment can have what was asked for."""
    if wish.vbuckets is not None and wish.vbuckets != tuple(sorted(last.vb)):
        raise BadOption("vbuckets: an increment has those of its chain; make a full backup")
    if not wish.values and last.has_values:
        raise BadOption("noValue: the chain has values; make a full backup, best elsewhere")
    if not wish.deletes:
        raise BadOption("includeDeletes=false is for full backups: an increment needs deletions")
    if wish.groups is not None and wish.groups != last.options.get("groups"):
        raise BadOption("groups: an increment has those of its chain")
    if wish.access.bucket != last.bucket:
        raise BackupForeign(f"the chain is of bucket {last.bucket!r}, not {wish.access.bucket!r}")


@contextmanager
def held(wish: Wish, chain: Chain | None, reader: str = "") -> Iterator[tuple[Lease, Nodes]]:
    """Hold the moment of the increment for the length of the block.

    Args:
        wish: what is asked for.
        chain: that the increment belongs to.
        reader: the id under which the directory is registered, if it is.
    """
    terms = {n: part.term for n, part in chain.increments[-1].manifest.vb.items()} if chain else {}
    with Nodes(replace(wish.access, terms=terms)) as nodes:
        if chain is not None:
            last = chain.increments[-1].manifest
            if last.vbuckets != nodes.vbuckets:
                raise VBucketsChanged(
                    f"the backup has {last.vbuckets} vBuckets and the bucket {nodes.vbuckets}: a "
                    "full backup begins a new chain"
                )
            wanted: Iterable[int] = sorted(last.vb)
        elif wish.vbuckets is not None:
            wanted = wish.vbuckets
        else:
            wanted = range(nodes.vbuckets)
        nodes.by_place(wanted)  # a node that is down must not leave a hole unseen
        access = replace(wish.access, terms=nodes.terms)
        with KeptLease(access, wanted, wish.lease_s, reader=reader.encode()) as kept:
            yield kept.lease, nodes


def draft_of(
    wish: Wish, repository_id: str, chain: Chain | None, lease: Lease, nodes: Nodes
) -> Manifest:
    """Return the manifest as far as it is known before anything is read."""
    manifests = increments_of(chain) if chain else []
    logs = logs_of(nodes, lease.held)
    present = {
        number: Held(logs[number], each.high_seqno, each.purge_seqno)
        for number, each in lease.held.items()
    }
    if manifests:
        check_same_bucket(manifests, present, ", ".join(wish.access.servers))
    last = manifests[-1] if manifests else None
    vb = {}
    for vbucket, now in sorted(present.items()):
        begin = beginning(parts_of(manifests, vbucket), now)
        vb[vbucket] = VBucketPart(
            lease.held[vbucket].uuid,
            begin.start,
            now.high_seqno,
            purge_seqno=now.purge_seqno,
            log=now.failover_log,
            cut=begin.cut,
            reset=begin.reset,
            term=nodes.terms.get(vbucket, 0),
        )
    options = options_of(wish, last, nodes.vbuckets)
    columns = COLUMNS if options["values"] else without_value(COLUMNS)
    return Manifest(
        repository=repository_id,
        chain=last.chain if last else uuid.uuid4().hex,
        number=last.number + 1 if last else 0,
        id=uuid.uuid4().hex,
        parent=last.id if last else None,
        parent_digest=last.digest if last else None,
        kind=INCREMENTAL if last else FULL,
        tool=f"uprmc {__version__}",
        began=utc_now(),
        ended="",
        vbuckets=nodes.vbuckets,
        bucket=wish.access.bucket,
        options=options,
        columns=column_types(columns.schema),
        vb=vb,
    )


def options_of(wish: Wish, last: Manifest | None, vbuckets: int) -> dict[str, Any]:
    """Return what the manifest says of how it was made; what concerns readers is the chain's."""
    groups = wish.groups or max(GROUPS_MIN, vbuckets // GROUP_VBUCKETS)
    return {
        "values": last.has_values if last else wish.values,
        "deletes": wish.deletes,
        "compression": wish.compression,
        "groups": last.options["groups"] if last else min(groups, vbuckets),
        "servers": list(wish.access.servers),
    }


def without_value(columns: Columns) -> Columns:
    """Return columns without the value."""
    return replace(columns, names=tuple(name for name in columns.names if name != "value"))


def tasks_of(
    wish: Wish, draft: Manifest, done: Set[int], token: str, increment: str, parallelism: int
) -> list[GroupTask]:
    """Return a task for each group that is not done, those with most to read first."""
    groups: dict[int, dict[int, VBucketPart]] = {}
    for vbucket, part in draft.vb.items():
        group = group_of(vbucket, draft.vbuckets, draft.options["groups"])
        if group not in done:
            groups.setdefault(group, {})[vbucket] = part

    def seqnos(group: int) -> int:
        return sum(part.end - part.start for part in groups[group].values())

    return [
        GroupTask(
            wish.access,
            token,
            group,
            groups[group],
            increment,
            COLUMNS if draft.has_values else without_value(COLUMNS),
            wish.deletes,
            wish.compression,
            wish.rate and wish.rate / min(parallelism, len(groups)),
        )
        for group in sorted(groups, key=seqnos, reverse=True)
    ]


def utc_now() -> str:
    """Return the time as manifests have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
