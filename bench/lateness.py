"""How late the reactor is while documents go to disk.

The question is how long an event has to wait in a node that flushes as fast as it can. A timer is
due every millisecond in the reactor's thread and notes how late it runs. Every due time counts,
also those that passed while the reactor was busy: one stall of 20 ms is twenty samples from 20 ms
down to 1 ms, as twenty events spread over it would have felt it. ("Fired" in the figures are the
calls alone, which is what a timer that arms itself again sees and looks better.)

Each contestant is a process of its own:

``idle``
    a node without clients: what timer, reactor and machine do by themselves.
``load``
    a node under sets only, as fast as the generator can, that never flushes: what serving itself
    costs.
``load, default flush``
    the same with the default settings: a commit when 50,000 are queued or after a second.
``load, flat out``
    the same, and a commit starts as soon as the one before has ended. **This is the figure.**
``flush alone``
    no clients: batches of documents that were accepted beforehand go to disk one after another;
    sampled is only the time of the commits.
``events``
    what happens now and then to a node of 1,000,000 documents; see `lateness_events`.
``sqlite alone``
    the peer: the same batches, ``executemany`` into SQLite (WAL, ``synchronous=FULL``) in a thread
    of the same reactor, with the same switch interval.

``begin`` and ``finish`` are the two steps of a flush that run in the reactor's thread, each as one
stall. ``busy`` is the share of the time in which a commit was under way. The node runs in the
benchmark's own process on the node's own reactor; the generator is ``mcload`` in another process.

    python -m bench.lateness --rounds 5 --seconds 5 --connections 50 --depth 1
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.common import BenchError, Report, Spread, column, ratio
from uprmc import units
from uprmc.places import parsed

_PERIOD_S = 0.001
_WARM_UP_S = 1.0
_SWITCH_INTERVAL_S = 0.0005  # the node's, for the runs without one
_NEVER_S = 60.0  # the longest delay that the settings allow

NODES = ("idle", "load", "load, default flush", "load, flat out")
BATCHES = ("flush alone", "sqlite alone")
FIGURE = "load, flat out"
RARE = "events"

#: How the node of each contestant flushes; what is not named has its default.
_FLUSH: dict[str, dict[str, Any]] = {
    "load": {"batch_items": 1_000_000, "min_delay_s": _NEVER_S, "max_delay_s": _NEVER_S},
    "load, flat out": {"min_delay_s": 0.0, "max_delay_s": 0.0},
}


class Timer:
    """A call that is due every millisecond, and how late it was for every time it was due."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._due = 0.0
        self._call: Any = None
        self.samples: list[float] = []
        self.fired: list[float] = []

    def start(self) -> None:
        self._due = time.perf_counter() + _PERIOD_S
        self._call = self._reactor.callLater(_PERIOD_S, self._fire)

    def pause(self) -> None:
        """Count what is overdue and stop."""
        self._note(time.perf_counter())
        self._call.cancel()

    def _fire(self) -> None:
        self._note(time.perf_counter())
        self._call = self._reactor.callLater(max(0.0, self._due - time.perf_counter()), self._fire)

    def _note(self, now: float) -> None:
        if now >= self._due:
            self.fired.append(now - self._due)
        while now >= self._due:
            self.samples.append(now - self._due)
            self._due += _PERIOD_S

    def figures(self) -> dict[str, float]:
        """Quantiles in milliseconds."""
        if not self.samples:
            raise BenchError("the timer never ran: give it more seconds")
        samples, fired = sorted(self.samples), sorted(self.fired)
        found = {f"p{share}_ms": _quantile(samples, share / 100) for share in (50, 95, 99)}
        return found | {
            "max_ms": samples[-1] * 1e3,
            "fired_p50_ms": _quantile(fired, 0.5),
            "fired_p99_ms": _quantile(fired, 0.99),
            "samples": len(samples),
        }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] * 1e3


# --- in a process of its own ----------------------------------------------------------------------


class _Role:
    """What runs in the reactor: `play` is a Deferred's work and gives the figures."""

    def __init__(self, reactor: Any, directory: Path, arguments: Any) -> None:
        self.reactor = reactor
        self.directory = directory
        self.arguments = arguments
        self.timer = Timer(reactor)
        self.busy_s = 0.0

    def play(self) -> Generator[Any, Any, dict[str, float]]:
        raise NotImplementedError  # abstract: each kind of run defines it

    def pause(self, seconds: float) -> Any:
        from twisted.internet.task import deferLater

        return deferLater(self.reactor, seconds)

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, its wall time added to `busy_s`; it runs in a worker thread."""

        def do(*words: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*words)
            finally:
                self.busy_s += time.perf_counter() - began

        return do


class _Node(_Role):
    """A node with a real store, and a generator that does nothing but sets."""

    def play(self) -> Generator[Any, Any, dict[str, float]]:
        from twisted.internet.threads import deferToThread

        from uprmc.config import build
        from uprmc.server.node import Node

        role = self.arguments.role
        flush = {f"flush.{name}": value for name, value in _FLUSH.get(role, {}).items()}
        listeners = {f"server.{name}": "127.0.0.1:0" for name in ("memcached", "upr")}
        quiet = {
            "server.http": "off",
            "server.views": "off",
            "log.level": "warn",
            "memory.quota": 4 << 30,
        }
        node = Node(
            self.reactor,
            build(listeners | quiet | flush | {"storage.data": str(self.directory)}),
        )
        yield node.start()
        flusher, stats = node.bucket.flusher, node.bucket.stats
        flusher.commit = self.timed(flusher.commit)  # type: ignore[method-assign]
        stalls = {name: _stalls(flusher, name) for name in ("begin", "finish")}
        if self.arguments.switch_interval:
            sys.setswitchinterval(self.arguments.switch_interval)
        generator = None
        if role != "idle":
            generator = deferToThread(self._generate, node.addresses()["memcached"])
        yield self.pause(_WARM_UP_S)
        self.busy_s, flushed, commits = 0.0, stats.items_flushed, stats.commits
        for stall in stalls.values():
            stall.clear()
        cpu_s, began = time.process_time(), time.perf_counter()
        self.timer.start()
        yield self.pause(self.arguments.seconds)
        self.timer.pause()
        elapsed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        figures = {
            "busy": min(1.0, self.busy_s / elapsed_s),
            "flushed_s": (stats.items_flushed - flushed) / elapsed_s,
            "commits_s": (stats.commits - commits) / elapsed_s,
            "cpu_s_s": cpu_s / elapsed_s,
            **{f"{name}_max_ms": max(found, default=0.0) for name, found in stalls.items()},
        }
        if generator is not None:
            figures |= yield generator
        yield node.stop()
        return figures | self.timer.figures()

    def _generate(self, address: str) -> dict[str, float]:
        options = self.arguments
        place = parsed(address)
        words = {
            "-H": place.host,
            "-p": place.port,
            "-c": options.connections,
            "-P": options.depth,
            "-t": options.seconds + 0.5,
            "-w": _WARM_UP_S,
            "-k": options.items,
            "-d": options.value_bytes,
            "-s": 1,
            "-V": 1_024,
        }
        command = [str(common.mcload()), *(str(word) for pair in words.items() for word in pair)]
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=options.seconds + 60, check=False
        )
        if run.returncode:
            raise BenchError(f"mcload failed ({run.returncode}): {run.stderr}")
        report = json.loads(run.stdout)
        if report["errs"]:
            raise BenchError(f"{report['errs']} sets were refused")
        return {name: float(report[name]) for name in ("ops_s", "p50_us", "p99_us")}


class _Events(_Role):
    """What happens now and then to a node of `--event-items` documents."""

    def play(self) -> Generator[Any, Any, dict[str, float]]:
        from bench.lateness_events import Events

        items = self.arguments.event_items
        return Events(self.reactor, self.directory, items, lambda: Timer(self.reactor)).play()


def _stalls(flusher: Any, name: str) -> list[float]:
    """Have one step of the flusher, which runs in the reactor's thread, note its milliseconds."""
    step, spent = getattr(flusher, name), []

    def do(*words: Any) -> Any:
        began = time.perf_counter()
        result = step(*words)
        spent.append((time.perf_counter() - began) * 1e3)
        return result

    setattr(flusher, name, do)
    return spent


class _Batches(_Role):
    """Batches made beforehand that go to disk in a worker thread, ours or SQLite's."""

    def play(self) -> Generator[Any, Any, dict[str, float]]:
        from twisted.internet.threads import deferToThread

        from uprmc.server import system

        options = self.arguments
        numbers = list(range(options.items))
        chance = random.Random(options.seed)
        new_value = chance.randbytes
        system.take_collector_over()
        accept, steps, close = self._target()
        wall_s = 0.0
        filled = False
        while wall_s < options.seconds:
            chosen = chance.sample(numbers, options.batch) if filled else numbers
            keys = [common.key_of(number) for number in chosen]
            for start in range(0, len(keys), options.batch):
                part = keys[start : start + options.batch]
                accept(part, [new_value(options.value_bytes) for _ in part])
                system.collect_young()
                yield self.pause(0.01)
                if filled:
                    self.timer.start()
                began = time.perf_counter()
                yield from steps(lambda work, *words: deferToThread(self.timed(work), *words))
                if filled:
                    self.timer.pause()
                    wall_s += time.perf_counter() - began
            if not filled:
                filled, self.busy_s = True, 0.0
        close()
        return {"busy": min(1.0, self.busy_s / wall_s)} | self.timer.figures()

    def _target(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[[], None]]:
        batch = self.arguments.batch
        if self.arguments.role == "flush alone":
            bucket = common.bucket_in(self.directory, batch_items=batch)
            common.warm_up(bucket)
            flusher = bucket.flusher

            def flush(worker: Callable[..., Any]) -> Generator[Any, Any, None]:
                while begun := flusher.begin():
                    yield worker(flusher.commit, begun)
                    flusher.finish(begun)

            accept = partial(common.write_documents, bucket)
            return accept, flush, partial(common.close_in_order, bucket)

        from bench.flush import Sqlite

        peer = Sqlite(self.directory / "peer", 1_024, "upsert", any_thread=True)

        def execute(worker: Callable[..., Any]) -> Generator[Any, Any, None]:
            yield worker(peer.flush)

        return peer.accept, execute, peer.close


def _play(arguments: Any) -> dict[str, float]:
    """Be one contestant: a reactor can run only once in a process."""
    from uprmc.server.net.transport import install

    reactor = install()
    from twisted.internet.defer import inlineCallbacks

    from uprmc.config import LogSettings
    from uprmc.server.log import start_logging

    start_logging(LogSettings(level="warn"))
    sys.setswitchinterval(arguments.switch_interval or _SWITCH_INTERVAL_S)
    outcome: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as name:
        kind: type[_Role] = _Node if arguments.role in NODES else _Batches
        if arguments.role == RARE:
            kind = _Events
        role = kind(reactor, Path(name), arguments)

        def start() -> None:
            playing = inlineCallbacks(role.play)()
            playing.addBoth(outcome.append)
            playing.addBoth(lambda _: reactor.stop())

        reactor.callWhenRunning(start)
        reactor.run()
    if not outcome or not isinstance(outcome[0], dict):
        sys.exit(outcome[0].getTraceback() if outcome else "the reactor was stopped")
    return outcome[0]


# --- all of it ------------------------------------------------------------------------------------


def _contestant(arguments: Any, role: str, number: int) -> dict[str, float]:
    words: list[object] = ["--role", role, "--seed", number + 1]
    for name in (
        "seconds",
        "items",
        "batch",
        "value_bytes",
        "connections",
        "depth",
        "switch_interval",
        "event_items",
    ):
        words += [f"--{name.replace('_', '-')}", getattr(arguments, name)]
    return common.in_child("bench.lateness", *words)


def _row(role: str, figures: Sequence[dict[str, float]]) -> list[str]:
    def figure(name: str, digits: int, scale: float = 1.0) -> str:
        if name not in figures[0]:
            return "-"
        return Spread.of([value * scale for value in column(figures, name)]).text(digits)

    return [
        role,
        *(figure(name, 2) for name in ("p50_ms", "p95_ms", "p99_ms")),
        figure("max_ms", 1),
        figure("fired_p99_ms", 2),
        figure("busy", 2),
        figure("flushed_s", 0, 1e-3),
        figure("ops_s", 0, 1e-3),
        figure("p99_us", 1, 1e-3),
        figure("begin_max_ms", 1),
        figure("finish_max_ms", 1),
    ]


def _print_events(figures: Sequence[dict[str, float]]) -> None:
    from bench.lateness_events import EVENTS

    def figure(event: str, name: str, digits: int) -> str:
        return Spread.of(column(figures, f"{event}: {name}")).text(digits)

    print()
    common.print_table(
        ["event", "longest turn, CPU ms", "p99 ms", "max ms", "took s"],
        [
            [event, *(figure(event, name, 1) for name in ("turn_ms", "p99_ms", "max_ms", "s"))]
            for event in EVENTS
        ],
    )


def main() -> None:
    options = common.parser(__doc__, server=False)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=units.seconds, default=5.0, help="sampled, per run")
    options.add_argument("--items", type=int, default=100_000, help="keys that are written")
    options.add_argument("--batch", type=int, default=50_000, help="of the runs without clients")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--connections", type=int, default=50)
    options.add_argument("--depth", type=int, default=1, help="sets in flight on each")
    options.add_argument(
        "--switch-interval",
        type=float,
        default=0.0,
        help="seconds, to try others; 0 = a node's own",
    )
    options.add_argument(
        "--roles", default=";".join((*NODES, *BATCHES, RARE)), help="which, with ; between them"
    )
    options.add_argument("--event-items", type=int, default=1_000_000, help="of the node of events")
    options.add_argument("--role", choices=(*NODES, *BATCHES, RARE), help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    arguments.batch = min(arguments.batch, arguments.items)
    if arguments.role:
        print(json.dumps(_play(arguments)))
        return
    with common.reported_errors():
        common.mcload()
        roles = arguments.roles.split(";")
        unknown = set(roles) - {*NODES, *BATCHES, RARE}
        if unknown:
            raise BenchError(f"no such role: {', '.join(unknown)}")
        figures = common.interleaved(
            arguments.rounds,
            {role: partial(_contestant, arguments, role) for role in roles},
            common.progress,
        )
        common.progress("")
        common.print_table(
            [
                "lateness",
                "p50 ms",
                "p95 ms",
                "p99 ms",
                "max ms",
                "fired p99",
                "busy",
                "1000 flushed/s",
                "1000 sets/s",
                "set p99 ms",
                "begin max ms",
                "finish max ms",
            ],
            [_row(role, figures[role]) for role in roles if role != RARE],
        )
        if RARE in figures:
            _print_events(figures[RARE])
        report = Report("lateness", common.options_of(arguments))
        for role in roles:
            report.results.append({"contestant": role, "rounds": figures[role]})
        print(f"\nmedian (least-greatest) of {arguments.rounds}; {os.cpu_count()} processors")
        for role, peer in ((FIGURE, "load"), BATCHES):
            if role in figures and peer in figures:
                found = ratio(column(figures[role], "p99_ms"), column(figures[peer], "p99_ms"))
                report.results.append({"ratio": f"{role} / {peer}", "p99_ms": found.as_json()})
                print(f"p99 of '{role}' / p99 of '{peer}': {found.text()}")
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
