"""Redis streams as the peer of UPR ones: a server, its filling, and consumers by redis-py.

redis-py parses with hiredis, which is C. An item is one entry with one field, whose name is the
key: the least that Redis and its client can make of an item. Redis keeps it in memory only
(``--save '' --appendonly no``), while ours has it on disk.

As a program it runs a consumer in a process of its own, for `bench.upr`; compare
`bench.upr_consumer`:

    python -m bench.redis_peer backfill HOST:PORT --pid PID --items N
    python -m bench.redis_peer latency HOST:PORT --items N
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import time
from collections.abc import Iterable

from bench.upr_consumer import Digest, Meter, latency_of, quantiles, say
from interop.server_process import Address, ServerProcess

STREAM = b"bench"
_COUNT = 1_000
_START_S = 20.0


def missing() -> str:
    """What is not installed, and how to get it; empty = nothing."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed: tools/system_packages.sh bench"
    try:
        import hiredis  # noqa: F401 - only to see whether it is there
        import redis  # noqa: F401 - the same
    except ImportError as error:
        return f"{error.name} is not installed: pip install -e '.[bench]'"
    return ""


def start_redis() -> ServerProcess:
    """Start a Redis server that keeps everything in memory, on a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--appendonly", "no", "--loglevel", "warning", "--stream-node-max-entries", "100"]
    server = ServerProcess("redis", command, os.environ)
    server.memcached = Address("127.0.0.1", port)  # the door of whatever kind of server
    deadline = time.monotonic() + _START_S
    while True:
        try:
            server.memcached.connect(1.0).close()
        except OSError:
            if time.monotonic() > deadline or not server.running:
                raise
            time.sleep(0.02)
        else:
            return server


def version(server: ServerProcess) -> str:
    """Of the server, the client and its parser."""
    import hiredis
    import redis

    with _client(server.memcached) as client:
        found = client.info("server")["redis_version"]
    return f"Redis {found}, redis-py {redis.__version__}, hiredis {hiredis.__version__}"


def fill(server: ServerProcess, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Add the items to the stream."""
    with _client(server.memcached) as client:
        pipe = client.pipeline(transaction=False)
        for number, (key, value) in enumerate(items, 1):
            pipe.xadd(STREAM, {key: value})
            if not number % 5_000:
                pipe.execute()
        pipe.execute()


def entry(key: bytes, value: bytes) -> bytes:
    """The command that adds an item, as a writer without a client library sends it."""
    words = (b"XADD", STREAM, b"*", key, value)
    return b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _client(address: Address):  # type: ignore[no-untyped-def] # redis-py may be absent
    import redis

    return redis.Redis(host=address.host, port=address.port, protocol=2)


# --- the programs -------------------------------------------------------------------------------


def backfill(address: Address, pid: int, items: int, *, check: bool) -> None:
    """Read the whole stream."""
    digest, count, last = Digest(), 0, b"0"
    with _client(address) as client:
        client.ping()
        print("ready", flush=True)
        meter = Meter(pid)
        while count < items:
            ((_, entries),) = client.xread({STREAM: last}, count=_COUNT)
            last = entries[-1][0]
            count += len(entries)
            if check:
                for _, fields in entries:
                    for key, value in fields.items():
                        digest.add(key, value)
        say(meter.figures(count) | {"digest": digest.text()})


def latency(address: Address, items: int) -> None:
    """Read what comes and tell how old it is."""
    found: list[float] = []
    with _client(address) as client:
        newest = client.xrevrange(STREAM, count=1)
        last = newest[0][0] if newest else b"0"
        print("ready", flush=True)
        while len(found) < items:
            ((_, entries),) = client.xread({STREAM: last}, count=_COUNT, block=10_000)
            last = entries[-1][0]
            found += [latency_of(value) for _, fields in entries for value in fields.values()]
    say(quantiles(found) | {"items": len(found)})


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("what", choices=["backfill", "latency"])
    options.add_argument("address")
    options.add_argument("--pid", type=int, default=0, help="of the server, for its CPU")
    options.add_argument("--items", type=int, default=1_000)
    options.add_argument("--check", action="store_true", help="compare contents, take no figures")
    words = options.parse_args()
    address = Address.parse(words.address)
    if words.what == "backfill":
        backfill(address, words.pid, words.items, check=words.check)
    else:
        latency(address, words.items)


if __name__ == "__main__":
    main()
