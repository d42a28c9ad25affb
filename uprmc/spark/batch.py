"""A batch read: what each task has to read, found out once on the driver; and the task itself.

`plan` runs where the driver runs, `run` on the workers; in between a `ReadTask` is pickled.
Everything here is plain Python, and `source` dresses it for Spark.

Note: a read that stops at a seqno noted on the driver would lose every document that is
rewritten before the task comes to it, because a rewritten document moves up in the order. So a
task reads to the end of a lease of its own (``complete``) or of one that all tasks share, and all
actions of a DataFrame (``held``); only ``bounded`` stops at the noted seqno, and says "the newest
version of each document whose last change lies in the range".
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from uprmc.columnar.access import Access
from uprmc.columnar.decoder import DELETE, EXPIRE, SET
from uprmc.columnar.errors import BadOption, DataLost, LeaseEnded, NoVBucket
from uprmc.columnar.lease import BulkLease, KeptLease, LeaseContents, acquire, of_token
from uprmc.columnar.nodes import BulkNodes, NodeStanding
from uprmc.columnar.read_state import Range
from uprmc.columnar.reading import OnDone, read
from uprmc.columnar.schema import Columns
from uprmc.errors import RemoteProtocolError
from uprmc.model import Item, Life, vbucket_of
from uprmc.remote.errors import NodeUnreachable
from uprmc.remote.lease import parsed_token
from uprmc.remote.undo import UndoRefused, question, version
from uprmc.rollback import history_of
from uprmc.spark.options import ReadOptions
from uprmc.spark.partitions import groups, tasks_for
from uprmc.spark.pushdown import EVERYTHING, Wanted, meeting
from uprmc.spark.starting import begins, ends_of, range_from, starts_of

#: Files of DataFrames that nobody has planned a read of for this long are removed.
_FRAME_FILES_S = 86_400.0


@dataclass(frozen=True)
class ReadTask:
    """What one task reads."""

    ranges: tuple[Range, ...] = ()  # of its vBuckets; none = there is nothing to read
    lease: str | None = None  # token of the lease that all tasks share, or ``None``


def plan(options: ReadOptions, wanted: Wanted = EVERYTHING) -> list[ReadTask]:
    """Return the tasks of a read, one at least.

    Raises:
        BadOption: a vBucket that is asked for does not exist, or offsets that make no sense.
        NoVBucket: one is active on no node, and ``failOnDataLoss`` is set.
        ClientError: the nodes do not answer, refuse, ...
    """
    token = options.lease
    holders = {} if token is None else of_token(options.access, token).places
    with BulkNodes(options.access) as nodes:
        chosen = _chosen(nodes, options, wanted, holders)
        everything = _chosen(nodes, options, EVERYTHING, holders)
        known = [number for number in chosen if number in nodes.owners]
        standings = nodes.standings(known, items=True)
        count = nodes.vbuckets
    if not chosen:
        return [ReadTask()]
    if options.starting_timestamp is None:
        ranges = starts_of(options.starting_offsets, chosen, standings, count)
    else:
        ranges = _since(options, chosen, token)
    if options.snapshot == "bounded":
        ranges = ends_of(options.ending_offsets, ranges, standings, count)
    elif options.snapshot == "held" and token is None:
        lease = lease_of_frame(options, everything)
        token, holders = lease.token, lease.places
        if wanted.after is not None:
            ranges = skipping(ranges, lease.held, wanted.after)
    items = {number: standings[number].items if number in standings else 0 for number in ranges}
    if wanted.keys is not None and _by_key(options, wanted.keys):
        items = Counter(vbucket_of(key, count) for key in wanted.keys) & Counter(
            dict.fromkeys(ranges, len(wanted.keys))
        )
    owners = holders or {number: each.place for number, each in standings.items()}
    found = [
        ReadTask(tuple(ranges[number] for number in group), token)
        for group in groups(items, owners, tasks_for(options.partitions, items))
    ]
    return found or [ReadTask()]


# --- the lease of a DataFrame ---------------------------------------------------------------------


def lease_of_frame(options: ReadOptions, vbuckets: Sequence[int]) -> BulkLease:
    """Return the lease that all actions of a DataFrame read, acquired by the first of them.

    Actions are planned by different processes of one machine, which find it in a file there.
    Spark does not say when a DataFrame is done with. So while its first tasks are waited for the
    lease has its full time, and from then on a short one: tasks renew it, and with none it lapses.
    """
    with ExitStack() as stack:
        file = _frame_file(options.frame, stack) if options.frame else None
        found = file and _kept_lease(options, file.read_text(encoding="utf-8"))
        if found and found.places.keys() >= set(vbuckets):
            try:
                found.renew(options.lease_s)
                return found.idling(options.idle_s or options.lease_s)
            except (LeaseEnded, NodeUnreachable):
                pass  # the DataFrame goes on with a later moment
        lease = acquire(options.access, vbuckets, options.lease_s)
        if file:
            held = {number: list(astuple(each)) for number, each in lease.held.items()}
            file.write_text(json.dumps({"token": lease.token, "held": held}), encoding="utf-8")
        return lease.idling(options.idle_s or options.lease_s)


def _frame_file(frame: str, stack: ExitStack) -> Path | None:
    """Return the file of a DataFrame, locked; ``None`` = none can be kept here."""
    directory = Path(tempfile.gettempdir()) / f"uprmc-frames-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        facts = directory.lstat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or not stat.S_ISDIR(facts.st_mode):
            return None
        for old in directory.iterdir():
            if time.time() - old.stat().st_mtime > _FRAME_FILES_S:
                old.unlink(missing_ok=True)
        path = directory / hashlib.sha256(frame.encode()).hexdigest()[:32]
        lock = stack.enter_context(path.open("a"))
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        return None
    return path


def _kept_lease(options: ReadOptions, text: str) -> BulkLease | None:
    try:
        kept = json.loads(text)
        held = {int(number): LeaseContents(*each) for number, each in kept["held"].items()}
        grants, seconds = parsed_token(kept["token"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # nothing was acquired yet, or not to the end
    return BulkLease(options.access, grants, held, seconds)


def _since(options: ReadOptions, vbuckets: Iterable[int], lease: str | None) -> dict[int, Range]:
    """Return the ranges from `ReadOptions.starting_timestamp` on.

    Raises:
        DataLost: deletions may have been dropped since then, and ``failOnDataLoss`` is set.
    """
    found = {}
    for number, begin in begins(options, vbuckets, lease).items():
        if begin.lossy and options.fail_on_data_loss:
            raise DataLost(
                f"vb={number}: deletions up to seqno {begin.purge_seqno} were dropped for good, "
                f"some perhaps since startingTimestamp (seqno {begin.position.seqno}); "
                "failOnDataLoss=false reads what there is"
            )
        found[number] = replace(range_from(number, begin.position), resumed=begin.lossy)
    return found


def run(options: ReadOptions, wanted: Wanted, task: ReadTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task."""
    meets = meeting(wanted)
    for batch in _batches(options, wanted, task):
        narrowed = meets(batch)
        if narrowed.num_rows:
            yield narrowed


def rows(
    options: ReadOptions,
    ranges: Iterable[Range],
    *,
    lease: str | None = None,
    on_done: OnDone | None = None,
) -> Iterator[Any]:
    """Yield Arrow batches with the schema of ``options.columns``; see `reading.read`."""
    return read(
        options.access,
        ranges,
        options.columns,
        lease=lease,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        no_value=options.no_value or not options.columns.wants_value,
        on_done=on_done,
        lease_s=options.lease_s,
    )


def skipping(
    ranges: Mapping[int, Range], held: Mapping[int, LeaseContents], after: int
) -> dict[int, Range]:
    """Return ranges that leave out what a lease holds up to a seqno, as far as a node can.

    A node does not begin above 0 where it has dropped deletions that the reader may not know of:
    there everything is read.
    """
    found = {}
    for number, each in ranges.items():
        there = held[number]
        if each.start >= after or there.purge_seqno > after:
            found[number] = each
        elif there.high_seqno > after:
            found[number] = replace(
                each, start=after, uuid=there.uuid, snap_start=after, snap_end=after
            )
    return found


def _batches(options: ReadOptions, wanted: Wanted, task: ReadTask) -> Iterator[Any]:
    if not task.ranges:
        return
    if wanted.keys is not None and _by_key(options, wanted.keys):
        try:
            yield from list(_looked_up(options, wanted.keys, task))
            return
        except NotLookedUp:
            pass  # the vBuckets have the rows, too
    if wanted.after is None or task.lease is not None or options.snapshot == "bounded":
        yield from rows(options, task.ranges, lease=task.lease)
        return
    ranges = {each.vbucket: each for each in task.ranges}
    with KeptLease(options.access, ranges, options.lease_s) as kept:
        left = skipping(ranges, kept.lease.held, wanted.after)
        yield from rows(options, tuple(left.values()), lease=kept.token)


def _by_key(options: ReadOptions, keys: frozenset[bytes]) -> bool:
    """Tell whether keys may be asked for one by one: nothing says which moment is to be read."""
    now = options.snapshot == "complete" and options.starting_offsets.strip().lower() == "earliest"
    now = now and options.starting_timestamp is None
    return now and possible(options.columns, tuple(keys))


def _looked_up(options: ReadOptions, keys: frozenset[bytes], task: ReadTask) -> Iterator[Any]:
    with BulkNodes(options.access) as nodes:
        count = nodes.vbuckets
    numbers = {each.vbucket for each in task.ranges}
    mine = [key for key in keys if vbucket_of(key, count) in numbers]
    no_value = options.no_value or not options.columns.wants_value
    return looked_up(options.access, options.columns, mine, no_value=no_value)


def _chosen(
    nodes: BulkNodes, options: ReadOptions, wanted: Wanted, holders: Mapping[int, str]
) -> list[int]:
    """Return the vBuckets to read; what happens with those that are missing is decided here."""
    asked: Iterable[int] = sorted(holders) or range(nodes.vbuckets)
    if options.vbuckets is not None:
        asked = options.vbuckets
        if asked[-1] >= nodes.vbuckets:
            raise BadOption(f"vbuckets: there is no {asked[-1]}, there are {nodes.vbuckets}")
    if wanted.keys is not None:
        theirs = {vbucket_of(key, nodes.vbuckets) for key in wanted.keys}
        asked = [number for number in asked if number in theirs]
    if wanted.vbuckets is not None:
        asked = [number for number in asked if number in wanted.vbuckets]
    missing = [number for number in asked if number not in (holders or nodes.owners)]
    if missing and holders:
        raise BadOption(f"vbuckets: vb={missing[0]} is not in the lease")
    if missing and options.fail_on_data_loss:
        raise NoVBucket(
            f"vb={missing[0]} is active on no node, nor are {len(missing) - 1} others "
            "(failOnDataLoss=false leaves them out)"
        )
    return [number for number in asked if number not in missing]


# --- documents by key ----------------------------------------------------------------------------
# Rows of documents that are asked for by key, as a read from the beginning would show them.
#
# Each key is one question (GET_VERSION), so the cost does not depend on what else the node has.
# What cannot be had in this way is not tried: `possible` says of which columns that is true, and
# `looked_up` raises `NotLookedUp` where a node does not know the question or has no such vBucket
# any more. A read of the vBuckets then gives the same.
#
# See `docs/extensions.md`, GET_VERSION.


#: More keys than this are not asked for one by one: reading their vBuckets is cheaper.
KEYS_MAX = 10_000

#: Questions whose answers are held in memory at a time.
_ASKED_AT_ONCE = 256

_OPS = {Life.LIVE: SET, Life.DELETED: DELETE, Life.EXPIRED: EXPIRE}
_EPOCH = datetime.fromtimestamp(0, UTC)
_U64 = 2**64

#: A value of a column, from the version and the history that it belongs to.
_Maker = Callable[[Item, str], Any]


class NotLookedUp(Exception):
    """The vBuckets have to be read instead."""


def possible(columns: Columns, keys: Sequence[bytes]) -> bool:
    """Tell whether rows with these columns can be made of versions of these keys."""
    return len(keys) <= KEYS_MAX and set(columns.names) <= set(_makers(columns))


def looked_up(
    access: Access, columns: Columns, keys: Iterable[bytes], *, no_value: bool
) -> Iterator[Any]:
    """Yield Arrow batches with the newest versions of keys, deletions included.

    The columns must be `possible`, the keys different.

    Raises:
        NotLookedUp: a node refuses; nothing that was yielded is wrong.
        ClientError: the nodes do not answer.
    """
    with BulkNodes(access) as nodes:
        by_vbucket: dict[int, list[bytes]] = {}
        for key in keys:
            by_vbucket.setdefault(vbucket_of(key, nodes.vbuckets), []).append(key)
        if not set(by_vbucket) <= set(nodes.owners):
            raise NotLookedUp
        for standing in nodes.standings(by_vbucket).values():
            asked = sorted(by_vbucket[standing.vbucket])
            for begin in range(0, len(asked), _ASKED_AT_ONCE):
                part = asked[begin : begin + _ASKED_AT_ONCE]
                found = _asked(nodes, standing, part, no_value)
                if found:
                    yield _batch(columns, found, standing)


def _asked(
    nodes: BulkNodes, standing: NodeStanding, keys: Sequence[bytes], no_value: bool
) -> list[Item]:
    upto = {"upto_seqno": 0} if no_value else {}
    requests = [question(standing.vbucket, key, **upto) for key in keys]
    answers = nodes.at(standing.place, lambda connection: connection.ask_all(requests))
    try:
        versions = [version(key, answer) for key, answer in zip(keys, answers, strict=True)]
    except UndoRefused:
        raise NotLookedUp from None
    except RemoteProtocolError as error:
        raise nodes.connection(standing.place).protocol_error(str(error)) from None
    return [each.item for each in versions if each.item is not None]


def _batch(columns: Columns, items: Sequence[Item], standing: NodeStanding) -> Any:
    makers = _makers(columns)
    histories = [f"{history_of(standing.log, each.seqno):016x}" for each in items]
    pairs = list(zip(items, histories, strict=True))
    arrays = [
        pa.array([makers[name](*pair) for pair in pairs], columns.type_of(name))
        for name in columns.names
    ]
    vbucket = pa.array([standing.vbucket] * len(items), pa.int32())
    arrays = [vbucket if name == "_vb" else array
              for name, array in zip(columns.names, arrays, strict=True)]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _makers(columns: Columns) -> dict[str, _Maker]:
    text = columns.key_type == "string"
    return {
        "key": lambda item, _: item.key.decode() if text else item.key,
        "value": lambda item, _: item.value,
        "_op": lambda item, _: _OPS[item.life],
        "_vb": lambda item, _: 0,
        "_seq": lambda item, _: item.seqno,
        "_rev": lambda item, _: _u64(item.rev, columns),
        "_cas": lambda item, _: _u64(item.cas, columns),
        "_flags": lambda item, _: item.flags if item.life is Life.LIVE else 0,
        "_exp": lambda item, _: item.expiry,
        "_lock": lambda item, _: 0,
        "_vbuuid": lambda _, history: history,
        "_datatype": lambda item, _: item.datatype,
        "_time": lambda item, _: _EPOCH + timedelta(microseconds=item.cas // 1_000),
    }


def _u64(number: int, columns: Columns) -> Any:
    if columns.u64 == "decimal":
        return Decimal(number)
    return number - _U64 if number >= _U64 // 2 else number
