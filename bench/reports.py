"""What a registered client costs the node: its reports, and its streams.

**Report**: CPU of the node for a report for 1,024 vBuckets in one frame (HWT_REPORTS), until it is
answered, and with the commits that write what is reported. The aim is below 2 ms. Beside it the
same by a HWT_REPORT for each vBucket, pipelined.

**Stream**: CPU of the node for streams of all vBuckets from zero to the present; the registered
client registers first and reports at the end. The aim is at most 1.05 times the other's.

    python -m bench.reports --rounds 5
"""

from __future__ import annotations

import struct

from bench import common
from bench.common import Load, Report, Spread, column, ratio
from bench.rig import Bench, Figures
from interop.registered import RegisteredClient, ask, high_seqnos
from interop.server_process import ServerProcess
from interop.wire import HEADER, SET, Wire, frame, store

_VBUCKETS = 1_024
_STREAM_REQUEST, _STREAM_END = 0x53, 0x55


def _reports(server: ServerProcess, count: int, *, many: bool) -> Figures:
    """Report several times; return the CPU milliseconds of each."""
    assert server.upr is not None
    with (
        Wire(server.upr) as wire,
        RegisteredClient(server.upr, b"client-%d" % many, _VBUCKETS, many=many) as client,
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


def _streams(server: ServerProcess, number: int, *, registered: bool) -> Figures:
    """Read everything that the node has; return the CPU seconds."""
    assert server.upr is not None
    common.wait_until_idle(server)
    with (
        Wire(server.upr) as wire,
        RegisteredClient(
            server.upr, b"streams-%d-%d" % (number, registered), _VBUCKETS, many=registered
        ) as client,
    ):
        seqnos = high_seqnos(wire, _VBUCKETS)
        before = server.cpu_s()
        if registered:
            client.report([0] * _VBUCKETS)
        requests = [struct.pack(">IIQQQQQ", 0, 0, 0, seqno, 0, 0, 0) for seqno in seqnos]
        client.wire.send(
            *[frame(_STREAM_REQUEST, extras=each, vbucket=at) for at, each in enumerate(requests)]
        )
        _read_to_the_ends(client.wire, sum(map(bool, seqnos)))
        if registered:
            client.report(seqnos)
        return {"cpu_s": server.cpu_s() - before}


def _read_to_the_ends(wire: Wire, streams: int) -> None:
    while streams:
        header = wire.read(HEADER.size)
        wire.read(int.from_bytes(header[8:12], "big"))
        streams -= header[:2] == bytes([0x80, _STREAM_END])


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--reports", type=int, default=50, help="in each round")
    words = options.parse_args()
    with common.reported_errors():
        report = Report("reports", common.options_of(words))
        bench = Bench(words, report)
        with bench.ours(_VBUCKETS, "--set", "purge.interval_s=0") as server:
            reports = bench.rounds(
                "reports",
                {
                    name: lambda _, many=name == "one frame": _reports(
                        server, words.reports, many=many
                    )
                    for name in ("one frame", "a frame for each")
                },
            )
            Load().run(server, fill=True)
            streams = bench.rounds(
                "streams",
                {
                    name: lambda number, name=name: _streams(
                        server, number, registered=name == "registered"
                    )
                    for name in ("registered", "not registered")
                },
            )
        for name, found in reports.items():
            texts = [Spread.of(column(found, each)).text() for each in ("report_ms", "written_ms")]
            bench.keep("reports", found, [f"report for 1,024 vBuckets, {name}, CPU ms", *texts])
        cpu = [column(each, "cpu_s") for each in streams.values()]
        texts = [Spread.of(each).text() for each in cpu]
        bench.keep("streams", streams, ["streams, CPU s", *texts, ratio(*cpu).text()])
        titles = ["", "answered; registered", "and on disk; not registered", "ratio"]
        common.print_table(titles, [[*row, ""][:4] for row in bench.rows])
        print(f"figures: {report.save(words.json)}")


if __name__ == "__main__":
    main()
