"""All designs of an index process: kept on disk, built beside each other, replaced when ready.

A changed definition is built beside the one that answers, and takes its place when it has caught
up. The former one's files stay for `index.keep_old_s`, so that `undo` only has to catch up, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from twisted.internet.defer import DeferredLock, ensureDeferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool

from uprmc.client.errors import ClientError
from uprmc.client.forgetting import forget
from uprmc.config import IndexSettings
from uprmc.index.design import Design, named_modules
from uprmc.index.errors import QueryRefused, not_found
from uprmc.index.following import Following, OnEvent
from uprmc.index.group import Group
from uprmc.index.index_file import Files, remove
from uprmc.index.javascript.process import MISSING, available
from uprmc.index.mapping import make_mapper, make_reducer
from uprmc.index.mapping.javascript import refuse_faults
from uprmc.index.model import Lost, Reducer
from uprmc.index.source import DocumentReader, IndexSource, SourceNodes
from uprmc.index.store import IndexStore
from uprmc.index.tree import Room, limit_cache, limit_disk
from uprmc.index.tree.disk import sync_directory
from uprmc.index.updater import Stopped
from uprmc.index.waiting import Deadline
from uprmc.metrics import Metric
from uprmc.regular import open_regular, read_regular

# --- designs on disk ------------------------------------------------------------------------------
# Designs on disk: one directory for each, with its texts, which one answers, and its index files.
#
#     DATA/index/NAME.design/design.json   which signatures are current, new, old
#     DATA/index/NAME.design/SIG.text      the text as it was put
#     DATA/index/NAME.design/SIG.N.index   index files, see `index_file`
#
# Names are quoted, so that none can leave the directory. A file is replaced as a whole, or not.


SUFFIX = ".design"
_FACTS = "design.json"
_TEXT = ".text"

#: Longer names are kept as their hash: file systems take 255 bytes.
_NAME_MAX = 180

_LOG = logging.getLogger("uprmc.index")


@dataclass(frozen=True)
class Kept:
    """What is kept of a design."""

    name: str  # of it
    current: str  # signature of the definition that answers
    new: str = ""  # of the one that is being built, empty = none
    old: str = ""  # of the one that answered before, empty = none
    old_until: float = 0.0  # when that is removed, in seconds of the epoch

    def __post_init__(self) -> None:
        texts = (self.name, self.current, self.new, self.old)
        if not all(isinstance(each, str) for each in texts) or not self.current:
            raise ValueError("a name or a signature is no text")
        if not isinstance(self.old_until, int | float):
            raise ValueError("its time is no number")


class DesignFolder:
    """The directory of one design."""

    def __init__(self, root: Path, name: str) -> None:
        quoted = quote(name, safe="")
        if len(quoted) > _NAME_MAX:
            quoted = "sha256-" + hashlib.sha256(name.encode()).hexdigest()
        self.path = root / (quoted + SUFFIX)

    def keep(self, kept: Kept) -> None:
        """Write which definitions there are; on disk when it returns."""
        self._write(_FACTS, json.dumps(asdict(kept)).encode())

    def keep_text(self, signature: str, text: bytes) -> None:
        """Write a definition."""
        self.path.mkdir(exist_ok=True)
        sync_directory(self.path.parent)
        self._write(signature + _TEXT, text)

    def text(self, signature: str) -> bytes:
        """Return a definition."""
        return read_regular(self.path / (signature + _TEXT))

    def drop(self, signature: str) -> None:
        """Remove a definition with its index."""
        for path in self.path.glob(f"{signature}.*"):
            remove(path)

    def drop_others(self, kept: Kept) -> None:
        """Remove what belongs to none of the definitions that are kept."""
        signatures = {kept.current, kept.new, kept.old}
        for path in self.path.iterdir():
            if path.name != _FACTS and path.name.partition(".")[0] not in signatures:
                remove(path)

    def remove(self) -> None:
        """Remove all of it; without its facts it is no design any more."""
        (self.path / _FACTS).unlink(missing_ok=True)
        sync_directory(self.path)
        shutil.rmtree(self.path)

    def _write(self, name: str, data: bytes) -> None:
        unfinished = self.path / (name + ".unfinished")
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self.path / name)
        sync_directory(self.path)


class InUse(Exception):
    """Another process has these designs."""


def locked(root: Path) -> int:
    """Lock a directory of designs for this process; return the descriptor that holds the lock.

    Raises:
        InUse: another process has it.
        OSError: the system refuses.
    """
    descriptor = open_regular(root / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise InUse(f"{root} is in use by another process") from None
        raise
    return descriptor


def found_in(root: Path) -> Iterator[tuple[str, Kept | None]]:
    """Yield the designs that are there: name, and what is kept, ``None`` if it cannot be read.

    What is left of those that were not kept is removed.
    """
    for path in sorted(root.glob(f"*{SUFFIX}")):
        try:
            kept = Kept(**json.loads(read_regular(path / _FACTS)))
            if DesignFolder(root, kept.name).path != path:
                raise ValueError(f"it names {kept.name!r}")
            yield kept.name, kept
        except FileNotFoundError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError, TypeError) as error:
            _LOG.error("a design cannot be read: %s: %s", path, error)
            yield unquote(path.name.removesuffix(SUFFIX)), None


# --- service metrics ------------------------------------------------------------------------------
# What an index process tells a monitoring system of its designs; queries are counted elsewhere.


#: Kinds of rollbacks, which all have a sample from the beginning.
ROLLBACKS = ("header", "old_file", "vbucket", "build")


def metrics_of(groups: Mapping[str, Group]) -> Iterator[Metric]:
    """Yield the numbers of all designs."""
    stores = {name: group.following.store for name, group in groups.items()}
    opened = {name: store for name, store in stores.items() if store is not None}
    for name, kind, text, of_group in _OF_GROUPS:
        yield Metric(name, kind, text, [({"design": n}, of_group(g)) for n, g in groups.items()])
    for name, kind, text, of_store in _OF_STORES:
        yield Metric(name, kind, text, [({"design": n}, of_store(s)) for n, s in opened.items()])
    yield Metric(
        "index_rollbacks_total",
        "counter",
        "Rollbacks, by what was returned to.",
        [
            ({"design": name, "kind": kind}, store.rollbacks[kind])
            for name, store in opened.items()
            for kind in ROLLBACKS
        ],
    )


_Kind = Literal["counter", "gauge"]

_OF_GROUPS: tuple[tuple[str, _Kind, str, Callable[[Group], float]], ...] = (
    (
        "index_pending",
        "gauge",
        "Changes that the source has and the index has not, as the source last said.",
        lambda group: group.pending(),
    ),
    (
        "index_build_ratio",
        "gauge",
        "Part of the source's changes that is indexed, from 0 to 1.",
        lambda group: group.progress(),
    ),
    (
        "index_waiting",
        "gauge",
        "Requests that wait for the index to be fresh enough.",
        lambda group: group.waiting,
    ),
    (
        "index_faults_total",
        "counter",
        "How often an index had to be opened again: a full disk, a damaged file.",
        lambda group: group.following.fault.count,
    ),
    (
        "index_faulty",
        "gauge",
        "1 while an index cannot be written, 0 otherwise.",
        lambda group: float(bool(group.following.fault.text)),
    ),
)

_OF_STORES: tuple[tuple[str, _Kind, str, Callable[[IndexStore], float]], ...] = (
    (
        "index_map_calls_total",
        "counter",
        "Documents that were mapped.",
        lambda store: store.maps.calls,
    ),
    (
        "index_map_errors_total",
        "counter",
        "Documents of which a map has failed.",
        lambda store: store.maps.errors_total,
    ),
    (
        "index_headers_total",
        "counter",
        "Headers that were written and synced.",
        lambda store: store.headers_written,
    ),
    (
        "index_compactions_failed_total",
        "counter",
        "Compactions that have failed; the files before them go on.",
        lambda store: store.compacting.failed,
    ),
    (
        "index_disk_bytes",
        "gauge",
        "Size of the index files.",
        lambda store: store.files.disk_bytes,
    ),
)


# --- service --------------------------------------------------------------------------------------


#: The lock of the directory is waited for this long, and tried this often.
_LOCK_S, _LOCK_PAUSE_S = 15.0, 0.1

_LOG = logging.getLogger("uprmc.index")


class _Slot:
    """One name: the group that answers, and the one that is being built beside it."""

    def __init__(self, kept: Kept, folder: DesignFolder) -> None:
        self.kept, self.folder = kept, folder
        self.current: Group | None = None
        self.new: Group | None = None
        self.old_instances: list[str] = []
        self.timer: Any = None

    def cancel(self) -> None:
        """Forget when the old definition is to be removed."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()


class Service:
    """See the module docstring. Its methods are for the reactor's thread.

    Args:
        reactor: whose.
        root: the directory of designs; it is made if need be.
        nodes: the nodes whose documents are indexed.
        settings: of the index.
        on_event: gets what happens to designs and their indexes.
        now: seconds of the epoch.
    """

    def __init__(
        self,
        reactor: Any,
        root: Path,
        nodes: SourceNodes,
        settings: IndexSettings,
        on_event: OnEvent,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._on_event = on_event
        self._reactor, self._root, self._nodes = reactor, root, nodes
        self._settings, self._now = settings, now
        limit_cache(settings.cache_bytes)
        limit_disk(Room(root, settings.disk_bytes, settings.disk_reserve))
        self.source = IndexSource(
            reactor, nodes.places, settings.poll_s, nodes.tls, self._look, nodes.credentials
        )
        self._documents = DocumentReader(self.source, reactor.callFromThread)
        self._modules = named_modules(settings.python_modules)
        self._slots: dict[str, _Slot] = {}
        self._unopened: dict[str, str] = {}
        self._changing = DeferredLock()
        self._stopping = False
        self._lock = -1

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all designs that are on disk.

        Raises:
            InUse: another process has them.
            OSError: the directory cannot be used.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        await self._lock_root()
        self.source.start()
        for name, kept in found_in(self._root):
            if kept is None:
                self._cannot_open(name, "what is kept of it is damaged: put it again")
                continue
            folder = DesignFolder(self._root, name)
            slot = _Slot(kept, folder)
            try:
                slot.current = await self._begun(name, folder, kept.current)
                if kept.new:
                    slot.new = await self._begun(name, folder, kept.new)
            except (QueryRefused, OSError) as error:
                self._cannot_open(name, str(error))
                if slot.current is not None:
                    await slot.current.following.stop()
                continue
            self._slots[name] = slot
            folder.drop_others(kept)
            self._keep_old(slot)
            self._watch(slot)

    def _cannot_open(self, name: str, reason: str) -> None:
        self._on_event("design_unusable", {"design": name, "reason": reason})
        self._unopened[name] = reason

    async def _lock_root(self) -> None:
        """Wait a little for the lock: an index whose node was killed may still have it."""
        deadline = Deadline(_LOCK_S)
        while self._lock < 0:
            try:
                self._lock = locked(self._root)
            except InUse:
                if not deadline.left_s:
                    raise
                await deferLater(self._reactor, _LOCK_PAUSE_S)

    async def shutdown(self) -> None:
        """End in order: what is indexed is written."""
        self._stopping = True
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            slot.cancel()
        groups = [g for slot in slots.values() for g in (slot.current, slot.new) if g is not None]
        for stopping in [ensureDeferred(group.following.stop()) for group in groups]:
            await stopping
        self.source.stop()
        self._documents.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _look(self) -> None:
        """The source has other vBuckets than before."""
        for slot in self._slots.values():
            for group in (slot.current, slot.new):
                if group is not None:
                    ensureDeferred(group.following.take_source()).addErrback(_unheard)

    async def _begun(
        self, name: str, folder: DesignFolder, signature: str, design: Design | None = None
    ) -> Group:
        """Return a group that has begun to follow."""
        if design is None:
            design = await self._parsed(name, folder.text(signature), from_disk=True)
            if design.signature != signature:
                raise QueryRefused(503, "unavailable", "its text is damaged: put it again")
            if design.javascript() and not available():
                raise QueryRefused(503, "unavailable", MISSING)
        reducers = [self._reducer(design, index) for index in range(len(design.views))]

        def open_store(stem: str = design.signature) -> IndexStore:
            with ExitStack() as opened:
                mapper = make_mapper(design, self._settings)
                opened.callback(mapper.close)
                files = Files(folder.path, stem, reducers)
                opened.callback(files.close)
                store = IndexStore(
                    files, design.signature, mapper, self._settings, self.source.total
                )
                opened.pop_all()
            return store

        def following_of(stem: str, **more: Any) -> Following:
            return Following(
                self._reactor,
                name,
                partial(open_store, stem),
                self.source,
                self._nodes.endpoint,
                self._settings,
                self._on_event,
                **more,
            )

        replica = None
        if self._settings.replicas:
            replica = following_of(f"{design.signature}.replica", of_replicas=True)
        following = following_of(design.signature, replica=replica)
        following.start()
        return Group(self._reactor, design, following, self.source, self._settings)

    def _reducer(self, design: Design, index: int) -> Reducer | None:
        return make_reducer(design, index, self._settings) if design.views[index].reduces else None

    async def _parsed(self, name: str, body: bytes, *, from_disk: bool = False) -> Design:
        design: Design = await self._in_thread(
            Design.parse,
            name,
            body,
            self._modules,
            settings=self._settings,
        )
        if not from_disk:
            await self._in_thread(refuse_faults, design)
        return design

    async def _in_thread(self, what: Callable[..., Any], *given: Any, **named: Any) -> Any:
        pool = self._reactor.getThreadPool()
        return await deferToThreadPool(self._reactor, pool, what, *given, **named)

    # --- designs --------------------------------------------------------------------------------

    async def put(self, name: str, body: bytes) -> Design:
        """Keep a definition and build its index, beside one that answers; raise `QueryRefused`."""
        design = await self._parsed(name, body)
        await self._alone(lambda: self._put(name, design))
        return design

    async def _put(self, name: str, design: Design) -> None:
        slot = self._slots.get(name)
        if slot is None:
            await self._put_first(name, design)
            return
        assert slot.current is not None
        if slot.new is not None:
            if design.signature == slot.new.design.signature:
                return
            await self._give_up_new(slot)
        if design.signature == slot.current.design.signature:
            if design.text != slot.current.design.text:
                slot.folder.keep_text(design.signature, design.text)
                slot.current.design = design
            return
        slot.folder.keep_text(design.signature, design.text)
        self._keep(slot, new=design.signature)
        slot.new = await self._begun(name, slot.folder, design.signature, design)
        self._watch(slot)

    async def _put_first(self, name: str, design: Design) -> None:
        if len(self._slots.keys() | self._unopened.keys() | {name}) > self._settings.designs:
            limit = self._settings.designs
            raise QueryRefused(
                403, "too_many", f"there are {limit} designs; index.designs is the limit"
            )
        folder = DesignFolder(self._root, name)
        folder.keep_text(design.signature, design.text)
        slot = _Slot(Kept(name, design.signature), folder)
        folder.keep(slot.kept)
        slot.current = await self._begun(name, folder, design.signature, design)
        self._slots[name] = slot
        self._on_event("design_added", {"design": name})
        if self._unopened.pop(name, None) is not None:
            folder.drop_others(slot.kept)

    async def _give_up_new(self, slot: _Slot) -> None:
        group, slot.new = slot.new, None
        if group is None:
            return  # it has taken its place meanwhile
        instances = group.following.instances
        await group.following.stop()
        signature = slot.kept.new
        self._keep(slot, new="")
        if signature != slot.kept.old:
            await self._in_thread(slot.folder.drop, signature)
            for instance in instances:
                await self._unregister(instance)

    def _watch(self, slot: _Slot) -> None:
        """Have the new definition answer as soon as it can."""
        if slot.new is not None:
            ensureDeferred(self._swap_when_ready(slot, slot.new)).addErrback(_unheard)

    async def _swap_when_ready(self, slot: _Slot, group: Group) -> None:
        following = group.following
        while not self._stopping and slot.new is group and not following.streams.ready:
            await following.progress.wait(self._reactor, self._settings.poll_s)
        await self._alone(lambda: self._swap(slot, group))

    async def _swap(self, slot: _Slot, group: Group) -> None:
        """Have the new definition answer; returns when the former one's files are closed.

        Until then it cannot come back: two would write to them.
        """
        if self._stopping or slot.new is not group:
            return
        former, slot.current, slot.new = slot.current, group, None
        assert former is not None
        kept = slot.kept
        until = self._now() + self._settings.keep_old_s
        before = kept.old
        self._keep(slot, current=kept.new, new="", old=kept.current, old_until=until)
        self._on_event("design_changed", {"design": kept.name})
        slot.old_instances = former.following.instances
        await former.following.stop()
        await self._drop_unused(slot, before)
        self._keep_old(slot)

    async def _drop_unused(self, slot: _Slot, signature: str) -> None:
        """Remove a former definition, unless it is in use again."""
        kept = slot.kept
        is_used = signature in ("", kept.current, kept.new, kept.old)
        if not is_used and self._slots.get(kept.name) is slot:
            await self._in_thread(slot.folder.drop, signature)

    def _keep(self, slot: _Slot, **changes: Any) -> None:
        slot.kept = Kept(**{**vars(slot.kept), **changes})
        slot.folder.keep(slot.kept)

    def _keep_old(self, slot: _Slot) -> None:
        """Remove the former definition when its time is over."""
        slot.cancel()
        if slot.kept.old and not self._stopping:
            left_s = max(0.0, slot.kept.old_until - self._now())
            slot.timer = self._reactor.callLater(left_s, self._old_is_over, slot)

    def _old_is_over(self, slot: _Slot) -> None:
        ensureDeferred(self._forget_old(slot)).addErrback(_unheard)

    async def _forget_old(self, slot: _Slot) -> None:
        await self._alone(lambda: self._drop_old(slot))
        if not slot.kept.old:
            instances, slot.old_instances = slot.old_instances, []
            for instance in instances:
                await self._unregister(instance)

    async def _drop_old(self, slot: _Slot) -> None:
        old = slot.kept.old
        if old in ("", slot.kept.new) or self._slots.get(slot.kept.name) is not slot:
            return  # it is on its way back, or the design was deleted
        self._keep(slot, old="", old_until=0.0)
        await self._in_thread(slot.folder.drop, old)

    async def undo(self, name: str) -> Design:
        """Bring the definition before the last change back; raise `QueryRefused`."""
        slot = self._slot(name)
        if slot.new is not None and not slot.kept.old:
            await self._alone(lambda: self._give_up_new(slot))
            return self._slot(name).current.design  # type: ignore[union-attr]
        if not slot.kept.old:
            raise not_found(f"no former definition of design {name!r} is kept")
        return await self.put(name, slot.folder.text(slot.kept.old))

    def get(self, name: str) -> Design:
        """Return the definition that was put last; raise `QueryRefused`."""
        slot = self._slot(name)
        group = slot.new or slot.current
        assert group is not None
        return group.design

    async def delete(self, name: str) -> None:
        """Forget a definition with its index; raise `QueryRefused`."""
        if name not in self._unopened:
            self._slot(name)
        await self._alone(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        unopened, slot = self._unopened.pop(name, None), self._slots.pop(name, None)
        if unopened is not None:
            DesignFolder(self._root, name).remove()
        if unopened is not None or slot is not None:
            self._on_event("design_removed", {"design": name})
        if slot is None:
            return
        slot.cancel()
        instances = slot.old_instances
        groups, slot.new = (slot.current, slot.new), None  # no longer to be swapped in
        for group in groups:
            if group is not None:
                instances += group.following.instances
                await group.following.stop()
        await self._in_thread(slot.folder.remove)
        for instance in instances:
            await self._unregister(instance)

    async def _unregister(self, instance: str) -> None:
        """Have the nodes keep no deletions for an index that is gone; its rows expire otherwise."""
        try:
            await self._in_thread(
                forget,
                self._nodes.places,
                instance,
                tls=self._nodes.tls,
                credentials=self._nodes.credentials,
            )
        except ClientError as error:
            _LOG.warning("%s stays registered until it expires: %s", instance, error)

    async def _alone(self, change: Callable[[], Any]) -> None:
        """Change designs when no other change is under way."""
        await self._changing.acquire()
        try:
            await change()
        finally:
            self._changing.release()

    def names(self) -> Iterable[str]:
        """Return the names of all designs, with those that cannot be opened."""
        return sorted({*self._slots, *self._unopened})

    def _slot(self, name: str) -> _Slot:
        slot = self._slots.get(name)
        if slot is None and name in self._unopened:
            reason = f"design {name!r} cannot be opened: {self._unopened[name]}"
            raise QueryRefused(503, "unavailable", reason)
        if slot is None:
            raise not_found(f"there is no design {name!r}")
        return slot

    def group(self, name: str, new: bool = False) -> Group:
        """Return a design's index; `new` = that which is being built for a changed definition."""
        slot = self._slot(name)
        found = (slot.new or slot.current) if new else slot.current
        assert found is not None
        return found

    # --- the rest -------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Metric]:
        """Return the numbers of ``/metrics``; any thread may call it."""
        slots = dict(self._slots)
        groups = {name: slot.current for name, slot in slots.items() if slot.current}
        return metrics_of(groups)

    def documents(self, keys: Sequence[bytes]) -> Sequence[bytes | Lost | None]:
        """Return documents as they are now, as JSON; blocks."""
        return self._documents.get(keys)


def _unheard(failure: Any) -> None:
    if failure.check(Stopped):
        return  # an index that is opened again asks by itself
    _LOG.error("%s", failure.getErrorMessage())
