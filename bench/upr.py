"""Streams: what a consumer gets out of them, and what they cost the server.

backfill
    200,000 items of 256 bytes, all on disk and in the system's cache, to one Python consumer, once
    in one vBucket and once spread over 1,024; against ``XREAD COUNT 1000`` over the same items by
    redis-py with hiredis from a Redis that keeps them in memory.
live
    How old an item is when the consumer has it, while a writer on another connection makes 500 a
    second: a plain consumer and a handler of `uprmc.client`, against XADD and ``XREAD BLOCK``. All
    writers send plain bytes and wait for the reply.
cost
    The server's CPU for each pipelined set (50 connections x 16) with a consumer that follows all
    1,024 vBuckets, divided by the same without one. How far the consumer was behind at the end is
    given too: one that did not keep up would be cheap.
idle
    CPU of a server with 50 connections of 1,024 streams each where nothing happens, and memory for
    each stream.
barrier
    Round trip of a barrier cookie on a connection that has nothing to send.
views
    Memory that 50 views hold during a million overwrites; see `bench.upr_views`.

Without Redis, redis-py or hiredis the first two have no peer: they are left out, and it says so.

    python -m bench.upr --rounds 5 --only backfill,live
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench import common, redis_peer
from bench.common import Load, Report, Spread, column, ratio
from bench.filling import fill, items_of, statistic, wait_until_flushed
from bench.rig import (
    Bench,
    Figures,
    address_of,
    command_of,
    compare_contents,
    figures_of,
    run_child,
    started,
)
from bench.upr_consumer import BARRIER_ADD, BARRIER_REACHED, Consumer, RefusedError, request
from interop.server_process import ServerProcess
from interop.wire import SET, Wire, store, vbucket_of
from uprmc import units

PARTS = "backfill,live,cost,idle,barrier,views"

# --- backfill -----------------------------------------------------------------------------------


def _backfill(bench: Bench) -> None:
    for vbuckets in (1, 1_024):
        _backfill_of(bench, vbuckets)


def _backfill_of(bench: Bench, vbuckets: int) -> None:
    words = bench.words
    items = items_of(words.items, words.value_bytes)
    with bench.ours(vbuckets) as ours, redis_peer.start_redis() as peer:
        common.progress(f"backfill: storing {words.items} items")
        fill(ours, items, vbuckets)
        redis_peer.fill(peer, items)
        commands = {
            "redis": command_of(
                "bench.redis_peer", "backfill", peer.memcached, pid=peer.pid, items=len(items)
            ),
            "ours": command_of(
                "bench.upr_consumer", "backfill", ours.upr, pid=ours.pid, buffer=words.buffer
            ),
        }
        compare_contents(commands)
        figures = bench.rounds(
            f"backfill of {vbuckets} vBuckets",
            {name: partial(run_child, command) for name, command in commands.items()},
        )
    names = ("items_s", "server_us", "consumer_us", "both_us")
    ratios = {n: ratio(column(figures["ours"], n), column(figures["redis"], n)) for n in names}
    for side in ("ours", "redis"):
        of = {name: Spread.of(column(figures[side], name)) for name in names}
        bench.keep(
            f"backfill {vbuckets} {side}",
            figures[side],
            [
                f"backfill, {vbuckets} vBuckets: {side}",
                _backfill_text(of),
                "",
            ],
        )
    bench.keep(
        f"backfill {vbuckets} ratio",
        {name: spread.as_json() for name, spread in ratios.items()},
        ["  items/s", f"{ratios['items_s'].text()} x Redis", ">= 1.0"],
        ["  CPU of both sides", f"{ratios['both_us'].text()} x Redis", ""],
    )


def _backfill_text(of: dict[str, Spread]) -> str:
    thousands = of["items_s"].median / 1e3
    server, consumer = of["server_us"].median, of["consumer_us"].median
    return f"{thousands:.0f}k items/s; us/item: server {server:.2f}, consumer {consumer:.2f}"


# --- live ---------------------------------------------------------------------------------------


def _live(bench: Bench) -> None:
    words = bench.words
    count = int(words.rate * words.live_seconds)
    with bench.ours(words.vbuckets) as ours, redis_peer.start_redis() as peer:
        bench.report.versions["peer"] = redis_peer.version(peer)
        contestants: dict[str, Callable[[int], Figures]] = {
            "redis": lambda number: _run_live(
                command_of("bench.redis_peer", "latency", peer.memcached, items=count),
                peer,
                partial(_redis_write, number),
                words.rate,
                count,
            ),
        } | {
            name: lambda number, module=module: _run_live(
                command_of(module, "latency", ours.upr, items=count),
                ours,
                partial(_our_write, number, words.vbuckets),
                words.rate,
                count,
            )
            for name, module in (("plain", "bench.upr_consumer"), ("library", "bench.upr_library"))
        }
        figures = bench.rounds("live", contestants)
    for name in ("p50_us", "p99_us"):
        its = column(figures["redis"], name)
        for who in ("plain", "library"):
            mine = column(figures[who], name)
            bench.keep(
                f"live {name} {who}",
                {"ours": mine, "redis": its},
                [f"live latency {name[:3]}, {who}", f"{ratio(mine, its).text()} x Redis", ""],
                ["  ours, Redis", f"{Spread.of(mine).text(0)} us, {Spread.of(its).text(0)} us", ""],
            )


def _our_write(round_number: int, vbuckets: int, number: int) -> bytes:
    key = b"%d-%d" % (round_number, number)
    value = b"%020d" % time.monotonic_ns()
    return store(SET, key, value, vbucket=vbucket_of(key, vbuckets))


def _redis_write(round_number: int, number: int) -> bytes:
    key = b"%d-%d" % (round_number, number)
    return redis_peer.entry(key, b"%020d" % time.monotonic_ns())


def _run_live(
    command: list[str],
    server: ServerProcess,
    write: Callable[[int], bytes],
    rate: float,
    count: int,
) -> Figures:
    with started(command) as child, Wire(server.memcached) as wire:
        due = time.perf_counter()
        for number in range(count):
            due += 1 / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            wire.send(write(number))
            wire.socket.recv(4_096)
        return figures_of(child)


# --- cost ---------------------------------------------------------------------------------------


def _cost(bench: Bench) -> None:
    words = bench.words
    load = Load(connections=50, depth=16, sets=1.0, seconds=words.seconds, keys=words.keys)
    with bench.ours(1_024) as ours:
        Load(connections=10, depth=16, keys=words.keys).run(ours, fill=True)
        wait_until_flushed(ours)
        figures = bench.rounds(
            "cost",
            {
                "alone": lambda number: _run_sets(load, ours, number),
                "followed": lambda number: _run_followed(load, ours, number),
            },
        )
    found = ratio(column(figures["followed"], "set_us"), column(figures["alone"], "set_us"))
    each = {name: Spread.of(column(of, "set_us")).text() for name, of in figures.items()}
    behind = Spread.of(column(figures["followed"], "behind_ms"))
    share = Spread.of(column(figures["followed"], "items_per_set"))
    bench.keep(
        "cost",
        figures,
        ["a set with a stream / without", f"{found.text()} x in CPU", "<= 1.6"],
        ["  us for each set", f"{each['followed']} / {each['alone']}", ""],
        ["  items for each set, behind", f"{share.text()}, {behind.text(0)} ms", ""],
    )


def _run_sets(load: Load, server: ServerProcess, number: int) -> Figures:
    before = statistic(server, b"cmd_set")
    report = load.run(server, seed=number + 1)
    ended_at = time.monotonic()
    wait_until_flushed(server)
    sets = statistic(server, b"cmd_set") - before
    return {"set_us": report["srv_us_op"], "sets": sets, "ended_at": ended_at}


def _run_followed(load: Load, server: ServerProcess, number: int) -> Figures:
    with started(command_of("bench.upr_consumer", "follow", server.upr)) as child:
        figures = _run_sets(load, server, number)
        came = figures_of(child)
    return figures | {
        "items_per_set": came["items"] / figures["sets"],
        "behind_ms": max(0.0, came["last_at"] - figures["ended_at"]) * 1e3,
    }


# --- idle, barrier ------------------------------------------------------------------------------


def _idle(bench: Bench) -> None:
    words = bench.words
    with bench.ours(1_024) as ours, ExitStack() as stack:
        common.wait_until_idle(ours)
        empty_kib = ours.memory_kib()
        for number in range(words.connections):
            common.progress(f"idle: connection {number + 1}")
            consumer = stack.enter_context(Consumer(address_of(ours), b"idle:%d" % number))
            consumer.stream(consumer.seqnos(), 0)
            while consumer.opened < len(consumer.vbuckets):
                consumer.receive()
        common.wait_until_idle(ours)
        streams = words.connections * 1_024
        each = (ours.memory_kib() - empty_kib) * 1024 / streams
        before = ours.cpu_s()
        time.sleep(words.idle_seconds)
        busy = (ours.cpu_s() - before) / words.idle_seconds
    bench.keep(
        "idle",
        {"busy": busy, "stream_bytes": each, "streams": streams},
        [f"{streams} idle streams", f"{busy:.2%} of a core", "< 2 %"],
        ["  memory for each", f"{each:.0f} bytes", ""],
    )


def _barrier(bench: Bench) -> None:
    with bench.ours(bench.words.vbuckets) as ours, Consumer(address_of(ours), b"bench") as consumer:
        try:
            consumer.control(b"uprmc_barrier", b"true")
            consumer.stream(consumer.seqnos(), 0)
            while consumer.opened < len(consumer.vbuckets):
                consumer.receive()
            times = sorted(_round_trip(consumer, number) for number in range(1_000))
        except RefusedError as error:
            bench.keep("barrier", str(error), ["barrier", "refused by the server", "< 5 ms"])
            return
    bench.keep(
        "barrier",
        {"p50_ms": times[500], "p99_ms": times[990], "max_ms": times[-1]},
        [
            "barrier on an idle connection",
            f"p50 {times[500]:.3f} ms, p99 {times[990]:.3f}, greatest {times[-1]:.3f}",
            "< 5 ms",
        ],
    )


def _round_trip(consumer: Consumer, number: int) -> float:
    """Milliseconds from sending a cookie until it is back."""
    began = time.perf_counter()
    consumer.socket.sendall(request(BARRIER_ADD, b"cookie-%d" % number, opaque=number))
    consumer.await_frame(BARRIER_REACHED)
    return (time.perf_counter() - began) * 1e3


def _views(bench: Bench) -> None:
    common.progress("views")
    found = common.in_child("bench.upr_views", "--overwrites", bench.words.overwrites)
    held = f"{found['held_entries']:.0f} of {found['bound_entries']:.0f} entries"
    left = f"{found['left_entries']:.0f} entries, {found['left_mib']:.1f} MiB"
    bench.keep(
        "views",
        found,
        ["50 views during overwrites", f"{held}, {found['held_mib']:.1f} MiB", "bounded"],
        ["  after closing them", f"{left}, in {found['closing_ms']:.0f} ms", "0"],
    )


_PARTS: dict[str, Callable[[Bench], None]] = {
    "backfill": _backfill,
    "live": _live,
    "cost": _cost,
    "idle": _idle,
    "barrier": _barrier,
    "views": _views,
}
_NEED_REDIS = ("backfill", "live")


def run(words: Any) -> tuple[Report, list[list[str]]]:
    """Measure what was asked for."""
    report = Report("upr", common.options_of(words))
    bench = Bench(words, report)
    missing = redis_peer.missing()
    for part in words.only.split(","):
        if part in _NEED_REDIS and missing:
            bench.keep(part, missing, [part, f"left out: {missing}", ""])
        else:
            _PARTS[part](bench)
    common.progress("")
    return report, bench.rows


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--only", default=PARTS, help="parts, comma separated")
    options.add_argument("--items", type=int, default=200_000, help="of the backfill")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--buffer", type=units.size, default=10 << 20, help="flow control, bytes")
    options.add_argument("--vbuckets", type=int, default=1_024, help="of live and barrier")
    options.add_argument("--rate", type=float, default=500.0, help="live: writes a second")
    options.add_argument("--live-seconds", type=units.seconds, default=4.0)
    options.add_argument("--seconds", type=units.seconds, default=3.0, help="cost: of one run")
    options.add_argument("--keys", type=int, default=100_000, help="cost: that are set")
    options.add_argument("--connections", type=int, default=50, help="idle")
    options.add_argument("--idle-seconds", type=units.seconds, default=10.0)
    options.add_argument("--overwrites", type=int, default=1_000_000, help="views")
    words = options.parse_args()
    if unknown := set(words.only.split(",")) - set(_PARTS):
        options.error(f"unknown parts: {', '.join(sorted(unknown))}")
    with common.reported_errors():
        if "cost" in words.only:
            common.mcload()
        report, rows = run(words)
        common.print_table(["", "median (least-greatest)", "bar"], rows)
        print(f"\nratios are of the same round, {words.rounds} rounds")
        print(f"versions: {', '.join(f'{k} = {v}' for k, v in report.versions.items())}")
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
