"""Rows of a vBucket go from the replica index into the main one, without being mapped again.

Replica vBuckets are indexed in files of their own, so that reductions of what is shown never have
to leave anything out. When one becomes active, it is paused there, its rows are copied in portions,
then where they stand; from there on the main index follows it (row I17).

Source: systems reference c.3, c.7.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from uprmc.index.bitmaps import bitmap
from uprmc.index.store import IndexStore

if TYPE_CHECKING:
    from uprmc.index.following import Following

#: Documents that are moved at once.
_PORTION = 2_000


async def moved(replica: Following, main: Following, vbuckets: list[int]) -> None:
    """Move what a replica index has of vBuckets; those that it has not are left out.

    Raises:
        Stopped: an index is not open; what was moved of an unfinished vBucket is removed when the
            main one is opened.
    """
    store = replica.store
    if store is None or store.view.building or main.store is None or main.store.is_building:
        return
    there = [vbucket for vbucket in vbuckets if vbucket in store.view.positions]
    if not there:
        return
    bits = bitmap(there)
    await replica.pause(bits)
    for vbucket in there:
        await _moved_one(replica, main, vbucket)
    await replica.change_states(
        lambda states: states._replace(
            active=states.active & ~bits,
            pending=states.pending & ~bits,
            passive=states.passive & ~bits,
            paused=states.paused & ~bits,
            cleanup=states.cleanup | bits,
        )
    )


async def _moved_one(replica: Following, main: Following, vbucket: int) -> None:
    after = b""
    while True:
        rows = await replica.do(
            partial(IndexStore.exported, vbucket=vbucket, after=after, most=_PORTION)
        )
        if not rows[0]:
            break
        await main.do(partial(IndexStore.imported, rows=rows))
        after = rows[0][-1].key
    position, facts = await replica.do(partial(IndexStore.standing, vbucket=vbucket))
    await main.do(partial(IndexStore.adopt, vbucket=vbucket, position=position, facts=facts))
