"""The stand-alone adapter as a process, and masters and clients of it."""

from __future__ import annotations

import os
import sys

from interop.server_process import ANY_PORT, START_TIMEOUT_S, Address, ServerProcess
from interop.wire import OK, SET, Wire, frame, store

DELETE = 0x04


def start_adapter(upstream: object, *options: object, listen: str = ANY_PORT) -> ServerProcess:
    """Start ``uprmc tap-adapter`` and wait for its ready line; its listener is `memcached`."""
    command = [sys.executable, "-m", "uprmc", "tap-adapter", "--upstream", str(upstream)]
    command += ["--listen", listen, *map(str, options)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
    process = ServerProcess("tap-adapter", command, environment)
    try:
        words = process._wait_for_line(START_TIMEOUT_S).split()
        facts = dict(word.partition("=")[::2] for word in words[2:])
        assert words[:2] == ["uprmc", "ready"], words
        assert facts["upstream"] == str(upstream)
        assert facts["pid"] == str(process.pid)
        process.memcached = Address.parse(facts["tap"])
    except BaseException:
        process.__exit__(None, None, None)
        raise
    return process


class Writer(Wire):
    """Writes documents into vBuckets of a node; each is answered before the next."""

    def set(self, number: int, *keys: bytes, value: bytes = b"v", flags: int = 0) -> None:
        for key in keys:
            answer = self.ask(store(SET, key, value, flags=flags, vbucket=number))
            assert answer.status == OK, answer

    def delete(self, number: int, *keys: bytes) -> None:
        for key in keys:
            assert self.ask(frame(DELETE, key, vbucket=number)).status == OK
