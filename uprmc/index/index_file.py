"""An open index file as an index sees it: trees, and the facts that its headers hold."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from uprmc.index.errors import IndexDamaged
from uprmc.index.model import Reducer
from uprmc.index.tree import Header, IndexFile, IndexPosition, Tree
from uprmc.index.tree.nodes import Inner, Pointer
from uprmc.index.vbucket_sets import States, bitmap
from uprmc.index.versions import Edit
from uprmc.model import FailoverEntry, FailoverLog
from uprmc.regular import NotRegular

# --- readers --------------------------------------------------------------------------------------


class FileReaders:
    """The readers of a file: it is closed when it is out of use and the last of them is done.

    Readers stream answers for as long as their clients take, while a compaction may have put
    another file in this one's place.

    Args:
        close: called once, when the file is retired and has no reader.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._count = 0
        self._retired = self._closed = False

    def enter(self) -> bool:
        """Begin to read; ``False`` = it is closed."""
        with self._lock:
            if not self._closed:
                self._count += 1
            return not self._closed

    def leave(self) -> None:
        """Read no more."""
        with self._lock:
            self._count -= 1
        self._look()

    def retire(self) -> None:
        """Close the file as soon as it has no reader."""
        self._retired = True
        self._look()

    def _look(self) -> None:
        with self._lock:
            ends = self._retired and not self._count and not self._closed
            self._closed = self._closed or ends
        if ends:
            self._close()


# --- sizes ----------------------------------------------------------------------------------------
# How much of a file a tree uses: of leaves only their parents are read.


__all__ = ["live_bytes"]


def live_bytes(tree: Tree) -> int:
    """Return the size of all nodes of a tree, as they are in the file."""
    if tree.root is None:
        return 0
    height, node = 0, tree.node(tree.root)
    while isinstance(node, Inner):
        height, node = height + 1, tree.node(node.pointers[0])
    return _below(tree, tree.root, height)


def _below(tree: Tree, pointer: Pointer, height: int) -> int:
    """Return the size of a node and of all below it; leaves are `height` levels below."""
    if not height:
        return pointer.size
    node = tree.node(pointer)
    pointers = node.pointers if isinstance(node, Inner) else []
    return pointer.size + sum(_below(tree, each, height - 1) for each in pointers)


# --- index file -----------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What was learned of a vBucket besides where it stands."""

    log: FailoverLog = ()
    purge_seqno: int = 0
    term: int = 0


class Contents(NamedTuple):
    """What a header holds, but for its trees."""

    positions: Mapping[int, IndexPosition]  # where each vBucket stands
    facts: Mapping[int, Facts]  # of each
    states: States  # of all
    docs_mapped: int = 0  # since the index was begun
    instance: str = ""  # as what it is registered with nodes
    headers: int = 0  # how many there are, this one included


class IndexTrees(NamedTuple):
    """The id tree, and that of each view."""

    ids: Tree
    views: tuple[Tree, ...]

    @property
    def vbuckets(self) -> int:
        """Bitmap of the vBuckets that have rows."""
        return self.ids.vbuckets

    def live_bytes(self) -> int:
        """Return how much of their file they use."""
        return sum(live_bytes(tree) for tree in (self.ids, *self.views))

    def known(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values that the id tree has of these keys."""
        return {key: entry.value for key, entry in self.ids.get_many(keys).items()}

    def edited(self, edits: Sequence[Edit], dropped: int) -> IndexTrees:
        """Return the trees after an edit of each, and without rows of `dropped`, a bitmap."""
        ids, *views = [
            tree.update(edit.removals, cast(Any, edit.insertions), drop_vbuckets=dropped)
            for tree, edit in zip((self.ids, *self.views), edits, strict=True)
        ]
        return IndexTrees(ids, tuple(views))


class OpenFile:
    """A file that is open for writing."""

    def __init__(self, path: Path, file: IndexFile, reducers: Sequence[Reducer | None]) -> None:
        self.path = path
        self.file = file  # the nodes and headers
        self.reducers = tuple(reducers)  # of each view, ``None`` = nothing is reduced
        self.readers = FileReaders(file.close)  # who reads it
        self._first: Header | None = None
        self.headers = contents_of(file.header).headers  # how many it has

    def first_header(self) -> Header | None:
        """Return the oldest header, ``None`` = there is none; the first call reads them all."""
        if self._first is None:
            for header in self.file.headers():
                self._first = header
        return self._first

    def cut_to(self, header: Header) -> None:
        """Cut the file behind a header."""
        self.file.truncate_to(header)
        self.headers = contents_of(header).headers

    def trees(self, header: Header | None = None) -> IndexTrees:
        """Return the trees of a header; empty ones without."""
        roots = header.roots if header is not None else ()
        return self.trees_of(roots or (None,) * (1 + len(self.reducers)))

    def trees_of(self, roots: Sequence[Pointer | None]) -> IndexTrees:
        """Return the trees with these roots: that of the id tree, then of each view's."""
        views = zip(roots[1:], self.reducers, strict=True)
        return IndexTrees(
            Tree(self.file, roots[0]),
            tuple(Tree(self.file, root, reducer) for root, reducer in views),
        )

    def write_header(
        self, trees: IndexTrees, contents: Contents, *, signature: str, num_vbuckets: int
    ) -> Header:
        """Write and sync a header."""
        roots = tuple(tree.root for tree in (trees.ids, *trees.views))
        header = Header(
            signature=signature,
            num_vbuckets=num_vbuckets,
            active=contents.states.active,
            passive=contents.states.passive | contents.states.pending,
            cleanup=contents.states.cleanup,
            positions=contents.positions,
            logs={vbucket: facts.log for vbucket, facts in contents.facts.items()},
            purge_seqnos={vbucket: facts.purge_seqno for vbucket, facts in contents.facts.items()},
            epoch=contents.states.epoch,
            roots=roots,
            extra=_extra(contents._replace(headers=self.headers + 1)),
        )
        written = self.file.write_header(header, sync=True)
        self.headers += 1
        return written


def _extra(contents: Contents) -> bytes:
    states = contents.states
    terms = {vbucket: facts.term for vbucket, facts in contents.facts.items() if facts.term}
    found = {
        "terms": terms,
        "pending": f"{states.pending:x}",
        "paused": f"{states.paused:x}",
        "managed": states.managed,
        "docs_mapped": contents.docs_mapped,
        "instance": contents.instance,
        "headers": contents.headers,
    }
    return json.dumps(found, separators=(",", ":")).encode()


def contents_of(header: Header | None) -> Contents:
    """Return what a header holds; without one, nothing.

    Raises:
        Damaged: it is of another program.
    """
    if header is None:
        return Contents({}, {}, States())
    try:
        extra = json.loads(header.extra)
        terms = {int(vbucket): int(term) for vbucket, term in extra["terms"].items()}
        pending = int(extra["pending"], 16)
        states = States(
            header.active,
            pending,
            header.passive & ~pending,
            header.cleanup,
            int(extra["paused"], 16),
            header.epoch,
            bool(extra["managed"]),
        )
        docs_mapped, instance = int(extra["docs_mapped"]), str(extra["instance"])
        headers = int(extra.get("headers", 1))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise IndexDamaged(f"a header's facts cannot be read: {error!r}") from None
    facts = {
        vbucket: Facts(
            tuple(FailoverEntry(*entry) for entry in log),
            header.purge_seqnos.get(vbucket, 0),
            terms.get(vbucket, 0),
        )
        for vbucket, log in header.logs.items()
    }
    return Contents(dict(header.positions), facts, states, docs_mapped, instance, headers)


# --- files ----------------------------------------------------------------------------------------


_SUFFIX = ".index"
_UNFINISHED = ".unfinished"

_LOG = logging.getLogger("uprmc.index")


class Files:
    """The files of one index in its directory: which is in use, and which can be returned to.

    Files are numbered. A compaction writes the next number beside the present one, which stays
    until nothing can be rolled back behind the new one's only header (c.6); so at most two are
    there, and one that is being written under another name. What cannot be read is removed with a
    log line: the index is built again.

    Rows I19 to I23.

    Args:
        directory: where they are.
        stem: what their names begin with.
        reducers: of each view, ``None`` = nothing is reduced.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, directory: Path, stem: str, reducers: Sequence[Reducer | None]) -> None:
        self._directory, self._stem, self._reducers = directory, stem, reducers
        for path in directory.glob(f"{stem}.[0-9]*{_UNFINISHED}"):
            remove(path)
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
        self.current = found[0] if found else self._created()  # the file in use
        # The one before a compaction, ``None`` = there is none.
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
        except (IndexDamaged, NotRegular) as error:
            _LOG.warning("an index file is removed: %s", error)
            remove(path)
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
        self, vbucket: int, seqno: int, positions: Mapping[int, IndexPosition], indexed: int
    ) -> tuple[OpenFile, Header] | None:
        """Return the newest header at which a vBucket stands at or below a seqno (row I19).

        ``None`` if there is none, or to return to it would cost more changes, which all vBuckets
        would have to get again, than to index this vBucket from zero; or if it has rows of one
        that has begun at zero since: for that one nodes keep no deletions that older rows need.

        Args:
            vbucket: to be rolled back.
            seqno: to where.
            positions: where all stand now.
            indexed: bitmap of those that are indexed now; rows of others are cleaned up.
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
                    lacks = bitmap(stood - kept) & indexed
                    return (file, header) if cheap and not lacks else None
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
        remove(path)
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


def remove(path: Path) -> None:
    """Remove what has the name of a file of ours, whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _standing(positions: Mapping[int, IndexPosition]) -> set[int]:
    """Return the vBuckets that may have rows."""
    return {vbucket for vbucket, at in positions.items() if at.seqno}


def _distance(back: Mapping[int, IndexPosition], here: Mapping[int, IndexPosition]) -> int:
    """Return how many changes lie between two positions, over all vBuckets."""
    start = IndexPosition(0, 0, 0)
    return sum(max(0, at.seqno - back.get(vb, start).seqno) for vb, at in here.items())


# --- views ----------------------------------------------------------------------------------------
# What an index has published: what queries read while the updater goes on.


class PublishedView(NamedTuple):
    """What is published: everything a query needs, of one moment."""

    file: OpenFile  # which the trees are in, and who reads it
    trees: IndexTrees  # the id tree and those of the views
    # where each vBucket stands; none while the first build is not loaded.
    positions: Mapping[int, IndexPosition]
    facts: Mapping[int, Facts]  # what was learned of each
    states: States  # what is done with each
    building: bool  # the trees are empty because the first build is not loaded yet
    # another object whenever any vBucket has gone back; as long as it is the same one, what was
    # once in the trees still is.
    course: object


# --- snapshot -------------------------------------------------------------------------------------


class Snapshot:
    """A state of an index that one request reads, for as long as its answer takes. Any thread may
    read its trees.

    Args:
        view: what was published.
        active: bitmap of the vBuckets whose rows count.
    """

    def __init__(self, view: PublishedView, active: int) -> None:
        self._view, self.file = view, view.file  # which the trees are in
        self.building = view.building  # nothing is in the trees yet
        self._active = active
        # Bitmap of the vBuckets whose rows count, ``None`` = all that are in the trees do.
        self.wanted: int | None = active if view.trees.vbuckets & ~active else None
        self._released = False

    def tree(self, view_index: int) -> Tree:
        """Return the tree of a view."""
        return self._view.trees.views[view_index]

    def total_rows(self, view_index: int) -> int:
        """Return how many rows a view has, those that do not count included."""
        return self.tree(view_index).count

    @property
    def update_seq(self) -> Mapping[int, int]:
        """The seqno of each vBucket that it stands for."""
        positions = self._view.positions
        return {vb: at.seqno for vb, at in sorted(positions.items()) if self._active >> vb & 1}

    def release(self) -> None:
        """Let the file go; twice is no error."""
        if not self._released:
            self._released = True
            self._view.file.readers.leave()


def taken(view: PublishedView, active: int) -> Snapshot | None:
    """Return a snapshot of what is published, ``None`` = its file was closed: look again."""
    return Snapshot(view, active) if view.file.readers.enter() else None
