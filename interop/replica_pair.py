"""Two real nodes, one of which may be made the replica of the other, with bad lines between them.

A `Node` is a data directory with a server on it that is started, killed and started again on the
same ports. A `ReplicaPair` has two, and a proxy in front of each: nodes dial one another through
the proxies, scripts talk to the nodes directly. The commands that operate replication are written
here from their description in ``docs/extensions.md``.

Waiting is asking: `wait_until_level` ends when the nodes themselves say that they hold the same.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from interop import upr_wire as u
from interop.comparison import TEMPORARY_FAILURE
from interop.proxy import LastingPort, Proxy
from interop.server_process import Address, ServerProcess, start_uprmc
from interop.upr_wire import UprWire
from interop.waiting import wait_until
from interop.wire import frame

REPLICATE, TAKEOVER, FAILOVER = 0xD7, 0xD8, 0xD9
OBSERVE_SEQNO, FAILOVER_LOG_BEFORE_OPEN = 0x91, 0x96
STOP, DEMOTE = 0x01, 0x02
TAKEN, REFUSED, INTERRUPTED = range(3)

_ASK_AGAIN_S = 0.02
_VERB_S = 60.0

Log = tuple[tuple[int, int], ...]


class Standing(NamedTuple):
    """How far a node holds one vBucket: end of its last whole snapshot, and its failover log."""

    seqno: int
    log: Log


class Node:
    """A data directory and the server on it."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self._ports = (LastingPort(), LastingPort())
        self.upr, self.memcached = (port.address for port in self._ports)
        self.kills = 0
        self._server: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "the node is not running"
        return self._server

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.running

    def start(self) -> None:
        """Start it where it was; returns when it is ready."""
        assert not self.running
        where = ("--upr", str(self.upr))
        self._server = start_uprmc(self.data, *where, *self.options, memcached=str(self.memcached))
        assert self._server.upr == self.upr

    def kill(self) -> None:
        """``kill -9``."""
        self.server.kill()
        self._server = None
        self.kills += 1

    def stop(self) -> None:
        """SIGTERM; it must end in order."""
        self.server.stop()
        self._server = None

    def end(self) -> None:
        """However it stands: nothing of it is left running, its ports are given back."""
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None
        for port in self._ports:
            port.give_back()

    def wire(self, timeout_s: float = 30.0) -> UprWire:
        return UprWire(self.upr, timeout_s)

    def log(self) -> str:
        return self._server.log() if self._server else "(not running)"


class ReplicaPair:
    """Two nodes that run, and a proxy in front of each. Use it in a ``with`` statement."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.a = Node(directory / "a", *options)
        self.b = Node(directory / "b", *options)
        self.to_a = Proxy(self.a.upr)
        self.to_b = Proxy(self.b.upr)

    def __enter__(self) -> ReplicaPair:
        try:
            self.a.start()
            self.b.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in (self.a, self.b):
            each.end()
        for proxy in (self.to_a, self.to_b):
            proxy.stop()

    def dialled(self, node: Node) -> Address:
        """Where the other node dials this one: through the proxy."""
        return self.to_a.address if node is self.a else self.to_b.address


# --- commands -----------------------------------------------------------------------------------


def _numbers(vbuckets: Iterable[int]) -> bytes:
    return b"".join(struct.pack(">H", number) for number in vbuckets)


def replicate(
    node: Node, source: Address | str, vbuckets: Iterable[int] = (), *, flags: int = 0
) -> None:
    """Have a node follow another; no vBuckets means all of them."""
    key, extras = str(source).encode(), struct.pack(">I", flags)
    with node.wire() as wire:
        wire.command(frame(REPLICATE, key, _numbers(vbuckets), extras))


def fail_over(node: Node, vbuckets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Make vBuckets active; gives the newest entry of each failover log."""
    with node.wire() as wire:
        value = wire.command(frame(FAILOVER, value=_numbers(vbuckets))).value
    return {number: (uuid, seqno) for number, uuid, seqno in struct.iter_unpack(">HQQ", value)}


def take_over(target: Node, source: Address, vbuckets: Iterable[int]) -> dict[int, int]:
    """Hand vBuckets over to a node; gives the outcome of each."""
    numbers = list(vbuckets)
    with target.wire(60.0) as wire:
        answer = wire.call(frame(TAKEOVER, str(source).encode(), _numbers(numbers)))
    if answer.number == TEMPORARY_FAILURE:  # none was begun; the text says why
        return dict.fromkeys(numbers, REFUSED)
    assert answer.number == 0, answer
    return dict(struct.iter_unpack(">HH", answer.value))


def verb(*words: object, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run ``uprmc`` as a user would; the exit code must be ``expect``."""
    command = [sys.executable, "-m", "uprmc", *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_VERB_S, env=environment, check=False
    )
    assert expect is None or done.returncode == expect, f"{command}: {done}"
    return done


# --- asking -------------------------------------------------------------------------------------


def logs_of(wire: UprWire, vbuckets: Sequence[int]) -> dict[int, Log]:
    """Failover logs, all asked for at once."""
    asked = [frame(FAILOVER_LOG_BEFORE_OPEN, vbucket=v, opaque=v) for v in vbuckets]
    answers = wire.replies_until_noop(*asked)
    assert all(each.status == 0 for each in answers), answers
    return {each.opaque: tuple(u.failover_log(each.value)) for each in answers}


def standing_of(wire: UprWire) -> dict[int, Standing]:
    """Where a node stands with every vBucket that is not dead."""
    seqnos = wire.high_seqnos()
    logs = logs_of(wire, sorted(seqnos))
    return {number: Standing(seqno, logs[number]) for number, seqno in seqnos.items()}


def observe_seqno(wire: UprWire, vbucket: int, uuid: int) -> tuple[int, int]:
    """(persisted seqno, high seqno) of a vBucket, which must be in that history still."""
    answer = wire.command(frame(OBSERVE_SEQNO, value=struct.pack(">Q", uuid), vbucket=vbucket))
    form, number, found, persisted, high = struct.unpack_from(">BHQQQ", answer.value)
    assert (form, number, found) == (0, vbucket, uuid), answer
    return persisted, high


def states_of(wire: UprWire, vbuckets: Sequence[int]) -> dict[int, int]:
    """vBucket -> state."""
    asked = [frame(u.GET_VBUCKET, vbucket=v, opaque=v) for v in vbuckets]
    return {
        each.opaque: int.from_bytes(each.value, "big") for each in wire.replies_until_noop(*asked)
    }


def wait_until_level(source: Node, replica: Node, timeout_s: float = 60.0) -> dict[int, Standing]:
    """Wait until a replica says that it holds every vBucket of its source, in the same history.

    Meaningful once nobody writes any more. Gives where both stand.
    """
    with source.wire() as asked, replica.wire() as other:
        apart: list[str] = []
        found: dict[int, Standing] = {}

        def level() -> bool:
            nonlocal found
            found, held = standing_of(asked), standing_of(other)
            apart[:] = [
                f"vBucket {number}: source {found.get(number)}, replica {held.get(number)}"
                for number in sorted(found.keys() | held.keys())
                if found.get(number) != held.get(number)
            ]
            return not apart

        def report() -> str:
            shown = "\n".join(apart[:5])
            replication = "\n".join(
                f"{name} {value}" for name, value in other.texts(b"replication").items()
            )
            return (
                f"{len(apart)} vBuckets are apart:\n{shown}\n"
                f"stats of the replica:\n{replication[:3_000]}\n"
                f"source's log:\n{source.log()[-3_000:]}\nreplica's log:\n{replica.log()[-3_000:]}"
            )

        wait_until(level, report, timeout_s)
        return found
