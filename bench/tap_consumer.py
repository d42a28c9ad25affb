"""A TAP consumer in plain Python, written from the protocol alone, as careful as `upr_consumer`.

As a program it runs in a process of its own, for `bench.tap`: it asks for a dump, takes it to its
end and prints its figures as one line of JSON.

    python -m bench.tap_consumer HOST:PORT --pid PID [--acks]
"""

from __future__ import annotations

import argparse
import socket
import struct

from bench.upr_consumer import Digest, Meter, request, say

CONNECT, MUTATION, DELETE, OPAQUE = 0x40, 0x41, 0x42, 0x44
DUMP, SUPPORT_ACK, FIX_FLAG_BYTEORDER = 0x02, 0x10, 0x100

_RECEIVE_BYTES = 256 << 10
_MUTATION_BYTES = 49

#: Opcode, key length, vBucket, body length, opaque, CAS, section length, flags, item flags,
#: expiration.
_FRAME = struct.Struct(">xBH2xHLLQHH4xLL")
_HEAD = struct.Struct(">xBH2xHLLQHH")
_ANSWER = struct.Struct(">BB10xL8x")


class TapConsumer:
    """One connection that is a TAP stream.

    Attributes:
        socket: the connection's.
        unread: whether anything is left to come.
        acknowledges_documents: or only what is none.
    """

    def __init__(self, address: tuple[str, int], name: bytes, flags: int) -> None:
        self.socket = socket.create_connection(address, timeout=60.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.unread = True
        self.acknowledges_documents = True
        value = struct.pack(">Q", 0) if flags & 0x01 else b""
        self.socket.sendall(request(CONNECT, name, struct.pack(">L", flags), value))

    def receive(self) -> list[tuple[object, ...]]:
        """Wait for data and return the documents in it; answers what asks for it.

        A document is (vBucket, revision, CAS, flags, expiration, key, value).
        """
        received = self.socket.recv(_RECEIVE_BYTES)
        self.unread = bool(received)
        return self._decode(self._rest + received if self._rest else received)

    def _decode(self, data: bytes) -> list[tuple[object, ...]]:
        unpack, from_bytes = _FRAME.unpack_from, int.from_bytes
        batch: list[tuple[object, ...]] = []
        append = batch.append
        position, size = 0, len(data)
        last_start = size - 40
        answers = []
        while position <= last_start:
            opcode, key_length, vbucket, length, opaque, cas, section, flags, item, expiration = (
                unpack(data, position)
            )
            end = position + 24 + length
            if end > size:
                break
            if opcode == 0x41:
                key_at = position + 40 + section
                value_at = key_at + key_length
                rev = from_bytes(data[position + 40 : position + 48], "big")
                append(
                    (vbucket, rev, cas, item, expiration, data[key_at:value_at], data[value_at:end])
                )
            if flags & 1 and (self.acknowledges_documents or opcode > DELETE):
                answers.append(_ANSWER.pack(0x81, opcode, opaque))
            position = end
        position = self._take_short(data, position, answers)
        self._rest = data[position:]
        if answers:
            self.socket.sendall(b"".join(answers))
        return batch

    def _take_short(self, data: bytes, position: int, answers: list[bytes]) -> int:
        """Take messages that are shorter than a mutation, at the end of the data."""
        while len(data) - position >= _HEAD.size:
            opcode, _, _, length, opaque, _, _, flags = _HEAD.unpack_from(data, position)
            end = position + 24 + length
            if end > len(data):
                break
            if flags & 1 and opcode != 0x0A:
                answers.append(_ANSWER.pack(0x81, opcode, opaque))
            position = end
        return position


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("address")
    options.add_argument("--pid", type=int, default=0, help="of the server, for its CPU")
    options.add_argument("--acks", action="store_true", help="ask for acknowledgements, give them")
    options.add_argument("--check", action="store_true", help="compare contents, take no figures")
    words = options.parse_args()
    host, _, port = words.address.rpartition(":")
    print("ready", flush=True)
    digest, count = Digest(), 0
    meter = Meter(words.pid)
    flags = DUMP | FIX_FLAG_BYTEORDER | (SUPPORT_ACK if words.acks else 0)
    consumer = TapConsumer((host, int(port)), b"", flags)
    while consumer.unread:
        batch = consumer.receive()
        count += len(batch)
        if words.check:
            for document in batch:
                key, value = document[5], document[6]
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                digest.add(key, value)
    say(meter.figures(max(1, count)) | {"digest": digest.text()})


if __name__ == "__main__":
    main()
