"""pymemcache, the client most Python programs use; it speaks the text protocol only.

Proves that every command of `Client`, `PooledClient`, `HashClient` and `RetryingClient` does what
pymemcache's documentation says, with its defaults (``noreply`` stores) and without; that serialized
values and their flags come back; that a value which is too large costs one error and no more; that
the same works over a unix socket; and that data survives a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache import Client, MemcacheServerError, PooledClient, serde
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
)

from interop.conftest import Start
from interop.server_process import ServerProcess


def _target(server: ServerProcess) -> tuple[str, int] | str:
    address = server.memcached
    return address.host if address.is_unix else (address.host, address.port)


@pytest.fixture(params=["Client", "PooledClient", "HashClient", "RetryingClient"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    """Each kind of client, waiting for every reply."""
    target = _target(server)
    options: dict[str, Any] = {"default_noreply": False, "timeout": 10}
    if request.param == "PooledClient":
        made: Any = PooledClient(target, max_pool_size=4, **options)
    elif request.param == "HashClient":
        made = HashClient([target], use_pooling=True, **options)
    else:
        made = Client(target, **options)
    try:
        yield RetryingClient(made) if request.param == "RetryingClient" else made
    finally:
        made.close()


@pytest.fixture
def plain(server: ServerProcess) -> Iterator[Client]:
    """A `Client` as it comes, stores without replies."""
    made = Client(_target(server), timeout=10)
    try:
        yield made
    finally:
        made.close()


def test_set_and_get(client: Any) -> None:
    assert client.set("key", b"value") is True
    assert client.get("key") == b"value"
    assert client.get("missing") is None
    assert client.get("missing", b"default") == b"default"


def test_empty_values_and_line_ends_come_back(client: Any) -> None:
    for value in (b"", b"\r\n", b"END\r\n", b"VALUE x 0 1\r\n", bytes(range(256))):
        assert client.set("key", value) is True
        assert client.get("key") == value


def test_set_many_and_get_many(client: Any) -> None:
    values = {f"key-{number}": b"%d" % number for number in range(200)}
    assert client.set_many(values) == []
    assert client.get_many([*values, "missing"]) == values


def test_add_and_replace_respect_what_is_there(client: Any) -> None:
    assert client.replace("key", b"0") is False
    assert client.add("key", b"1") is True
    assert client.add("key", b"2") is False
    assert client.replace("key", b"3") is True
    assert client.get("key") == b"3"


def test_append_and_prepend(client: Any) -> None:
    assert client.append("key", b"x") is False
    assert client.prepend("key", b"x") is False
    client.set("key", b"b")
    assert client.append("key", b"c") is True
    assert client.prepend("key", b"a") is True
    assert client.get("key") == b"abc"


def test_gets_and_cas(client: Any) -> None:
    assert client.cas("key", b"v", b"1") is None
    client.set("key", b"first")
    value, unique = client.gets("key")
    assert value == b"first"
    assert unique.isdigit()
    assert client.cas("key", b"second", unique) is True
    assert client.cas("key", b"third", unique) is False
    assert client.get("key") == b"second"


def test_gets_many(client: Any) -> None:
    if not hasattr(client, "gets_many"):  # PooledClient 4.0 has none
        pytest.skip("this client has no gets_many")
    client.set_many({"a": b"1", "b": b"2"})
    found = client.gets_many(["a", "b", "missing"])
    assert {key: value for key, (value, _) in found.items()} == {"a": b"1", "b": b"2"}


def test_delete_and_delete_many(client: Any) -> None:
    client.set_many({"a": b"1", "b": b"2", "c": b"3"})
    assert client.delete("a") is True
    assert client.delete("a") is False
    assert client.delete_many(["b", "c", "missing"]) is True
    assert client.get_many(["a", "b", "c"]) == {}


def test_incr_and_decr(client: Any) -> None:
    assert client.incr("n", 1) is None
    client.set("n", b"10")
    assert client.incr("n", 5) == 15
    assert client.decr("n", 6) == 9
    assert client.decr("n", 100) == 0
    client.set("text", b"abc")
    with pytest.raises(MemcacheClientError):
        client.incr("text", 1)
    assert client.get("text") == b"abc"


def test_touch_and_an_expiry_in_the_past(client: Any) -> None:
    assert client.touch("missing", 10) is False
    client.set("key", b"v")
    assert client.touch("key", 100) is True
    assert client.get("key") == b"v"
    assert client.touch("key", -1) is True
    assert client.get("key") is None
    client.set("other", b"v", expire=-1)
    assert client.get("other") is None


def test_flush_all(client: Any) -> None:
    client.set_many({"a": b"1", "b": b"2"})
    client.flush_all()
    assert client.get_many(["a", "b"]) == {}


def test_quit_closes_and_the_next_call_connects_again(client: Any) -> None:
    client.set("key", b"v")
    client.quit()
    assert client.get("key") == b"v"


def test_a_value_of_five_mebibytes_is_one_error_and_the_client_goes_on(client: Any) -> None:
    client.set("key", b"v")
    # A HashClient may lose the error line to the broken pipe; memcached closes nothing.
    with pytest.raises(MemcacheServerError, match="too large"):
        client.set("big", b"x" * (5 << 20))
    assert client.get("big") is None
    assert client.set("key", b"w") is True
    assert client.get("key") == b"w"


def test_a_value_just_below_the_limit_is_stored(client: Any) -> None:
    value = b"x" * 1_000_000
    assert client.set("big", value) is True
    assert client.get("big") == value


def test_stores_without_reply_are_the_default_and_keep_the_conversation_in_step(
    plain: Client,
) -> None:
    for number in range(100):
        assert plain.set(f"k{number}", b"%d" % number) is True
        plain.add(f"k{number}", b"refused in silence")
        plain.append("missing", b"refused in silence")
    plain.set("big", b"x" * (2 << 20))
    plain.delete("k0")
    plain.delete("missing")
    plain.touch("missing", 5)
    plain.incr("missing", 1, noreply=True)
    assert plain.get("k0") is None
    assert plain.get("k99") == b"99"
    plain.flush_all()
    assert plain.get("k99") is None


def test_a_hundred_thousand_silent_stores_arrive(plain: Client) -> None:
    for start in range(0, 100_000, 10_000):
        assert plain.set_many({f"k{n}": b"%d" % n for n in range(start, start + 10_000)}) == []
    assert plain.get_many([f"k{n}" for n in range(0, 100_000, 997)]) == {
        f"k{n}": b"%d" % n for n in range(0, 100_000, 997)
    }


def test_the_version_is_dotted_numbers(plain: Client) -> None:
    version = plain.version()
    assert version.split(b".")[0].isdigit()


def test_general_statistics_have_the_usual_names_and_types(
    plain: Client, server: ServerProcess
) -> None:
    plain.set("key", b"v", noreply=False)
    before = plain.stats()
    plain.get("key")
    plain.get("missing")
    after = plain.stats()
    assert after[b"pid"] == server.pid
    assert after[b"get_hits"] - before[b"get_hits"] == 1
    assert after[b"get_misses"] - before[b"get_misses"] == 1
    assert after[b"cmd_get"] - before[b"cmd_get"] == 2
    assert after[b"curr_items"] >= 1
    names = {b"uptime", b"time", b"version", b"curr_connections", b"bytes", b"limit_maxbytes"}
    assert names <= set(after)
    assert {b"cmd_set", b"threads", b"evictions", b"total_items", b"rusage_user"} <= set(after)


@pytest.mark.parametrize("group", ["settings", "items", "slabs"])
def test_statistics_of_a_group_are_readable(plain: Client, group: str) -> None:
    assert isinstance(plain.stats(group), dict)


def test_cachedump_is_readable(plain: Client) -> None:
    plain.set("key", b"v", noreply=False)
    assert isinstance(plain.stats("cachedump", "1", "1"), dict)


def test_cache_memlimit_is_accepted(plain: Client) -> None:
    assert plain.cache_memlimit(256) is True


def test_shutdown_is_refused_and_the_server_stays(plain: Client, server: ServerProcess) -> None:
    with pytest.raises((MemcacheUnknownCommandError, MemcacheServerError, MemcacheClientError)):
        plain.raw_command(b"shutdown")
    assert server.running
    assert plain.get("missing") is None


def test_raw_commands_reach_what_the_client_has_no_method_for(plain: Client) -> None:
    plain.set("key", b"v", flags=3, noreply=False)
    assert plain.raw_command(b"verbosity 1") == b"OK"
    assert plain.raw_command(b"gat 100 key", b"END\r\n") == b"VALUE key 3 1\r\nv\r\n"
    with pytest.raises(MemcacheUnknownCommandError):
        plain.raw_command(b"no_such_command")


def test_a_key_prefix_belongs_to_the_stored_key(server: ServerProcess, plain: Client) -> None:
    prefixed = Client(_target(server), key_prefix=b"app:", default_noreply=False)
    try:
        prefixed.set_many({"a": b"1", "b": b"2"})
        assert prefixed.get_many(["a", "b"]) == {"a": b"1", "b": b"2"}
    finally:
        prefixed.close()
    assert plain.get("app:a") == b"1"


def test_unicode_keys_pass(server: ServerProcess) -> None:
    client = Client(_target(server), allow_unicode_keys=True, default_noreply=False)
    try:
        client.set("schlüssel-鍵", b"v")
        assert client.get("schlüssel-鍵") == b"v"
    finally:
        client.close()


@pytest.mark.parametrize(
    "serializer",
    [
        pytest.param(serde.pickle_serde, id="pickle"),
        pytest.param(serde.compressed_serde, id="compressed"),
    ],
)
@pytest.mark.parametrize(
    "value",
    [b"bytes", "täxt", 42, -(10**30), 1.5, None, {"a": [1, 2, {"b": "c"}]}, "long " * 10_000],
    ids=lambda value: type(value).__name__,
)
def test_serialized_values_come_back_with_their_type(
    server: ServerProcess, serializer: Any, value: Any
) -> None:
    client = Client(_target(server), serde=serializer, default_noreply=False)
    try:
        client.set("key", value)
        found = client.get("key")
        assert found == value
        assert type(found) is type(value)
    finally:
        client.close()


def test_flags_of_32_bits_come_back(server: ServerProcess) -> None:
    class Flags(serde.PickleSerde):
        def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
            return b"x", value

        def deserialize(self, key: Any, value: Any, flags: Any) -> int:
            return int(flags)

    client = Client(_target(server), serde=Flags(), default_noreply=False)
    try:
        for flags in (0, 1, 0xFFFF, 0x8000_0000, 0xFFFF_FFFF):
            client.set("key", flags)
            assert client.get("key") == flags
    finally:
        client.close()


def test_a_pool_serves_many_threads_at_once(server: ServerProcess) -> None:
    pool = PooledClient(_target(server), max_pool_size=8, default_noreply=False, timeout=30)
    wrong: list[str] = []

    def work(worker: int) -> None:
        for number in range(100):
            key, value = f"w{worker}-{number}", b"%d" % (worker * 1_000 + number)
            pool.set(key, value)
            if pool.get(key) != value:
                wrong.append(key)
        pool.incr("total", 100)

    pool.set("total", b"0")
    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    try:
        assert wrong == []
        assert pool.get("total") == b"800"
    finally:
        pool.close()


def test_hash_client_spreads_keys_over_two_servers(
    server: ServerProcess, start: Start, tmp_path: Path
) -> None:
    with start(tmp_path / "second") as second:
        client = HashClient([_target(server), _target(second)], default_noreply=False, timeout=10)
        try:
            values = {f"key-{number}": b"%d" % number for number in range(200)}
            assert client.set_many(values) == []
            assert client.get_many(list(values)) == values
            assert client.delete_many(["key-0", "key-1"]) is True
            assert client.get("key-0") is None
        finally:
            client.close()
        for one in (server, second):
            direct = Client(_target(one))
            assert 20 < len(direct.get_many(list(values))) < 180
            direct.close()
        second.stop()


def test_retrying_client_gets_over_a_restart(
    server: ServerProcess, start: Start, tmp_path: Path
) -> None:
    socket_path = tmp_path / "s"
    with start(tmp_path / "data", unix_path=socket_path) as first:
        base = Client(str(socket_path), default_noreply=False, timeout=10)
        client = RetryingClient(base, attempts=3, retry_for=[OSError, MemcacheUnexpectedCloseError])
        client.set("key", b"v")
        first.stop()
    socket_path.unlink(missing_ok=True)
    with start(tmp_path / "data", unix_path=socket_path) as second:
        found = client.get("key")
        assert found == (b"v" if second.durable else None)
        client.close()
        second.stop()


def test_a_unix_socket_serves_the_same(start: Start, tmp_path: Path) -> None:
    socket_path = tmp_path / "memcached.sock"
    with start(tmp_path / "data", unix_path=socket_path) as process:
        assert process.memcached.is_unix
        client = Client(str(socket_path), default_noreply=False, timeout=10)
        try:
            assert client.set("key", b"v") is True
            assert client.get("key") == b"v"
            assert client.version()
        finally:
            client.close()
        process.stop()


def test_data_survives_a_clean_restart(start: Start, tmp_path: Path) -> None:
    """SIGTERM right after the last reply: everything accepted is there afterwards."""
    values = {f"key-{number}": b"%d" % number * 20 for number in range(5_000)}
    with start(tmp_path / "data") as first:
        if not first.durable:
            pytest.skip("memcached keeps nothing")
        client = Client(_target(first), default_noreply=False, timeout=30)
        client.set_many(values)
        client.set("flagged", b"v", flags=77, expire=86_400)
        client.set("gone", b"v")
        client.delete("gone")
        client.set("n", b"41")
        assert client.incr("n", 1) == 42
        client.close()
        first.stop()
    with start(tmp_path / "data") as second:
        client = Client(_target(second), default_noreply=False, timeout=30)
        assert client.get_many(list(values)) == values
        assert client.get("gone") is None
        assert client.get("n") == b"42"
        assert client.raw_command(b"get flagged", b"END\r\n") == b"VALUE flagged 77 1\r\nv\r\n"
        client.close()
        second.stop()
