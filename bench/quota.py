"""Whether the memory quota holds: the node's anonymous memory while values of three quotas arrive.

A node with a quota of 128M gets 400 MB of 4 KiB values over one connection, as fast as it takes
them; a write that gets a temporary failure is sent again. The peak is what the system says that the
process has, read after every 50 writes, and not what the node counts.

    python -m bench.quota --rounds 3
"""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path

from bench import common
from bench.common import Report, Spread, column
from interop.server_process import ServerProcess, start_uprmc
from uprmc import units

_PIPELINED = 50
_PAUSE_S = 0.02


def _peak(arguments: object, number: int) -> dict[str, float]:
    """Fill a fresh node; its peak, and what it keeps at rest."""
    options = vars(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory,
        start_uprmc(Path(directory), "--memory", options["memory"], *options["serve"]) as server,
    ):
        common.wait_until_idle(server)
        base = server.memory_kib("RssAnon") / 1_024
        started = time.monotonic()
        peak_kib, refused = _fill(
            server, options["bytes"] // options["value_bytes"], options["value_bytes"]
        )
        fill_s = time.monotonic() - started
        common.wait_until_idle(server, limit_s=300)
        figures = {
            "base_mb": base,
            "peak_mb": peak_kib / 1_024,
            "at_rest_mb": server.memory_kib("RssAnon") / 1_024,
            "refused": float(refused),
            "fill_s": fill_s,
        }
        server.stop()
    return figures


def _fill(server: ServerProcess, count: int, value_bytes: int) -> tuple[int, int]:
    """Set `count` keys; the peak in KiB, and how many writes were refused for the time being."""
    address = server.memcached
    peak_kib = refused = 0
    value = b"v" * value_bytes
    with socket.create_connection((address.host, address.port)) as connection:
        replies = connection.makefile("rb")
        todo = list(range(count))
        while todo:
            chunk, todo = todo[-_PIPELINED:], todo[:-_PIPELINED]
            connection.sendall(
                b"".join(b"set key-%d 0 0 %d\r\n%s\r\n" % (n, value_bytes, value) for n in chunk)
            )
            peak_kib = max(peak_kib, server.memory_kib("RssAnon"))
            failed = [n for n in chunk if replies.readline() != b"STORED\r\n"]
            if failed:
                refused += len(failed)
                todo += failed
                time.sleep(_PAUSE_S)
    return peak_kib, refused


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--memory", default="128M", help="--memory of the node")
    options.add_argument("--bytes", type=units.size, default="400M", help="values in all")
    options.add_argument("--value-bytes", type=units.size, default=4_096)
    arguments = options.parse_args()
    with common.reported_errors():
        figures = [_peak(arguments, number) for number in range(arguments.rounds)]
        rows = [[name, Spread.of(column(figures, name)).text(0)] for name in figures[0]]
        common.print_table(["", "ours"], rows)
        report = Report("quota", {k: v for k, v in vars(arguments).items() if k != "json"})
        report.results.append({"figures": figures})
        print(f"figures: {report.save(arguments.json)}")


if __name__ == "__main__":
    main()
