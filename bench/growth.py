"""How cost grows with the number of items, connections, vBuckets and consumers.

keys
    CPU for each operation (50 connections x 16, 10 % sets) over 10,000 to 10,000,000 documents,
    against memcached.
connections
    CPU for each operation, one request in flight on each of 1 to 10,000 connections, against
    memcached.
vbuckets
    CPU for each item of a backfill from disk, spread over 1 to 1,024 vBuckets: the server's and
    that of a consumer in plain Python.
consumers
    CPU for each pipelined set while 0 to 50 consumers follow all of 1,024 vBuckets, until they
    have everything and all of it is on disk.

    python -m bench.growth --rounds 3 --only keys,consumers --plot docs/growth.svg
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, Spread, column
from bench.filling import fill, items_of, statistic, wait_until_flushed
from bench.rig import Bench, Figures, command_of, figures_of, run_child, started
from interop.server_process import ServerProcess, start_memcached
from uprmc import units

#: What grows -> over which sizes.
SIZES: dict[str, tuple[int, ...]] = {
    "keys": (10_000, 100_000, 1_000_000, 10_000_000),
    "connections": (1, 10, 100, 1_000, 10_000),
    "vbuckets": (1, 64, 1_024),
    "consumers": (0, 1, 8, 50),
}
_MEMCACHED = ("-t", "1", "-m", "8192", "-c", "20000")
_QUOTA = ("--memory", "12G")
_FEW_KEYS = 100_000
#: Descriptors that one connection takes on either side, and what a process needs beside them.
_OTHER_DESCRIPTORS = 200

Point = dict[str, list[Figures]]


@contextmanager
def _both(bench: Bench, *more: str) -> Iterator[dict[str, ServerProcess]]:
    """Our server and memcached."""
    with bench.ours(1_024, *_QUOTA, *more) as ours, start_memcached(*_MEMCACHED) as peer:
        bench.report.versions["memcached"] = common.version_of(peer)
        yield {"ours": ours, "memcached": peer}
        peer.stop()


def _operations(bench: Bench, what: str, load: Load, servers: dict[str, ServerProcess]) -> Point:
    def measure(server: ServerProcess, number: int) -> Figures:
        return {"us": float(load.run(server, seed=number + 1)["srv_us_op"])}

    return bench.rounds(what, {name: partial(measure, each) for name, each in servers.items()})


def _filled(servers: dict[str, ServerProcess], keys: int) -> None:
    for server in servers.values():
        common.progress(f"loading {keys} keys into {server.kind}")
        Load(connections=10, depth=16, keys=keys).run(server, fill=True)
    wait_until_flushed(servers["ours"])


def _keys(bench: Bench, size: int) -> Point:
    load = Load(connections=50, depth=16, keys=size, seconds=bench.words.seconds)
    with _both(bench) as servers:
        _filled(servers, size)
        return _operations(bench, f"{size} keys", load, servers)


def _connections(bench: Bench, size: int) -> Point:
    load = Load(connections=size, keys=_FEW_KEYS, seconds=bench.words.seconds)
    with _both(bench, "--set", "server.max_connections=20000") as servers:
        _filled(servers, _FEW_KEYS)
        return _operations(bench, f"{size} connections", load, servers)


def _vbuckets(bench: Bench, size: int) -> Point:
    with bench.ours(size) as ours:
        fill(ours, items_of(bench.words.items, 256), size)
        command = command_of("bench.upr_consumer", "backfill", ours.upr, pid=ours.pid)
        found = bench.rounds(f"{size} vBuckets", {"": partial(run_child, command)})[""]
    return {
        "server": [{"us": one["server_us"]} for one in found],
        "consumer": [{"us": one["consumer_us"]} for one in found],
    }


def _consumers(bench: Bench, size: int) -> Point:
    load = Load(connections=50, depth=16, sets=1.0, seconds=bench.words.seconds, keys=_FEW_KEYS)
    with bench.ours(1_024) as ours:
        _filled({"ours": ours}, _FEW_KEYS)

        def measure(number: int) -> Figures:
            with ExitStack() as stack:
                commands = [
                    command_of("bench.upr_consumer", "follow", ours.upr, name=f"follower {each}")
                    for each in range(size)
                ]
                followers = [stack.enter_context(started(command)) for command in commands]
                sets, cpu_s = statistic(ours, b"cmd_set"), ours.cpu_s()
                load.run(ours, seed=number + 1)
                for follower in followers:
                    figures_of(follower)
                wait_until_flushed(ours)
            sets = statistic(ours, b"cmd_set") - sets
            return {"us": (ours.cpu_s() - cpu_s) * 1e6 / sets}

        return bench.rounds(f"{size} consumers", {"ours": measure})


_PARTS: dict[str, Callable[[Bench, int], Point]] = {
    "keys": _keys,
    "connections": _connections,
    "vbuckets": _vbuckets,
    "consumers": _consumers,
}


def _fits(part: str, size: int) -> bool:
    """Tell whether this process's children may open so many connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return part != "connections" or size + _OTHER_DESCRIPTORS <= limit


def _raise_the_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(words: Any) -> Report:
    """Measure every size of every part, and give the figures."""
    report = Report("growth", common.options_of(words))
    bench = Bench(words, report)
    for part in words.only.split(","):
        for size in SIZES[part]:
            if size > words.most or not _fits(part, size):
                continue
            point = _PARTS[part](bench, size)
            medians = {side: Spread.of(column(found, "us")) for side, found in point.items()}
            report.results.append(
                {"part": part, "size": size, "us": {s: m.as_json() for s, m in medians.items()}}
            )
            common.progress("")
            cells = (f"{side or 'ours'} {spread.text()}" for side, spread in medians.items())
            print(f"{size:>10,} {part:<12} {'   '.join(cells)} us", flush=True)
    return report


def _plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw one panel for each part; both axes are logarithmic but for an axis with 0."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise common.BenchError("no matplotlib: pip install 'uprmc[bench]'") from None
    parts = list(dict.fromkeys(result["part"] for result in results))
    figure, panels = pyplot.subplots(1, len(parts), figsize=(4 * len(parts), 3.5), squeeze=False)
    for part, panel in zip(parts, panels[0], strict=True):
        points = [result for result in results if result["part"] == part]
        sizes = [point["size"] for point in points]
        for side in points[0]["us"]:
            panel.plot(sizes, [point["us"][side]["median"] for point in points], "o-", label=side)
        panel.set_xscale("symlog" if 0 in sizes else "log")
        panel.set_ylim(bottom=0)
        panel.set_title(part)
        panel.set_ylabel("CPU, us for each operation or item")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=units.seconds, default=4.0, help="measured, per run")
    options.add_argument("--only", default=",".join(SIZES), help="some of the parts")
    options.add_argument("--most", type=int, default=max(SIZES["keys"]), help="no larger size")
    options.add_argument("--items", type=int, default=200_000, help="of a backfill")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG, too")
    words = options.parse_args()
    with common.reported_errors():
        if unknown := set(words.only.split(",")) - SIZES.keys():
            raise common.BenchError(f"no part {', '.join(sorted(unknown))}: {', '.join(SIZES)}")
        common.require_memcached()
        common.mcload()
        _raise_the_limit()
        report = run(words)
        if words.plot:
            _plot(report.results, words.plot)
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
