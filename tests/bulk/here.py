"""Documents into a node and out of it, by the project's other client: nothing of `uprmc.spark`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from interop.server_process import ServerProcess, start_uprmc
from uprmc.client import Change
from uprmc.client.handler import SET
from uprmc.client.kv import KvClient
from uprmc.client.lease import Lease


def put(server: ServerProcess, documents: Mapping[bytes, bytes], *, flags: int = 0) -> None:
    """Store documents where they belong."""
    with KvClient(str(server.upr)) as kv:
        kv.set_many(documents, flags=flags)


def remove(server: ServerProcess, *keys: bytes) -> None:
    """Delete documents."""
    with KvClient(str(server.upr)) as kv:
        kv.delete_many(keys)


def numbered(count: int, *, prefix: str = "key", value: str = "value") -> dict[bytes, bytes]:
    """Return `count` documents, each with its own key and value."""
    return {f"{prefix}-{n}".encode(): f"{value}-{n}".encode() for n in range(count)}


def changes(server: ServerProcess) -> dict[bytes, Change]:
    """Return the newest version of every key, deletions too, all of one moment."""
    with Lease(str(server.upr), [], 60) as lease:
        return {change.key: change for change in lease.read()}


def contents(server: ServerProcess) -> dict[bytes, bytes]:
    """Return every document of the node, at one moment."""
    return {key: change.value or b"" for key, change in changes(server).items() if change.op == SET}


def leased(server: ServerProcess, lease_id: int) -> list[tuple[bytes, int, bytes | None]]:
    """Return key, seqno and value of all that somebody else's lease holds."""
    lease = Lease.__new__(Lease)  # the class itself would acquire one of its own
    lease._place, lease._tls, lease._credentials = str(server.upr), None, None
    lease._timeout_s = lease.lifetime_s = 30.0
    lease.id = lease_id
    with KvClient(str(server.upr)) as kv:
        numbers = range(kv.vbuckets)
    return sorted((each.key, each.seqno, each.value) for each in lease.read(numbers))


class Writing:
    """A thread that sets documents again and again, the n-th time to the text of n.

    Attributes:
        rounds: how often all of them were set.
    """

    def __init__(self, server: ServerProcess, keys: Iterable[bytes]) -> None:
        self.rounds = 0
        self._keys = list(keys)
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with KvClient(str(self._server.upr)) as kv:
            while not self._stop.is_set():
                value = str(self.rounds + 1).encode()
                for at in range(0, len(self._keys), 50):
                    kv.set_many(dict.fromkeys(self._keys[at : at + 50], value))
                    if self._stop.wait(0.001):
                        return
                self.rounds += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def restarted(server: ServerProcess, data: Path, killed: Path | None = None) -> ServerProcess:
    """Kill a server without warning and start another at the same place on its data.

    Args:
        server: which.
        data: its directory.
        killed: a file that is made as soon as it is gone.
    """
    places = ("--upr", str(server.upr), "--vbuckets", "64")
    server.kill()
    if killed is not None:
        killed.touch()
    return start_uprmc(data, *places)


class AtSight:
    """Does something in a thread as soon as a file is there, which another process makes.

    Attributes:
        result: what it returned.
    """

    def __init__(self, path: Path, act: Callable[[], Any]) -> None:
        self._path, self._act = path, act
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.result: Any = None

    def _run(self) -> None:
        while not self._path.exists():
            if self._over.wait(0.01):
                return
        self.result = self._act()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
