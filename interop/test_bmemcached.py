"""python-binary-memcached, a client that speaks only the binary protocol.

Proves that all its operations work: single and multi forms, compare-and-set, counters, quiet
pipelines closed by a no-op, compression and pickling (flags), statistics; and that a client which
was given a user and password goes on working against a server without SASL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interop.conftest import Start
from interop.server_process import ServerProcess

bmemcached = pytest.importorskip("bmemcached", reason="pip install python-binary-memcached")


@pytest.fixture(params=["anonymous", "with-password", "distributed"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    servers = [str(server.memcached)]
    if request.param == "anonymous":
        made = bmemcached.Client(servers, socket_timeout=10)
    elif request.param == "with-password":
        made = bmemcached.Client(servers, "user", "secret", socket_timeout=10)
    else:
        made = bmemcached.DistributedClient(servers, socket_timeout=10)
    try:
        yield made
    finally:
        made.disconnect_all()


def test_set_get_and_delete(client: Any) -> None:
    assert client.set("key", "value") is True
    assert client.get("key") == "value"
    assert client.get("missing") is None
    assert client.get("missing", "default") == "default"
    assert client.delete("key") is True
    assert client.get("key") is None


def test_add_and_replace_respect_what_is_there(client: Any) -> None:
    assert client.replace("key", "0") is False
    assert client.add("key", "1") is True
    assert client.add("key", "2") is False
    assert client.replace("key", "3") is True
    assert client.get("key") == "3"


@pytest.mark.parametrize(
    "value",
    [b"bytes", "täxt", 42, 2**70, True, 1.5, {"a": [1, 2]}, "", b"", "long " * 10_000],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_with_their_type(client: Any, value: Any) -> None:
    assert client.set("key", value) is True
    found = client.get("key")
    assert found == value
    assert type(found) is type(value)


def test_cas_is_good_for_one_store(client: Any) -> None:
    client.set("key", "first")
    value, cas = client.gets("key")
    assert value == "first"
    assert cas > 0
    assert client.cas("key", "second", cas) is True
    assert client.cas("key", "third", cas) is False
    assert client.get("key") == "second"


def test_the_cas_of_a_store_is_the_one_a_get_returns(client: Any) -> None:
    stored = client.set("key", "v", get_cas=True)
    _, cas = client.gets("key")
    assert stored in ((True, cas), cas)


def test_delete_with_a_stale_cas_is_refused(client: Any) -> None:
    client.set("key", "first")
    _, stale = client.gets("key")
    client.set("key", "second")
    assert client.delete("key", cas=stale) is False
    _, fresh = client.gets("key")
    assert client.delete("key", cas=fresh) is True


def test_multi_forms(client: Any) -> None:
    values = {f"key-{number}": f"value-{number}" for number in range(500)}
    assert client.set_multi(values) == []
    assert client.get_multi([*values, "missing"]) == values
    found = client.get_multi(["key-1", "key-2"], get_cas=True)
    assert found["key-1"][0] == "value-1"
    assert found["key-1"][1] > 0
    assert client.delete_multi(list(values)) is True
    assert client.get_multi(list(values)) == {}


def test_set_multi_names_the_keys_that_were_refused(client: Any) -> None:
    client.set("a", "1")
    _, cas = client.gets("a")
    client.set("a", "2")
    failed = client.set_multi({("a", cas): "3", ("b", 0): "1"})
    assert [key[0] if isinstance(key, tuple) else key for key in failed] == ["a"]
    assert client.get("a") == "2"
    assert client.get("b") == "1"


def test_set_multi_cas_gives_the_new_cas_of_each_key(client: Any) -> None:
    if not hasattr(client, "set_multi_cas"):
        pytest.skip("this version has no set_multi_cas")
    stored = client.set_multi_cas({"a": "1", "b": "2"})
    assert {key: client.gets(key)[1] for key in ("a", "b")} == stored


def test_counters_are_created_counted_and_floored(client: Any) -> None:
    assert client.incr("n", 5, default=10) == 10
    assert client.incr("n", 5) == 15
    assert client.decr("n", 6) == 9
    assert client.decr("n", 100) == 0


def test_a_counter_wraps_at_two_to_the_64(client: Any) -> None:
    assert client.incr("n", 1, default=2**64 - 1) == 2**64 - 1
    assert client.incr("n", 1) == 0


def test_flush_all(client: Any) -> None:
    client.set_multi({"a": "1", "b": "2"})
    assert client.flush_all() is True
    assert client.get_multi(["a", "b"]) == {}


def test_statistics_carry_the_usual_names(client: Any, server: ServerProcess) -> None:
    (found,) = client.stats().values()
    assert int(found["pid"]) == server.pid
    assert {"uptime", "version", "curr_items", "cmd_get", "bytes"} <= set(found)


def test_the_client_connects_again_after_disconnecting(client: Any) -> None:
    client.set("key", "v")
    client.disconnect_all()
    assert client.get("key") == "v"


def test_a_value_that_is_too_large_is_refused_and_the_client_goes_on(client: Any) -> None:
    with pytest.raises(bmemcached.exceptions.MemcachedException, match="Too large"):
        client.set("big", bytes(range(256)) * (5 << 12), compress_level=0)
    assert client.set("key", "v") is True
    assert client.get("key") == "v"


def test_two_servers_hold_the_same_for_a_replicating_client(
    server: ServerProcess, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with start(tmp_path_factory.mktemp("second")) as second:
        addresses = [str(server.memcached), str(second.memcached)]
        client = bmemcached.Client(addresses, socket_timeout=10)
        client.set("key", "v")
        client.disconnect_all()
        for address in addresses:
            single = bmemcached.Client([address], socket_timeout=10)
            assert single.get("key") == "v"
            single.disconnect_all()
        second.stop()
