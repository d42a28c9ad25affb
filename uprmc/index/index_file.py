"""An open index file as an index sees it: trees, and the facts that its headers hold.

Source: systems reference c.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from uprmc.index.edits import Edit
from uprmc.index.errors import Damaged
from uprmc.index.model import Reducer
from uprmc.index.readers import Readers
from uprmc.index.tree import Header, IndexFile, Pointer, Position, Tree
from uprmc.index.tree.sizes import live_bytes
from uprmc.model import FailoverEntry, FailoverLog


class States(NamedTuple):
    """What is done with each vBucket, as bitmaps.

    Attributes:
        active: indexed and shown.
        pending: indexed, and active once everything has come that the source has.
        passive: indexed and not shown.
        cleanup: rows are to be removed.
        paused: not followed at present; shown or not as the others say.
        epoch: of the last `_set_states`.
        managed: whether that decides, not what the source has active.
    """

    active: int = 0
    pending: int = 0
    passive: int = 0
    cleanup: int = 0
    paused: int = 0
    epoch: int = 0
    managed: bool = False

    @property
    def indexed(self) -> int:
        """Bitmap of those that have, or will have, rows to be kept."""
        return self.active | self.pending | self.passive

    @property
    def followed(self) -> int:
        """Bitmap of those whose changes are to come."""
        return self.indexed & ~self.paused


class Facts(NamedTuple):
    """What was learned of a vBucket besides where it stands."""

    log: FailoverLog = ()
    purge_seqno: int = 0
    term: int = 0


class Contents(NamedTuple):
    """What a header holds, but for its trees.

    Attributes:
        positions: where each vBucket stands.
        facts: of each.
        states: of all.
        docs_mapped: since the index was begun.
        instance: as what it is registered with nodes.
        headers: how many there are, this one included.
    """

    positions: Mapping[int, Position]
    facts: Mapping[int, Facts]
    states: States
    docs_mapped: int = 0
    instance: str = ""
    headers: int = 0


class Trees(NamedTuple):
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

    def edited(self, edits: Sequence[Edit], dropped: int) -> Trees:
        """Return the trees after an edit of each, and without rows of `dropped`, a bitmap."""
        ids, *views = [
            tree.update(edit.removals, cast(Any, edit.insertions), drop_vbuckets=dropped)
            for tree, edit in zip((self.ids, *self.views), edits, strict=True)
        ]
        return Trees(ids, tuple(views))


class OpenFile:
    """A file that is open for writing.

    Attributes:
        path: of it.
        file: the nodes and headers.
        reducers: of each view, ``None`` = nothing is reduced.
        readers: who reads it.
        headers: how many it has.
    """

    def __init__(self, path: Path, file: IndexFile, reducers: Sequence[Reducer | None]) -> None:
        self.path, self.file, self.reducers = path, file, tuple(reducers)
        self.readers = Readers(file.close)
        self._first: Header | None = None
        self.headers = contents_of(file.header).headers

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

    def trees(self, header: Header | None = None) -> Trees:
        """Return the trees of a header; empty ones without."""
        roots = header.roots if header is not None else ()
        return self.trees_of(roots or (None,) * (1 + len(self.reducers)))

    def trees_of(self, roots: Sequence[Pointer | None]) -> Trees:
        """Return the trees with these roots: that of the id tree, then of each view's."""
        views = zip(roots[1:], self.reducers, strict=True)
        return Trees(
            Tree(self.file, roots[0]),
            tuple(Tree(self.file, root, reducer) for root, reducer in views),
        )

    def write_header(
        self, trees: Trees, contents: Contents, *, signature: str, num_vbuckets: int
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
        raise Damaged(f"a header's facts cannot be read: {error!r}") from None
    facts = {
        vbucket: Facts(
            tuple(FailoverEntry(*entry) for entry in log),
            header.purge_seqnos.get(vbucket, 0),
            terms.get(vbucket, 0),
        )
        for vbucket, log in header.logs.items()
    }
    return Contents(dict(header.positions), facts, states, docs_mapped, instance, headers)
