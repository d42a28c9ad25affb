"""What views cost: building them, keeping them up to date, asking them; beside PouchDB.

**Build**: documents of about 100 bytes per second, from PUT until ``stale=false`` answers, for a
declarative and for a JavaScript map with ``_sum``, and what the file takes beside the raw keys,
values and ids of its rows.

**Update**: a query with ``stale=false`` right after one write. **Queries**: a range of 100 rows,
the reduction of everything, and groups, each over one kept connection.

**PouchDB** with its LevelDB store gets the same documents and map in one process of its own;
its queries need no connection, ours do.

**Growth**: time for each document when there are more and more of them.

    python -m bench.index --documents 1000000 --sizes 100000,1000000
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Report, Spread, column, ratio
from bench.rig import Bench, Figures
from interop.pouchdb import Pouch, missing
from interop.server_process import ServerProcess
from interop.views import Views
from uprmc.client.kv import KvClient

_PORTION = 10_000
_TOWNS = 1_000
_VBUCKETS = 64
_LIMIT_S = 3_600.0

_JAVASCRIPT = 'function (doc) { if (doc.type == "person") emit([doc.town, doc.n], doc.age); }'
_DECLARATIVE = {
    "where": {"type": "person"},
    "emit": [{"key": ["$.town", "$.n"], "value": "$.age"}],
}
_SOURCE = (
    'function (n) { return {_id: "person-" + String(n).padStart(9, "0"), type: "person",'
    f' town: "town-" + n % {_TOWNS}, n: n, age: n % 90, text: "x".repeat(40)}}; }}'
)

MAPS: dict[str, Any] = {"declarative": _DECLARATIVE, "javascript": _JAVASCRIPT}


def document(number: int) -> tuple[bytes, bytes]:
    """Return a document's key and value."""
    body = {"type": "person", "town": f"town-{number % _TOWNS}", "n": number, "age": number % 90}
    return b"person-%09d" % number, json.dumps({**body, "text": "x" * 40}).encode()


def raw_bytes(count: int) -> int:
    """Return the bytes of all rows: key and value as JSON, and the id."""
    some = range(0, count, max(1, count // 1_000))
    sizes = [
        len(json.dumps([f"town-{n % _TOWNS}", n], separators=(",", ":"))) + len(str(n % 90)) + 16
        for n in some
    ]
    return int(statistics.mean(sizes) * count)


def fill(server: ServerProcess, first: int, count: int) -> None:
    """Store documents."""
    with KvClient(str(server.upr)) as node:
        for begin in range(first, first + count, _PORTION):
            node.set_many(dict(map(document, range(begin, min(begin + _PORTION, first + count)))))


def build(server: ServerProcess, name: str, count: int) -> Figures:
    """Put a design; return how long it takes until it has everything, and the sizes."""
    assert server.views is not None
    with Views(server.views, _LIMIT_S) as views:
        views.ask("GET", "/_design")  # the index's process is started by that
        began = time.perf_counter()
        answer = views.put(name, {"v": {"map": MAPS[name], "reduce": "_sum"}})
        if answer.status != 201:
            raise common.BenchError(f"{name}: {answer.body}")
        milliseconds = str(int(_LIMIT_S * 1_000))
        found = views.query(
            f"{name}/v", stale="false", limit=0, reduce="false", connection_timeout=milliseconds
        )
        took_s = time.perf_counter() - began
        if found.status != 200 or found.body["total_rows"] != count:
            raise common.BenchError(f"{name}: {found.body}")
        info = views.info(name)
    return {
        "documents_s": count / took_s,
        "us": took_s * 1e6 / count,
        "disk_bytes": info["disk_bytes"],
        "disk_ratio": info["disk_bytes"] / raw_bytes(count),
    }


def median_ms(times: int, ask: Callable[[int], Any]) -> float:
    """Return the median time of a question that is asked again and again."""
    took = []
    for number in range(times):
        began = time.perf_counter()
        ask(number)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def questions(count: int) -> dict[str, dict[str, Any]]:
    """Return the options of each kind of query, as values."""
    low = [f"town-{_TOWNS // 2}", 0]
    return {
        "range": {"startkey": low, "limit": 100, "reduce": False},
        "reduce": {"reduce": True},
        "groups": {"group_level": 1, "startkey": low, "limit": 100},
    }


def ask(server: ServerProcess, name: str, count: int, times: int) -> Figures:
    """Ask everything; return the medians in milliseconds."""
    assert server.views is not None
    figures = {}
    with Views(server.views, _LIMIT_S) as views, KvClient(str(server.upr)) as node:
        for what, options in questions(count).items():
            words = {key: json.dumps(value) for key, value in options.items()}
            figures[f"{what}_ms"] = median_ms(
                times, lambda _, words=words: _answered(views, f"{name}/v", stale="ok", **words)
            )

        def write_and_ask(number: int) -> None:
            place = number % count
            key, _ = document(place)
            body = {"type": "person", "town": "town-x", "n": place, "age": number}
            node.set(key, json.dumps(body).encode())
            began.append(time.perf_counter())
            words = {"key": json.dumps(["town-x", place]), "reduce": "false"}
            rows = _answered(views, f"{name}/v", stale="false", **words)
            ended.append(time.perf_counter())
            if rows[0]["value"] != number:
                raise common.BenchError(f"after a write there is {rows}")

        began: list[float] = []
        ended: list[float] = []
        for number in range(times):
            write_and_ask(number)
        took = [end - start for start, end in zip(began, ended, strict=True)]
        figures["fresh_ms"] = statistics.median(took) * 1e3
    return figures


def _answered(views: Views, view: str, **options: Any) -> list[Any]:
    found = views.query(view, **options)
    if found.status != 200:
        raise common.BenchError(f"{view} {options}: {found.body}")
    rows: list[Any] = found.body["rows"]
    return rows


def pouch(count: int, times: int) -> Figures:
    """Do the same with PouchDB and LevelDB."""
    with (
        tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory,
        Pouch("leveldb", Path(directory) / "documents") as running,
    ):
        running.ask("generate", first=0, count=count, source=_SOURCE)
        running.design("d", {"v": {"map": _JAVASCRIPT, "reduce": "_sum"}})
        began = time.perf_counter()
        running.rows("d/v", limit=1, reduce=False)
        took_s = time.perf_counter() - began
        figures = {"documents_s": count / took_s}
        for what, options in questions(count).items():
            told = running.ask("repeat", view="d/v", options=options, times=times)
            figures[f"{what}_ms"] = statistics.median(told["ms"])
    return figures


def ours(bench: Bench, count: int, name: str) -> Figures:
    """Fill a node, build, ask."""
    with bench.ours(_VBUCKETS, "--set", "index.workers=2") as server:
        fill(server, 0, count)
        common.wait_until_idle(server)
        figures = build(server, name, count)
        return figures | ask(server, name, count, bench.words.times)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--documents", type=int, default=100_000)
    options.add_argument("--times", type=int, default=200, help="each query is asked")
    options.add_argument("--pouch", type=int, default=20_000, help="documents, 0 = without it")
    options.add_argument("--sizes", default="", help="numbers of documents, for the growth")
    options.add_argument("--maps", default=",".join(MAPS), help="which to build")
    words = options.parse_args()
    with common.reported_errors():
        report = Report("index", common.options_of(words))
        bench = Bench(words, report)
        names = words.maps.split(",")
        found = bench.rounds(
            "build and queries",
            {name: lambda _, name=name: ours(bench, words.documents, name) for name in names},
        )
        for name, figures in found.items():
            bench.keep(name, figures, *_rows(f"{name}, {words.documents:,}", figures))
        if words.pouch and not missing():
            _beside_pouch(bench, words)
        for size in filter(None, words.sizes.split(",")):
            figures = [ours(bench, int(size), names[0])]
            bench.keep(f"growth {size}", figures, *_rows(f"{names[0]}, {int(size):,}", figures))
        common.progress("")
        common.print_table(["", "ours", "PouchDB", "ratio"], bench.rows)
        print(f"\nmedian (least-greatest) of {words.rounds}; figures: {report.save(words.json)}")


def _beside_pouch(bench: Bench, words: Any) -> None:
    found = bench.rounds(
        "PouchDB",
        {
            "ours": lambda _: ours(bench, words.pouch, "javascript"),
            "PouchDB": lambda _: pouch(words.pouch, words.times),
        },
    )
    both = found["ours"], found["PouchDB"]
    rows = []
    for what in both[1][0]:
        mine, theirs = (column(each, what) for each in both)
        times = ratio(mine, theirs) if what == "documents_s" else ratio(theirs, mine)
        texts = [Spread.of(each).text() for each in (mine, theirs)]
        rows.append([f"{what}, {words.pouch:,} documents", *texts, f"{times.text()} x"])
    bench.keep("PouchDB", found, *rows)


def _rows(title: str, figures: list[Figures]) -> list[list[str]]:
    return [
        [f"{title}: {what}", Spread.of(column(figures, what)).text(), "", ""] for what in figures[0]
    ]


if __name__ == "__main__":
    main()
