"""A real node, as a process or in this process, and clients that never wait without an end."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from interop.server_process import Address, ServerProcess
from interop.wire import GET, NOOP, SET, STAT, Reply, Wire, frame, store, vbucket_of
from tests.server.support import Loop
from uprmc.config import build
from uprmc.server.node import Node

OK, NOT_FOUND, TEMPORARY_FAILURE = 0x00, 0x01, 0x86


def upr(server: ServerProcess) -> Address:
    assert server.upr is not None
    return server.upr


def stats(address: Address, group: str = "") -> dict[str, str]:
    """One group of statistics."""
    with Wire(address) as wire:
        wire.send(frame(STAT, group.encode()))
        found = {}
        while (reply := wire.reply()).key:
            found[reply.key.decode()] = reply.value.decode()
    assert reply.status == OK, (group, reply)
    return found


def get_page(server: ServerProcess, path: str) -> tuple[int, bytes]:
    """Fetch a page of the HTTP listener: status code and body."""
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def status_page(server: ServerProcess) -> Any:
    code, body = get_page(server, "/status.json")
    assert code == 200
    return json.loads(body)


class Client:
    """A binary client that sends many requests at once and tries refused stores again.

    With `authoritative` it addresses vBuckets as on the upr listener.
    """

    def __init__(self, address: Address, *, authoritative: bool = False) -> None:
        self.wire = Wire(address, timeout_s=30)
        self.retries = 0
        self._authoritative = authoritative

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def _number(self, key: bytes) -> int:
        return vbucket_of(key) if self._authoritative else 0

    def send_all(self, requests: list[bytes]) -> list[Reply]:
        """Send loud requests as one write; return their replies."""
        self.wire.send(*requests)
        return [self.wire.reply() for _ in requests]

    def store(self, items: Mapping[bytes, bytes], limit_s: float = 60.0) -> None:
        """Store everything, trying again what is refused for now."""
        deadline = time.monotonic() + limit_s
        left = list(items)
        while left:
            keys, left = left[:64], left[64:]
            requests = [store(SET, key, items[key], vbucket=self._number(key)) for key in keys]
            refused = []
            for key, reply in zip(keys, self.send_all(requests), strict=True):
                assert reply.status in (OK, TEMPORARY_FAILURE), reply
                if reply.status:
                    refused.append(key)
            if refused:
                assert time.monotonic() < deadline, f"refused for {limit_s:g} s"
                self.retries += len(refused)
                time.sleep(0.005)  # as a client does that was told to try again later
            left = refused + left

    def load(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield (key, value) of every key, ``None`` for a miss."""
        for start in range(0, len(keys), 64):
            some = keys[start : start + 64]
            requests = [frame(GET, key, vbucket=self._number(key)) for key in some]
            for key, reply in zip(some, self.send_all(requests), strict=True):
                assert reply.status in (OK, NOT_FOUND), reply
                yield key, None if reply.status else reply.value

    def try_store(self, key: bytes, value: bytes) -> int:
        """Store once and return the status."""
        return self.send_all([store(SET, key, value, vbucket=self._number(key))])[0].status

    def ping(self) -> None:
        self.send_all([frame(NOOP)])


@contextmanager
def node_here(data: Path, **changes: Any) -> Iterator[tuple[Node, Loop]]:
    """Run a real node on a real reactor that turns while a test waits."""
    names = {name.replace("__", "."): value for name, value in changes.items()}
    place = "127.0.0.1:0"
    settings = build(
        {
            "storage.data": str(data),
            "engine.vbuckets": 4,
            "server.memcached": place,
            "server.upr": place,
            "server.http": place,
            "server.views": "off",
            **names,
        }
    )
    loop = Loop()
    node = Node(loop.reactor, settings)
    try:
        loop.result(node.start(), 30.0)
        yield node, loop
    finally:
        with suppress(Exception):
            loop.result(node.stop(), 30.0)
        loop.close()
