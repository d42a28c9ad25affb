"""Gets and sets of small items, ours against memcached with one thread.

For each protocol and shape (connections x requests in flight on each) both servers are driven by
``mcload`` in turn: 10 % sets, keys of 20 bytes, values of 100, 100,000 keys loaded beforehand.
memcached runs with ``-t 1 -R 1000``: its default of 20 requests per event slows deep pipelines.

Ours does more for a set: it writes it to disk. That work is in its CPU figure, which counts from
the first operation until everything is on disk; a window shorter than a few seconds would not be
much longer than the commits that follow it.

With ``--users`` our node has a users file and an audit log, and the generator logs in. With
``--peer uprmc`` the peer is a node of ours without users, so that both options together show what
logins cost.

Variants show what caches do besides: documents with a TTL, multi-gets of 16 quiet gets and a NOOP,
half sets, a million keys. Each is binary with 50 connections, 16 requests in flight on each.

    python -m bench.kv --rounds 5 --seconds 8 --shapes 50x1,50x16 --protocols binary --variants ttl
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, column, ratio
from bench.filling import wait_until_flushed
from interop.server_process import ServerProcess, start_memcached, start_uprmc
from uprmc import units
from uprmc.login.credentials import Credentials
from uprmc.login.scram import ITERATIONS_DEFAULT
from uprmc.login.users import HASH_NAMES, SALT_BYTES, Role, new_user
from uprmc.login.users_file import write_users

SHAPES = "1x1,50x1,50x16,50x64"

#: Name of a variant -> what is different about its load.
VARIANTS: dict[str, dict[str, Any]] = {
    "ttl": {"ttl_s": 3_600},
    "multi-get": {"depth": 1, "quiet_gets": 16},
    "half-sets": {"sets": 0.5},
    "million": {"keys": 1_000_000},
}
#: Our name of a figure -> mcload's.
_FIGURES = {"ops_s": "ops_s", "p50_us": "p50_us", "p99_us": "p99_us", "generator_us": "gen_us_op"}
_USER, _PASSWORD = "bench", "only-here"
_MEMCACHED = ("-t", "1", "-R", "1000", "-m", "2048", "-c", "4096")


def _measure(load: Load, server: ServerProcess, number: int) -> dict[str, float]:
    before_s = server.cpu_s()
    report = load.run(server, seed=number + 1)
    if report["misses"]:
        raise common.BenchError(f"{server.kind} lost {report['misses']} of the loaded keys")
    if server.durable:
        wait_until_flushed(server)
    cpu_us = (server.cpu_s() - before_s) * 1e6 / report["ops"]
    return {ours: float(report[theirs]) for ours, theirs in _FIGURES.items()} | {"cpu_us": cpu_us}


def _shape(text: str) -> tuple[int, int]:
    connections, _, depth = text.partition("x")
    return int(connections), int(depth)


def _result(
    protocol: str, shape: str, figures: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    ours, theirs = figures["ours"], figures["peer"]
    ratios = {name: ratio(column(ours, name), column(theirs, name)) for name in theirs[0]}
    return {
        "protocol": protocol,
        "shape": shape,
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
        figure("ours", "cpu_us"),
        figure("peers", "cpu_us"),
        spread("cpu_us").text(),
        spread("ops_s").text(),
        spread("p50_us").text(),
        spread("p99_us").text(),
    ]


def run(arguments: Any) -> Report:
    """Start both servers, fill them, drive them, and give the figures."""
    options = {name: value for name, value in vars(arguments).items() if name != "json"}
    report = Report("kv", options)
    base = Load(seconds=arguments.seconds, warm_up_s=0.0, keys=arguments.keys)
    variants = [*filter(None, arguments.variants.split(","))]
    if unknown := set(variants) - VARIANTS.keys():
        raise common.BenchError(f"no variant {', '.join(sorted(unknown))}: {', '.join(VARIANTS)}")
    with ExitStack() as stack:
        servers = {
            "peer": _peer(arguments, stack),
            "ours": _ours(arguments, stack),
        }
        _fill(base, servers)
        report.versions = {name: common.version_of(server) for name, server in servers.items()}
        for protocol in arguments.protocols.split(","):
            for shape in arguments.shapes.split(","):
                connections, depth = _shape(shape)
                load = replace(base, connections=connections, depth=depth, text=protocol == "text")
                figures = _driven(arguments, load, servers, f"{protocol} {shape}")
                report.results.append(_result(protocol, shape, figures))
        for variant in variants:
            load = replace(replace(base, connections=50, depth=16), **VARIANTS[variant])
            _fill(load, servers)
            figures = _driven(arguments, load, servers, variant)
            report.results.append(_result("binary", variant, figures))
        common.progress("")
        for server in servers.values():
            server.stop()
    return report


def _fill(load: Load, servers: Mapping[str, ServerProcess]) -> None:
    for name, server in servers.items():
        common.progress(f"loading {load.keys} keys into {name}")
        replace(load, connections=10, depth=16, quiet_gets=0).run(server, fill=True)
        if server.durable:
            wait_until_flushed(server)


def _driven(
    arguments: Any, load: Load, servers: Mapping[str, ServerProcess], what: str
) -> dict[str, list[dict[str, float]]]:
    return common.interleaved(
        arguments.rounds,
        {name: partial(_measure, load, server) for name, server in servers.items()},
        lambda text: common.progress(f"{what}, {text}"),
    )


def _ours(arguments: Any, stack: ExitStack) -> ServerProcess:
    if arguments.ours == "memcached":
        return stack.enter_context(start_memcached(*_MEMCACHED))
    directory = _new_directory(stack)
    login = _login_options(directory) if arguments.users else []
    server = stack.enter_context(start_uprmc(directory / "data", *login, *arguments.serve))
    server.login = f"{_USER}:{_PASSWORD}" if login else ""
    return server


def _peer(arguments: Any, stack: ExitStack) -> ServerProcess:
    if arguments.peer == "uprmc":
        return stack.enter_context(start_uprmc(_new_directory(stack), *arguments.serve))
    return stack.enter_context(start_memcached(*_MEMCACHED))


def _new_directory(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="uprmc-bench-")))


def _login_options(directory: Path) -> list[str]:
    """Make a users file; return the options of a node that wants logins and writes them down."""
    users = directory / "users.json"
    salts = [os.urandom(SALT_BYTES) for _ in HASH_NAMES]
    roles = Role.READ, Role.WRITE, Role.MONITOR
    user = new_user(Credentials(_USER, _PASSWORD), roles, salts, ITERATIONS_DEFAULT)
    write_users(str(users), [user])
    options = {"server.users": users, "log.audit": directory / "audit"}
    return [word for name, value in options.items() for word in ("--set", f"{name}={value}")]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=units.seconds, default=8.0, help="of one run")
    options.add_argument("--shapes", default=SHAPES, help="CONNECTIONSxDEPTH, comma separated")
    options.add_argument("--protocols", default="binary,text", help="binary, text or both")
    options.add_argument("--variants", default=",".join(VARIANTS), help="some of them, or none: ''")
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument(
        "--users", action="store_true", help="let our node have users; binary only"
    )
    options.add_argument("--peer", choices=["memcached", "uprmc"], default="memcached")
    arguments = options.parse_args()
    with common.reported_errors():
        common.require_memcached()
        common.mcload()
        report = run(arguments)
        common.print_table(
            ["", "our CPU us/op", "its CPU us/op", "CPU", "ops/s", "p50", "p99"],
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
