"""A server full of documents that are all on disk, for benchmarks of what comes after that."""

from __future__ import annotations

import time

from bench import common
from interop.server_process import ServerProcess
from interop.wire import SETQ, Wire, frame, store, vbucket_of

_FLUSH_S = 240.0
_PORTION = 1_000
_SASL_AUTH = 0x21


def items_of(count: int, value_bytes: int) -> list[tuple[bytes, bytes]]:
    """Keys of 20 bytes and values that do not repeat."""
    piece = value_bytes // 16 + 1
    values = ((b"%016x" % (n * 2654435761 % 2**64) * piece)[:value_bytes] for n in range(count))
    return [(common.key_of(number), value) for number, value in enumerate(values)]


def fill(server: ServerProcess, items: list[tuple[bytes, bytes]], vbuckets: int) -> None:
    """Store everything by quiet sets, and wait until all of it is on disk."""
    with Wire(server.memcached, timeout_s=60.0) as wire:
        for begin in range(0, len(items), _PORTION):
            some = items[begin : begin + _PORTION]
            frames = [store(SETQ, k, v, vbucket=vbucket_of(k, vbuckets)) for k, v in some]
            if found := wire.replies_until_noop(*frames):
                raise common.BenchError(f"a set was refused: {found[0]}")
    wait_until_flushed(server)


def wait_until_flushed(server: ServerProcess) -> None:
    """An idle server may only be waiting for company for its next commit, so it is asked."""
    deadline = time.monotonic() + _FLUSH_S
    while statistic(server, b"ep_queue_size"):
        if time.monotonic() > deadline:
            raise common.BenchError(f"not flushed after {_FLUSH_S:g} s")
        time.sleep(0.1)
    common.wait_until_idle(server)


def statistic(server: ServerProcess, name: bytes) -> int:
    """Return one number of the server's general statistics."""
    with Wire(server.memcached) as wire:
        if server.login:
            user, _, password = server.login.encode().partition(b":")
            wire.ask(frame(_SASL_AUTH, b"PLAIN", value=b"\0%b\0%b" % (user, password)))
        return int(wire.statistics()[name])
