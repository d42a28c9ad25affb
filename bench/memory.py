"""Memory for each item, ours against memcached.

Both servers are filled with a million items (20-byte keys, 100-byte values) and the growth of
their resident memory is divided by the number of items. Anonymous memory is given apart: ours maps
its data file, and pages of a mapped file are the system's cache, which it takes back when it needs
them.

    python -m bench.memory --items 1000000
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from interop.server_process import ServerProcess, start_memcached, start_uprmc
from uprmc import units

_MEMCACHED = ("-t", "1", "-m", "2048")


def _growth(arguments: Any, kind: str, number: int) -> dict[str, float]:
    """Fill a fresh server; bytes for each item."""
    load = Load(
        connections=10,
        depth=16,
        keys=arguments.items,
        key_bytes=arguments.key_bytes,
        value_bytes=arguments.value_bytes,
    )
    with ExitStack() as stack:
        server = _start(arguments, kind, stack)
        common.wait_until_idle(server)
        before = {field: server.memory_kib(field) for field in ("RssAnon", "VmRSS")}
        cpu_before_s = server.cpu_s()
        report = load.run(server, fill=True, seed=number + 1)
        common.wait_until_idle(server, limit_s=300)
        grown = {
            field: (server.memory_kib(field) - kib) * 1024 / arguments.items
            for field, kib in before.items()
        }
        figures = {
            "anonymous_bytes": grown["RssAnon"],
            "resident_bytes": grown["VmRSS"],
            "fill_s": float(report["load_s"]),
            "fill_cpu_us": (server.cpu_s() - cpu_before_s) * 1e6 / arguments.items,
        }
        server.stop()
    return figures


def _start(arguments: Any, kind: str, stack: ExitStack) -> ServerProcess:
    if kind == "memcached":
        return stack.enter_context(start_memcached(*_MEMCACHED))
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="uprmc-bench-"))
    return stack.enter_context(
        start_uprmc(Path(directory), "--memory", arguments.memory, *arguments.serve)
    )


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=1, help="memory hardly varies")
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--key-bytes", type=units.size, default=20)
    options.add_argument("--value-bytes", type=units.size, default=100)
    options.add_argument("--memory", default="4G", help="--memory of ours")
    arguments = options.parse_args()
    with common.reported_errors():
        common.require_memcached()
        common.mcload()
        figures = common.interleaved(
            arguments.rounds,
            {
                "memcached": partial(_growth, arguments, "memcached"),
                "ours": partial(_growth, arguments, arguments.ours),
            },
            common.progress,
        )
        common.progress("")
        names = list(figures["ours"][0])
        rows, ratios = [], {}
        for name in names:
            ours, theirs = column(figures["ours"], name), column(figures["memcached"], name)
            ratios[name] = ratio(ours, theirs)
            rows.append(
                [
                    name,
                    Spread.of(ours).text(1),
                    Spread.of(theirs).text(1),
                    ratios[name].text(),
                ]
            )
        common.print_table([f"{arguments.items} items", "ours", "memcached", "ratio"], rows)
        print("\nbytes and CPU are for each item; CPU includes writing it to disk")
        report = Report("memory", {k: v for k, v in vars(arguments).items() if k != "json"})
        report.results.append(
            {"ratios": {name: spread.as_json() for name, spread in ratios.items()}} | figures
        )
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
