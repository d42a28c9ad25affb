"""TAP: what a dump costs beside a UPR backfill of the same node, and what idle clients hold.

dump
    200,000 items of 256 bytes, all on disk and in the system's cache, to one Python consumer: by a
    TAP dump without acknowledgements and with them, and by UPR to the ends of all streams. The
    contents are compared before anything is measured.
memory
    What 50 TAP clients add to the node's anonymous memory while documents are written: those that
    never read, those that acknowledge nothing, and those that acknowledge control messages and no
    document, so that a whole window of documents is on its way to each.

    python -m bench.tap --rounds 5
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from bench.filling import fill, items_of, wait_until_flushed
from bench.rig import Bench, address_of, command_of, compare_contents, run_child
from bench.tap_consumer import SUPPORT_ACK, TapConsumer
from interop.server_process import ServerProcess
from uprmc import units

PARTS = "dump,memory"

_BACKFILL = 0x01


def _dump(bench: Bench) -> None:
    words = bench.words
    for vbuckets in (1, 1_024):
        with bench.ours(vbuckets) as ours:
            common.progress(f"dump: storing {words.items} items")
            fill(ours, items_of(words.items, words.value_bytes), vbuckets)
            tap = [sys.executable, "-m", "bench.tap_consumer", str(ours.upr), f"--pid={ours.pid}"]
            commands = {
                "upr": command_of("bench.upr_consumer", "backfill", ours.upr, pid=ours.pid),
                "tap": tap,
                "tap acks": [*tap, "--acks"],
            }
            compare_contents(commands)
            figures = bench.rounds(
                f"dump of {vbuckets} vBuckets",
                {name: partial(run_child, command) for name, command in commands.items()},
            )
        _keep_dump(bench, vbuckets, figures)


def _keep_dump(bench: Bench, vbuckets: int, figures: dict[str, list[dict[str, float]]]) -> None:
    rates = {name: column(of, "items_s") for name, of in figures.items()}
    for name in ("tap", "tap acks"):
        found = ratio(rates[name], rates["upr"])
        server = ratio(column(figures[name], "server_us"), column(figures["upr"], "server_us"))
        bench.keep(
            f"dump {vbuckets} {name}",
            {"ratio": found.as_json(), "figures": figures[name], "upr": figures["upr"]},
            [f"{name} dump, {vbuckets} vBuckets, items/s", f"{found.text()} x UPR", ">= 0.5"],
            [
                "  items/s; server's CPU",
                f"{Spread.of(rates[name]).median:,.0f}; {server.text()} x",
                "",
            ],
        )


def _memory(bench: Bench) -> None:
    for name, flags, take in (
        ("never read", _BACKFILL, None),
        ("never ack", _BACKFILL | SUPPORT_ACK, _swallow),
        ("ack no document", _BACKFILL | SUPPORT_ACK, _acknowledge_controls),
    ):
        grown = _grown_by(bench, name, flags, take)
        bench.keep(
            f"memory {name}",
            {"mib": grown},
            [f"{bench.words.clients} clients that {name}", f"{grown:.1f} MiB", "< 64 MiB"],
        )


def _grown_by(
    bench: Bench, name: str, flags: int, take: Callable[[TapConsumer], None] | None
) -> float:
    words = bench.words
    writes = Load(connections=10, depth=16, keys=words.keys, sets=1.0, seconds=words.seconds)
    with bench.ours(64, "--set", "upr.reading_items=10000") as ours, ExitStack() as stack:
        Load(connections=10, depth=16, keys=words.keys).run(ours, fill=True)
        wait_until_flushed(ours)
        writes.run(ours)
        wait_until_flushed(ours)
        before = ours.memory_kib("RssAnon")
        clients = [
            TapConsumer(address_of(ours), b"bench-%d" % number, flags)
            for number in range(words.clients)
        ]
        for client in clients:
            stack.callback(client.socket.close)
        for client in clients if take is not None else ():
            threading.Thread(target=take, args=(client,), daemon=True).start()
        common.progress(f"memory: {name}, while documents are written")
        writes.run(ours, seed=2)
        wait_until_flushed(ours)
        return _mib(ours, before)


def _swallow(client: TapConsumer) -> None:
    try:
        while client.socket.recv(65_536):
            pass
    except OSError:
        pass


def _acknowledge_controls(client: TapConsumer) -> None:
    client.acknowledges_documents = False
    try:
        while client.unread:
            client.receive()
    except OSError:
        pass


def _mib(server: ServerProcess, before_kib: int) -> float:
    return (server.memory_kib("RssAnon") - before_kib) / 1024


def run(words: Any) -> tuple[Report, list[list[str]]]:
    """Measure what was asked for."""
    report = Report("tap", common.options_of(words))
    bench = Bench(words, report)
    for part in words.only.split(","):
        {"dump": _dump, "memory": _memory}[part](bench)
    common.progress("")
    return report, bench.rows


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", default=PARTS, help="parts, comma separated")
    options.add_argument("--items", type=int, default=200_000, help="of the dump")
    options.add_argument("--value-bytes", type=units.size, default=256)
    options.add_argument("--clients", type=int, default=50, help="memory")
    options.add_argument("--keys", type=int, default=100_000, help="memory")
    options.add_argument("--seconds", type=units.seconds, default=5.0, help="memory: of writes")
    words = options.parse_args()
    with common.reported_errors():
        common.mcload()
        report, rows = run(words)
        common.print_table(["", "median (least-greatest)", "bar"], rows)
        print(f"\nratios are of the same round, {words.rounds} rounds")
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
