"""A node with views as its users see it: pymemcache, HTTP, signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymemcache.client.base import Client

from interop.replica_pair import standing_of
from interop.server_process import Address, ServerProcess, start_uprmc
from interop.upr_wire import UprWire
from interop.views import Views
from interop.waiting import wait_until
from tests.system.support import status_page

#: One row for each document that has a key.
BY_KEY: dict[str, Any] = {"v": {"map": {"emit": [{"key": "$.key", "value": "$.n"}]}}}

#: Headers of index files are written as soon as something has changed.
SAVED_AT_ONCE = ("--set", "index.update_interval_s=0")

#: Nothing that is written reaches the disk for as long as a test takes.
NEVER_FLUSHED = ("--set", "flush.min_delay_s=60", "--set", "flush.max_delay_s=60")


class Site:
    """A running node.

    Attributes:
        server: the process.
        kv: stores documents as JSON; `put` and `drop` wait for the answer.
        views: a connection to the views listener.
    """

    def __init__(self, server: ServerProcess) -> None:
        assert server.views is not None
        assert server.upr is not None
        self.server = server
        self.upr: Address = server.upr
        self.kv = Client((server.memcached.host, server.memcached.port), no_delay=True)
        self.views = Views(server.views)

    def put(self, documents: Mapping[str, Any]) -> None:
        """Store documents."""
        texts = {name: json.dumps(body).encode() for name, body in documents.items()}
        assert not self.kv.set_many(texts, noreply=False)

    def drop(self, names: Iterable[str]) -> None:
        """Delete documents."""
        self.kv.delete_many(list(names), noreply=False)

    def design(self, name: str = "d", views: Mapping[str, Any] = BY_KEY, **more: Any) -> None:
        """Put a design."""
        answer = self.views.put(name, views, **more)
        assert answer.status == 201, answer

    def keys(self, view: str = "d/v", **options: Any) -> list[Any]:
        """Return the keys of all rows, up to date."""
        return [row["key"] for row in self.views.rows(view, **{"reduce": "false"} | options)]

    def positions(self) -> dict[int, tuple[int, int]]:
        """Return vb_uuid and high seqno of each vBucket."""
        with UprWire(self.upr) as wire:
            standing = standing_of(wire)
        return {vb: (log[0][0], seqno) for vb, (seqno, log) in standing.items()}

    def at(self) -> str:
        """Return all present versions, as the option `at` wants them."""
        return ",".join(f"{vb}:{uuid}:{seqno}" for vb, (uuid, seqno) in self.positions().items())

    def wire(self, timeout_s: float = 30.0) -> UprWire:
        """Return a connection for `interop.replica_pair`."""
        return UprWire(self.upr, timeout_s)

    def log(self) -> str:
        """What the node wrote."""
        return self.server.log()

    @property
    def index_pid(self) -> int:
        """The index's process, 0 = there is none now."""
        pid: int = status_page(self.server)["index"]["pid"]
        return pid

    def kill_index(self) -> None:
        """``kill -9`` of the index's process; returns when another has been started."""
        killed = self.index_pid
        os.kill(killed, signal.SIGKILL)
        self.views.close()
        wait_until(lambda: self.index_pid not in (0, killed), "another index process")

    def close(self) -> None:
        """Hang up."""
        self.kv.close()
        self.views.close()


@contextmanager
def site(data: Path, *options: str, vbuckets: int = 8) -> Iterator[Site]:
    """Start a node; it must stop in order."""
    with start_uprmc(data, "--vbuckets", str(vbuckets), *options) as server:
        made = Site(server)
        try:
            yield made
        finally:
            made.close()
        if server.running:
            server.stop()
