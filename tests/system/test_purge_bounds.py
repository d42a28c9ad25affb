"""The file stays small while documents come and go, as long as all registered clients keep up.

Source: rows X03, X04, X18; `bench/purge_cycles.py` does the same a million times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.registered import RegisteredClient, ask, create_and_delete, high_seqnos
from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import SET, Wire, frame, store
from tests.system.support import get_page
from uprmc.protocol.management import COMPACT_EXTRAS, CompactFlag
from uprmc.protocol.opcodes import Opcode

VBUCKETS = 4
OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "purge.min_age_s=0", "--set", "purge.interval_s=0")
PURGE = COMPACT_EXTRAS.pack(0, 0, 0, bytes([CompactFlag.AGED]) + bytes(6))


def tombstones(server: ServerProcess) -> int:
    lines = get_page(server, "/metrics")[1].decode().splitlines()
    found = [line for line in lines if line.startswith("uprmc_tombstones ")]
    return int(float(found[0].split()[1]))


def purge(wire: Wire) -> None:
    """Wait until everything is on disk, then purge what may go."""
    for vbucket, seqno in enumerate(high_seqnos(wire, VBUCKETS)):
        extras = seqno.to_bytes(8, "big")
        ask(wire, frame(Opcode.SEQNO_PERSISTENCE, extras=extras, vbucket=vbucket))
        ask(wire, frame(Opcode.COMPACT_DB, extras=PURGE, vbucket=vbucket))


def used_bytes(wire: Wire) -> int:
    return int(wire.statistics(b"ep")[b"ep_db_data_size"])


@pytest.mark.acceptance("X03")
@pytest.mark.acceptance("X18")
def test_the_file_is_bounded_while_clients_keep_up_and_one_that_stops_counts_until_it_expires(
    tmp_path: Path,
) -> None:
    with start_uprmc(tmp_path, *OPTIONS) as server:
        assert server.upr is not None
        with (
            Wire(server.upr, 60.0) as wire,
            RegisteredClient(server.upr, b"first", VBUCKETS) as first,
            RegisteredClient(server.upr, b"second", VBUCKETS) as second,
        ):

            def cycle(number: int) -> None:
                create_and_delete(wire, number * 2_000, 2_000, VBUCKETS)
                seqnos = high_seqnos(wire, VBUCKETS)
                first.report(seqnos)
                second.report(seqnos)
                purge(wire)

            for vbucket in range(VBUCKETS):
                ask(wire, store(SET, b"stays", bytes(100), vbucket=vbucket))
            files, used = [], []
            for number in range(8):
                cycle(number)
                assert tombstones(server) == VBUCKETS, "the newest item of each vBucket stays"
                files.append((tmp_path / "data.mdb").stat().st_size)
                used.append(used_bytes(wire))
            assert files[-1] <= 2 * files[1]
            assert max(used) < 500_000, "four documents, four tombstones"
            with RegisteredClient(server.upr, b"third", VBUCKETS) as third:
                seen = high_seqnos(wire, VBUCKETS)
                third.report(seen)
                cycle(8)
                assert tombstones(server) == 2_000, "all that the third has not seen"
                pinned = used_bytes(wire)
                assert high_seqnos(wire, VBUCKETS, b"purge_seqno") == seen
                third.lifetime_s = 1
                third.report(seen)

            def is_gone() -> bool:
                purge(wire)
                # The file's own bookkeeping comes and goes, too: some ten pages.
                fallen = used_bytes(wire) <= (max(used) + pinned) // 2
                return tombstones(server) == VBUCKETS and fallen

            wait_until(is_gone, server.log)
        server.stop()
