"""Replicas and the client library: what following costs, and how far behind it is.

catch-up
    1,000,000 items of 256 bytes, on disk and in the system's cache, to an empty replica over one
    link, until its last seqno has come; against the consumer of `bench.upr_consumer` (which decodes
    and forgets) on the same active. Beside it the 99th percentile of small requests to the active,
    while nobody catches up and while the replica does.
lag
    How long after its acknowledgement a set has reached the replica, at 5,000 sets a second.
takeover
    64 vBuckets change hands under 2,000 writes a second: for how long each takes no writes, and
    whether a write that was acknowledged is missing afterwards.
client
    CPU for each item of a program that streams 200,000 items through `uprmc.client.UprClient` with
    a state file, divided by that of the bare decoder in `bench.upr_consumer`. The program's handler
    takes batches and reads keys and values; or it takes changes one by one.
live
    CPU for each change of the same program while it follows 1,024 vBuckets into each of which one
    set goes every 100 ms: every change is a snapshot of its own. Beside it the bare decoder.

    python -m bench.replica --rounds 3 --only catch-up,lag
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from bench.filling import fill, items_of, wait_until_flushed
from bench.rig import Bench, Figures, figures_of, started
from interop.server_process import ServerProcess
from interop.wire import SET, SETQ, Wire, frame, store
from uprmc import units

PARTS = "catch-up,lag,takeover,client,live"
REPLICATE, TAKEOVER, OBSERVE_SEQNO, FAILOVER_LOG, HELLO = 0xD7, 0xD8, 0x91, 0x96, 0x1F
NOT_MY_VBUCKET = 0x07
_LIMIT_S = 300.0

#: A round of the part "live" is one set for each of the vBuckets; rounds come this often.
_LIVE_VBUCKETS = 1_024
_LIVE_PERIOD_S = 0.1


class _Bench(Bench):
    """See there; nodes of many vBuckets with memory for everything."""

    @contextmanager
    def node(self, *more: str) -> Iterator[ServerProcess]:
        """A server on an empty directory."""
        with self.ours(1_024, "--memory", "4G", *more) as server:
            yield server


# --- asking nodes -------------------------------------------------------------------------------


def _replicate(replica: ServerProcess, source: ServerProcess) -> None:
    with _wire(replica) as wire:
        asked = frame(REPLICATE, key=str(source.upr).encode(), extras=bytes(4))
        reply = wire.ask(asked)
        if reply.status:
            raise common.BenchError(f"REPLICATE was refused: {reply}")


def _wire(server: ServerProcess) -> Wire:
    assert server.upr is not None
    return Wire(server.upr, timeout_s=60.0)


def _seqnos(server: ServerProcess) -> dict[int, int]:
    """High seqnos of all vBuckets in whatever state."""
    with _wire(server) as wire:
        return dict(struct.iter_unpack(">HQ", wire.ask(frame(0x48)).value))


def _wait_until_equal(active: ServerProcess, replica: ServerProcess) -> None:
    wanted = _seqnos(active)
    deadline = time.monotonic() + _LIMIT_S
    while _seqnos(replica) != wanted:
        if time.monotonic() > deadline:
            raise common.BenchError("the replica does not catch up")
        time.sleep(0.05)


# --- catch-up -----------------------------------------------------------------------------------


def _catch_up(bench: _Bench) -> None:
    words = bench.words
    with bench.node() as active:
        common.progress(f"catch-up: storing {words.items} items")
        fill(active, items_of(words.items, words.value_bytes), 1_024)
        figures = bench.rounds(
            "catch-up",
            {
                "consumer": lambda number: _run_consumer(active),
                "replica": lambda number: _run_replica(bench, active, words.items),
                "requests alone": lambda number: _run_requests(words, active),
                "requests beside": lambda number: _run_beside(bench, active),
            },
        )
    rates = {name: column(figures[name], "items_s") for name in ("consumer", "replica")}
    alone = column(figures["requests alone"], "p99_us")
    beside = column(figures["requests beside"], "p99_us")
    of_rate = ratio(rates["replica"], rates["consumer"])
    each = [f"{Spread.of(rates[name]).median / 1e3:.0f}k" for name in ("replica", "consumer")]
    cpu = [Spread.of(column(figures["replica"], n)).text() for n in ("replica_us", "active_us")]
    bench.keep(
        "catch-up",
        figures,
        ["catch-up v the consumer's rate", f"{of_rate.text()} x", ">= 0.6"],
        ["  items/s: replica, consumer", ", ".join(each), ""],
        ["  CPU us an item: replica, active", ", ".join(cpu), ""],
        ["requests' p99 during catch-up", f"{ratio(beside, alone).text()} x", "<= 2.0"],
        ["  us: beside, alone", f"{Spread.of(beside).text(0)}, {Spread.of(alone).text(0)}", ""],
    )


def _run_consumer(active: ServerProcess) -> Figures:
    command = [sys.executable, "-m", "bench.upr_consumer", "backfill", str(active.upr)]
    command.append(f"--pid={active.pid}")
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=common.HERE.parent, timeout=300
    )
    found: Figures = json.loads(run.stdout.splitlines()[-1])
    return found


def _run_replica(bench: _Bench, active: ServerProcess, items: int) -> Figures:
    """Until everything has come; that it is on disk, too, is told apart."""
    with bench.node() as replica:
        cpu = {server: server.cpu_s() for server in (active, replica)}
        began = time.perf_counter()
        _replicate(replica, active)
        _wait_until_equal(active, replica)
        wall = time.perf_counter() - began
        used = {server: server.cpu_s() - cpu[server] for server in (active, replica)}
        wait_until_flushed(replica)
        flushed = time.perf_counter() - began
        return {
            "items_s": items / wall,
            "items_s_on_disk": items / flushed,
            "active_us": used[active] * 1e6 / items,
            "replica_us": used[replica] * 1e6 / items,
        }


def _requests(words: Any, seconds: float) -> Load:
    return Load(connections=4, seconds=seconds, keys=words.items, value_bytes=words.value_bytes)


def _run_requests(words: Any, active: ServerProcess) -> Figures:
    return _requests(words, words.seconds).run(active)


def _run_beside(bench: _Bench, active: ServerProcess) -> Figures:
    with bench.node() as replica:
        _replicate(replica, active)
        return _requests(bench.words, bench.words.seconds).run(active)


# --- lag ----------------------------------------------------------------------------------------


def _lag(bench: _Bench) -> None:
    with bench.node() as active, bench.node() as replica:
        _replicate(replica, active)
        figures = bench.rounds("lag", {"ours": lambda number: _run_lag(bench, active, replica)})
    found = figures["ours"]
    bench.keep(
        "lag",
        found,
        [
            f"lag at {bench.words.rate} sets/s, p99",
            f"{Spread.of(column(found, 'p99_ms')).text()} ms",
            "< 50 ms",
        ],
        ["  p50", f"{Spread.of(column(found, 'p50_ms')).text()} ms", ""],
        ["  sets/s made", f"{Spread.of(column(found, 'sets_s')).text(0)}", ""],
    )


def _run_lag(bench: _Bench, active: ServerProcess, replica: ServerProcess) -> Figures:
    """Write to one vBucket ten at a time; ask the replica every millisecond how far it is."""
    words = bench.words
    uuid = _newest_uuid(active)
    acknowledged: list[tuple[int, float]] = []
    seen: list[tuple[int, float]] = []
    done = threading.Event()

    def watch() -> None:
        with _wire(replica) as wire:
            while not done.is_set() or seen[-1][0] < acknowledged[-1][0]:
                reply = wire.ask(frame(OBSERVE_SEQNO, value=struct.pack(">Q", uuid)))
                high = struct.unpack_from(">Q", reply.value, 19)[0] if not reply.status else 0
                seen.append((high, time.monotonic()))
                time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    with _wire(active) as wire:
        wire.ask(frame(HELLO, value=struct.pack(">H", 4)))
        watcher.start()
        began = due = time.monotonic()
        count = int(words.rate * words.seconds)
        for number in range(0, count, 10):
            due += 10 / words.rate
            time.sleep(max(0.0, due - time.monotonic()))
            wire.send(
                b"".join(store(SET, b"%d" % (number + n), bytes(100), vbucket=0) for n in range(10))
            )
            replies = [wire.reply() for _ in range(10)]
            high = struct.unpack_from(">Q", replies[-1].extras, 8)[0]
            acknowledged.append((high, time.monotonic()))
        wall = time.monotonic() - began
        done.set()
        watcher.join()
    lags = sorted(_lags(acknowledged, seen))
    return {
        "p50_ms": lags[len(lags) // 2] * 1e3,
        "p99_ms": lags[len(lags) * 99 // 100] * 1e3,
        "max_ms": lags[-1] * 1e3,
        "sets_s": count / wall,
    }


def _lags(acknowledged: list[tuple[int, float]], seen: list[tuple[int, float]]) -> Iterator[float]:
    place = 0
    for seqno, at in acknowledged:
        while seen[place][0] < seqno:
            place += 1
        yield max(0.0, seen[place][1] - at)


def _newest_uuid(server: ServerProcess) -> int:
    with _wire(server) as wire:
        uuid: int = struct.unpack_from(">Q", wire.ask(frame(FAILOVER_LOG)).value)[0]
        return uuid


# --- takeover -----------------------------------------------------------------------------------


def _takeover(bench: _Bench) -> None:
    figures = bench.rounds("takeover", {"ours": lambda number: _run_takeover(bench)})["ours"]
    longest = Spread.of(column(figures, "longest_ms"))
    bench.keep(
        "takeover",
        figures,
        ["takeover of 64 vBuckets: longest without writes", f"{longest.text(0)} ms", "< 250 ms"],
        ["  median of the vBuckets", f"{Spread.of(column(figures, 'median_ms')).text(0)} ms", ""],
        ["  acknowledged writes lost", f"{sum(column(figures, 'lost')):.0f}", "0"],
        ["  writes/s meanwhile", f"{Spread.of(column(figures, 'writes_s')).text(0)}", ""],
    )


class _Writer:
    """Writes to 64 vBuckets in turn; follows each to the node that takes its writes.

    Attributes:
        last: key -> value acknowledged last.
        gaps: vBucket -> longest time between the last write here and the first one there, seconds.
    """

    def __init__(self, nodes: list[ServerProcess], vbuckets: int, rate: float) -> None:
        self.last: dict[tuple[int, bytes], bytes] = {}
        self.gaps: dict[int, float] = {}
        self.writes = 0
        self._wires = [_wire(node) for node in nodes]
        self._at = dict.fromkeys(range(vbuckets), 0)
        self._ok_at: dict[int, float] = {}
        self._refused: dict[int, float] = {}
        self._rate = rate
        self.stopping = threading.Event()

    def run(self) -> None:
        """Write until `stopping` is set and every vBucket is served again."""
        due = time.monotonic()
        number = 0
        while not self.stopping.is_set() or self._refused:
            due += 1 / self._rate
            time.sleep(max(0.0, due - time.monotonic()))
            for vbucket in [number % len(self._at), *list(self._refused)]:
                self._write(vbucket, number)
            number += 1
        for wire in self._wires:
            wire.close()

    def _write(self, vbucket: int, number: int) -> None:
        key, value = b"key-%d" % (number % 977), b"%d" % number
        place = self._at[vbucket]
        reply = self._wires[place].ask(store(SET, key, value, vbucket=vbucket))
        now = time.monotonic()
        if reply.status == NOT_MY_VBUCKET:
            self._refused.setdefault(vbucket, self._ok_at.get(vbucket, now))
            self._at[vbucket] = 1 - place
            return
        if reply.status:
            raise common.BenchError(f"a write was refused: {reply}")
        self.writes += 1
        self._ok_at[vbucket] = now
        self.last[vbucket, key] = value
        began = self._refused.pop(vbucket, None)
        if began is not None:
            self.gaps[vbucket] = now - began


def _run_takeover(bench: _Bench) -> Figures:
    with bench.node() as source, bench.node() as target:
        _replicate(target, source)
        writer = _Writer([source, target], 64, 2_000.0)
        thread = threading.Thread(target=writer.run)
        began = time.monotonic()
        thread.start()
        time.sleep(1.5)
        with _wire(target) as wire:
            numbers = struct.pack(">64H", *range(64))
            reply = wire.ask(frame(TAKEOVER, key=str(source.upr).encode(), value=numbers))
        time.sleep(0.5)
        writer.stopping.set()
        thread.join()
        wall = time.monotonic() - began
        outcomes = set(struct.unpack(">128H", reply.value)[1::2]) if not reply.status else {-1}
        if outcomes != {0} or len(writer.gaps) != 64:
            raise common.BenchError(f"the takeover failed: {reply}, {len(writer.gaps)} moved")
        gaps = sorted(writer.gaps.values())
        return {
            "longest_ms": gaps[-1] * 1e3,
            "median_ms": gaps[32] * 1e3,
            "lost": float(_lost(target, writer.last)),
            "writes_s": writer.writes / wall,
        }


def _lost(target: ServerProcess, last: dict[tuple[int, bytes], bytes]) -> int:
    with _wire(target) as wire:
        return sum(
            wire.ask(frame(0x00, key=key, vbucket=vbucket)).value != value
            for (vbucket, key), value in last.items()
        )


# --- client -------------------------------------------------------------------------------------


def _client(bench: _Bench) -> None:
    words = bench.words
    count = min(words.items, 200_000)
    with bench.node() as active:
        fill(active, items_of(count, words.value_bytes), 1_024)
        figures = bench.rounds(
            "client",
            {
                "decoder": lambda number: _run_consumer(active),
                "batches": lambda number: common.in_child(
                    "bench.replica", "--stream-from", active.upr
                ),
                "changes": lambda number: common.in_child(
                    "bench.replica", "--stream-from", active.upr, "--each"
                ),
            },
        )
    decoder = column(figures["decoder"], "consumer_us")
    batches, each = (column(figures[name], "cpu_us") for name in ("batches", "changes"))
    costs = [Spread.of(found).text() for found in (batches, each, decoder)]
    bench.keep(
        "client",
        figures,
        ["client library / bare decoder", f"{ratio(batches, decoder).text()} x in CPU", "<= 1.6"],
        ["  change by change", f"{ratio(each, decoder).text()} x in CPU", ""],
        ["  us an item: batches, changes, decoder", ", ".join(costs), ""],
    )


def _stream_from(place: str, *, each: bool) -> None:
    """In a process of its own: everything that there is, through the library with a state file."""
    handler = _counting_handler(each=each)
    with _following(place, handler) as client:
        began, wall = time.process_time(), time.perf_counter()
        client.run(until="now")
        cpu, wall = time.process_time() - began, time.perf_counter() - wall
    print(json.dumps({"cpu_us": cpu * 1e6 / handler.count, "items_s": handler.count / wall}))


@contextmanager
def _following(place: str, handler: Any) -> Iterator[Any]:
    """A client of the library with a state file."""
    from uprmc.client import SqliteState, UprClient

    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
        state = SqliteState(Path(directory) / "state.db", name="bench", vbuckets=1_024)
        with UprClient([place], handler, state=state, name="bench") as client:
            yield client
        state.close()


def _counting_handler(*, each: bool) -> Any:
    from uprmc.client import Handler

    class Counting(Handler):
        count = 0

        def mutation(self, change: object) -> None:
            self.count += 1

    class CountingBatches(Counting):
        def changes(self, batch: Any) -> None:
            self.count += len(list(zip(batch.keys, batch.values, strict=True)))

    return Counting() if each else CountingBatches()


# --- live ---------------------------------------------------------------------------------------


def _live(bench: _Bench) -> None:
    library = [sys.executable, "-m", "bench.replica", "--follow-live"]
    with bench.node() as active:
        _set_in_each(active, 0)
        figures = bench.rounds(
            "live",
            {
                "decoder": lambda number: _run_live(
                    bench, active, [sys.executable, "-m", "bench.upr_consumer", "live"]
                ),
                "batches": lambda number: _run_live(bench, active, library),
                "changes": lambda number: _run_live(bench, active, library, "--each"),
            },
        )
    costs = {name: column(figures[name], "cpu_us") for name in figures}
    texts = [Spread.of(costs[name]).text() for name in ("batches", "changes", "decoder")]
    bench.keep(
        "live",
        figures,
        ["client library, live: CPU us a change", texts[0], "<= 4"],
        ["  change by change", texts[1], ""],
        ["  bare decoder", texts[2], ""],
        ["  library / decoder", f"{ratio(costs['batches'], costs['decoder']).text()} x", ""],
    )


def _run_live(bench: _Bench, active: ServerProcess, follower: list[str], *more: str) -> Figures:
    """Write round after round, at the same pace for whoever follows."""
    rounds = max(1, int(bench.words.seconds / _LIVE_PERIOD_S))
    changes = rounds * _LIVE_VBUCKETS
    with started([*follower, str(active.upr), f"--items={changes}", *more]) as child:
        due = time.monotonic()
        for number in range(rounds):
            due += _LIVE_PERIOD_S
            time.sleep(max(0.0, due - time.monotonic()))
            _set_in_each(active, number + 1)
        return figures_of(child)


def _set_in_each(active: ServerProcess, number: int) -> None:
    with _wire(active) as wire:
        frames = [
            store(SETQ, b"key-%05d-%d" % (vbucket, number), bytes(100), vbucket=vbucket)
            for vbucket in range(_LIVE_VBUCKETS)
        ]
        if found := wire.replies_until_noop(*frames):
            raise common.BenchError(f"a set was refused: {found[0]}")


def _follow(place: str, items: int, *, each: bool) -> None:
    """In a process of its own: say when all that there is has come; measure what comes then."""
    handler = _counting_handler(each=each)
    with _following(place, handler) as client:
        client.start()
        client.barrier(timeout_s=_LIMIT_S)
        print("ready", flush=True)
        began, wanted = time.process_time(), handler.count + items
        while handler.count < wanted:
            time.sleep(0.05)
        cpu = time.process_time() - began
    print(json.dumps({"cpu_us": cpu * 1e6 / items, "items": items}))


# --- the program --------------------------------------------------------------------------------

_RUN: dict[str, Callable[[_Bench], None]] = {
    "catch-up": _catch_up,
    "lag": _lag,
    "takeover": _takeover,
    "client": _client,
    "live": _live,
}


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", default=PARTS, help="parts, comma separated")
    options.add_argument("--items", type=int, default=1_000_000, help="of the catch-up")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--rate", type=int, default=5_000, help="lag: sets a second")
    options.add_argument("--seconds", type=units.seconds, default=5.0, help="of lag and requests")
    options.add_argument("--stream-from", metavar="HOST:PORT", help="(for the part 'client')")
    options.add_argument("--follow-live", metavar="HOST:PORT", help="(for the part 'live')")
    options.add_argument("--each", action="store_true", help="(for both: change by change)")
    words = options.parse_args()
    if words.follow_live:
        _follow(words.follow_live, words.items, each=words.each)
        return
    if words.stream_from:
        _stream_from(words.stream_from, each=words.each)
        return
    if unknown := set(words.only.split(",")) - set(_RUN):
        options.error(f"unknown parts: {', '.join(sorted(unknown))}")
    with common.reported_errors():
        common.mcload()
        report = Report("replica", common.options_of(words))
        bench = _Bench(words, report)
        for part in words.only.split(","):
            _RUN[part](bench)
        common.progress("")
        common.print_table(["", "median (least-greatest)", "bar"], bench.rows)
        print(f"\nratios are of the same round, {words.rounds} rounds")
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
