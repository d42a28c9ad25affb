"""What purging costs, and what clients notice of it.

**Cost**: CPU of dropping all tombstones of a bucket on the real store, from `Purger.begin` to the
last commit, against CPU of flushing half as many documents of 256 bytes into an empty bucket
(begin, commit and finish of `Flusher`, as in `bench.flush`), both in this process. The aim is at
most 1 for a million.

**Latency**: p99 of a node under load while it purges, against the same node without. Before each
run documents are made and deleted; in one of both the node purges them during the load.

    python -m bench.purge --rounds 3
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from bench.rig import Bench, Figures
from interop.server_process import ServerProcess
from interop.wire import DELETE, OK, SET, Wire, frame, store, vbucket_of
from uprmc.engine.bucket import Bucket

_VALUE_BYTES = 256
_PORTION = 1_000


@contextmanager
def _bucket() -> Iterator[Bucket]:
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
        bucket = common.bucket_in(Path(directory) / "data", batch_items=30_000)
        common.warm_up(bucket)
        yield bucket
        common.close_in_order(bucket)


def _cost(tombstones: int) -> Figures:
    """Return CPU microseconds of purging, and of flushing half as many documents, for each."""
    half = _written_and_purged(tombstones // 2)
    return {**_written_and_purged(tombstones), "half_flush_us": half["flush_us"]}


def _written_and_purged(tombstones: int) -> Figures:
    """Write documents, delete them, purge; return CPU time of the first and the last step."""
    numbers = list(range(tombstones))
    random.Random(0).shuffle(numbers)
    keys = [common.key_of(number) for number in numbers]
    value = random.Random(1).randbytes(_VALUE_BYTES)
    with _bucket() as bucket:
        common.write_documents(bucket, keys, [value] * len(keys))
        flush_s = _cpu_s(bucket)
        for key in keys:
            bucket.of_key(key).delete(key)
        for vbucket in bucket.vbuckets.values():
            vbucket.store(b"last", value, 0, 0)
        common.flush_all(bucket)
        bucket.purger.begin()
        purge_s = _cpu_s(bucket)
        view = bucket.store.view()
        if view.count() != len(bucket.vbuckets):
            raise common.BenchError(f"{view.count()} records are left")
        view.close()
    return {"flush_us": flush_s * 1e6 / tombstones, "purge_us": purge_s * 1e6 / tombstones}


def _cpu_s(bucket: Bucket) -> float:
    """Do everything that is to be flushed or compacted; return the CPU seconds."""
    compactor = bucket.compactor
    began = time.process_time()
    while compactor.waiting or bucket.flusher.pending:
        scan = compactor.begin()
        if scan is None:
            common.flush_all(bucket)
        else:
            compactor.read(scan)
            compactor.finish(scan)
    return time.process_time() - began


def _bury(server: ServerProcess, count: int) -> None:
    """Make documents and delete them, many requests at a time."""
    assert server.upr is not None
    with Wire(server.upr) as wire:
        for start in range(0, count, _PORTION):
            keys = [b"buried-%d" % number for number in range(start, start + _PORTION)]
            places = [(key, vbucket_of(key)) for key in keys]
            frames = [store(SET, key, b"v" * 100, vbucket=number) for key, number in places]
            frames += [frame(DELETE, key, vbucket=number) for key, number in places]
            wire.send(*frames)
            if any(wire.reply().status != OK for _ in frames):
                raise common.BenchError("a write was refused")
    common.wait_until_idle(server)


def _latency(server: ServerProcess, words: object, *, purging: bool, number: int) -> Figures:
    """Load a node that has tombstones; return its p99."""
    count: int = getattr(words, "buried", 0)
    _bury(server, count)
    command = [sys.executable, "-m", "uprmc", "compact", "--node", str(server.upr)]
    command += ["--force", "--wait", "--json"]
    load = Load(seconds=getattr(words, "seconds", 3.0))
    if not purging:
        figures = load.run(server, seed=number)
        subprocess.run(command, check=True, capture_output=True)
        return {"p99_us": figures["p99_us"], "ops_s": figures["ops_s"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        figures = load.run(server, seed=number)
        told = json.loads(child.communicate()[0])
    if told["dropped"] < count // 2:
        raise common.BenchError(f"only {told['dropped']} tombstones were there")
    return {"p99_us": figures["p99_us"], "ops_s": figures["ops_s"]}


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tombstones", type=int, default=1_000_000, help="of the cost")
    options.add_argument("--buried", type=int, default=100_000, help="tombstones under load")
    options.add_argument("--seconds", type=float, default=3.0, help="of load")
    arguments = options.parse_args()
    with common.reported_errors():
        report = Report("purge", common.options_of(arguments))
        bench = Bench(arguments, report)
        gc.disable()
        costs = [_cost(arguments.tombstones) for _ in range(arguments.rounds)]
        gc.enable()
        spread = ratio(column(costs, "purge_us"), [one["half_flush_us"] / 2 for one in costs])
        figures = [Spread.of(column(costs, name)).text() for name in ("purge_us", "half_flush_us")]
        bench.keep("cost", costs, ["CPU us for each", *figures, spread.text()])
        with bench.ours(1_024, "--set", "purge.interval_s=0") as server:
            Load().run(server, fill=True)
            found = bench.rounds(
                "latency",
                {
                    name: lambda number, purging=purging: _latency(
                        server, arguments, purging=purging, number=number
                    )
                    for name, purging in {"purging": True, "quiet": False}.items()
                },
            )
        p99 = {name: column(each, "p99_us") for name, each in found.items()}
        texts = [Spread.of(each).text(0) for each in p99.values()]
        bench.keep("latency", found, ["p99 us", *texts, ratio(*p99.values()).text()])
        common.progress("")
        common.print_table(["", "purging", "a document's flush; quiet", "ratio"], bench.rows)
        print(
            "\nratio: purging v flushing half as many documents; p99 purging v without: median "
            f"(least-greatest) of {arguments.rounds}; less is better"
        )
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
