"""The answers of several nodes as one: rows in order, equal groups reduced together.

Each node sends its rows in the order of the view, one in each line. The least head of all nodes is
the next row; a row goes into the answer as it came. With `keys` a node puts an empty line before
the rows of each further key, so that rows of different keys stay apart.

Row I29.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, succeed

from uprmc.index.collation import Collation, sort_key
from uprmc.index.json_text import strict_json
from uprmc.index.node_client import NodeFailed
from uprmc.index.query import ERRORS_MAX, PIECE_BYTES, tail
from uprmc.index.rows import id_bytes

_decoded = json.JSONDecoder().raw_decode

#: Groups that are reduced together in one call.
GROUPS_AT_ONCE = 100

#: Rows that are skipped in one turn of the reactor: some three milliseconds.
SKIPPED_AT_ONCE = 1_000


class Reduction(Protocol):
    """The reduce of the view."""

    async def rereduce(self, groups: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        """Return the reduction of each group's reductions; ``None`` = it failed."""

    def finish(self, reduction: bytes) -> bytes:
        """Return what is shown of a reduction."""


class Order(NamedTuple):
    """How rows are compared."""

    collation: Collation  # of the design
    descending: bool  # from high to low
    reduced: bool  # rows are groups; without an id


class MergedRow(NamedTuple):
    """A row's place, and its text."""

    sort_key: bytes  # of its key
    doc_key: bytes  # its id; empty for a group
    key: bytes  # as JSON; empty unless it is a group
    value: bytes
    text: bytes  # the row as it came


class LineSource(Protocol):
    """Lines of a node's answer."""

    async def line(self) -> bytes | None:
        """Return the next one, ``None`` at the end; raise `NodeFailed`."""

    def close(self) -> None:
        """Take no more."""


class NodeRows:
    """The rows of one node, of which the first is at hand."""

    def __init__(self, node: str, lines: LineSource, order: Order) -> None:
        self.node, self._lines, self._order = node, lines, order
        self.head: MergedRow | None = None  # the first row; ``None`` = there is none left
        self.position = 0  # to which of the `keys` it belongs
        self.total_rows = 0  # of the view, at this node
        self.update_seq: Mapping[str, int] = {}  # seqnos by vBucket
        self.errors: list[dict[str, str]] = []  # what the node could not do

    async def begin(self) -> None:
        """Read up to the first row."""
        try:
            first = await self._lines.line()
            if first is None:
                raise NodeFailed("its answer is empty")
            told = strict_json(first + b"]}")
            self.total_rows = int(told["total_rows"])
            self.update_seq = dict(told.get("update_seq", {}))
        except NodeFailed as failed:
            self._fail(str(failed))
        except (ValueError, TypeError, KeyError, AttributeError):
            self._fail("its answer is none of this version's")
        else:
            await self.advance()

    async def advance(self) -> None:
        """Read the next row."""
        self.head = None
        try:
            while (line := await self._lines.line()) == b"":
                self.position += 1
            if line is None:
                raise NodeFailed("its answer broke off")
            if line.startswith(b"{"):
                self.head = row_of(line, self._order)
            else:
                await self._read_errors(line)
        except NodeFailed as failed:
            self._fail(str(failed))
        except (ValueError, TypeError, KeyError, AttributeError):
            self._fail("its answer is none of this version's")

    async def _read_errors(self, line: bytes) -> None:
        parts = [line]
        while (more := await self._lines.line()) is not None:
            parts.append(more)
        for error in strict_json(b'{"rows":[' + b"".join(parts))["errors"]:
            self.errors.append({"from": str(error["from"]), "reason": str(error["reason"])})

    def _fail(self, reason: str) -> None:
        self.head = None
        self.errors.append({"from": self.node, "reason": reason})
        self._lines.close()

    def close(self) -> None:
        """Read no more."""
        self._lines.close()


def row_of(line: bytes, order: Order) -> MergedRow:
    """Return a row of an answer; raise `ValueError` if it is none of ours."""
    text = line.removesuffix(b",").decode()
    if order.reduced:
        key, end = _member(text, '{"key":', 0)
        begin = _after(text, ',"value":', end)
        shown = text[7:end].encode()
        value = text[begin:-1].encode()
        return MergedRow(sort_key(key, order.collation), b"", shown, value, text.encode())
    doc_id, end = _member(text, '{"id":', 0)
    key, _ = _member(text, ',"key":', end)
    return MergedRow(sort_key(key, order.collation), id_bytes(doc_id), b"", b"", text.encode())


def _member(text: str, name: str, start: int) -> tuple[Any, int]:
    return _decoded(text, _after(text, name, start))


def _after(text: str, name: str, start: int) -> int:
    if not text.startswith(name, start):
        raise ValueError(f"{name} is missing")
    return start + len(name)


async def _no_pause() -> None:
    """Go on at once."""


class Merged:
    """One answer made of those of nodes.

    Args:
        nodes: whose answers have begun.
        order: of rows.
        skip, limit: of the merged rows.
        stop: an error of a node ends the answer.
        update_seq: the answer begins with the seqnos.
        view: its name, for errors.
        source: this node's address, for errors.
        errors: what has gone wrong before.
        reducing: for groups that several nodes have; ``None`` = rows are not reduced.
        pause: lets others have their turns: rows that are skipped make no piece.
    """

    def __init__(
        self,
        nodes: Iterable[NodeRows],
        order: Order,
        *,
        skip: int = 0,
        limit: int | None = None,
        stop: bool = False,
        update_seq: bool = False,
        view: str = "",
        source: str = "local",
        errors: Sequence[dict[str, str]] = (),
        reducing: Reduction | None = None,
        pause: Callable[[], Awaitable[object]] = _no_pause,
    ) -> None:
        self._all = list(nodes)
        self._nodes = list(self._all)
        self._order, self._skip, self._left = order, skip, limit
        self._stop, self._update_seq = stop, update_seq
        self._view, self._source, self._reducing = view, source, reducing
        self._pause = pause
        self._errors = list(errors)
        self._between = b"\n"
        self._begun = self._over = False

    def make(self) -> Deferred[bytes | None]:
        """Return the next piece, see `http_request.Pieces`."""
        return Deferred.fromCoroutine(self.piece())

    async def piece(self) -> bytes | None:
        """Return the next piece of the answer, ``None`` after the last one."""
        if self._over:
            return None
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            parts.append(self._head())
        size = 0
        while size < PIECE_BYTES:
            rows = await self._next_rows()
            if not rows:
                self._over = True
                parts.append(self._tail())
                break
            for row in rows:
                parts += (self._between, row)
                self._between = b",\n"
                size += len(row)
        return b"".join(parts)

    def close(self) -> Deferred[None]:
        """Read no more from the nodes."""
        for node in self._all:
            node.close()
        return succeed(None)

    def _head(self) -> bytes:
        head = b'{"total_rows":%d,' % sum(node.total_rows for node in self._all)
        if self._update_seq:
            seqnos: dict[str, int] = {}
            for node in self._all:
                seqnos |= node.update_seq
            head += b'"update_seq":' + json.dumps(seqnos).encode() + b","
        return head + b'"rows":['

    def _tail(self) -> bytes:
        self.close()
        return b"\n" + tail(self._errors[:ERRORS_MAX])

    async def _next_rows(self) -> list[bytes]:
        """Return the next rows of the answer; none = there are no more."""
        while True:
            failed = self._gather_errors()
            if self._left == 0 or (failed and self._stop) or not self._nodes:
                return []
            rows = await (self._groups() if self._order.reduced else self._rows())
            if rows:
                return rows

    def _gather_errors(self) -> bool:
        """Take over the errors of nodes that are at their end; return whether there is any."""
        ended = [node for node in self._nodes if node.head is None]
        for node in ended:
            self._errors += node.errors
            self._nodes.remove(node)
        return bool(self._errors)

    def _first(self) -> NodeRows:
        return min(self._nodes, key=_place) if not self._order.descending else self._last()

    def _last(self) -> NodeRows:
        """Return who is next when reading from high to low; among `keys` the first one still is."""
        position = min(node.position for node in self._nodes)
        return max((node for node in self._nodes if node.position == position), key=_place)

    async def _rows(self) -> list[bytes]:
        node = self._first()
        row = node.head
        assert row is not None
        await node.advance()
        return [row.text] if await self._counted() else []

    async def _counted(self) -> bool:
        """Return whether the next row belongs to the answer."""
        if self._skip:
            self._skip -= 1
            if self._skip and not self._skip % SKIPPED_AT_ONCE:
                await self._pause()
            return False
        if self._left is not None:
            self._left -= 1
        return True

    async def _groups(self) -> list[bytes]:
        """Return some groups, each reduced over all nodes that have it."""
        groups: list[tuple[bytes, list[bytes]]] = []
        while len(groups) < GROUPS_AT_ONCE and self._left != 0:
            group = await self._group()
            if group is None:
                break
            if await self._counted():
                groups.append(group)
        return await self._reduced(groups)

    async def _group(self) -> tuple[bytes, list[bytes]] | None:
        """Take the next group from all nodes; ``None`` = first a node that has ended is seen to."""
        if not self._nodes or any(node.head is None for node in self._nodes):
            return None
        first = self._first()
        assert first.head is not None
        at = first.position, first.head.sort_key
        key, values = first.head.key, []
        for node in self._nodes:
            if node.head is not None and (node.position, node.head.sort_key) == at:
                values.append(node.head.value)
                await node.advance()
        return key, values

    async def _reduced(self, groups: list[tuple[bytes, list[bytes]]]) -> list[bytes]:
        reducing = self._reducing
        assert reducing is not None
        several = [values for _, values in groups if len(values) > 1]
        made = iter(await reducing.rereduce(several) if several else [])
        rows = []
        for key, values in groups:
            value = values[0] if len(values) == 1 else next(made, None)
            if value is None:
                shown = key.decode("utf-8", "replace")[:100]
                reason = f"view {self._view!r}: the reduce failed for key {shown}"
                self._errors.append({"from": self._source, "reason": reason})
            else:
                rows.append(b'{"key":' + key + b',"value":' + reducing.finish(value) + b"}")
        return rows


def _place(node: NodeRows) -> tuple[int, bytes, bytes]:
    assert node.head is not None
    return node.position, node.head.sort_key, node.head.doc_key
