"""Versions that were created elsewhere and have their own revision, CAS and expiry.

Job: decide whether such a version is accepted, by the sender's demands and by conflict resolution
against the present version, and then let the vBucket adopt it.

Note: the present version may be a tombstone which is only on disk. It is read only if it could
matter. `VBucket.max_deleted_rev` is at least the revision of every tombstone that the vBucket ever
created or adopted, and is stored in the same commits as they are. So an incoming version with a
higher revision outranks every tombstone, and reading the disk cannot change the outcome. Otherwise
the disk is read without blocking: `NotResident` is raised before anything changes, and the command
is run again when the answer is available (`Fetcher.tombstone`).

A document whose expiry has not been noticed counts as it is. If it were made a tombstone first, its
revision would rise by one, and it would refuse a newer version that its other copies accept.

Source: UPR reference, section 6; systems reference b.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.engine.bucket import Bucket
from uprmc.engine.conflict import incoming_wins, outranks_tombstones
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import InvalidArguments, KeyExists
from uprmc.model import CAS_LOCKED, Item, Life

#: Highest revision accepted from a peer; as many more changes can be counted here before 64 bits
#: overflow.
REV_MAX = 2**63 - 1

#: How far a peer's CAS may be ahead of Unix time in nanoseconds, which is what present servers use.
#: Our CAS must stay above every one that we accept, so a peer with a wrong clock would take us, and
#: everything that we replicate to, along to the end of the 64 bits.
CAS_AHEAD_MAX_S = 24 * 3600

_NANOS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What the sender demands of the present version.

    Attributes:
        cas: 0, or the CAS it must have. It may be the CAS of a tombstone: this is how a sender
            makes sure that nothing has changed since it asked for the metadata.
        add: whether there must be no document.
        skip_conflicts: whether the incoming version wins in any case.
        regenerate_cas: whether it gets a new CAS of this node instead of its own.
    """

    cas: int = 0
    add: bool = False
    skip_conflicts: bool = False
    regenerate_cas: bool = False


def accept_version(bucket: Bucket, vbucket: VBucket, version: Item, demand: Demand) -> Item:
    """Store `version` under the next seqno, and return it as it is stored.

    A tombstone gets the present time, not the sender's, because purging depends on its age here.

    Raises:
        KeyExists: the version lost, or its CAS is invalid; a document has another CAS than
            demanded, or exists although none should.
        KeyNotFound: a CAS is demanded and there is no document.
        InvalidArguments: the revision is too high, or the CAS too far in the future.
        Locked, NotResident, TemporaryFailure, OutOfMemory.
    """
    now = bucket.clock.now()
    _check_numbers(version, now)
    present = vbucket.metadata(version.key)
    check_room(bucket.account, version, present)
    if present is None and _tombstone_matters(version, demand, vbucket.max_deleted_rev):
        present = bucket.fetcher.tombstone(vbucket, version.key)
    if not (demand.cas and present is not None and present.life and present.cas == demand.cas):
        mode = StoreMode.ADD if demand.add else StoreMode.SET
        vbucket.check_change(version.key, demand.cas, mode)
    if not demand.skip_conflicts and present is not None and not incoming_wins(version, present):
        _count_lost(bucket.stats, version)
        raise KeyExists(version.key)
    item = Item(
        version.key,
        version.value,
        version.flags,
        int(now) if version.life else version.expiry,
        bucket.account.next_cas() if demand.regenerate_cas else version.cas,
        vbucket.high_seqno + 1,
        version.rev,
        version.datatype,
        version.life,
    )
    vbucket.adopt(item)
    _count_accepted(bucket.stats, item)
    return item


def _check_numbers(version: Item, now: float) -> None:
    if version.cas in (0, CAS_LOCKED):
        raise KeyExists(version.key)  # no version has it; present servers answer the same
    if version.cas > int(now + CAS_AHEAD_MAX_S) * _NANOS:
        raise InvalidArguments(f"the CAS {version.cas} is far in the future")
    if version.rev > REV_MAX:
        raise InvalidArguments(f"the revision {version.rev} is too high")


def check_room(account: MemoryAccount, version: Item, present: Item | None) -> None:
    """Refuse what cannot be stored; a deletion needs memory only if its key is not in the table.

    Raises:
        TemporaryFailure, OutOfMemory: see `MemoryAccount.refuse_write`.
    """
    if version.life and present is not None:
        account.check_disk()
    elif account.used > account.write_limit:
        account.refuse_write(len(version.key) + len(version.value or b""))


def _tombstone_matters(version: Item, demand: Demand, max_deleted_rev: int) -> bool:
    """Tell whether a tombstone that is only on disk could change the outcome."""
    if not max_deleted_rev:
        return False
    decides = not (demand.skip_conflicts or outranks_tombstones(version, max_deleted_rev))
    return decides or demand.cas != 0


def _count_accepted(stats: Stats, item: Item) -> None:
    if item.life == Life.LIVE:
        stats.ops_set_meta += 1
    else:
        stats.ops_del_meta += 1


def _count_lost(stats: Stats, version: Item) -> None:
    if version.life == Life.LIVE:
        stats.ops_set_meta_res_fail += 1
    else:
        stats.ops_del_meta_res_fail += 1
