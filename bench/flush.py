"""CPU for each document of 256 bytes that goes to disk, ours against SQLite.

Ours is what a node does from a full write queue on: `Flusher.begin`, `commit` and `finish` through
the real store, packing, the vBuckets' headers and the device's sync included. Accepting the
documents (tables, seqnos, queues) is not measured.

The peer is ``executemany`` into SQLite in WAL mode with ``synchronous=FULL``, one transaction for
each batch: a table with a unique index by (vBucket, key) and one by (vBucket, seqno), and a second
table for the vBuckets' seqnos. Its rows are made beforehand, in the order in which our queues hold
them, and its cache holds the whole file, so it is favoured. It comes in two forms: ``upsert``
updates a row in place, which is the fastest that was found of five schemas and is what the ratio
is taken against; ``replace`` takes the old row out and puts the new one in.

CPU is that of the process, the kernel's work on its behalf included; what the kernel writes back
later on its own account is in nobody's figure. Both run in this process in turn, with the cycle
collector off, as in a node.

    python -m bench.flush --rounds 5 --items 50000 --shapes overwrite:1024:10000:100000
"""

from __future__ import annotations

import gc
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from bench import common
from bench.common import BenchError, Report, Spread, column, ratio
from uprmc import units
from uprmc.model import vbucket_of

#: What is done, number of vBuckets, documents in a batch, documents that are there before.
SHAPES = (
    "overwrite:1024:10000:100000,overwrite:16:10000:100000,"
    "overwrite:1024:50000:100000,overwrite:16:50000:100000,"
    "overwrite:1024:10000:1000000,overwrite:1024:50000:1000000,"
    "insert:1024:10000:0,insert:16:10000:0"
)

_CACHE_KIB = 2 * 1024 * 1024
_COLUMNS = "vb, key, seqno, flags, expiry, cas, rev, datatype, life, value"
_INSERT = f"INTO documents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SCHEMA = """
CREATE TABLE documents (
    vb INTEGER, key BLOB, seqno INTEGER, flags INTEGER, expiry INTEGER, cas INTEGER, rev INTEGER,
    datatype INTEGER, life INTEGER, value BLOB, UNIQUE (vb, key)
);
CREATE INDEX by_seqno ON documents (vb, seqno);
CREATE TABLE vbuckets (vb INTEGER PRIMARY KEY, high_seqno INTEGER);
"""
_STATEMENTS = {
    "upsert": f"INSERT {_INSERT} ON CONFLICT (vb, key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS.split(", ")[2:]),
    "replace": f"REPLACE {_INSERT}",
}


class Contestant(Protocol):
    """Somewhere to put documents; what `accept` took is on disk when `flush` returns."""

    def accept(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def flush(self) -> dict[str, float]: ...

    def file_bytes(self) -> int: ...

    def close(self) -> None: ...


class Ours:
    """A bucket on its store; `flush` gives the CPU seconds of each of its three steps."""

    def __init__(self, directory: Path, vbuckets: int, batch_items: int) -> None:
        self._directory = directory
        self._bucket = common.bucket_in(directory, vbuckets=vbuckets, batch_items=batch_items)
        common.warm_up(self._bucket)

    def accept(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        common.write_documents(self._bucket, keys, values)

    def flush(self) -> dict[str, float]:
        flusher = self._bucket.flusher
        steps = {"begin": 0.0, "commit": 0.0, "finish": 0.0}
        before = time.process_time()
        while flush := flusher.begin():
            begun = time.process_time()
            flusher.commit(flush)
            committed = time.process_time()
            flusher.finish(flush)
            after = time.process_time()
            steps["begin"] += begun - before
            steps["commit"] += committed - begun
            steps["finish"] += after - committed
            before = after
        return steps

    def file_bytes(self) -> int:
        return self._bucket.store.usage().file_bytes

    def used_bytes(self) -> int:
        return self._bucket.store.usage().used_bytes

    def close(self) -> None:
        common.close_in_order(self._bucket)


class Sqlite:
    """The peer; see the module docstring for what is equal and what favours it."""

    def __init__(
        self, directory: Path, vbuckets: int, form: str, *, any_thread: bool = False
    ) -> None:
        directory.mkdir()
        self._file = directory / "peer.sqlite"
        self._statement = _STATEMENTS[form]
        self._mask = vbuckets - 1
        self._seqnos = [0] * vbuckets
        self._cas = count(time.time_ns())
        self._rows: list[tuple[Any, ...]] = []
        self._database = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=not any_thread
        )
        for setting in ("journal_mode=WAL", "synchronous=FULL", f"cache_size=-{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.executescript(_SCHEMA)

    def accept(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        mask, seqnos = self._mask, self._seqnos
        for key, value in zip(keys, values, strict=True):
            vbucket = vbucket_of(key, mask + 1)
            seqnos[vbucket] += 1
            row = (vbucket, key, seqnos[vbucket], 0, 0, next(self._cas), 1, 0, 0, value)
            self._rows.append(row)
        self._rows.sort(key=lambda row: (row[0], row[2]))

    def flush(self) -> dict[str, float]:
        rows, self._rows = self._rows, []
        high_seqnos = {row[0]: row[2] for row in rows}
        before = time.process_time()
        run = self._database
        run.execute("BEGIN")
        run.executemany(self._statement, rows)
        run.executemany("REPLACE INTO vbuckets VALUES (?, ?)", high_seqnos.items())
        run.execute("COMMIT")
        return {"commit": time.process_time() - before}

    def file_bytes(self) -> int:
        files = self._file.parent.iterdir()
        return sum(file.stat().st_size for file in files if not file.name.endswith("-shm"))

    def close(self) -> None:
        self._database.close()


class Workload:
    """What is written: the same documents in the same order for every contestant of a round."""

    def __init__(self, kind: str, documents: int, value_bytes: int) -> None:
        self._kind = kind
        self._documents = documents
        self._value_bytes = value_bytes

    def fill(self, contestant: Contestant) -> None:
        """Put what is there before, in no order, in batches of 50,000."""
        numbers = list(range(self._documents))
        random.Random(0).shuffle(numbers)
        for start in range(0, len(numbers), 50_000):
            self._accept(contestant, numbers[start : start + 50_000], start)
            contestant.flush()

    def run(
        self, contestant: Contestant, batch: int, batches: int, number: int
    ) -> dict[str, float]:
        """Write some batches and give the cost of a document."""
        chance = random.Random(number + 1)
        steps: dict[str, float] = {}
        wall_s = 0.0
        written = _written_bytes()
        for part in range(batches):
            if self._kind == "insert":
                first = self._documents + (number * batches + part) * batch
                numbers = list(range(first, first + batch))
                chance.shuffle(numbers)
            else:
                numbers = chance.sample(range(self._documents), batch)
            self._accept(contestant, numbers, number * batches + part)
            began = time.perf_counter()
            for name, cpu_s in contestant.flush().items():
                steps[name] = steps.get(name, 0.0) + cpu_s
            wall_s += time.perf_counter() - began
        documents = batch * batches
        figures = {f"{name}_us": cpu_s * 1e6 / documents for name, cpu_s in steps.items()}
        return figures | {
            "cpu_us": sum(steps.values()) * 1e6 / documents,
            "wall_us": wall_s * 1e6 / documents,
            "written_bytes": (_written_bytes() - written) / documents,
        }

    def _accept(self, contestant: Contestant, numbers: Sequence[int], seed: int) -> None:
        new_value = random.Random(seed).randbytes
        values = [new_value(self._value_bytes) for _ in numbers]
        contestant.accept([common.key_of(number) for number in numbers], values)


def _written_bytes() -> int:
    """What this process has given the kernel to write to a device."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def _measured(arguments: Any, shape: str) -> dict[str, Any]:
    kind, vbuckets, batch, documents = _parsed(shape)
    work = Workload(kind, documents, arguments.value_bytes)
    batches = max(1, arguments.items // batch)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="uprmc-bench-")))
        contestants: dict[str, Contestant] = {
            form: Sqlite(root / form, vbuckets, form) for form in _STATEMENTS
        }
        ours = contestants["ours"] = Ours(root / "ours", vbuckets, batch)
        calls: dict[str, Callable[[int], dict[str, float]]] = {}
        for name, contestant in contestants.items():
            stack.callback(contestant.close)
            common.progress(f"{shape}: filling {name}")
            work.fill(contestant)
            calls[name] = partial(work.run, contestant, batch, batches)
        gc.collect()
        figures = common.interleaved(
            arguments.rounds, calls, lambda text: common.progress(f"{shape}, {text}")
        )
        sizes = {name: contestant.file_bytes() for name, contestant in contestants.items()}
        sizes["ours, used"] = ours.used_bytes()
    common.progress("")
    ratios = {
        f"{name} v {form}": ratio(column(figures["ours"], name), column(figures[form], name))
        for form in _STATEMENTS
        for name in ("cpu_us", "wall_us", "written_bytes")
    }
    return {
        "shape": shape,
        "ratios": {name: spread.as_json() for name, spread in ratios.items()},
        "file_bytes": sizes,
        **figures,
    }


def _parsed(shape: str) -> tuple[str, int, int, int]:
    try:
        kind, *numbers = shape.split(":")
        vbuckets, batch, documents = map(int, numbers)
    except ValueError:
        raise BenchError(f"{shape!r}: say KIND:VBUCKETS:BATCH:DOCUMENTS") from None
    if kind not in ("insert", "overwrite") or (kind == "overwrite" and batch > documents):
        raise BenchError(f"{shape!r}: kind is insert, or overwrite of a batch of those documents")
    return kind, vbuckets, batch, documents


def _row(result: dict[str, Any]) -> list[str]:
    def figure(side: str, name: str, digits: int = 2) -> str:
        return Spread.of(column(result[side], name)).text(digits)

    def compared(name: str) -> str:
        found = result["ratios"][name]
        return Spread(found["median"], found["min"], found["max"]).text()

    kind, vbuckets, batch, documents = _parsed(result["shape"])
    steps = [Spread.of(column(result["ours"], f"{step}_us")).median for step in _STEPS]
    return [
        f"{kind} {batch} of {documents}, {vbuckets} vb",
        figure("ours", "cpu_us"),
        "/".join(f"{step:.2f}" for step in steps),
        figure("upsert", "cpu_us"),
        compared("cpu_us v upsert"),
        compared("cpu_us v replace"),
        compared("wall_us v upsert"),
        f"{Spread.of([1e3 / wall for wall in column(result['ours'], 'wall_us')]).median:.0f}",
        compared("written_bytes v upsert"),
        "/".join(f"{result['file_bytes'][name] / 1e6:.0f}" for name in _SIZES),
    ]


_STEPS = ("begin", "commit", "finish")
_SIZES = ("ours", "ours, used", "upsert")


def main() -> None:
    options = common.parser(__doc__, server=False)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--items", type=int, default=50_000, help="written per run, about")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--shapes", default=SHAPES, help="KIND:VBUCKETS:BATCH:DOCUMENTS, ...")
    arguments = options.parse_args()
    with common.reported_errors():
        shapes = arguments.shapes.split(",")
        for shape in shapes:
            _parsed(shape)
        gc.disable()
        report = Report("flush", common.options_of(arguments))
        report.versions = {"sqlite": sqlite3.sqlite_version}
        report.results = [_measured(arguments, shape) for shape in shapes]
        common.print_table(
            [
                "",
                "our CPU us/doc",
                "begin/commit/finish",
                "upsert's us/doc",
                "CPU",
                "CPU v replace",
                "wall",
                "our 1000 docs/s",
                "written",
                "MB: file/used/upsert's",
            ],
            [_row(result) for result in report.results],
        )
        print(
            f"\nratios are ours / SQLite's (upsert unless it says replace) of the same round:"
            f" median (least-greatest) of {arguments.rounds}; less is better;"
            f" SQLite {sqlite3.sqlite_version}"
        )
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
