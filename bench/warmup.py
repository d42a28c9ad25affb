"""Loading a data directory, ours against a bare scan of the same file.

The directory holds documents of 256 bytes that were written in no order. Ours is what a node does
before it lets clients in: `Warmup` through the real store, driven in slices of 10 ms with the
cycle collector held off, as the node drives it; opening the directory is not part of it. The peer
is a py-lmdb cursor over the by-seq index that splits segments, unpacks the front of each record,
cuts out key and value and keeps nothing: every byte is read once and no table is built.

``all values`` has memory for everything; ``a quarter`` has memory for all keys and about a quarter
of the values, so that warm-up stops loading values at the low mark (a document counts as loaded
once its key is there). ``a node`` is what ``uprmc serve`` itself says in its log. Every run is a
process of its own; the file is in the system's cache.

    python -m bench.warmup --rounds 5 --items 1000000
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import lmdb

from bench import common
from bench.common import BenchError, Report, Spread, column, ratio
from interop.server_process import start_uprmc
from uprmc import units
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.warmup import Warmup
from uprmc.record import FRONT, FRONT_BYTES, RECORD_OVERHEAD_BYTES, key_of
from uprmc.server import system
from uprmc.storage import layout, segments

_SLICE_S = 0.01
_QUARTER = 0.25
_SPARE = 1.02  # of the quota, so that the last values are not missed by rounding
_ROOMY = 2.0
_WARMED_UP = re.compile(r"node\.warmed_up .*?keys=(\d+) .*?values=(\d+) .*?seconds=([0-9.]+)")


def _make(directory: Path, arguments: Any) -> None:
    """Fill a directory in batches and leave it in order."""
    bucket = common.bucket_in(directory, vbuckets=arguments.vbuckets, sync=False)
    common.warm_up(bucket)
    numbers = list(range(arguments.items))
    random.Random(0).shuffle(numbers)
    new_value = random.Random(1).randbytes
    for start in range(0, len(numbers), 50_000):
        common.progress(f"writing documents: {start} of {len(numbers)}")
        keys = [common.key_of(number) for number in numbers[start : start + 50_000]]
        common.write_documents(bucket, keys, [new_value(arguments.value_bytes) for _ in keys])
        common.flush_all(bucket)
    bucket.store.sync()
    common.close_in_order(bucket)


def _quota(arguments: Any, share_of_values: float) -> int:
    """The quota whose low mark leaves room for all keys and a share of the values."""
    keys = arguments.items * (len(common.key_of(0)) + ITEM_OVERHEAD_BYTES)
    values = arguments.items * arguments.value_bytes * share_of_values
    low_mark = 0.75
    return max(int((keys + values) / low_mark * _SPARE), 16 << 20)


# --- in a process of its own ----------------------------------------------------------------------


def _ours(directory: Path, vbuckets: int, quota: int) -> dict[str, float]:
    bucket = common.bucket_in(directory, vbuckets=vbuckets, quota=quota)
    system.take_collector_over()
    warmup = Warmup(bucket)
    longest_s = 0.0
    cpu_s, began = time.process_time(), time.perf_counter()
    slice_began = before = began
    for _ in warmup.steps():
        now = time.perf_counter()
        longest_s = max(longest_s, now - before)
        if now - slice_began > _SLICE_S:
            system.collect_young()
            slice_began = time.perf_counter()
        before = time.perf_counter()
    figures = _figures(warmup.records, cpu_s, began)
    common.close_in_order(bucket)  # the next run finds the clean mark as this one did
    return figures | {"values": warmup.values, "longest_step_ms": longest_s * 1e3}


def _scan(directory: Path) -> dict[str, float]:
    """The peer: read and unpack every record, keep none."""
    with lmdb.open(str(directory), max_dbs=5, readonly=True) as environment:
        by_seq = environment.open_db(layout.BY_SEQ, create=False)
        unpack_from, overhead = FRONT.unpack_from, RECORD_OVERHEAD_BYTES
        records = 0
        cpu_s, began = time.process_time(), time.perf_counter()
        with environment.begin(by_seq) as transaction:
            for _, segment in transaction.cursor():
                for record in segments.split(segment):
                    _, _, _, _, key_bytes, _, _ = unpack_from(record)
                    key_end = FRONT_BYTES + key_bytes
                    _ = record[FRONT_BYTES:key_end], record[overhead + key_bytes :]
                    records += 1
        return _figures(records, cpu_s, began)


def _build(directory: Path) -> dict[str, float]:
    """The floor for an interpreter: the same scan that keeps the records in a dict."""
    system.take_collector_over()
    with lmdb.open(str(directory), max_dbs=5, readonly=True) as environment:
        by_seq = environment.open_db(layout.BY_SEQ, create=False)
        table: dict[bytes, bytes] = {}
        cpu_s, began = time.process_time(), time.perf_counter()
        with environment.begin(by_seq) as transaction:
            for _, segment in transaction.cursor():
                for record in segments.split(segment):
                    table[key_of(record)] = record
        return _figures(len(table), cpu_s, began)


def _figures(records: int, cpu_s: float, began: float) -> dict[str, float]:
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return {
        "records": records,
        "docs_s": records / wall_s,
        "cpu_us": cpu_s * 1e6 / records,
    }


# --- all of it ------------------------------------------------------------------------------------


def _in_child(role: str, directory: Path, arguments: Any, quota: int, _: int) -> dict[str, float]:
    words = ("--role", role, "--data", directory, "--quota", quota)
    figures = common.in_child("bench.warmup", *words, "--vbuckets", arguments.vbuckets)
    if figures["records"] != arguments.items:
        raise BenchError(f"{role} found {figures['records']:g} documents, not {arguments.items}")
    return figures


def _node(directory: Path, arguments: Any, quota: int, _: int) -> dict[str, float]:
    """A whole node; its log has the figures, its CPU is from the start of the process on."""
    with start_uprmc(directory, "--memory", str(quota), *arguments.serve) as server:
        cpu_s = server.cpu_s()
        server.stop()
        found = _WARMED_UP.search(server.log())
    if found is None:
        raise BenchError(f"the node's log does not tell of its warm-up:\n{server.log()}")
    records, values, seconds = int(found[1]), int(found[2]), float(found[3])
    return {
        "records": records,
        "docs_s": records / max(seconds, 0.001),
        "cpu_us": cpu_s * 1e6 / records,
        "values": values,
    }


def run(arguments: Any) -> Report:
    """Make the directory, load it in turn, and give the figures."""
    report = Report("warmup", common.options_of(arguments), {"lmdb": str(lmdb.version())})
    everything, quarter = _quota(arguments, 1.0), _quota(arguments, _QUARTER)
    roomy = int(everything * _ROOMY)
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as name:
        directory = Path(name) / "data"
        _make(directory, arguments)
        contestants = {
            "scan": partial(_in_child, "scan", directory, arguments, 0),
            "scan, items kept": partial(_in_child, "build", directory, arguments, 0),
            "all values": partial(_in_child, "ours", directory, arguments, roomy),
            "all, just so": partial(_in_child, "ours", directory, arguments, everything),
            "a quarter": partial(_in_child, "ours", directory, arguments, quarter),
            "a node": partial(_node, directory, arguments, roomy),
        }
        figures = common.interleaved(arguments.rounds, contestants, common.progress)
        common.progress("")
    for kind in contestants:
        ratios = {
            name: ratio(column(figures[kind], name), column(figures["scan"], name)).as_json()
            for name in ("docs_s", "cpu_us")
        }
        report.results.append({"contestant": kind, "ratios": ratios, "rounds": figures[kind]})
    return report


def _row(result: dict[str, Any]) -> list[str]:
    def figure(name: str, scale: float, digits: int) -> str:
        if name not in result["rounds"][0]:
            return "-"
        values = [value * scale for value in column(result["rounds"], name)]
        return Spread.of(values).text(digits)

    def compared(name: str) -> str:
        found = result["ratios"][name]
        return Spread(found["median"], found["min"], found["max"]).text()

    values = [one.get("values") for one in result["rounds"]]
    return [
        result["contestant"],
        figure("docs_s", 1e-3, 0),
        compared("docs_s"),
        figure("cpu_us", 1.0, 2),
        compared("cpu_us"),
        "-" if values[0] is None else f"{Spread.of(values).median:.0f}",
        figure("longest_step_ms", 1.0, 1),
    ]


def _play_role(arguments: Any) -> dict[str, float]:
    if arguments.role == "scan":
        return _scan(arguments.data)
    if arguments.role == "build":
        return _build(arguments.data)
    return _ours(arguments.data, arguments.vbuckets, arguments.quota)


def main() -> None:
    options = common.parser(__doc__, server=False)
    options.add_argument(
        "--serve", action="append", default=[], metavar="OPTION", help="for 'uprmc serve'"
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--vbuckets", type=int, default=1_024)
    options.add_argument("--role", choices=("scan", "build", "ours"), help=argparse.SUPPRESS)
    options.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--quota", type=units.size, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.role:
        print(json.dumps(_play_role(arguments)))
        return
    with common.reported_errors():
        report = run(arguments)
        common.print_table(
            [
                f"{arguments.items} documents",
                "1000 docs/s",
                "v scan",
                "CPU us/doc",
                "v scan",
                "values",
                "longest step ms",
            ],
            [_row(result) for result in report.results],
        )
        print(
            f"\nmedian (least-greatest) of {arguments.rounds}; ratios are to the scan of the same"
            " round; docs/s: more is better; a node's CPU includes its start"
        )
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
