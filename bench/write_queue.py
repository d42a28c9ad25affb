"""The write queue: what a view costs to open and close, and what an entry costs.

Views are opened and closed one at a time in queues of different lengths; the greatest of the
medians divided by the least tells whether the cost is constant. Then, for each entry: putting it
(one put in five supersedes an older entry), the same while a view is open that never closes,
reading all through a view, dropping all of them as persisted, dropping nine tenths while newer
ones are queued (the usual case under load), releasing what only a closed view held, and the memory
of the structure itself (the items are the caller's).

The peers are a ``SortedDict`` with one entry for each seqno and a plain ``dict``, both without any
notion of a view: a put that supersedes deletes the older entry, and where ours opens a view they
are copied. Neither can do what the queue is for, so they are the floor of the cost of an entry.

    python -m bench.write_queue --rounds 5 --sizes 1000,1000000
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from sortedcontainers import SortedDict

from bench import common
from bench.common import Report, Spread, column, ratio
from uprmc.engine.write_queue import QueueView, WriteQueue
from uprmc.model import Item
from uprmc.record import key_of, pack, seqno_of

SIZES = "1000,10000,100000,1000000"

#: So many items are measured in one run at least: small queues are built again and again.
_LEAST = 100_000
_ONE_IN = 5

Put = tuple[int, bytes, int]


def _puts(size: int) -> list[Put]:
    """Items with rising seqnos; one in five has replaced the entry of an earlier seqno."""
    chance = random.Random(size)
    alive: list[int] = []
    keys: dict[int, bytes] = {}
    puts = []
    for seqno in range(1, size + 1):
        replaced = 0
        if alive and not seqno % _ONE_IN:
            place = chance.randrange(len(alive))
            replaced, alive[place] = alive[place], seqno
        else:
            alive.append(seqno)
        keys[seqno] = keys.pop(replaced) if replaced else common.key_of(seqno)
        puts.append((seqno, pack(Item(keys[seqno], b"", 0, 0, seqno, seqno, 1)), replaced))
    return puts


def _fill_queue(puts: Sequence[Put]) -> WriteQueue:
    queue = WriteQueue()
    put = queue.put
    for seqno, record, replaced in puts:
        put(seqno, record, replaced)
    return queue


def _fill_mapping(kind: type[dict[int, bytes]], puts: Sequence[Put]) -> dict[int, bytes]:
    mapping = kind()
    for seqno, record, replaced in puts:
        mapping[seqno] = record
        if replaced:
            del mapping[replaced]
    return mapping


class _Clock(AbstractContextManager["_Clock"]):
    """CPU seconds of everything done inside, added up."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def __enter__(self) -> _Clock:
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s += time.process_time() - self._began


def _entries_of_queue(puts: Sequence[Put], number: int) -> dict[str, float]:
    put, put_viewed, read = _Clock(), _Clock(), _Clock()
    dropped_all, dropped_most = _Clock(), _Clock()
    most = 0
    times = max(1, _LEAST // len(puts))
    for _ in range(times):
        with put:
            queue = _fill_queue(puts)
        view = queue.open_view()
        with read:
            found = sum(1 for _ in view.records())
        assert found == queue.live
        view.close()
        with dropped_all:
            queue.drop_persisted(len(puts))
        queue = _fill_queue(puts)
        with dropped_most:
            queue.drop_persisted(len(puts) * 9 // 10)
        most += found - queue.live
        viewed = WriteQueue()
        half = len(puts) // 2
        for seqno, record, replaced in puts[:half]:
            viewed.put(seqno, record, replaced)
        view = viewed.open_view()
        with put_viewed:
            for seqno, record, replaced in puts[half:]:
                viewed.put(seqno, record, replaced)
        view.close()
    entries = times * len(puts)
    return {
        "put_ns": put.cpu_s * 1e9 / entries,
        "put_viewed_ns": put_viewed.cpu_s * 2e9 / entries,
        "read_ns": read.cpu_s * 1e9 / (times * found),
        "drop_all_ns": dropped_all.cpu_s * 1e9 / (times * found),
        "drop_most_ns": dropped_most.cpu_s * 1e9 / most,
    } | _memory(partial(_fill_queue, puts), found)


def _entries_of_mapping(
    kind: type[dict[int, bytes]], puts: Sequence[Put], number: int
) -> dict[str, float]:
    put, read = _Clock(), _Clock()
    times = max(1, _LEAST // len(puts))
    for _ in range(times):
        with put:
            mapping = _fill_mapping(kind, puts)
        with read:
            found = sum(1 for _ in mapping.values())
    return {
        "put_ns": put.cpu_s * 1e9 / (times * len(puts)),
        "read_ns": read.cpu_s * 1e9 / (times * found),
    } | _memory(partial(_fill_mapping, kind, puts), found)


def _memory(make: Callable[[], object], entries: int) -> dict[str, float]:
    """Bytes that the structure itself takes, from Python's own count."""
    tracemalloc.start()
    made = make()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del made
    return {"entry_bytes": size / entries}


def _views_of_queue(queue: WriteQueue, views: int, number: int) -> dict[str, float]:
    """Medians of single calls, wall time, the clock's own cost included (about 0.05 us)."""
    clock = time.perf_counter_ns
    opened, closed, crowded = [], [], []

    def measure(into: list[int]) -> QueueView:
        before = clock()
        view = queue.open_view()
        into.append(clock() - before)
        return view

    for _ in range(views):
        view = measure(opened)
        before = clock()
        view.close()
        closed.append(clock() - before)
    others = [queue.open_view() for _ in range(50)]
    for _ in range(views):
        measure(crowded).close()
    for view in others:
        view.close()
    return {
        "open_us": Spread.of(opened).median / 1e3,
        "open_p99_us": sorted(opened)[len(opened) * 99 // 100] / 1e3,
        "close_us": Spread.of(closed).median / 1e3,
        "open_beside_50_us": Spread.of(crowded).median / 1e3,
    }


def _copy_of_mapping(mapping: dict[int, bytes], number: int) -> dict[str, float]:
    before = time.perf_counter_ns()
    copy = mapping.copy()
    spent = time.perf_counter_ns() - before
    del copy
    return {"open_us": spent / 1e3}


def _held(puts: Sequence[Put], number: int) -> dict[str, float]:
    """Closing a view for which superseded entries were kept: CPU for each such entry."""
    spent = _Clock()
    held = 0
    for _ in range(max(1, _LEAST // len(puts))):
        queue = _fill_queue(puts)
        view = queue.open_view()
        seqno = len(puts)
        for record in list(view.records()):
            seqno += 1
            newer = pack(Item(key_of(record), b"", 0, 0, seqno, seqno, 2))
            queue.put(seqno, newer, seqno_of(record))
        held += queue.held
        with spent:
            view.close()
    return {"release_ns": spent.cpu_s * 1e9 / held}


_KINDS: dict[str, type[dict[int, bytes]]] = {"SortedDict": SortedDict, "dict": dict}


def _measured(arguments: Any, size: int) -> dict[str, Any]:
    puts = _puts(size)
    queue = _fill_queue(puts)
    mappings = {name: _fill_mapping(kind, puts) for name, kind in _KINDS.items()}
    gc.collect()
    gc.freeze()
    views = common.interleaved(
        arguments.rounds,
        {"ours": partial(_views_of_queue, queue, arguments.views)}
        | {name: partial(_copy_of_mapping, mapping) for name, mapping in mappings.items()},
        lambda text: common.progress(f"views of {size} entries, {text}"),
    )
    del queue, mappings
    entries = common.interleaved(
        arguments.rounds,
        {"ours": partial(_entries_of_queue, puts)}
        | {name: partial(_entries_of_mapping, kind, puts) for name, kind in _KINDS.items()}
        | {"held": partial(_held, puts)},
        lambda text: common.progress(f"{size} entries, {text}"),
    )
    common.progress("")
    ratios = {
        f"{figure} v {name}": ratio(column(entries["ours"], figure), column(entries[name], figure))
        for name in _KINDS
        for figure in ("put_ns", "read_ns", "entry_bytes")
    }
    return {
        "items": size,
        "ratios": {name: spread.as_json() for name, spread in ratios.items()},
        "views": views,
        "entries": entries,
    }


def _text(figures: Sequence[dict[str, float]], name: str, digits: int) -> str:
    return Spread.of(column(figures, name)).text(digits)


def _view_row(result: dict[str, Any]) -> list[str]:
    ours = result["views"]["ours"]
    return [
        str(result["items"]),
        *(_text(ours, name, 2) for name in ("open_us", "open_p99_us", "open_beside_50_us")),
        _text(ours, "close_us", 2),
        *(_text(result["views"][name], "open_us", 1) for name in _KINDS),
    ]


def _entry_rows(result: dict[str, Any]) -> list[list[str]]:
    entries = result["entries"]
    rows = []
    for name in ("ours", *_KINDS):
        found, mine = entries[name], name == "ours"
        rows.append(
            [
                f"{result['items']} {name}",
                _text(found, "put_ns", 0),
                _text(found, "put_viewed_ns", 0) if mine else "-",
                _text(found, "read_ns", 0),
                _text(found, "drop_all_ns", 0) if mine else "-",
                _text(found, "drop_most_ns", 0) if mine else "-",
                _text(entries["held"], "release_ns", 0) if mine else "-",
                _text(found, "entry_bytes", 0),
                "-" if mine else f"{result['ratios'][f'put_ns v {name}']['median']:.2f}",
            ]
        )
    return rows


def main() -> None:
    options = common.parser(__doc__, server=False)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--sizes", default=SIZES, help="entries put, comma separated")
    options.add_argument("--items", type=int, help="only this size")
    options.add_argument("--views", type=int, default=2_000, help="opened and closed per run")
    arguments = options.parse_args()
    with common.reported_errors():
        gc.disable()
        sizes = [int(size) for size in arguments.sizes.split(",")]
        if arguments.items:
            sizes = [arguments.items]
        report = Report("write-queue", common.options_of(arguments))
        report.results = [_measured(arguments, size) for size in sizes]
        copies = [f"copy {name} us" for name in _KINDS]
        common.print_table(
            ["entries", "open us", "its p99", "open beside 50", "close us", *copies],
            [_view_row(result) for result in report.results],
        )
        medians = [
            Spread.of(column(result["views"]["ours"], "open_us")).median
            for result in report.results
        ]
        print(f"\nopening, slowest size / fastest size: {max(medians) / min(medians):.2f}\n")
        common.print_table(
            [
                "CPU ns for each entry",
                "put",
                "put beside a view",
                "read",
                "drop all",
                "drop most",
                "release held",
                "bytes",
                "our put / its",
            ],
            [row for result in report.results for row in _entry_rows(result)],
        )
        print(f"\nmedian (least-greatest) of {arguments.rounds}; one put in {_ONE_IN} supersedes")
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
