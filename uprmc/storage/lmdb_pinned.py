"""How much of an LMDB file is pinned: pages that commits have replaced and a view still reads.

LMDB keeps a list of the pages that each transaction has freed, and uses them again when no view is
older than that transaction. It does not tell that list, but the file does: in the tree of freed
pages the entry of the newest transaction is the last one and begins with the number of its pages.
`freed_by_newest` reads that one entry; `PinnedPages` adds them up while views are open.

Source: LMDB 0.9, ``mdb.c``: MDB_meta, MDB_page, MDB_node, `mdb_freelist_save`.
"""

from __future__ import annotations

import os
from collections import deque
from struct import Struct

_PAGE_HEAD_BYTES = 16
#: A meta page: magic, address and map size are passed over; the two trees; last page; txnid.
_META = Struct("=I20x40xQ40xQQQ")
_MAGIC = 0xBEEFC0DE
#: The fields of any page: flags, then where its array of nodes ends.
_PAGE = Struct("=10xHH2x")
_BRANCH = 0x01
_NODE_PLACE = Struct("=H")
_NODE = Struct("=HHHH")
_ON_OWN_PAGES = 0x01
_NUMBER = Struct("=Q")
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32

#: Sums that are kept apart; beyond it the oldest two become one, and too little is told.
_SUMS_MAX = 4_096


def freed_by_newest(descriptor: int, page_bytes: int) -> tuple[int, int]:
    """Return the newest transaction's number and how many pages it has freed.

    To be called between two commits. 0 pages if the file is not as expected.
    """
    root, transaction = max(
        (_meta(os.pread(descriptor, page_bytes, place * page_bytes)) for place in (0, 1)),
        key=lambda meta: meta[1],
    )
    for _ in range(_DEPTH_MAX):
        if root == _NO_PAGE:
            break
        page = os.pread(descriptor, page_bytes, root * page_bytes)
        if len(page) < page_bytes:
            break
        flags, end = _PAGE.unpack_from(page)
        if end <= _PAGE_HEAD_BYTES or end > page_bytes:
            break
        (at,) = _NODE_PLACE.unpack_from(page, end - _NODE_PLACE.size)
        low, high, node_flags, key_bytes = _NODE.unpack_from(page, at)
        if flags & _BRANCH:
            root = low | high << 16 | node_flags << 32
            continue
        key, value = at + _NODE.size, at + _NODE.size + key_bytes
        if _NUMBER.unpack_from(page, key)[0] != transaction:
            break  # it has freed nothing
        (count,) = _NUMBER.unpack_from(page, value)
        if node_flags & _ON_OWN_PAGES:
            head = os.pread(descriptor, _PAGE_HEAD_BYTES + _NUMBER.size, count * page_bytes)
            (count,) = _NUMBER.unpack_from(head, _PAGE_HEAD_BYTES)
        return transaction, count
    return transaction, 0


def _meta(page: bytes) -> tuple[int, int]:
    """Return the root of the tree of freed pages and the transaction of a meta page."""
    magic, root, _, _, transaction = _META.unpack_from(page, _PAGE_HEAD_BYTES)
    return (root, transaction) if magic == _MAGIC else (_NO_PAGE, 0)


class PinnedPages:
    """Sums of freed pages by transaction. `freed` may be called in a worker."""

    def __init__(self) -> None:
        self._sums: deque[tuple[int, int]] = deque()
        self._newest_view = 0

    def opened(self, transaction: int) -> None:
        """Learn that a view of a transaction's state was opened."""
        self._newest_view = max(self._newest_view, transaction)

    def freed(self, transaction: int, pages: int) -> None:
        """Learn what a transaction has freed while views were open."""
        sums = self._sums
        if sums and self._newest_view < sums[-1][0]:  # whoever pins the one pins the other
            first, before = sums.pop()
            sums.append((first, before + pages))
        else:
            sums.append((transaction, pages))
        if len(sums) > _SUMS_MAX:
            _, lost = sums.popleft()
            first, before = sums.popleft()
            sums.appendleft((first, before + lost))

    def count(self, oldest_view: int | None) -> int:
        """Return how many pages are pinned, given the transaction of the oldest open view."""
        sums = self._sums
        while sums and (oldest_view is None or sums[0][0] <= oldest_view):
            sums.popleft()
        return sum(pages for _, pages in list(sums))
