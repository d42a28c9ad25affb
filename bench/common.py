"""What every benchmark here shares: a load generator, rounds, ratios, a table and a JSON file.

The habits behind it, because absolute figures of a shared machine mean little:

- all contestants run interleaved, each once per round, in an order that turns with the round;
- a figure is compared with the peer's figure of the *same round*, and the ratio is what counts;
- medians are given with the least and the greatest of all rounds;
- CPU is the scheduler's nanosecond count of the server's threads, so a neighbour who takes the
  processor away does not count;
- nothing is pinned to a processor.

A new benchmark measures with `interleaved`, prints with `print_table` and keeps its figures with
`save`. One that drives parts of ours in its own process (`bucket_in`, `write_documents`) instead of
a server asks for ``parser(..., server=False)``; where every run needs a fresh process, the
benchmark starts itself again with `in_child`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from interop.server_process import ServerProcess, memcached_program
from interop.wire import Wire
from uprmc.config import EngineSettings, FlushSettings, MemorySettings, Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.warmup import Warmup
from uprmc.server.system import SystemClock, SystemEntropy
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CLEAN_MARK, CommitBatch

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_SOURCE = HERE / "mcload.c"
_PROGRAM = HERE / "mcload"


class BenchError(Exception):
    """Something a benchmark needs is missing or broken; the message says what to do."""


def mcload() -> Path:
    """The load generator, built from its source when that is newer."""
    if _PROGRAM.exists() and _PROGRAM.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return _PROGRAM
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchError("no C compiler: apt-get install gcc libc6-dev")
    command = [compiler, "-O2", "-Wall", "-o", str(_PROGRAM), str(_SOURCE), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise BenchError(f"mcload.c does not build:\n{built.stderr}")
    return _PROGRAM


@dataclass(frozen=True, slots=True)
class Load:
    """One setting of the load generator; the defaults are those of all published figures here."""

    connections: int = 50
    depth: int = 1
    text: bool = False
    seconds: float = 3.0
    warm_up_s: float = 0.5
    keys: int = 100_000
    key_bytes: int = 20
    value_bytes: int = 100
    sets: float = 0.1
    vbuckets: int = 1_024
    ttl_s: int = 0
    quiet_gets: int = 0

    def run(self, server: ServerProcess, *, fill: bool = False, seed: int = 0) -> dict[str, Any]:
        """Drive a server; gives mcload's report. ``fill`` stores every key once and does no more.

        Raises:
            BenchError: mcload failed, or the server answered with errors.
        """
        address = server.memcached
        words = {
            "-H": address.host,
            "-p": address.port,
            "-c": self.connections,
            "-P": self.depth,
            "-t": 0 if fill else self.seconds,
            "-w": 0 if fill else self.warm_up_s,
            "-k": self.keys,
            "-K": self.key_bytes,
            "-d": self.value_bytes,
            "-s": self.sets,
            "-V": 1 if self.text else self.vbuckets,
            "-S": server.pid,
            "-x": seed,
            "-e": self.ttl_s,
            "-m": self.quiet_gets,
        }
        command = [str(mcload()), *(str(word) for pair in words.items() for word in pair)]
        command += ["-a"] * self.text + ["-L"] * fill
        if server.login:
            command += ["-u", server.login]
        limit_s = 600 if fill else self.seconds + self.warm_up_s + 60
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"mcload did not end within {limit_s:g} s: {command}") from None
        if run.returncode:
            raise BenchError(f"mcload failed ({run.returncode}): {run.stderr}\n{server.log()}")
        report: dict[str, Any] = json.loads(run.stdout)
        if report["errs"]:
            raise BenchError(f"{server.kind} answered {report['errs']} requests with errors")
        return report


def wait_until_idle(server: ServerProcess, limit_s: float = 120.0) -> None:
    """Wait until a server has used hardly any CPU for half a second: flushes are done, say."""
    deadline = time.monotonic() + limit_s
    quiet = 0
    while quiet < 5:
        if time.monotonic() > deadline:
            raise BenchError(f"{server.kind} is still busy after {limit_s:g} s")
        before = server.cpu_s()
        time.sleep(0.1)
        quiet = quiet + 1 if server.cpu_s() - before < 0.003 else 0


def version_of(server: ServerProcess) -> str:
    with Wire(server.memcached) as wire:
        wire.send(b"version\r\n")
        return wire.line().split()[1].decode()


def interleaved(
    rounds: int,
    contestants: Mapping[str, Callable[[int], dict[str, float]]],
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, list[dict[str, float]]]:
    """Call every contestant once per round; gives each one's figures in the order of rounds."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            progress(f"round {number + 1}/{rounds}: {name}")
            figures[name].append(contestants[name](number))
    return figures


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high}


def ratio(ours: Sequence[float], peers: Sequence[float]) -> Spread:
    """Ours divided by the peer's of the same round."""
    pairs = zip(ours, peers, strict=True)
    return Spread.of([a / b if b else float("inf") for a, b in pairs])


def column(figures: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """One figure of every round."""
    return [one[name] for one in figures]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = str(row[0]).ljust(widths[0])
        print("  ".join(cells).rstrip())


def machine() -> dict[str, Any]:
    """Where and with what the figures were taken."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    except OSError:
        memory_kib = 0
    versions = {}
    for package in ("uprmc", "Twisted", "lmdb", "construct", "sortedcontainers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": versions,
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "-C", str(HERE.parent), "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip() or "unknown"


@dataclass(slots=True)
class Report:
    """What ends up in ``bench/results/NAME-DATE.json``."""

    name: str
    options: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def save(self, path: Path | None = None) -> Path:
        """Write it; ``path`` overrides the usual place."""
        if path is None:
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{self.name}-{self.started:%Y%m%d-%H%M%S}.json"
        document = {
            "benchmark": self.name,
            "date": self.started.isoformat(timespec="seconds"),
            "options": self.options,
            "machine": machine(),
            "versions": self.versions,
            "results": self.results,
        }
        path.write_text(json.dumps(document, indent=1, default=str) + "\n")
        return path


def parser(description: str | None, *, server: bool = True) -> argparse.ArgumentParser:
    """Options that every benchmark has; ``server`` adds those of benchmarks that start one."""
    made = argparse.ArgumentParser(
        description=(description or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there instead")
    if not server:
        return made
    made.add_argument(
        "--serve",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option for 'uprmc serve', as --serve=--no-sync; may be repeated",
    )
    made.add_argument(
        "--ours",
        choices=["uprmc", "memcached"],
        default="uprmc",
        help="'memcached' puts a second memcached in our place, to check the benchmark itself",
    )
    return made


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a report notes of the command line."""
    return {name: value for name, value in vars(arguments).items() if name != "json"}


def in_child(module: str, *words: object, limit_s: float = 600.0) -> dict[str, float]:
    """Run a benchmark's own module in a fresh process; its last line of output is the figures.

    Raises:
        BenchError: it failed or took too long.
    """
    command = [sys.executable, "-m", module, *(str(word) for word in words)]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, cwd=HERE.parent, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"no end within {limit_s:g} s: {command}") from None
    if run.returncode:
        raise BenchError(f"{command} failed ({run.returncode}):\n{run.stderr}")
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def key_of(number: int) -> bytes:
    """A key of 20 bytes."""
    return b"%020d" % number


def bucket_in(
    directory: Path,
    *,
    vbuckets: int = 1_024,
    quota: int = 8 << 30,
    batch_items: int = 50_000,
    sync: bool = True,
) -> Bucket:
    """A bucket on the real store in ``directory``, not yet warmed up: a node without a network."""
    settings = Settings(
        engine=EngineSettings(vbuckets=vbuckets),
        memory=MemorySettings(quota=quota),
        flush=FlushSettings(batch_items=batch_items, sync=sync),
    )
    entropy = SystemEntropy()
    store = open_directory(directory, uuid=entropy.uuid48(), vbuckets=vbuckets, sync=sync)
    return Bucket(settings, store, SystemClock(), entropy)


def warm_up(bucket: Bucket) -> None:
    for _ in Warmup(bucket).steps():
        pass


def write_documents(bucket: Bucket, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Accept documents as a client's sets would be: into the tables and the write queues."""
    for key, value in zip(keys, values, strict=True):
        bucket.of_key(key).store(key, value, 0, 0)


def flush_all(bucket: Bucket) -> None:
    """Commit everything that is queued."""
    while flush := bucket.flusher.begin():
        bucket.flusher.commit(flush)
        bucket.flusher.finish(flush)


def close_in_order(bucket: Bucket) -> None:
    """Leave the clean mark and close, as a node does when it stops."""
    bucket.store.commit(CommitBatch(local={CLEAN_MARK: b"1"}))
    bucket.store.close()


def require_memcached() -> None:
    if memcached_program() is None:
        raise BenchError("memcached is not installed: apt-get install memcached")


def progress(text: str) -> None:
    """One changing line on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """End with one line instead of a traceback for what the user can put right."""
    try:
        yield
    except BenchError as error:
        progress("")
        sys.exit(f"benchmark: {error}")
    except KeyboardInterrupt:
        progress("")
        sys.exit(130)
