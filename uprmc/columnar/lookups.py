"""Rows of documents that are asked for by key, as a read from the beginning would show them.

Each key is one question (GET_VERSION), so the cost does not depend on what else the node has. What
cannot be had in this way is not tried: `possible` says of which columns that is true, and
`looked_up` raises `NotLookedUp` where a node does not know the question or has no such vBucket any
more. A read of the vBuckets then gives the same.

See `docs/extensions.md`, GET_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from uprmc.columnar.access import Access
from uprmc.columnar.decoder import DELETE, EXPIRE, SET
from uprmc.columnar.nodes import BulkNodes, NodeStanding
from uprmc.columnar.schema import Columns
from uprmc.errors import RemoteProtocolError
from uprmc.model import Item, Life, vbucket_of
from uprmc.remote.undo import UndoRefused, question, version
from uprmc.rollback import history_of

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

    Args:
        access: where the nodes are.
        columns: which; see `possible`.
        keys: different ones.
        no_value: values are not wanted.

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
