"""What a report of a registered client for all vBuckets costs the node.

CPU of the node for one round of 0xed requests for 1,024 vBuckets, pipelined, from the first byte
to the commit that keeps the rows. The aim is below 2 ms.

    python -m bench.reports --rounds 5
"""

from __future__ import annotations

from bench import common
from bench.common import Report, Spread, column
from bench.rig import Bench, Figures
from interop.registered import RegisteredClient, ask, high_seqnos
from interop.server_process import ServerProcess
from interop.wire import SET, Wire, store

_VBUCKETS = 1_024


def _reports(server: ServerProcess, count: int) -> Figures:
    """Report several times; return the CPU milliseconds of each."""
    assert server.upr is not None
    with (
        Wire(server.upr) as wire,
        RegisteredClient(server.upr, b"client", _VBUCKETS) as client,
    ):
        for start in range(0, _VBUCKETS, 256):
            ask(wire, *[store(SET, b"k", b"v", vbucket=at) for at in range(start, start + 256)])
        seqnos = high_seqnos(wire, _VBUCKETS)
        client.report(seqnos)
        common.wait_until_idle(server)
        before = server.cpu_s()
        for _ in range(count):
            client.report(seqnos)
        reported = server.cpu_s()
        common.wait_until_idle(server)
        written = server.cpu_s()
    return {
        "report_ms": (reported - before) * 1e3 / count,
        "written_ms": (written - before) * 1e3 / count,
    }


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--reports", type=int, default=50, help="in each round")
    words = options.parse_args()
    with common.reported_errors():
        report = Report("reports", common.options_of(words))
        bench = Bench(words, report)
        with bench.ours(_VBUCKETS, "--set", "purge.interval_s=0") as server:
            found = [_reports(server, words.reports) for _ in range(words.rounds)]
        texts = [Spread.of(column(found, name)).text() for name in ("report_ms", "written_ms")]
        bench.keep("reports", found, ["report for 1,024 vBuckets, CPU ms", *texts])
        common.print_table(["", "answered", "and on disk"], bench.rows)
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
