"""pylibmc: libmemcached, the C client, seen from Python, over both protocols.

Proves that its operations work with ``binary=False`` and ``binary=True``: stores, counters, multi
forms, gets and cas (text with the ``cas`` behavior), touch, compression, statistics; and with the
behaviors that change what goes over the wire: no-block, tcp_nodelay, _noreply, buffered requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interop.server_process import ServerProcess

pylibmc = pytest.importorskip("pylibmc", reason="pip install pylibmc (needs libmemcached)")


@pytest.fixture(params=["text", "binary"])
def binary(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "binary")


@pytest.fixture
def client(server: ServerProcess, binary: bool) -> Iterator[Any]:
    made = pylibmc.Client([str(server.memcached)], binary=binary, behaviors={"cas": True})
    yield made
    made.disconnect_all()


def test_set_get_and_delete(client: Any) -> None:
    assert client.set("key", "value") is True
    assert client.get("key") == "value"
    assert client.get("missing") is None
    assert "key" in client
    assert "missing" not in client
    assert client.delete("key") is True
    assert client.delete("key") is False
    assert client.get("key") is None


def test_add_and_replace_respect_what_is_there(client: Any) -> None:
    assert _replaces(client, "key", "0") is False
    assert client.add("key", "1") is True
    assert client.add("key", "2") is False
    assert client.replace("key", "3") is True
    assert client.get("key") == "3"


def _replaces(client: Any, key: str, value: str) -> bool:
    try:
        return bool(client.replace(key, value))
    except pylibmc.NotFound:  # so pylibmc passes on the binary protocol's answer
        return False


def test_append_and_prepend(client: Any) -> None:
    client.set("key", b"b")
    assert client.append("key", b"c") is True
    assert client.prepend("key", b"a") is True
    assert client.get("key") == b"abc"
    assert client.append("missing", b"x") is False


@pytest.mark.parametrize(
    "value",
    [b"bytes", "täxt", 42, 2**70, 1.5, {"a": [1, 2]}, "", b"", b"\r\nEND\r\n"],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_with_their_type(client: Any, value: Any) -> None:
    assert client.set("key", value) is True
    found = client.get("key")
    assert found == value
    assert type(found) is type(value)


def test_compressed_values_come_back(client: Any) -> None:
    value = "long " * 10_000
    assert client.set("key", value, min_compress_len=100, compress_level=9) is True
    assert client.get("key") == value


def test_gets_and_cas(client: Any) -> None:
    client.set("key", "first")
    value, unique = client.gets("key")
    assert value == "first"
    assert client.cas("key", "second", unique) is True
    assert client.cas("key", "third", unique) is False
    assert client.get("key") == "second"
    assert client.gets("missing")[0] is None


def test_incr_and_decr(client: Any) -> None:
    client.set("n", 10)
    assert client.incr("n") == 11
    assert client.incr("n", 5) == 16
    assert client.decr("n", 6) == 10
    assert client.decr("n", 100) == 0
    with pytest.raises(pylibmc.NotFound):
        client.incr("missing")


def test_multi_forms(client: Any) -> None:
    values = {f"key-{number}": f"value-{number}" for number in range(500)}
    assert client.set_multi(values) == []
    assert client.get_multi([*values, "missing"]) == values
    assert client.delete_multi(list(values)) is True
    assert client.get_multi(list(values)) == {}


def test_multi_forms_with_a_prefix(client: Any) -> None:
    assert client.set_multi({"a": 1, "b": 2}, key_prefix="p:") == []
    assert client.get_multi(["a", "b"], key_prefix="p:") == {"a": 1, "b": 2}
    assert client.get("p:a") == 1
    client.incr_multi(["a", "b"], key_prefix="p:", delta=10)
    assert client.get_multi(["p:a", "p:b"]) == {"p:a": 11, "p:b": 12}


def test_touch_reaches_existing_keys_only(server: ServerProcess, binary: bool) -> None:
    # After a binary touch libmemcached 1.0 waits in vain for its poll timeout, 5 s by default.
    behaviors = {"_poll_timeout": 300}
    client = pylibmc.Client([str(server.memcached)], binary=binary, behaviors=behaviors)
    client.set("key", "v")
    assert client.touch("key", 100) is True
    assert client.touch("missing", 100) is False
    assert client.get("key") == "v"


def test_flush_all(client: Any) -> None:
    client.set_multi({"a": 1, "b": 2})
    assert client.flush_all() is True
    assert client.get_multi(["a", "b"]) == {}


def test_statistics_carry_the_usual_names(client: Any, server: ServerProcess) -> None:
    ((_, found),) = client.get_stats()
    found = {_text(name): _text(value) for name, value in found.items()}
    assert found["pid"] == str(server.pid)
    assert {"uptime", "version", "curr_items", "cmd_get", "bytes"} <= set(found)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_value_that_is_too_large_is_refused_and_the_client_goes_on(client: Any) -> None:
    with pytest.raises(pylibmc.Error):
        client.set("big", b"x" * (5 << 20))
    assert client.set("key", "v") is True
    assert client.get("key") == "v"


@pytest.mark.parametrize(
    "behaviors",
    [
        pytest.param({"tcp_nodelay": True}, id="nodelay"),
        pytest.param({"no_block": True, "tcp_nodelay": True}, id="no-block"),
        pytest.param({"_noreply": True}, id="noreply"),
        pytest.param({"buffer_requests": True, "no_block": True}, id="buffered"),
        pytest.param({"ketama": True, "hash": "murmur"}, id="ketama"),
        pytest.param({"tcp_keepalive": True, "cas": True}, id="cas"),
    ],
)
def test_behaviors_change_the_wire_and_not_the_outcome(
    server: ServerProcess, binary: bool, behaviors: dict[str, Any]
) -> None:
    client = pylibmc.Client([str(server.memcached)], binary=binary, behaviors=behaviors)
    for number in range(300):
        _whether_or_not_buffered(client.set, f"key-{number}", number)
    _whether_or_not_buffered(client.delete, "key-0")
    # A get makes libmemcached send what it holds back; then everything must be there in order.
    assert client.get("key-299") == 299
    found = client.get_multi([f"key-{number}" for number in range(300)])
    assert found == {f"key-{number}": number for number in range(1, 300)}
    client.disconnect_all()


def _whether_or_not_buffered(store: Callable[..., object], *words: object) -> None:
    """pylibmc 1.6 takes libmemcached's "buffered" (32) for an error when requests are held back."""
    try:
        store(*words)
    except pylibmc.Error as error:
        if "error 32" not in str(error):
            raise


def test_a_pool_of_clones_serves_in_turn(client: Any) -> None:
    pool = pylibmc.ClientPool(client, 4)
    for number in range(20):
        with pool.reserve() as clone:
            clone.set(f"key-{number}", number)
    assert client.get_multi([f"key-{n}" for n in range(20)]) == {f"key-{n}": n for n in range(20)}
