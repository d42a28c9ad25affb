"""Spark: what rows cost through it, and the same jobs without it.

read
    1,000,000 documents of 256 bytes, on disk and in the system's cache, by
    ``spark.read.format("uprmc")`` on ``local[2]`` into nothing: processor time of the JVM and all
    its Python workers for each row, against the decoder of `uprmc.client` on the same backfill in
    one process, and against the one of `bench.upr_consumer`, which checks nothing. Contents are
    compared before anything is measured.
write
    100,000 documents by ``df.write.format("uprmc")`` with revision and CAS, against
    ``foreachPartition`` over pymemcache: one ``set`` after the other, as sure as the sink's with
    ``durability=none`` (each reply is read), and as pymemcache does it by itself (nobody reads
    them). All write the same rows, which Spark keeps in memory. What the sink costs by default,
    when it waits for the disk, stands beside it.
backup
    ``uprmc backup --engine local`` of the documents of *read*, with everything from the start
    of the program to its end, against the consumer of ``bench-upr``, which decodes and forgets.
restore
    CPU of the node for each row of ``uprmc restore --engine local``, the comparison at the end
    included, against ``uprmc load --engine local`` of the same rows as JSON lines; each into an
    empty node, until everything is on disk.

    python -m bench.spark --rounds 3 --rows 100000 --only read,backup
"""

from __future__ import annotations

import itertools
import json
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from bench.filling import statistic, wait_until_flushed
from bench.rig import Bench, Figures, command_of, figures_of, run_child, started
from interop.server_process import ServerProcess
from uprmc import units

PARTS = "read,write,backup,restore"
_LIMIT_S = 600.0


class _Spark:
    """A `bench.spark_program` that is asked for one job after the other."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def ask(self, do: str, **words: Any) -> Any:
        """Return what it answers."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self._child.stdin.flush()
        if not select.select([self._child.stdout], [], [], _LIMIT_S)[0]:
            raise common.BenchError(f"Spark: no end of {do} within {_LIMIT_S:g} s")
        line = self._child.stdout.readline()
        if not line:
            raise common.BenchError(f"Spark: {do} failed")
        return json.loads(line)


@contextmanager
def _spark(words: Any) -> Iterator[_Spark]:
    """Start Spark; what it says goes where the benchmark's own errors go."""
    common.progress("starting Spark")
    command = [sys.executable, "-m", "bench.spark_program", f"--master={words.master}"]
    command += [f"--conf={one}" for one in words.conf]
    pipe = subprocess.PIPE
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below
    with (
        log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=common.HERE.parent
        ) as child,
    ):
        try:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise common.BenchError("Spark did not start")
            yield _Spark(child)
            child.communicate(timeout=60)
        except (common.BenchError, OSError) as error:
            log.seek(0)
            raise common.BenchError(f"{error}:\n{log.read()[-4000:]}") from None
        finally:
            child.kill()


# --- nodes ----------------------------------------------------------------------------------------


@contextmanager
def _full_node(bench: Bench) -> Iterator[ServerProcess]:
    """A node with the documents that are read."""
    words = bench.words
    documents = Load(
        connections=10, depth=16, keys=words.rows, value_bytes=words.value_bytes,
        vbuckets=words.vbuckets,
    )  # fmt: skip
    with bench.ours(words.vbuckets, "--memory", "4G") as node:
        common.progress(f"storing {words.rows} documents")
        documents.run(node, fill=True)
        wait_until_flushed(node)
        yield node


# --- read -----------------------------------------------------------------------------------------


def _read(bench: Bench) -> None:
    words = bench.words
    with _full_node(bench) as node, _spark(words) as spark:
        commands = {
            "decoder": command_of("bench.spark_decoder", "backfill", node.upr, pid=node.pid),
            "consumer": command_of("bench.upr_consumer", "backfill", node.upr, pid=node.pid),
        }
        common.progress("read: comparing contents")
        began = time.perf_counter()
        _compare(spark.ask("sums", servers=str(node.upr)), commands["decoder"], words.rows)
        first_s = time.perf_counter() - began
        ask = partial(_read_by_spark, spark, node, words.rows)
        ask()  # a JVM gets faster; what it costs to begin with is told apart
        figures = bench.rounds(
            "read",
            {name: partial(run_child, command) for name, command in commands.items()}
            | {
                "spark": lambda number: ask(),
                "spark, key and seqno": lambda number: ask(columns="key,_seq", noValue="true"),
            },
        )
    _keep_read(bench, figures, first_s)


def _read_by_spark(spark: _Spark, node: ServerProcess, rows: int, **options: str) -> Figures:
    before = node.cpu_s()
    found: Figures = spark.ask("read", servers=str(node.upr), rows=rows, **options)
    return found | {"server_us": (node.cpu_s() - before) * 1e6 / rows}


def _compare(by_spark: Any, decoder: list[str], rows: int) -> None:
    with started([*decoder, "--check"]) as child:
        sums: Any = figures_of(child)["sums"]
    if sums != by_spark["sums"] or sums[0] != rows:
        raise common.BenchError(f"{rows} documents: Spark has {by_spark}, the decoder {sums}")


def _keep_read(bench: Bench, figures: dict[str, list[Figures]], first_s: float) -> None:
    spark = column(figures["spark"], "cpu_us")
    keys = column(figures["spark, key and seqno"], "cpu_us")
    alone = {name: column(figures[name], "consumer_us") for name in ("decoder", "consumer")}
    each = [Spread.of(one).text() for one in (spark, alone["decoder"], alone["consumer"])]
    rates = [
        Spread.of(column(figures[name], figure)).median / 1e3
        for name, figure in (("spark", "rows_s"), ("decoder", "items_s"))
    ]
    server = [Spread.of(column(figures[n], "server_us")).text() for n in ("spark", "decoder")]
    bench.keep(
        "read",
        figures,
        ["Spark read / decoder", f"{ratio(spark, alone['decoder']).text()} x in CPU", "<= 4"],
        ["  of the consumer of bench-upr", f"{ratio(spark, alone['consumer']).text()} x", ""],
        ["  us a row: Spark, decoder, consumer", ", ".join(each), ""],
        ["  rows/s: Spark, decoder", ", ".join(f"{rate:.0f}k" for rate in rates), ""],
        ["  us of the server: Spark, decoder", ", ".join(server), ""],
        ["  us a row, only key and seqno", Spread.of(keys).text(), ""],
        ["  the first job of a session", f"{first_s:.1f} s", ""],
    )


# --- write ----------------------------------------------------------------------------------------


def _write(bench: Bench) -> None:
    words = bench.words
    versions = itertools.count(1)
    with (
        bench.ours(words.vbuckets, "--memory", "4G") as node,
        tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory,
        _spark(words) as spark,
    ):
        common.progress(f"write: making {words.writes} documents")
        spark.ask(
            "prepare",
            rows=words.writes,
            value_bytes=words.value_bytes,
            partitions=words.partitions,
        )
        sink = {
            "do": "write",
            "servers": str(node.upr),
            "report": str(Path(directory, "report.json")),
        }
        loop = {"memcached": str(node.memcached)}
        jobs = {
            "sink": lambda: {**sink, "version": next(versions), "durability": "none"},
            "sink, on disk": lambda: {**sink, "version": next(versions), "durability": "persist"},
            "loop": lambda: {"do": "loop", **loop, "wait": True},
            "loop, nobody waits": lambda: {"do": "loop", **loop, "wait": False},
        }

        def run_job(name: str, number: int = 0) -> Figures:
            return _written(node, spark, words.writes, jobs[name]())

        for name in jobs:
            run_job(name)  # the node has all documents, and the JVM is warm
        figures = bench.rounds("write", {name: partial(run_job, name) for name in jobs})
        if (found := statistic(node, b"curr_items")) != len(jobs) * words.writes:
            raise common.BenchError(f"the node has {found} documents")
    _keep_write(bench, figures)


def _written(node: ServerProcess, spark: _Spark, rows: int, request: dict[str, Any]) -> Figures:
    before = node.cpu_s()
    found: Figures = spark.ask(**request, rows=rows)
    server_s = node.cpu_s() - before
    wait_until_flushed(node)  # not in the time of who is next
    if found["applied"] != rows:
        raise common.BenchError(f"{request['do']} wrote {found['applied']:.0f} of {rows} rows")
    return found | {"server_us": server_s * 1e6 / rows}


def _keep_write(bench: Bench, figures: dict[str, list[Figures]]) -> None:
    rates = {name: column(of, "rows_s") for name, of in figures.items()}
    each = ", ".join(f"{Spread.of(of).median / 1e3:.1f}k" for of in rates.values())
    bench.keep(
        "write",
        figures,
        ["Spark write / loop", f"{ratio(rates['sink'], rates['loop']).text()} x rows/s", ">= 5"],
        [
            "  the same, waiting for the disk, too",
            f"{ratio(rates['sink, on disk'], rates['loop']).text()} x",
            "",
        ],
        [
            "  of the loop that reads no reply",
            f"{ratio(rates['sink'], rates['loop, nobody waits']).text()} x",
            "",
        ],
        ["  rows/s: sink, on disk, loop, loop without replies", each, ""],
        ["  us a row of Spark", _of_all(figures, "cpu_us"), ""],
        ["  us a row of the server", _of_all(figures, "server_us"), ""],
    )


def _of_all(figures: dict[str, list[Figures]], name: str) -> str:
    return ", ".join(Spread.of(column(of, name)).text() for of in figures.values())


# --- backup ---------------------------------------------------------------------------------------


def _backup(bench: Bench) -> None:
    words = bench.words
    with _full_node(bench) as node:
        command = command_of("bench.upr_consumer", "backfill", node.upr, pid=node.pid)
        figures = bench.rounds(
            "backup",
            {
                "consumer": partial(run_child, command),
                "backup": lambda number: _backed_up(node, words.rows),
            },
        )
    rates = {
        "backup": column(figures["backup"], "rows_s"),
        "consumer": column(figures["consumer"], "items_s"),
    }
    cpu = [
        Spread.of(one).text()
        for one in (
            column(figures["backup"], "cpu_us"),
            column(figures["consumer"], "consumer_us"),
        )
    ]
    each = ", ".join(f"{Spread.of(of).median / 1e3:.0f}k" for of in rates.values())
    bench.keep(
        "backup",
        figures,
        [
            "local backup / consumer of bench-upr",
            f"{ratio(rates['backup'], rates['consumer']).text()} x rows/s",
            ">= 0.5",
        ],
        ["  rows/s: backup, consumer", each, ""],
        ["  us a row: backup, consumer", ", ".join(cpu), ""],
    )


def _backed_up(node: ServerProcess, rows: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
        before, began = _children_s(), time.perf_counter()
        found = _run_verb(node, "backup", directory + "/backup")["totals"]["rows"]
        wall, cpu = time.perf_counter() - began, _children_s() - before
    if found != rows:
        raise common.BenchError(f"the backup has {found} of {rows} rows")
    return {"rows_s": rows / wall, "cpu_us": cpu * 1e6 / rows, "seconds": wall}


def _run_verb(node: ServerProcess, *verb: str) -> Any:
    """Run a verb of ours to its end, and return what it prints as JSON."""
    command = [sys.executable, "-m", "uprmc", *verb, "--engine", "local", "--json"]
    command += ["--servers", str(node.upr), "--progress", "none"]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=common.HERE.parent, timeout=_LIMIT_S
    )
    if run.returncode:
        raise common.BenchError(f"{command} failed:\n{run.stderr}")
    return json.loads(run.stdout)


def _children_s() -> float:
    """CPU of programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- restore --------------------------------------------------------------------------------------


def _restore(bench: Bench) -> None:
    words = bench.words
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
        lines, backup = str(Path(directory, "rows.jsonl")), str(Path(directory, "backup"))
        _write_lines(lines, words.rows, words.value_bytes)
        with bench.ours(words.vbuckets, "--memory", "4G") as node:
            _run_verb(node, "load", lines, "--value", "json")
            _run_verb(node, "backup", backup)
        verbs = {"load": ("load", lines, "--value", "json"), "restore": ("restore", backup)}
        figures = bench.rounds(
            "restore", {name: partial(_filled_by, bench, verb) for name, verb in verbs.items()}
        )
    cpu = {name: column(of, "server_us") for name, of in figures.items()}
    bench.keep(
        "restore",
        figures,
        [
            "restore's CPU of the node / load's",
            f"{ratio(cpu['restore'], cpu['load']).text()} x",
            "",
        ],
        ["  us a row: load, restore", _of_all(figures, "server_us"), ""],
    )


def _write_lines(path: str, rows: int, value_bytes: int) -> None:
    with open(path, "w") as file:
        for number in range(rows):
            text = f"{number * 2654435761 % 2**32:08x}" * (value_bytes // 8)
            file.write(json.dumps({"key": f"{number:020d}", "text": text}) + "\n")


def _filled_by(bench: Bench, verb: tuple[str, ...], number: int) -> Figures:
    words = bench.words
    with bench.ours(words.vbuckets, "--memory", "4G") as node:
        _run_verb(node, *verb)
        wait_until_flushed(node)
        if (found := statistic(node, b"curr_items")) != words.rows:
            raise common.BenchError(f"{verb[0]} stored {found} of {words.rows} rows")
        return {"server_us": node.cpu_s() * 1e6 / words.rows}


# --- the program ----------------------------------------------------------------------------------

_PARTS: dict[str, Callable[[Bench], None]] = {
    "read": _read,
    "write": _write,
    "backup": _backup,
    "restore": _restore,
}
_NEED_SPARK = ("read", "write")


def _missing() -> str:
    """Say what Spark lacks here, or nothing."""
    from uprmc.columnar.errors import ClientError
    from uprmc.spark.session import find_java

    try:
        metadata.version("pyspark")
        find_java()
    except (metadata.PackageNotFoundError, ClientError) as error:
        return str(error)
    return ""


def run(words: Any) -> tuple[Report, list[list[str]]]:
    """Measure what was asked for."""
    report = Report("spark", common.options_of(words))
    bench = Bench(words, report)
    missing = _missing()
    if not missing:
        report.versions |= {name: metadata.version(name) for name in ("pyspark", "pyarrow")}
    for part in words.only.split(","):
        if part in _NEED_SPARK and missing:
            bench.keep(part, missing, [part, f"left out: {missing}", ""])
        else:
            _PARTS[part](bench)
    common.progress("")
    return report, bench.rows


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", default=PARTS, help="parts, comma separated")
    options.add_argument("--rows", type=int, default=1_000_000, help="of read, backup, restore")
    options.add_argument("--writes", type=int, default=100_000, help="rows of write")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--vbuckets", type=int, default=1_024)
    options.add_argument("--master", default="local[2]", help="of Spark")
    options.add_argument("--partitions", type=int, default=2, help="of what is written")
    options.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark; repeat"
    )
    words = options.parse_args()
    if unknown := set(words.only.split(",")) - set(_PARTS):
        options.error(f"unknown parts: {', '.join(sorted(unknown))}")
    with common.reported_errors():
        common.mcload()
        report, rows = run(words)
        common.print_table(["", "median (least-greatest)", "bar"], rows)
        print(f"\nratios are of the same round, {words.rounds} rounds")
        print(f"versions: {', '.join(f'{k} = {v}' for k, v in report.versions.items())}")
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
