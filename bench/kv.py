"""Gets and sets of small items, ours against memcached with one thread.

For each protocol and shape (connections x requests in flight on each) both servers are driven by
``mcload`` in turn: 10 % sets, keys of 20 bytes, values of 100, 100,000 keys loaded beforehand.
memcached runs with ``-t 1``; where a shape keeps more than 20 requests in flight it also gets
``-R 1000``, because its default of 20 requests per event slows it down there.

Ours does more for a set: it writes it to disk. That work is in its CPU figure.

Variants show what caches do besides: documents with a TTL, multi-gets of 16 quiet gets and a NOOP,
half sets, a million keys. Each is binary with 50 connections, 16 requests in flight on each.

    python -m bench.kv --rounds 5 --seconds 3 --shapes 50x1,50x16 --protocols binary --variants ttl
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, column, ratio
from interop.server_process import ServerProcess, start_memcached, start_uprmc
from uprmc import units

SHAPES = "1x1,50x1,50x16,50x64"

#: Name of a variant -> what is different about its load.
VARIANTS: dict[str, dict[str, Any]] = {
    "ttl": {"ttl_s": 3_600},
    "multi-get": {"depth": 1, "quiet_gets": 16},
    "half-sets": {"sets": 0.5},
    "million": {"keys": 1_000_000},
}
_FIGURES = {
    "cpu_us": "srv_us_op",
    "ops_s": "ops_s",
    "p50_us": "p50_us",
    "p99_us": "p99_us",
    "generator_us": "gen_us_op",
}
_MEMCACHED = ("-t", "1", "-m", "2048", "-c", "4096")
_DEEP = 20  # memcached's default -R


def _measure(load: Load, server: ServerProcess, number: int) -> dict[str, float]:
    report = load.run(server, seed=number + 1)
    if report["misses"]:
        raise common.BenchError(f"{server.kind} lost {report['misses']} of the loaded keys")
    return {ours: float(report[theirs]) for ours, theirs in _FIGURES.items()}


def _shape(text: str) -> tuple[int, int]:
    connections, _, depth = text.partition("x")
    return int(connections), int(depth)


def _result(
    protocol: str, shape: str, peer: str, figures: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    ours, theirs = figures["ours"], figures["peer"]
    ratios = {name: ratio(column(ours, name), column(theirs, name)) for name in _FIGURES}
    return {
        "protocol": protocol,
        "shape": shape,
        "peer": peer,
        "ratios": {name: spread.as_json() for name, spread in ratios.items()},
        "ours": ours,
        "peers": theirs,
    }


def _row(result: dict[str, Any]) -> list[str]:
    def spread(name: str) -> common.Spread:
        found = result["ratios"][name]
        return common.Spread(found["median"], found["min"], found["max"])

    def figure(side: str, name: str) -> str:
        return common.Spread.of(column(result[side], name)).text(2)

    return [
        f"{result['protocol']} {result['shape']}",
        result["peer"],
        figure("ours", "cpu_us"),
        figure("peers", "cpu_us"),
        spread("cpu_us").text(),
        spread("ops_s").text(),
        spread("p50_us").text(),
        spread("p99_us").text(),
    ]


def run(arguments: Any) -> Report:
    """Start all servers, fill them, drive them, and give the figures."""
    options = {name: value for name, value in vars(arguments).items() if name != "json"}
    report = Report("kv", options)
    base = Load(seconds=arguments.seconds, warm_up_s=arguments.warm_up, keys=arguments.keys)
    shapes = arguments.shapes.split(",")
    variants = [*filter(None, arguments.variants.split(","))]
    if unknown := set(variants) - VARIANTS.keys():
        raise common.BenchError(f"no variant {', '.join(sorted(unknown))}: {', '.join(VARIANTS)}")
    with ExitStack() as stack:
        ours = _ours(arguments, stack)
        peers: dict[str, ServerProcess] = {}
        for shape in shapes:
            deep = _shape(shape)[1] > _DEEP
            name, more = ("memcached -R 1000", ("-R", "1000")) if deep else ("memcached", ())
            if name not in peers:
                peers[name] = stack.enter_context(start_memcached(*_MEMCACHED, *more))
        filling = replace(base, connections=10, depth=16)
        for server in (ours, *peers.values()):
            common.progress(f"loading {base.keys} keys into {server.kind}")
            filling.run(server, fill=True)
        common.wait_until_idle(ours)
        report.versions = {"ours": f"{ours.kind} {common.version_of(ours)}"} | {
            name: common.version_of(server) for name, server in peers.items()
        }
        for protocol in arguments.protocols.split(","):
            for shape in shapes:
                connections, depth = _shape(shape)
                name = "memcached -R 1000" if depth > _DEEP else "memcached"
                load = replace(base, connections=connections, depth=depth, text=protocol == "text")
                contestants: dict[str, Callable[[int], dict[str, float]]] = {
                    "peer": partial(_measure, load, peers[name]),
                    "ours": partial(_measure, load, ours),
                }
                figures = common.interleaved(
                    arguments.rounds,
                    contestants,
                    lambda text, what=f"{protocol} {shape}": common.progress(f"{what}, {text}"),
                )
                report.results.append(_result(protocol, shape, name, figures))
        for variant in variants:
            load = replace(base, connections=50, depth=16)
            load = replace(load, **VARIANTS[variant])
            peer = peers[min(peers)]
            for server in (ours, peer):
                common.progress(f"loading for {variant} into {server.kind}")
                replace(load, connections=10, depth=16, quiet_gets=0).run(server, fill=True)
            common.wait_until_idle(ours)
            figures = common.interleaved(
                arguments.rounds,
                {"peer": partial(_measure, load, peer), "ours": partial(_measure, load, ours)},
                lambda text, what=variant: common.progress(f"{what}, {text}"),
            )
            report.results.append(_result("binary", variant, peer.kind, figures))
        common.progress("")
        for server in (ours, *peers.values()):
            server.stop()
    return report


def _ours(arguments: Any, stack: ExitStack) -> ServerProcess:
    if arguments.ours == "memcached":
        return stack.enter_context(start_memcached(*_MEMCACHED))
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="uprmc-bench-"))
    return stack.enter_context(start_uprmc(Path(directory), *arguments.serve))


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=units.seconds, default=3.0, help="measured, per run")
    options.add_argument(
        "--warm-up", type=units.seconds, default=0.5, help="seconds before measuring"
    )
    options.add_argument("--shapes", default=SHAPES, help="CONNECTIONSxDEPTH, comma separated")
    options.add_argument("--protocols", default="binary,text", help="binary, text or both")
    options.add_argument("--variants", default=",".join(VARIANTS), help="some of them, or none: ''")
    options.add_argument("--keys", type=int, default=100_000)
    arguments = options.parse_args()
    with common.reported_errors():
        common.require_memcached()
        common.mcload()
        report = run(arguments)
        common.print_table(
            ["", "peer", "our CPU us/op", "its CPU us/op", "CPU", "ops/s", "p50", "p99"],
            [_row(result) for result in report.results],
        )
        print(
            f"\nratios are ours / peer of the same round: median (least-greatest) of"
            f" {arguments.rounds}; CPU, p50, p99: less is better; ops/s: more is better"
        )
        print(f"versions: {', '.join(f'{k} = {v}' for k, v in report.versions.items())}")
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
