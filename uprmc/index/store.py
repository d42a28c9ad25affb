"""What one design has indexed: its trees, where they stand, and the file that they are in.

An `IndexStore` belongs to one thread, the updater's. What other threads may read is a `View`, which
is replaced as a whole: immutable trees and the positions that go with them.

Trees and positions move together, so each header holds exactly what its positions say, also inside
of a snapshot. That is what a rollback counts on: the newest header at or below a seqno is the state
of that seqno's history (c.5). What is first built is loaded in bulk, see `FirstBuild`.

Rows I01, I08, I19 to I24.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path

from uprmc.client.state import Saved
from uprmc.config import IndexSettings
from uprmc.index.errors import IndexDamaged, WentBack
from uprmc.index.index_file import (
    Contents,
    Facts,
    Files,
    IndexTrees,
    OpenFile,
    PublishedView,
    contents_of,
)
from uprmc.index.model import Entry, Mapped, Mapper
from uprmc.index.rows import id_key, id_text
from uprmc.index.tree import BulkLoader, Header, IndexFile, IndexPosition
from uprmc.index.tree.bulk import compact
from uprmc.index.vbucket_sets import States, bitmap, numbers
from uprmc.index.versions import Documents, Edit, Latest, advanced, edits, latest_of
from uprmc.model import SnapshotRange
from uprmc.remote.batch import Batch

# --- compaction -----------------------------------------------------------------------------------
# Compaction of an index file: a copy made in a thread of its own, and what has changed meanwhile.
#
# The copy begins at a header. Edits that the trees get meanwhile are remembered, up to a limit:
# with more of them the updater waits for the copy. When the copy is there the edits are applied to
# it, and it can take the file's place.
#
# Rows I22, I23.


#: The copying thread rests this long after each slice, so that others get their turns.
_REST_S = 0.001

#: It is looked again how much of a file is of use when it has grown by this factor.
_GROWN = 1.1

_LOG = logging.getLogger("uprmc.index")


class _Abandoned(Exception):
    """The copy is of no use any more."""


class IndexCompaction:
    """See the module docstring. It begins at once; all methods are for the updater's thread.

    Args:
        file: what is copied.
        header: the state that is copied; it is the newest one.
        path: of the copy.
        limit_bytes: of edits that are remembered.
        done: called in the copying thread when it has ended.
    """

    def __init__(
        self,
        file: OpenFile,
        header: Header,
        path: Path,
        limit_bytes: int,
        done: Callable[[], None],
    ) -> None:
        self.ratio = 0.0  # which part is copied, from 0 to 1
        self.error = ""  # why there will be no copy, empty = nothing is wrong
        self.header = header
        self._file, self._path = file, path
        self._limit_bytes, self._done = limit_bytes, done
        self._edits: list[tuple[Sequence[Edit], int]] = []
        self._bytes = 0
        self._abandoned = False
        self._damage: IndexDamaged | None = None
        self._copy: IndexFile | None = None
        self._thread = threading.Thread(target=self._run, name="uprmc-index-compaction")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._copy = compact(
                self._file.file,
                self._path,
                self._file.reducers,
                header=self.header,
                step=self._step,
            )
        except _Abandoned:
            pass
        except OSError as error:
            self.error = str(error)
        except IndexDamaged as error:
            self._damage, self.error = error, str(error)
        finally:
            self._done()

    def _step(self, ratio: float) -> None:
        if self._abandoned:
            raise _Abandoned
        self.ratio = ratio
        time.sleep(_REST_S)

    def note(self, edits: Sequence[Edit], dropped: int) -> None:
        """Remember what is done to the trees; waits for the copy when that is too much."""
        self._edits.append((edits, dropped))
        self._bytes += sum(
            sum(map(len, edit.removals)) + sum(len(row[0]) + len(row[2]) for row in edit.insertions)
            for edit in edits
        )
        if self._bytes > self._limit_bytes:
            self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the copy is there, or will never be."""
        return not self._thread.is_alive()

    def result(self) -> tuple[IndexFile, IndexTrees] | None:
        """Return the copy and its trees with all edits, ``None`` = there is no copy.

        Raises:
            Damaged: what was to be copied cannot be read.
        """
        self._thread.join()
        if self._damage is not None:
            raise self._damage
        if self._copy is None:
            return None
        try:
            trees = OpenFile(self._path, self._copy, self._file.reducers).trees(self._copy.header)
            for edits, dropped in self._edits:
                trees = trees.edited(edits, dropped)
            self._copy.flush()
            return self._copy, trees
        except (OSError, IndexDamaged) as error:
            self.error = str(error)
            self.abandon()
            return None

    def abandon(self) -> None:
        """Make an end of it, and remove the copy."""
        self._abandoned = True
        self._thread.join()
        if self._copy is not None:
            self._copy.close()
            self._path.unlink(missing_ok=True)


class Compactions:
    """When the file of an index is compacted: one compaction after the other."""

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self.current: IndexCompaction | None = None  # what is under way
        self.wanted = False  # one is to begin when that is possible
        self.done = 0  # how many files were replaced by their copies
        self.failed = 0  # how many were not, but for those that a rollback has ended
        self.error = ""  # why the last one has failed, empty = it has not
        self._looked_at = self._live_bytes = 0

    @property
    def has_ended(self) -> bool:
        """Whether the copy of the present one is there, or will never be."""
        return self.current is not None and self.current.has_ended

    def want(self) -> None:
        """Have one begin as soon as no rollback is due, unless one is under way."""
        self.wanted = self.current is None

    def consider(self, size_bytes: int, trees: IndexTrees) -> None:
        """Look now and then how much of a file is of no use, and want one if it is too much."""
        if self.current is not None or size_bytes < self._looked_at * _GROWN:
            return
        self._looked_at = size_bytes
        self._live_bytes = trees.live_bytes()
        too_much = 1 - self._live_bytes / size_bytes >= self._settings.fragmentation
        if size_bytes >= self._settings.compact_min_bytes and too_much:
            self.wanted = True

    def begin(self, file: OpenFile, header: Header, path: Path, done: Callable[[], None]) -> None:
        """Begin one; see `IndexCompaction`."""
        self.wanted = False
        self.current = IndexCompaction(file, header, path, self._settings.queue_bytes, done)

    def note(self, edits: Sequence[Edit], dropped: int) -> None:
        """See `IndexCompaction.note`."""
        if self.current is not None:
            self.current.note(edits, dropped)

    def result(self) -> tuple[IndexFile, IndexTrees] | None:
        """End the present one; see `IndexCompaction.result`. Why there is no copy is said once."""
        current, self.current = self.current, None
        assert current is not None
        try:
            return current.result()
        finally:
            if current.error and current.error != self.error:
                _LOG.warning("an index file is not compacted: %s", current.error)
            self.failed += bool(current.error)
            self.error = current.error

    def abandon(self) -> None:
        """Make an end of the present one."""
        current, self.current = self.current, None
        if current is not None:
            current.abandon()

    def begin_over(self) -> None:
        """Have one that is under way begin again: the trees have gone back (row I23)."""
        self.wanted = self.wanted or self.current is not None
        self.abandon()

    def sizes(self, size_bytes: int) -> dict[str, int | float | bool | str]:
        """Return what ``_info`` shows of them, for a file of this size."""
        size_bytes = max(size_bytes, 1)
        live_bytes = min(self._live_bytes, size_bytes)
        return {
            "data_bytes": live_bytes,
            "fragmentation": round(1 - live_bytes / size_bytes, 4) if live_bytes else 0.0,
            "compactions": self.done,
            "compactions_failed": self.failed,
            "compaction_error": self.error,
            "compacting": self.current is not None,
        }


# --- standings ------------------------------------------------------------------------------------
# Where each vBucket of an index stands, and what was learned of its history.


class Standings:
    """Those of one index; the updater's thread changes them, any thread may ask."""

    def __init__(self, positions: Mapping[int, IndexPosition], facts: Mapping[int, Facts]) -> None:
        self.positions = dict(positions)  # up to where the rows of each vBucket are in the trees
        self.facts = dict(facts)  # what was learned of each

    def saved(self) -> dict[int, Saved]:
        """Return what the client library continues from."""
        found = {}
        for vbucket, (seqno, start, end) in list(self.positions.items()):
            facts = self.facts_of(vbucket)
            snapshot = SnapshotRange(start, end if seqno > start else seqno)
            found[vbucket] = Saved(seqno, snapshot, facts.log, seqno, facts.purge_seqno, facts.term)
        return found

    def seqno_of(self, vbucket: int) -> int:
        """Return up to where a vBucket is indexed, 0 = it is not."""
        position = self.positions.get(vbucket)
        return 0 if position is None else position.seqno

    def facts_of(self, vbucket: int) -> Facts:
        """Return what was learned of a vBucket."""
        return self.facts.get(vbucket) or Facts()

    def learn(self, saved: Mapping[int, Saved]) -> None:
        """Keep logs, purge seqnos and terms."""
        for vbucket, each in saved.items():
            self.facts[vbucket] = Facts(each.log, each.purge_seqno, each.term)

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Forget vBuckets."""
        for vbucket in vbuckets:
            self.positions.pop(vbucket, None)
            self.facts.pop(vbucket, None)


# --- first build ----------------------------------------------------------------------------------


_rows = attrgetter("rows")


class FirstBuild:
    """The first build of an index: rows are sorted outside of the trees, which are written at once.

    A document may come more than once; its newest version counts. Nothing is in the file before all
    is loaded, so a build that is interrupted begins again.

    Row I01.
    """

    def __init__(self, file: OpenFile, settings: IndexSettings) -> None:
        self.documents = 0  # versions that have come
        self._file = file
        self._loader = BulkLoader(file.file, file.reducers, memory_bytes=settings.sort_bytes)

    def add(self, latest: Latest, mapped: Sequence[Mapped]) -> None:
        """Take the newest versions of documents, and what their maps have emitted."""
        documents, gone = latest
        self._loader.add_many(documents.keys, documents.vbuckets, list(map(_rows, mapped)))
        nothing = ((),) * len(self._file.reducers)
        for vbucket, key in gone:
            self._loader.add(key, vbucket, nothing)
        self.documents += len(documents) + len(gone)

    def load(self) -> IndexTrees:
        """Write the trees and return them."""
        return self._file.trees_of(self._loader.finish())

    def abandon(self) -> None:
        """Throw away what was sorted."""
        self._loader.discard()


# --- cleaning -------------------------------------------------------------------------------------
# Rows of vBuckets that are no longer wanted are removed some at a time, between updates (row I16).


#: Rows that are removed at once: some ten milliseconds.
_ROWS = 5_000


def cleaning_edits(trees: IndexTrees, vbuckets: int) -> list[Edit] | None:
    """Return edits, the id tree's first, that remove some rows of vBuckets.

    The id tree is cleaned last: what it has says which vBuckets have rows.

    Returns:
        ``None`` = nothing else is there, so that vBuckets can be dropped without reading.
    """
    every = (*trees.views, trees.ids)
    place = next((n for n, tree in enumerate(every) if tree.vbuckets & vbuckets), None)
    if place is None or not trees.vbuckets & ~vbuckets:
        return None
    rows = islice(every[place].rows(wanted=vbuckets), _ROWS)
    edits = [Edit((), ())] * len(every)
    edits[(place + 1) % len(every)] = Edit([row.key for row in rows], ())
    return edits


# --- counted maps ---------------------------------------------------------------------------------
# The maps of a design as they are run for one index: how often, and what went wrong.


class CountedMaps:
    """Runs maps, in the updater's thread.

    Args:
        mapper: runs them; it is closed with this.
        errors_max: of the newest errors so many are kept.
    """

    def __init__(self, mapper: Mapper, errors_max: int) -> None:
        self._mapper = mapper
        self.calls = 0  # documents that were mapped
        self.errors_total = 0  # those of which a map has failed
        # The last documents whose maps failed: (id, seqno, why).
        self.errors: deque[tuple[str, int, str]] = deque(maxlen=errors_max)

    def map(self, documents: Documents) -> list[Mapped]:
        """Run the maps of documents; note what fails."""
        if not documents:
            return []
        found = self._mapper.map(documents)
        self.calls += len(found)
        for at, mapped in enumerate(found):
            if mapped.error is not None:
                self.errors_total += 1
                document = documents[at]
                self.errors.append((id_text(document.key), document.seqno, mapped.error))
        return found

    @property
    def log(self) -> list[tuple[str, str]]:
        """What functions have logged last: (id of the document, text)."""
        return list(self._mapper.log)

    def give_up(self) -> None:
        """Have maps that do not end raise `GivenUp`; any thread may call this."""
        self._mapper.give_up()

    def close(self) -> None:
        """End the processes that run maps; `map` begins new ones."""
        self._mapper.close()


# --- store ----------------------------------------------------------------------------------------


_LOG = logging.getLogger("uprmc.index")


class IndexStore:
    """See the module docstring.

    Args:
        files: the store closes them.
        signature: of the design, kept in headers.
        mapper: runs the maps; the store closes it.
        settings: of the index.
        num_vbuckets: of the bucket, kept in headers.
    """

    def __init__(
        self,
        files: Files,
        signature: str,
        mapper: Mapper,
        settings: IndexSettings,
        num_vbuckets: int = 0,
    ) -> None:
        self.files = files
        self._signature, self._num_vbuckets = signature, num_vbuckets
        self._settings = settings
        self.maps = CountedMaps(mapper, settings.map_errors)  # since the store was opened
        self.headers_written = 0
        # How often, by kind: ``header``, ``old_file``, ``vbucket``, ``build``.
        self.rollbacks: Counter[str] = Counter()
        self.compacting = Compactions(settings)
        # No rollback is due or can be: all streams were accepted. Any thread may set it.
        self.may_swap = False
        self._cleaning = 0  # of some of their rows are gone
        # Called in any thread when there is work for when nothing else is to be done.
        self.on_work: Callable[[], None] = _nothing
        self.header_at = time.monotonic()  # of the last header, or the opening
        self._since: float | None = None
        self._changes = 0
        self._take(files.header)
        self._durable = self.positions()
        empty = not self._standings.positions and not self._trees.vbuckets
        self._build = FirstBuild(files.current, settings) if empty else None
        self._publish()
        self._drop_unfinished()

    def _take(self, header: Header | None) -> None:
        """Stand where a header stands."""
        self._course = object()
        self._trees = self.files.current.trees(header)
        contents = contents_of(header)
        self._standings = Standings(contents.positions, contents.facts)
        self.states, self.docs_mapped = contents.states, contents.docs_mapped
        self.instance = contents.instance  # as what it is registered with nodes, empty = not yet

    def _publish(self) -> None:
        building = self._build is not None
        positions = {} if building else dict(self._standings.positions)
        facts = dict(self._standings.facts)
        trees, file = self._trees, self.files.current
        # What other threads may read.
        self.view = PublishedView(
            file, trees, positions, facts, self.states, building, self._course
        )

    # --- changes --------------------------------------------------------------------------------

    def apply(self, batches: list[Batch]) -> None:
        """Bring the trees up to date with changes of vBuckets that are indexed."""
        batches = [self._indexed(batch) for batch in batches]
        positions = self._standings.positions
        positions |= advanced(positions, batches)
        changes = sum(map(len, batches))
        latest = latest_of(batches)
        if self._build is not None:
            self._build.add(latest, self._mapped(latest.documents))
            return
        if latest.documents or latest.gone:
            self._update(latest)
        self._touch(changes)
        self._publish()
        if self.may_swap and self.compacting.has_ended:
            next(self._swap())

    def _indexed(self, batch: Batch) -> Batch:
        """Return a batch without what came late for vBuckets that are no longer indexed."""
        bits = self.states.indexed
        unwanted = {run.stream for run in batch.runs if not bits >> run.stream.vbucket & 1}
        return batch.without(unwanted) if unwanted else batch

    def _update(self, latest: Latest) -> None:
        documents, gone = latest
        there = zip(documents.vbuckets, documents.keys, strict=True)
        known = self._trees.known(sorted(id_key(*place) for place in chain(there, gone)))
        ids, views = edits(known, documents, self._mapped(documents), len(self._trees.views))
        self._edit([ids, *views], 0)

    def _edit(self, found: Sequence[Edit], dropped: int) -> None:
        self._trees = self._trees.edited(found, dropped)
        self.compacting.note(found, dropped)

    def _mapped(self, documents: Documents) -> list[Mapped]:
        found = self.maps.map(documents)
        self.docs_mapped += len(found)
        return found

    def _touch(self, changes: int = 1) -> None:
        self._changes += changes
        if self._since is None:
            self._since = time.monotonic()

    # --- what the library tells and asks --------------------------------------------------------

    def learn(self, saved: Mapping[int, Saved]) -> None:
        """Keep logs, purge seqnos and terms."""
        self._standings.learn(saved)
        self._touch()
        self._publish()

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Forget them; their rows are gone already."""
        self._standings.forget(vbuckets)
        self._touch()
        self._publish()

    def positions(self) -> dict[int, Saved]:
        """Where the trees stand, or will when the first build is loaded."""
        return self._standings.saved()

    def seqno_of(self, vbucket: int) -> int:
        """Where a vBucket stands, 0 = nowhere."""
        return self._standings.seqno_of(vbucket)

    def durable_of(self, vbucket: int) -> Saved | None:
        """Where the newest synced header stands."""
        return self._durable.get(vbucket)

    def begin(self) -> None:
        """Have no header on disk give rows back to a vBucket that is about to begin at zero.

        For who asks for everything nodes keep no deletions below the end of the first snapshot:
        rows of an earlier time would stay for ever, came they back by a crash or a rollback.
        """
        copied = self.compacting.current
        if self._build is None and self._rows_may_come_back(self.files.header):
            self.write_header()
        if copied is not None and self._rows_may_come_back(copied.header):
            self.compacting.begin_over()

    def _rows_may_come_back(self, header: Header | None) -> bool:
        there = {} if header is None else header.positions
        followed = self.states.followed
        return any(
            at.seqno and followed >> vb & 1 and not self.seqno_of(vb) for vb, at in there.items()
        )

    # --- going back -----------------------------------------------------------------------------

    def roll_back(self, vbucket: int, seqno: int) -> bool:
        """Return to the state of `seqno`; ``False`` = of this vBucket only 0 is possible.

        Raises:
            WentBack: to an older header, with all vBuckets.
        """
        stands = self._standings.positions.get(vbucket)
        if stands is None or 0 < stands.seqno <= seqno:
            return True
        if self._build is not None:
            self._start_build_over(self._build)
            raise WentBack
        self.compacting.begin_over()
        if not seqno:
            self.rollbacks["vbucket"] += 1
            self._course = object()
            self.drop([vbucket])
            self.write_header()  # the node that is asked for everything relies on it
            return True
        found = self.files.header_below(
            vbucket, seqno, self._standings.positions, self.states.indexed
        )
        if found is None:
            return False
        self._return_to(*found)
        raise WentBack

    def _return_to(self, file: OpenFile, header: Header) -> None:
        """Cut the file behind a header; vBucket states stay as they are now (c.5)."""
        self.rollbacks["header" if file is self.files.current else "old_file"] += 1
        states, instance, mapped = self.states, self.instance, self.docs_mapped
        self.files.cut_to(file, header)
        self._take(header)
        gone = bitmap(self._standings.positions) & ~states.indexed
        was, self.states = self.states, states._replace(cleanup=states.cleanup | gone)
        self.instance, self.docs_mapped = instance, mapped
        self._since, self._changes = None, 0
        self._durable = self.positions()
        if was != self.states:
            self._touch()
        self._publish()
        self._drop_unfinished()

    def _start_build_over(self, build: FirstBuild) -> None:
        self.rollbacks["build"] += 1
        self._course = object()
        build.abandon()
        self._standings = Standings({}, {})
        self._build = FirstBuild(self.files.current, self._settings)
        self._publish()

    def drop(self, vbuckets: Iterable[int]) -> None:
        """Remove all rows of vBuckets, in one operation of each tree (row I24)."""
        found = list(vbuckets)
        bits = bitmap(found) & self._trees.vbuckets
        if bits:
            self._edit([Edit((), ())] * (1 + len(self._trees.views)), bits)
        self._cleaning &= ~bitmap(found)
        self._standings.forget(found)
        self._touch()
        self._publish()

    # --- from one index to another --------------------------------------------------------------

    def imported(self, rows: Sequence[Sequence[Entry]]) -> None:
        """Take rows that another index of the same design has; `adopt` follows."""
        self._edit([Edit((), sorted(some)) for some in rows], 0)
        self._publish()

    def standing(self, vbucket: int) -> tuple[IndexPosition, Facts]:
        """Return where a vBucket stands, and what was learned of it."""
        return self._standings.positions[vbucket], self._standings.facts_of(vbucket)

    def adopt(self, vbucket: int, position: IndexPosition, facts: Facts) -> None:
        """Stand where another index stood whose rows were imported."""
        self._standings.positions[vbucket], self._standings.facts[vbucket] = position, facts
        self._touch()
        self._publish()

    def _drop_unfinished(self) -> None:
        """Remove rows of vBuckets that stand nowhere: an import or a cleanup was interrupted."""
        stray = self._trees.vbuckets & ~bitmap(self._standings.positions)
        if stray:
            self.drop(numbers(stray))

    # --- states of vBuckets ---------------------------------------------------------------------

    def change_states(self, change: Callable[[States], States]) -> States:
        """Do something else with vBuckets from now on; returns what."""
        states = change(self.states)
        if states != self.states:
            self.states = states
            back = self._cleaning & ~states.cleanup
            if back:  # wanted again: it begins at zero, without the rows that are left of it
                self.drop(numbers(back))
            self._touch()
            self._publish()
        return states

    def name_instance(self, instance: str) -> None:
        """Keep as what it is registered with nodes."""
        self.instance = instance
        self._touch()

    # --- the first build ------------------------------------------------------------------------

    def finish_build(self) -> None:
        """Load what was sorted."""
        build = self._build
        if build is None:
            return
        self._trees = build.load()
        self._build = None
        self._touch(build.documents)
        self._publish()
        self.write_header()

    @property
    def is_building(self) -> bool:
        """Whether the first build is not loaded yet."""
        return self._build is not None

    # --- headers --------------------------------------------------------------------------------

    def header_due(self, now: float) -> float | None:
        """In how many seconds a header is to be written, ``None`` = nothing is to be written."""
        if self._since is None or self._build is not None:
            return None
        if self._changes >= self._settings.update_min_changes:
            return 0.0
        return self._since + self._settings.update_interval_s - now

    def write_header(self) -> None:
        """Write and sync one: what it says is durable."""
        if self._build is not None:
            return
        saved = self.positions()
        contents = Contents(
            dict(self._standings.positions),
            self._standings.facts,
            self.states,
            self.docs_mapped,
            self.instance,
        )
        self.files.current.write_header(
            self._trees, contents, signature=self._signature, num_vbuckets=self._num_vbuckets
        )
        self._since, self._changes = None, 0
        self.header_at = time.monotonic()
        self.headers_written += 1
        self._durable = saved
        self.compacting.consider(self.files.current.file.size, self._trees)

    # --- in the background ----------------------------------------------------------------------

    def work(self) -> Iterator[None] | None:
        """Slices of work for when nothing else is to be done, ``None`` = there is none."""
        if self._build is not None:
            return None
        if self.states.cleanup:
            return self._clean()
        if self.may_swap and self.compacting.has_ended:
            return self._swap()
        if self.may_swap and self.compacting.wanted and self.compacting.current is None:
            return self._begin()
        return None

    def _clean(self) -> Iterator[None]:
        """Remove some rows of vBuckets that are no longer wanted."""
        bits = self.states.cleanup
        self._standings.forget(numbers(bits))
        self._cleaning |= bits
        edits = cleaning_edits(self._trees, bits)
        if edits is None:
            self.drop(numbers(bits))
        else:
            self._edit(edits, 0)
        left = bits & self._trees.vbuckets
        self.change_states(lambda states: states._replace(cleanup=left))
        self._touch()
        self._publish()
        yield

    # --- compaction -----------------------------------------------------------------------------

    def begin_compaction(self) -> None:
        """Compact the file as soon as no rollback is due, unless that is under way."""
        self.compacting.want()

    def _begin(self) -> Iterator[None]:
        self.write_header()
        header = self.files.header
        assert header is not None
        copy = self.files.unfinished()
        self.compacting.begin(self.files.current, header, copy, lambda: self.on_work())
        yield

    def _swap(self) -> Iterator[None]:
        """Use the compacted file; the present one stays until nothing can need it."""
        found = self.compacting.result()
        if found is not None:
            copy, self._trees = found
            self.files.swap(copy)
            self.write_header()
            self.compacting.done += 1
            self._publish()
        yield

    def drop_old_file(self, persisted: Mapping[int, int]) -> bool:
        """Drop the file before a compaction if no rollback can need it; return whether it is gone.

        Args:
            persisted: how far vBuckets are on their nodes' disks: these never go back behind that.
        """
        header = self.files.current.first_header()
        positions = {} if header is None else header.positions
        if any(persisted.get(vb, -1) < at.seqno for vb, at in positions.items()):
            return False
        self.files.drop_old()
        return True

    def sizes(self) -> dict[str, int | float | bool | str]:
        """Return sizes of the files, and what there is of compactions, for ``_info``."""
        return {
            "disk_bytes": self.files.disk_bytes,
            "headers": self.files.current.headers,
            "old_file": self.files.old is not None,
            **self.compacting.sizes(self.files.current.file.size),
        }

    def give_up(self) -> None:
        """Have maps that do not end raise `GivenUp`; any thread may call this."""
        self.maps.give_up()

    def close(self, *, orderly: bool) -> None:
        """Close the file, having written a header if `orderly`."""
        try:
            if orderly and self._since is not None:
                self.write_header()
        finally:
            with ExitStack() as closing:  # all of it, whatever fails
                closing.callback(self.files.close)
                closing.callback(self.maps.close)
                closing.callback(self.compacting.abandon)
                if self._build is not None:
                    closing.callback(self._build.abandon)


def _nothing() -> None:
    """Do nothing."""
