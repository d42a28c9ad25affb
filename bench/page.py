"""What people who look at the page of a node cost it: CPU time of the node, by open pages.

The pages are open in a real browser (Chromium, headless), each with connections of its own, as on
ten people's desks. The node has 1,024 vBuckets, and either no clients or one that writes a steady
number of documents a second into all of them, so that each sample has rows of all vBuckets.

    python -m bench.page --rounds 3 --seconds 8
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.common import BenchError
from interop.browser import Browser, found_browser
from interop.server_process import Address, ServerProcess, start_uprmc
from interop.waiting import wait_until

PAGES = (0, 1, 10)
RATE_PER_S = 5_000
_BATCHES_PER_S = 20


@contextmanager
def writing(address: Address | None) -> Iterator[None]:
    """Write documents at a steady rate meanwhile; without an address, do not."""
    if address is None:
        yield
        return
    stop = threading.Event()
    size = RATE_PER_S // _BATCHES_PER_S

    def write() -> None:
        with address.connect() as wire:
            number, due = 0, time.monotonic()
            while not stop.is_set():
                keys = range(number, number + size)
                wire.sendall(b"".join(b"set k%d 0 0 4 noreply\r\ndata\r\n" % key for key in keys))
                number = (number + size) % 100_000
                due += 1 / _BATCHES_PER_S
                time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def used(server: ServerProcess, pages: int, seconds: float, profile: Path) -> float:
    """Return the share of a processor that the node uses, in percent."""
    program = found_browser()
    if program is None:
        raise BenchError("no browser: apt-get install chromium")
    with Browser(program, profile) as browser:
        for _ in range(pages):
            browser.open_beside(f"http://{server.http}/")
        wait_until(lambda: connections(server) >= pages)
        time.sleep(2)  # the pages are drawn
        before, began = server.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return 100 * (server.cpu_s() - before) / (time.monotonic() - began)


def connections(server: ServerProcess) -> int:
    """Return how many connections the http listener has."""
    port = int(str(server.http).rpartition(":")[2])
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    wanted = f":{port:04X}"
    found = [row.split() for row in rows]
    return sum(row[1].endswith(wanted) and row[3] == "01" for row in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        with start_uprmc(here / "data", "--vbuckets", "1024") as server:
            for load in (False, True):
                for pages in PAGES:
                    found = []
                    with writing(server.memcached if load else None):
                        for round_ in range(options.rounds):
                            profile = here / f"{load}-{pages}-{round_}"
                            found.append(used(server, pages, options.seconds, profile))
                    what = f"{RATE_PER_S} sets/s" if load else "no clients"
                    shown = " ".join(f"{each:.2f}" for each in sorted(found))
                    print(f"{what}, {pages} pages: {shown} % of a processor", flush=True)
            server.stop()


if __name__ == "__main__":
    main()
