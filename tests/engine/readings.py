"""Taking readings, and judging what they yield by a plain list of all that was accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uprmc.engine.reading import Reading, needs_disk
from uprmc.engine.vbucket import VBucket
from uprmc.model import Item
from uprmc.storage.interface import Store


def newest_changes(accepted: Iterable[Item], after: int, end: int) -> list[Item]:
    """Return the newest version up to `end` of every key, those above `after`, by seqno."""
    newest = {item.key: item for item in accepted if item.seqno <= end}
    return sorted((item for item in newest.values() if item.seqno > after), key=lambda i: i.seqno)


def judge(
    got: Sequence[Item], accepted: Sequence[Item], after: int, end: int, purge_seqno: int
) -> None:
    """Compare a whole reading with the list.

    Args:
        got: what was read.
        accepted: every change of this history up to `end`, oldest first.
        after: where the reader began.
        end: the reading's end.
        purge_seqno: the reading's; only deletions up to it may be missing.
    """
    seqnos = [item.seqno for item in got]
    assert seqnos == sorted(set(seqnos)), "seqnos do not rise"
    assert all(after < seqno <= end for seqno in seqnos), "outside of what was asked for"
    keys = [item.key for item in got]
    assert len(set(keys)) == len(keys), "a key came twice"
    expected = newest_changes(accepted, after, end)
    by_seqno = {item.seqno: item for item in expected}
    for item in got:
        assert by_seqno.pop(item.seqno, None) == item, "not the newest, or not as it was written"
    for item in by_seqno.values():
        assert item.life, "a document is missing"
        assert item.seqno <= purge_seqno, "a deletion is missing"
    if after < end:
        assert seqnos[-1:] == [end], "the newest item is missing"


def open_reading(store: Store, vbucket: VBucket, after: int) -> Reading:
    """Take a reading of `vbucket` for somebody who has everything up to seqno `after`.

    Raises:
        StoreError: the disk cannot be read; nothing is held.
    """
    return Reading(vbucket, store.view() if needs_disk(vbucket, after) else None)
