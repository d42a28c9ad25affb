"""The decoder of `uprmc.client` with nothing behind it: what reading a backfill costs at the least.

Sockets, requests and flow control are those of `bench.upr_consumer`; only the bytes go another way.
As a program it runs in a process of its own, for `bench.spark`:

    python -m bench.spark_decoder backfill HOST:PORT --pid PID
"""

from __future__ import annotations

import argparse
import zlib

from bench.upr_consumer import LATEST, Consumer, Meter, RefusedError, say
from uprmc.client.decoder import Decoder, StreamEnded
from uprmc.model import SnapshotRange
from uprmc.remote.batch import Batch, Change
from uprmc.remote.stream import StreamState

_RECEIVE_BYTES = 256 << 10


class DecoderConsumer(Consumer):
    """A connection whose streams are taken apart by the library.

    Attributes:
        changes: what the last `take` has brought.
    """

    def __init__(self, address: tuple[str, int], name: bytes) -> None:
        super().__init__(address, name)
        self.changes: list[Change] = []
        self._decoder = Decoder(f"{address[0]}:{address[1]}")

    def begin(self) -> None:
        """Ask for everything that there is now in all active vBuckets."""
        self.seqnos()
        for vbucket in self.vbuckets:
            opaque = vbucket + 1  # as `stream` numbers its requests
            self._decoder.streams[opaque] = StreamState(vbucket, opaque, 0, SnapshotRange(0, 0))
        self.stream(self.vbuckets, LATEST)

    def take(self) -> int:
        """Wait for data, leave them in `changes` and return how many they are."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RefusedError("the server closed the connection")
        events = self._decoder.feed(data)
        batches = [event for event in events if type(event) is Batch]
        self.changes = [change for batch in batches for change in batch]
        self.ended += sum(type(event) is StreamEnded for event in events)
        self._dealt_with(self._decoder.counted_bytes)
        self._decoder.counted_bytes = 0
        return len(self.changes)


def backfill(consumer: DecoderConsumer, pid: int, *, check: bool) -> None:
    """Take everything and say what it cost; `check` sums up what came instead."""
    count, keys, values = 0, 0, 0
    print("ready", flush=True)
    meter = Meter(pid)
    consumer.begin()
    while consumer.ended < len(consumer.vbuckets):
        count += consumer.take()
        for change in consumer.changes if check else ():
            keys += zlib.crc32(change.key)
            values += zlib.crc32(change.value or b"")
    say(meter.figures(max(1, count)) | {"sums": [count, keys, values]})


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("what", choices=["backfill"])
    options.add_argument("address")
    options.add_argument("--pid", type=int, default=0, help="of the server, for its CPU")
    options.add_argument("--check", action="store_true", help="sum up contents, take no figures")
    words = options.parse_args()
    host, _, port = words.address.rpartition(":")
    consumer = DecoderConsumer((host, int(port)), b"bench:decoder")
    with consumer:
        backfill(consumer, words.pid, check=words.check)


if __name__ == "__main__":
    main()
