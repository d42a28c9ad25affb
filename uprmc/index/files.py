"""The files of one index in its directory: which is in use, and which can be returned to.

Files are numbered. A compaction writes the next number beside the present one, which stays until
nothing can be rolled back behind the new one's only header (c.6); so at most two are there, and one
that is being written under another name. What cannot be read is removed with a log line: the index
is built again.

Source: systems reference c.5, c.6; acceptance rows I19 to I23.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from uprmc.index.errors import Damaged
from uprmc.index.index_file import OpenFile
from uprmc.index.model import Reducer
from uprmc.index.tree import Header, IndexFile, Position

_SUFFIX = ".index"
_UNFINISHED = ".unfinished"

_LOG = logging.getLogger("uprmc.index")


class Files:
    """See the module docstring.

    Args:
        directory: where they are.
        stem: what their names begin with.
        reducers: of each view, ``None`` = nothing is reduced.

    Attributes:
        current: the file in use.
        old: the one before a compaction, ``None`` = there is none.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, directory: Path, stem: str, reducers: Sequence[Reducer | None]) -> None:
        self._directory, self._stem, self._reducers = directory, stem, reducers
        for path in directory.glob(f"{stem}.[0-9]*{_UNFINISHED}"):
            path.unlink()
        found: list[OpenFile] = []
        try:
            for number in self._numbers():
                found += self._opened(number)
        except BaseException:
            for each in found:
                each.file.close()
            raise
        for surplus in found[2:]:
            surplus.file.close()
            surplus.path.unlink()
        self.current = found[0] if found else self._created()
        self.old = found[1] if len(found) > 1 else None

    def _numbers(self) -> list[int]:
        """Return the numbers of files that are there, highest first."""
        start, end = len(self._stem) + 1, -len(_SUFFIX)
        names = [path.name[start:end] for path in self._directory.glob(f"{self._stem}.*{_SUFFIX}")]
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._stem}.{number}{_SUFFIX}"

    def _opened(self, number: int) -> list[OpenFile]:
        """Return a file, or none if it cannot be read and was removed."""
        path = self._path(number)
        try:
            return [OpenFile(path, IndexFile.open(path), self._reducers)]
        except Damaged as error:
            _LOG.warning("an index file is removed: %s", error)
            path.unlink()
            return []

    def _created(self) -> OpenFile:
        path = self._path(max(self._numbers(), default=0) + 1)
        file = OpenFile(path, IndexFile.create(path), self._reducers)
        file.file.sync_name()
        return file

    @property
    def header(self) -> Header | None:
        """The newest header of the file in use."""
        return self.current.file.header

    @property
    def disk_bytes(self) -> int:
        """The size of all files."""
        return self.current.file.size + (self.old.file.size if self.old is not None else 0)

    # --- going back -----------------------------------------------------------------------------

    def header_below(
        self, vbucket: int, seqno: int, positions: Mapping[int, Position]
    ) -> tuple[OpenFile, Header] | None:
        """Return the newest header at which a vBucket stands at or below a seqno (row I19).

        ``None`` if there is none, or to return to it would cost more changes, which all vBuckets
        would have to get again, than to index this vBucket from zero; or if it has rows of one
        that has begun at zero since: for that one nodes keep no deletions that older rows need.
        """
        kept = _standing(positions)
        for file in (self.current, self.old):
            for header in file.file.headers() if file is not None else ():
                there, stood = header.positions.get(vbucket), _standing(header.positions)
                if file is None or there is None:
                    return None
                if there.seqno <= seqno:
                    lost = _distance(header.positions, positions)
                    cheap = lost <= positions[vbucket].seqno
                    return (file, header) if cheap and stood <= kept else None
                kept &= stood
        return None

    def cut_to(self, file: OpenFile, header: Header) -> None:
        """Cut a file behind a header; if it is the old one, it is in use again."""
        if file is self.old:
            gone, self.current, self.old = self.current, file, None
            gone.path.unlink()
            gone.readers.retire()
        file.cut_to(header)

    # --- compaction -----------------------------------------------------------------------------

    def unfinished(self) -> Path:
        """Return where a compaction may write."""
        path = self._path(max(self._numbers(), default=0) + 1)
        path = path.with_suffix(_UNFINISHED)
        path.unlink(missing_ok=True)
        return path

    def swap(self, compacted: IndexFile) -> None:
        """Use a compacted file, whose header is synced, from now on; the present one stays."""
        self.drop_old()
        path = self._path(max(self._numbers(), default=0) + 1)
        compacted.path.rename(path)
        compacted.path = path
        compacted.sync_name()
        self.current, self.old = OpenFile(path, compacted, self._reducers), self.current
        self.current.headers = 1

    def drop_old(self) -> None:
        """Nothing can be rolled back to the old file any more."""
        gone, self.old = self.old, None
        if gone is not None:
            gone.path.unlink(missing_ok=True)
            gone.readers.retire()

    def remove(self) -> None:
        """Remove all, so that the next index begins with nothing; readers may go on."""
        for file in (self.current, self.old):
            if file is not None:
                file.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close each as soon as it has no reader."""
        for file in (self.current, self.old):
            if file is not None:
                file.readers.retire()


def _standing(positions: Mapping[int, Position]) -> set[int]:
    """Return the vBuckets that may have rows."""
    return {vbucket for vbucket, at in positions.items() if at.seqno}


def _distance(back: Mapping[int, Position], here: Mapping[int, Position]) -> int:
    """Return how many changes lie between two positions, over all vBuckets."""
    start = Position(0, 0, 0)
    return sum(max(0, at.seqno - back.get(vb, start).seqno) for vb, at in here.items())
