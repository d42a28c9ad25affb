"""Ring entries of one commit as columns: built, packed and kept without an object for each vBucket.

Chunks follow one another: a vBucket and how many entries it has, then the next; a vBucket may have
several, by rising seqno. The end of a snapshot is a chunk with one entry whose key is `BOUNDARY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from uprmc.client.state import RingChunk

#: Key of the ring entry that marks the end of a snapshot.
BOUNDARY = b""


class RingColumns:
    """See the module docstring.

    Attributes:
        vbuckets, lengths: of each chunk.
        seqnos, keys: of all entries.
    """

    __slots__ = ("keys", "lengths", "seqnos", "vbuckets")

    def __init__(self) -> None:
        self.vbuckets: list[int] = []
        self.lengths: list[int] = []
        self.seqnos: list[int] = []
        self.keys: list[bytes] = []

    @classmethod
    def of(cls, chunks: Iterable[RingChunk]) -> RingColumns:
        """Return the columns of chunks; empty ones are left out."""
        if isinstance(chunks, cls):
            return chunks
        found = cls()
        for vbucket, entries in chunks:
            if entries:
                found.add(vbucket, *zip(*entries, strict=True))
        return found

    def add(self, vbucket: int, seqnos: Sequence[int], keys: Sequence[bytes]) -> None:
        """Add a chunk that is not empty."""
        self.vbuckets.append(vbucket)
        self.lengths.append(len(seqnos))
        self.seqnos += seqnos
        self.keys += keys

    def add_boundaries(self, vbuckets: Sequence[int], ends: Sequence[int]) -> None:
        """Add ends of snapshots, one for each of some vBuckets."""
        self.vbuckets += vbuckets
        self.lengths += [1] * len(ends)
        self.seqnos += ends
        self.keys += [BOUNDARY] * len(ends)

    def __len__(self) -> int:
        return len(self.vbuckets)

    def __iter__(self) -> Iterator[RingChunk]:
        seqnos, keys = self.seqnos, self.keys
        for vbucket, (start, end) in zip(self.vbuckets, self._ranges(), strict=True):
            yield RingChunk(vbucket, list(zip(seqnos[start:end], keys[start:end], strict=True)))

    def firsts(self) -> Iterator[tuple[int, int]]:
        """Return the vBucket and the first seqno of each chunk."""
        seqnos = self.seqnos
        return zip(self.vbuckets, [seqnos[start] for start, _ in self._ranges()], strict=True)

    def parted(self, size: int) -> tuple[list[tuple[int, list[int], list[bytes]]], RingColumns]:
        """Return vBucket, seqnos and keys of chunks with at least so many entries, and the rest."""
        if not self.lengths or max(self.lengths) < size:
            return [], self
        large, small = [], RingColumns()
        for vbucket, (start, end) in zip(self.vbuckets, self._ranges(), strict=True):
            chunk = vbucket, self.seqnos[start:end], self.keys[start:end]
            if end - start >= size:
                large.append(chunk)
            else:
                small.add(*chunk)
        return large, small

    def _ranges(self) -> Iterable[tuple[int, int]]:
        return pairwise(accumulate(self.lengths, initial=0))
