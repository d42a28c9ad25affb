"""A pipe as vbucketmigrator is one: a TAP stream of one server pushed into another one.

It sends TAP_CONNECT to the source; after that every packet of the source is copied to the
destination and every answer of the destination back to the source, byte by byte, so what the two
agree on is theirs alone. What vbucketmigrator does beside that is done here, too: packets of
vBuckets that it was not asked for are dropped (OPAQUE and NOOP are not), FLUSH goes on only with
vBucket 0, answers to a NOOP stay here. It is no better a program than the original: it forgets
everything when it ends and ends when either side does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from interop import tap_wire as t
from interop import upr_wire as u
from interop.server_process import Address
from interop.tap_wire import TapFrame
from interop.wire import HEADER

#: Flags of its TAP_CONNECT: with ``-A``, with ``-A -t``, with ``-A -r``, and without ``-A``.
REPLICATE, TAKE_OVER, REGISTER, PLAIN = 0x14, 0x1C, 0xD4, 0x04

#: Its exit codes: all went well; the stream ended, as a replication never should.
DONE, BROKEN = 0, 70

_CONNECT_OPAQUE = 0xFECAFECA
_CHUNK_BYTES = 1 << 16
_TIMEOUT_S = 30.0
_AGAIN_S = 0.2
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent is forgotten


class Pipe(threading.Thread):
    """Use it in a ``with`` statement: it relays until it is left, killed, or has ended.

    Args:
        source: whose stream is wanted.
        destination: where it goes.
        name: of the stream; may be empty.
        flags: of its TAP_CONNECT.
        vbuckets: those it asks for.
        kill_after: drop dead after so many packets were copied to the destination.

    Attributes:
        kinds: how many packets of each kind came from the source; of OPAQUE, by (opcode, code).
        states: vBucket -> what the source last said its state is to be.
        answers: how many answers of each status came from the destination.
        complaints: what it printed.
        exit_code: ``None`` while it runs, and when it was killed.
    """

    def __init__(
        self,
        source: Address,
        destination: Address,
        name: bytes = b"",
        flags: int = REPLICATE,
        vbuckets: Sequence[int] = (),
        *,
        kill_after: int | None = None,
    ) -> None:
        super().__init__(name="pipe", daemon=True)
        self.kinds: Counter[int | tuple[int, int]] = Counter()
        self.states: dict[int, int] = {}
        self.answers: Counter[int] = Counter()
        self.complaints: list[str] = []
        self.exit_code: int | None = None
        self._flags, self._vbuckets = flags, frozenset(vbuckets)
        self._left = kill_after
        self._source, self._destination = (
            source.connect(_TIMEOUT_S),
            destination.connect(_TIMEOUT_S),
        )
        self._held = {self._source: b"", self._destination: b""}
        self._killed = threading.Event()
        request = t.connect(name, flags, vbuckets=vbuckets, opaque=_CONNECT_OPAQUE)
        self._source.sendall(request)

    @property
    def relayed(self) -> int:
        """Packets that came from the source."""
        return sum(self.kinds.values())

    def run(self) -> None:
        try:
            while self.exit_code is None and not self._killed.is_set():
                ready = select.select([self._source, self._destination], [], [], 0.05)[0]
                for each in ready:
                    self._read(each)
        except OSError as error:
            self._ended(f"{error}")
        finally:
            if self._killed.is_set():
                self.exit_code = None
            for each in (self._source, self._destination):
                each.close()

    def kill(self) -> None:
        """``kill -9``: both connections are reset, whatever was on its way."""
        self._die()
        self.join(_TIMEOUT_S)
        assert not self.is_alive(), "the pipe did not end"

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until it ends by itself; gives its exit code."""
        self.join(timeout_s)
        assert not self.is_alive(), f"it still runs: {self.kinds}, {self.states}"
        assert self.exit_code is not None, "it was killed"
        return self.exit_code

    def wait_until(self, true: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until something is so; the pipe must still run then, or have been told to die."""
        deadline = time.monotonic() + timeout_s
        while not true():
            assert self.is_alive(), (self.exit_code, self.complaints)
            assert time.monotonic() < deadline, (self.kinds, self.answers)
            time.sleep(0.01)

    def __enter__(self) -> Pipe:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    # --- the thread -----------------------------------------------------------------------------

    def _die(self) -> None:
        self._killed.set()
        for each in (self._source, self._destination):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _ended(self, why: str) -> None:
        whole = bool(self._vbuckets) and all(
            self.states.get(number) == u.ACTIVE for number in self._vbuckets
        )
        self.complaints.append(why)
        self.exit_code = DONE if self._flags & t.TAKEOVER and whole else BROKEN

    def _read(self, from_whom: socket.socket) -> None:
        data = from_whom.recv(_CHUNK_BYTES)
        if not data:
            self._ended("the source hung up" if from_whom is self._source else "destination ended")
            return
        held = self._held[from_whom] + data
        relay = self._forward if from_whom is self._source else self._back
        out, place = [], 0
        while len(held) - place >= HEADER.size:
            end = place + HEADER.size + int.from_bytes(held[place + 8 : place + 12], "big")
            if end > len(held) or self._killed.is_set():
                break
            if relay(packet := TapFrame.of(held[place:end])):
                out.append(packet.packet)
            place = end
        self._held[from_whom] = held[place:]
        to_whom = self._destination if from_whom is self._source else self._source
        if out:
            to_whom.sendall(b"".join(out))

    def _forward(self, packet: TapFrame) -> bool:
        """Whether a packet of the source goes on."""
        if packet.is_reply:
            self._ended(f"refused: {packet.number:#x}")
            return False
        code = packet.code if packet.opcode == t.OPAQUE else 0
        self.kinds[(packet.opcode, code) if packet.opcode == t.OPAQUE else packet.opcode] += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._die()
                return False
        if packet.opcode in (t.OPAQUE, t.NOOP):
            return True
        if packet.opcode == t.FLUSH:
            return 0 in self._vbuckets
        if packet.number not in self._vbuckets:
            self.complaints.append(f"vBucket {packet.number} was not asked for")
            return False
        if packet.opcode == t.VBUCKET_SET:
            self.states[packet.number] = packet.code
        return True

    def _back(self, packet: TapFrame) -> bool:
        """Whether a packet of the destination goes back."""
        assert packet.is_reply, packet
        self.answers[packet.number] += 1
        return packet.opcode != t.NOOP


class KeptPipe:
    """A pipe that is started again whenever it ends, as a supervisor does. Use it in a ``with``.

    Attributes:
        pipes: all of them, in order.
    """

    def __init__(self, *arguments: Any) -> None:
        self.pipes: list[Pipe] = []
        self._arguments = arguments
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kept-pipe", daemon=True)

    def counted(self, kind: int | tuple[int, int]) -> int:
        """Packets of a kind that came from the source, over all pipes."""
        return sum(pipe.kinds[kind] for pipe in self.pipes)

    def _run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(OSError):
                pipe = Pipe(*self._arguments)
                self.pipes.append(pipe)
                with pipe:
                    while pipe.is_alive() and not self._ending.wait(0.02):
                        pass
            self._ending.wait(_AGAIN_S)

    def __enter__(self) -> KeptPipe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(_TIMEOUT_S)
        assert not self._thread.is_alive(), "the supervisor did not end"
