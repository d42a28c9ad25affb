"""One event of a connection, from its socket and back to it: compiled only.

What a request costs beside its two system calls is mostly Python between them: the processor has
forgotten the interpreter's loop after each of the calls. `Line.exchange` does what the transport,
the protocol and the session do for a chunk that `BinaryServing` can serve, as long as nothing is
special about any of them. It leaves everything else to these, undone.

See `uprmc.core.serving` for what it promises.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64

from uprmc.core.native.binary import BinaryServing
from uprmc.core.native.fronts import AccountFront

#: Time is told to the account when it has gone on by so much.
_TOLD_S: Final = 0.001


class Line:
    """See the module docstring, and `uprmc.core.serving.Line`."""

    def __init__(
        self, connection: Any, protocol: Any, session: Any, serving: BinaryServing, limit: i64
    ) -> None:
        self.connection: Any = connection
        self.protocol: Any = protocol
        self.session: Any = session
        self.serving: BinaryServing = serving
        self.limit: i64 = limit
        self.receive: Any = connection.socket.recv
        self.send: Any = connection.socket.send
        self.most: Any = connection.bufferSize
        self.nothing: Any = protocol.nothing
        self.registry: Any = protocol._connections
        self.wakes: Any = protocol._wake_list
        bucket = session.bucket
        self.account: AccountFront = serving.account
        self.locks: Any = bucket.account
        self.clock: Any = bucket.clock
        self.now: Any = bucket.steady.now
        self.stats: Any = bucket.stats

    def exchange(self) -> bytes | None:
        """See `uprmc.core.serving.Line`."""
        data: bytes = self.receive(self.most)
        if not data or not self._is_plain():
            return data
        protocol = self.protocol
        protocol.bytes_read += len(data)
        protocol._chunks += 1
        self.registry.heard += 1
        try:
            self._answer(data)
        except Exception:
            protocol._failed()
        return None

    def _is_plain(self) -> bool:
        """Tell whether nothing is going on besides."""
        protocol = self.protocol
        if protocol._ending or protocol._blocked or protocol._counted is not self.nothing:
            return False
        session = self.session
        if (
            session._held
            or session._unsent
            or session.input_full
            or session._waiting
            or session._discard
            or session.closing
        ):
            return False
        locks = self.locks
        if locks.locked_until and not locks.unlocked(self.clock):
            return False
        connection = self.connection
        return not (
            connection._tempDataBuffer
            or connection.dataBuffer
            or connection.disconnecting
            or not connection.connected
            or connection.TLS
            or connection._writeDisconnecting
            or not (connection.producer is None or connection.streamingProducer)
        )

    def _answer(self, data: bytes) -> None:
        session, serving = self.session, self.serving
        now: float = self.now()
        account = self.account
        if not account.told <= now < account.told + _TOLD_S:
            self.locks.tell_time(now)
            account.told = now
        serving.with_seqnos = session.with_seqnos
        serving.unsent = 0
        out: list[bytes] = []
        mask: i64 = -1
        if session.by_key:
            mask = session._mask
        longest: i64 = session._max_store_body_bytes
        end = serving.serve(data, 0, out, self.limit, mask, i64(int(now)), longest)
        self._count()
        if end != len(data):
            session.go_on(out, int(serving.unsent), data[int(end) :])
        wakes = self.wakes
        if wakes.alone and wakes.waiting:
            wakes.run()
        if end != len(data):
            self.protocol._pump()
        elif len(out) == 1:
            self._send(out[0])
        elif out:
            self._send(b"".join(out))

    def _count(self) -> None:
        serving = self.serving
        if serving.sets or serving.misses or serving.versions or serving.lost:
            self.session._count_served(serving)
        elif serving.hits:
            stats, hits = self.stats, int(serving.hits)
            stats.cmd_get += hits
            stats.get_hits += hits
            serving.hits = 0

    def _send(self, reply: bytes) -> None:
        protocol = self.protocol
        length = len(reply)
        protocol.bytes_written += length
        protocol._in_transport = length
        sent = 0
        try:
            sent = self.send(reply)
        except OSError:
            sent = 0
        if sent != length:
            self.connection.queue(reply[sent:] if sent else reply)
            if protocol._blocked:
                protocol._pump()
