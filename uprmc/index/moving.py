"""Rows of a vBucket go from the replica index into the main one, without being mapped again.

Replica vBuckets are indexed in files of their own, so that reductions of what is shown never have
to leave anything out. When one becomes active, it is paused there, its rows are copied in portions,
then where they stand; from there on the main index follows it (row I17).

Source: systems reference c.3, c.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Protocol

from uprmc.index.bitmaps import bitmap
from uprmc.index.index_file import States
from uprmc.index.model import Entry
from uprmc.index.rows import id_key, split_id_value
from uprmc.index.store import IndexStore

#: Documents that are moved at once.
_PORTION = 2_000


class Index(Protocol):
    """What moving needs of an index; `following.Following` is one."""

    @property
    def store(self) -> IndexStore | None:
        """What is indexed, ``None`` = it is not open."""

    async def pause(self, vbuckets: int) -> None:
        """Take no more changes of vBuckets."""

    async def change_states(self, change: Callable[[States], States]) -> States | None:
        """Change which vBuckets are followed and shown."""

    async def do(self, what: Callable[[IndexStore], Any]) -> Any:
        """Have the updater's thread do something; return its result."""


async def moved(replica: Index, main: Index, vbuckets: list[int]) -> None:
    """Move what a replica index has of vBuckets; those that it has not are left out.

    Raises:
        Stopped: an index is not open; what was moved of an unfinished vBucket is removed when the
            main one is opened.
    """
    store = replica.store
    if store is None or store.view.building or main.store is None:
        return
    if main.store.is_building and main.store.view.states.indexed:
        return  # a first build is under way: these vBuckets become part of it
    there = [vbucket for vbucket in vbuckets if vbucket in store.view.positions]
    if not there:
        return
    bits = bitmap(there)
    await main.do(IndexStore.finish_build)  # of nothing
    await replica.pause(bits)
    await main.change_states(lambda states: states._replace(cleanup=states.cleanup & ~bits))
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


async def _moved_one(replica: Index, main: Index, vbucket: int) -> None:
    await main.do(partial(IndexStore.drop, vbuckets=[vbucket]))  # of an earlier time
    after = b""
    while True:
        rows = await replica.do(partial(_portion, vbucket=vbucket, after=after))
        if not rows[0]:
            break
        await main.do(partial(IndexStore.imported, rows=rows))
        after = rows[0][-1].key
    position, facts = await replica.do(partial(IndexStore.standing, vbucket=vbucket))
    await main.do(partial(IndexStore.adopt, vbucket=vbucket, position=position, facts=facts))


def _portion(store: IndexStore, vbucket: int, after: bytes) -> list[list[Entry]]:
    """Return entries of the id tree behind a key, and of each view the rows of these.

    Args:
        store: of the replica index, in its thread.
        vbucket: of which documents.
        after: key of the id tree, empty = from the beginning.
    """
    trees = store.view.trees
    start = after + b"\0" if after else id_key(vbucket, b"")
    rows = trees.ids.rows(start, wanted=1 << vbucket)
    ids = list(islice((row for row in rows if row.vbucket == vbucket), _PORTION))
    keys: list[list[bytes]] = [[] for _ in trees.views]
    for entry in ids:
        for some, of_view in zip(keys, split_id_value(entry.value), strict=True):
            some += of_view
    found = [
        list(tree.get_many(some).values()) for tree, some in zip(trees.views, keys, strict=True)
    ]
    return [ids, *found]
