"""``lru_crawler``: dumps of all keys, and the switches around them."""

from __future__ import annotations

import pytest

from tests.kv.harness import NOON, PULL_BYTES, Rig, drained_with_waits, talk
from uprmc.kv.text import TextSession
from uprmc.kv.text_commands import DUMPS_MOST


@pytest.fixture
def rig() -> Rig:
    return Rig()


def dumped(session: TextSession, command: bytes) -> bytes:
    session.receive_data(b"lru_crawler " + command + b"\r\n")
    return drained_with_waits(session)


def test_metadump_lists_documents_as_memcached_does(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a%20b 0 0 3\r\nabc\r\nset b 0 100 1\r\nb\r\nset c 0 -1 1\r\nc\r\nget b\r\n")
    talk(session, b"set d 0 0 1\r\nd\r\ndelete d\r\n")
    cas = [item.cas for item in map(rig.item, (b"a%20b", b"b")) if item is not None]
    lines = {
        b"key=a%%2520b exp=-1 la=0 cas=%d fetch=no cls=1 size=58" % cas[0],
        b"key=b exp=%d la=0 cas=%d fetch=yes cls=1 size=52" % (NOON + 100, cas[1]),
    }
    for which in (b"all", b"hash", b"1", b"2,1,63"):
        found = dumped(session, b"metadump " + which)
        assert found.endswith(b"\nEND\r\n")
        assert set(found.split(b"\n")[:-2]) == lines


def test_mgdump_lists_commands_that_read_every_document(rig: Rig) -> None:
    keys = [b"plain", "ä".encode(), b"with space", b"line\r\n", b"\x00"]
    for key in keys:
        rig.bucket.of_key(key).store(key, b"value of " + key, 0, 0)
    session = rig.text()
    found = dumped(session, b"mgdump all")
    assert found.endswith(b"EN\r\n")
    commands = found.removesuffix(b"EN\r\n").replace(b"\r\n", b" v\r\n")
    replies = talk(session, commands)
    assert replies.count(b"VA ") == len(keys)
    assert all(b"\r\nvalue of " + key + b"\r\n" in replies for key in keys)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"metadump 2", b"END\r\n"),
        (b"mgdump 63", b"EN\r\n"),
        (b"metadump all", b"END\r\n"),
        *[
            (b"metadump " + which, b"BADCLASS invalid class id\r\n")
            for which in (b"0", b"64", b"x", b"1,")
        ],
        *[
            (words, b"ERROR\r\n")
            for words in (b"", b"metadump", b"mgdump all 1", b"METADUMP all", b"crawl")
        ],
    ],
)
def test_other_forms_of_lru_crawler(rig: Rig, command: bytes, reply: bytes) -> None:
    session = rig.text()
    assert dumped(session, command) == reply
    assert talk(session, b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_a_dump_gives_others_their_turn_and_runs_beside_others(rig: Rig) -> None:
    for number in range(3_000):
        key = b"%d" % number
        rig.bucket.of_key(key).store(key, b"x", 0, 0)
    first, second = rig.text(), rig.text()
    first.receive_data(b"lru_crawler metadump all\r\nversion\r\n")
    found = b"".join(first.data_to_send(PULL_BYTES))
    assert 0 < found.count(b"key=") < 1_500
    assert dumped(second, b"metadump all").count(b"key=") == 3_000
    found += drained_with_waits(first)
    assert found.count(b"key=") == 3_000
    assert found.endswith(b"END\r\nVERSION 1.2.3\r\n")


def test_the_number_of_dumps_is_limited(rig: Rig) -> None:
    talk(rig.text(), b"set a 0 0 1\r\nb\r\n")
    dumps = [rig.text() for _ in range(DUMPS_MOST)]
    for each in dumps:
        each.receive_data(b"lru_crawler metadump all\r\n")
        assert each.data_to_send(PULL_BYTES)
    one_more = rig.text()
    assert dumped(one_more, b"metadump all") == b"BUSY currently processing crawler request\r\n"
    dumps.pop().connection_lost()
    assert dumped(one_more, b"metadump all").count(b"key=") == 1


def test_a_switched_off_crawler_dumps_nothing_and_documents_expire_all_the_same(rig: Rig) -> None:
    session, asked = rig.text(), []
    rig.services.control.crawler.expire_now = lambda: asked.append(1)
    assert dumped(session, b"disable") == b"OK\r\n"
    assert dumped(session, b"mgdump all") == b"CLIENT_ERROR lru crawler disabled\r\n"
    assert dumped(session, b"enable") == b"OK\r\n"
    assert dumped(session, b"crawl all") == b"OK\r\n"
    assert asked == [1]


def test_a_dump_ends_with_its_connection(rig: Rig) -> None:
    talk(rig.text(), b"set a 0 0 1\r\nb\r\n")
    first = rig.text()
    first.receive_data(b"lru_crawler metadump all\r\n")
    assert first.data_to_send(PULL_BYTES)
    first.connection_lost()
    assert dumped(rig.text(), b"metadump all").count(b"key=") == 1


def test_a_dump_does_not_show_the_cas_of_a_lock(rig: Rig) -> None:
    talk(rig.text(), b"set a 0 0 1\r\nb\r\n")
    _, opens = rig.bucket.of_key(b"a").lock(b"a", 15)
    found = dumped(rig.text(), b"metadump all")
    assert b"cas=%d " % opens not in found
    assert b"cas=%d " % ((1 << 64) - 1) in found
