"""Whether a block of frames is what a node may send, in the order in which it came.

Rows are judged by the run: items of one stream that follow one another with nothing between.
A rising order within a run is seen by numpy, everything else by its first and last seqno.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from uprmc.columnar.read_state import ReadState
from uprmc.columnar.rows import Rows
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import REQUEST_HEADER
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    MAGIC_RESPONSE,
    EndReason,
    Opcode,
    Status,
    opcode_name,
)
from uprmc.protocol.upr import STREAM_END_EXTRAS, decode_marker
from uprmc.remote.history import read_log
from uprmc.remote.stream import StreamFault


class Other(NamedTuple):
    """A frame that is no item, and before which item it came."""

    row: int
    frame: bytes


class Judged:
    """A block of frames that has been checked.

    Attributes:
        rows: those that are wanted.
        states: whose rows these are, in order of their first.
        ended: those of which all has come.

    Raises:
        ValueError: something may not be sent; the text says what.
    """

    def __init__(
        self, find: Callable[[int, int], ReadState], rows: Rows, others: Sequence[Other]
    ) -> None:
        self._find, self._rows = find, rows
        self._runs: list[_Run] = []
        self._seen: dict[ReadState, None] = {}
        self.ended: list[ReadState] = []
        self._walk(others)
        self._check_vbuckets()
        self.rows = self._kept()
        self.states = list(self._seen)

    # --- in order -------------------------------------------------------------------------------

    def _walk(self, others: Sequence[Other]) -> None:
        starts = self._starts(others)
        ends = [*starts[1:], len(self._rows)]
        records, seqno, at = self._rows.records, self._rows.seqno, np.array(starts, np.int64)
        runs = zip(
            starts,
            ends,
            records["opaque"][at].tolist(),
            records["vbucket"][at].tolist(),
            seqno[at].tolist(),
            seqno[np.array(ends[: len(starts)], np.int64) - 1].tolist(),
            strict=False,
        )
        number = 0
        for start, end, opaque, vbucket, first, last in runs:
            while number < len(others) and others[number].row <= start:
                self._told(others[number].frame)
                number += 1
            self._run(start, end, self._find(opaque, vbucket), first, last)
        for other in others[number:]:
            self._told(other.frame)

    def _starts(self, others: Sequence[Other]) -> list[int]:
        """Return where runs begin."""
        count = len(self._rows)
        if not count:
            return []
        opaque, seqno = self._rows.records["opaque"], self._rows.seqno
        found = {0, *(np.flatnonzero(opaque[1:] != opaque[:-1]) + 1).tolist()}
        found.update(other.row for other in others if other.row < count)
        falls: list[int] = (np.flatnonzero(seqno[1:] <= seqno[:-1]) + 1).tolist()
        for fall in falls:
            if fall not in found:
                vbucket = self._rows.records["vbucket"][fall]
                raise ValueError(f"vb={vbucket}: seqno {seqno[fall]} after {seqno[fall - 1]}")
        return sorted(found)

    def _run(self, start: int, end: int, state: ReadState, first: int, last: int) -> None:
        wanted = end
        if state.stream.dropped:
            wanted = start
        else:
            state.items(first, last)
            limit = state.range.end
            if limit is not None and last > limit:
                at = np.searchsorted(self._rows.seqno[start:end], limit, side="right")
                wanted = start + int(at)
        self._runs.append(_Run(state, start, end, wanted, first))
        if wanted > start:
            self._seen[state] = None

    def _told(self, frame: bytes) -> None:
        magic, opcode, _, extras_length, _, vbucket, _, opaque, _ = REQUEST_HEADER.unpack_from(
            frame
        )
        value_at = HEADER_BYTES + extras_length
        extras, value = frame[HEADER_BYTES:value_at], frame[value_at:]
        if magic == MAGIC_RESPONSE:
            self._answered(opcode, vbucket, opaque, value)
            return
        state = self._find(opaque, vbucket)
        if opcode == Opcode.UPR_SNAPSHOT_MARKER:
            _judge(state, lambda: state.marker(decode_marker(extras, value)))
        elif opcode == Opcode.UPR_STREAM_END:
            self._end(state, STREAM_END_EXTRAS.unpack(extras)[0])
        else:
            raise ValueError(f"vb={vbucket}: an unexpected {opcode_name(opcode)}")

    def _answered(self, opcode: int, status: int, opaque: int, value: bytes) -> None:
        if opcode == Opcode.UPR_STREAM_REQUEST and status == Status.SUCCESS:
            state = self._find(opaque, -1)
            _judge(state, lambda: state.accept(read_log(value)))
        elif opcode == Opcode.UPR_CLOSE_STREAM:
            state = self._find(opaque, -1)
            state.ended = True
            self.ended.append(state)

    def _end(self, state: ReadState, reason: int) -> None:
        if reason == EndReason.OK and not state.stream.dropped:
            _judge(state, state.finish)
            self.ended.append(state)

    # --- all at once ----------------------------------------------------------------------------

    def _check_vbuckets(self) -> None:
        told = self._rows.vbucket
        meant = self._spread([each.state.vbucket for each in self._runs], np.int64)
        if not np.array_equal(told, meant):
            at = int(np.argmax(told != meant))
            raise ValueError(f"vb={told[at]} in a stream of vb={meant[at]}")

    def _kept(self) -> Rows:
        rows, runs = self._rows, self._runs
        self._name_histories()
        rows.snap_start = self._spread([each.snap_start for each in runs], np.int64)
        rows.snap_end = self._spread([each.snap_end for each in runs], np.int64)
        rows.disk = self._spread([each.disk for each in runs], bool)
        if all(each.wanted == each.end for each in runs):
            return rows
        mask: Any = np.zeros(len(rows), bool)
        for each in runs:
            mask[each.start : each.wanted] = True
        return rows.where(mask)

    def _name_histories(self) -> None:
        """Which history each row belongs to: nearly always the newest, for a whole run."""
        rows = self._rows
        numbers: dict[int, int] = {}
        codes: Any = np.empty(len(rows), np.int32)
        for each in self._runs:
            log = each.state.log or ((0, 0),)
            if each.first > log[0][1]:
                codes[each.start : each.end] = numbers.setdefault(log[0][0], len(numbers))
                continue
            ours = [numbers.setdefault(uuid, len(numbers)) for uuid, _ in reversed(log)]
            begins = [seqno for _, seqno in reversed(log)]
            at = np.searchsorted(begins, rows.seqno[each.start : each.end], side="left") - 1
            codes[each.start : each.end] = np.array(ours, np.int32)[np.maximum(at, 0)]
        rows.uuids = [f"{uuid:016x}" for uuid in numbers]
        rows.uuid = codes

    def _spread(self, values: list[Any], kind: Any) -> Any:
        """One value for each run as one for each row."""
        counts = [each.end - each.start for each in self._runs]
        return np.repeat(np.array(values, kind), np.array(counts, np.int64))


class _Run:
    """Rows from `start` to `end`, of which those before `wanted` are."""

    __slots__ = ("disk", "end", "first", "snap_end", "snap_start", "start", "state", "wanted")

    def __init__(self, state: ReadState, start: int, end: int, wanted: int, first: int) -> None:
        self.state, self.start, self.end, self.wanted = state, start, end, wanted
        self.first = first
        self.snap_start, self.snap_end, self.disk = state.snap_start, state.stream.high, state.disk


def _judge(state: ReadState, told: Callable[[], None]) -> None:
    try:
        told()
    except StreamFault:
        raise  # names the vBucket itself
    except (ValueError, struct.error, RemoteProtocolError) as error:
        raise ValueError(f"vb={state.vbucket}: {error}") from None
