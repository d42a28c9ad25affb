"""What a node's file takes after documents came and went beside registered clients (row X03).

A node has some documents that stay; others are made and deleted, a million times, while two
registered clients report after each portion that they have everything. **kept**: the same without
purging. **bare**: the documents that stay in an LMDB file of their own. **stopped**: a third client
registers, reports nothing while as many more come and go, and expires.

    python -m bench.purge_cycles --cycles 1000000
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import lmdb

from bench import common
from bench.common import Report
from interop.registered import (
    RegisteredClient,
    ask,
    create_and_delete,
    high_seqnos,
)
from interop.server_process import ServerProcess, start_uprmc
from interop.wire import SET, Wire, store, vbucket_of

_VBUCKETS = 1_024
_MIB = 1 << 20
_PURGES = ("--set", "purge.interval_s=1", "--set", "purge.min_age_s=0")
_KEEPS = ("--set", "purge.interval_s=0")


class _Node:
    """A node with documents that stay, and its figures."""

    def __init__(self, server: ServerProcess, wire: Wire, directory: Path, live: int) -> None:
        assert server.upr is not None
        self.server, self.wire, self.directory = server, wire, directory
        self.made = 0
        for start in range(0, live, 1_000):
            keys = [b"stays-%d" % number for number in range(start, min(start + 1_000, live))]
            ask(wire, *[store(SET, key, bytes(100), vbucket=vbucket_of(key)) for key in keys])

    def cycle(self, count: int, portion: int, clients: list[RegisteredClient]) -> None:
        """Make documents and delete them; the clients keep up."""
        for _ in range(0, count, portion):
            create_and_delete(self.wire, self.made, portion, _VBUCKETS)
            self.made += portion
            seqnos = high_seqnos(self.wire, _VBUCKETS)
            for client in clients:
                client.report(seqnos)

    def figures(self) -> dict[str, float]:
        """Sizes in MiB, and how many tombstones there are."""
        told = self.wire.statistics(b"ep")
        return {
            "file_mib": (self.directory / "data.mdb").stat().st_size / _MIB,
            "used_mib": int(told[b"ep_db_data_size"]) / _MIB,
            "tombstones": self._tombstones(),
        }

    def _tombstones(self) -> float:
        with urlopen(f"http://{self.server.http}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        return float(
            next(each for each in lines if each.startswith("uprmc_tombstones ")).split()[1]
        )

    def rest(self, seconds: float = 4.0) -> None:
        """Wait until everything is on disk and two purges more have begun."""
        common.wait_until_idle(self.server)
        time.sleep(seconds)
        common.wait_until_idle(self.server)


@contextmanager
def _node(live: int, *options: str) -> Iterator[_Node]:
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as name:
        directory = Path(name) / "data"
        words = ("--vbuckets", str(_VBUCKETS), *options)
        with start_uprmc(directory, *words) as server:
            assert server.upr is not None
            with Wire(server.upr, 60.0) as wire:
                yield _Node(server, wire, directory, live)
            server.stop()


def _client(node: _Node, name: bytes, lifetime_s: int = 0) -> RegisteredClient:
    assert node.server.upr is not None
    return RegisteredClient(node.server.upr, name, _VBUCKETS, lifetime_s)


def _bare(live: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as name:
        keys = sorted(b"stays-%d" % number for number in range(live))
        with lmdb.open(name, map_size=1 << 34) as env, env.begin(write=True) as txn:
            txn.cursor().putmulti([(key, bytes(100)) for key in keys])
        return {"file_mib": os.stat(Path(name) / "data.mdb").st_size / _MIB}


def _copied(node: _Node) -> float:
    """Return the size of a compacted copy, in MiB."""
    with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as name:
        target = Path(name) / "copy"
        command = [sys.executable, "-m", "uprmc", "compact", "--data", str(node.directory)]
        subprocess.run([*command, "--to", str(target)], check=True, capture_output=True)
        return (target / "data.mdb").stat().st_size / _MIB


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--cycles", type=int, default=1_000_000)
    options.add_argument("--portion", type=int, default=20_000)
    options.add_argument("--live", type=int, default=20_000, help="documents that stay")
    words = options.parse_args()
    with common.reported_errors():
        report = Report("purge_cycles", common.options_of(words))
        found = {"bare": _bare(words.live)}
        for name, settings in {"purged": _PURGES, "kept": _KEEPS}.items():
            with (
                _node(words.live, *settings, *words.serve) as node,
                _client(node, b"first") as first,
                _client(node, b"second") as second,
            ):
                node.cycle(words.cycles, words.portion, [first, second])
                found[f"{name}, at once"] = node.figures()
                node.rest()
                found[name] = {**node.figures(), "copy_mib": _copied(node)}
                if name == "purged":
                    found |= _stopped(node, words, [first, second])
        for name, figures in found.items():
            report.results.append({"part": name, "figures": figures})
        columns = ("file_mib", "used_mib", "copy_mib", "tombstones")
        texts = [
            [name, *(f"{each[column]:,.1f}" if column in each else "" for column in columns)]
            for name, each in found.items()
        ]
        common.print_table(["", *columns], texts)
        print(f"figures: {report.save(words.json)}")


def _stopped(
    node: _Node, words: object, clients: list[RegisteredClient]
) -> dict[str, dict[str, float]]:
    """Let a third client stop; return what is kept for it, and what is left when it has expired."""
    cycles: int = getattr(words, "cycles", 0) // 10
    portion: int = min(getattr(words, "portion", 1), cycles)
    with _client(node, b"third", lifetime_s=60) as third:
        third.report(high_seqnos(node.wire, _VBUCKETS))
        node.cycle(cycles, portion, clients)
        node.rest()
        held = node.figures()
    time.sleep(62)
    seqnos = high_seqnos(node.wire, _VBUCKETS)
    for client in clients:
        client.report(seqnos)
    node.rest()
    return {f"third stops for {cycles:,}": held, "third has expired": node.figures()}


if __name__ == "__main__":
    main()
