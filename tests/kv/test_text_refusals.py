"""What a client is told when the node cannot do what it asks: warm-up, disk, memory, locks."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, drained, talk
from uprmc.model import VBucketState

FAILURE = b"SERVER_ERROR temporary failure\r\n"

WRITES = [
    b"set a 0 0 1\r\nx\r\n",
    b"add new 0 0 1\r\nx\r\n",
    b"replace a 0 0 1\r\nx\r\n",
    b"append a 0 0 1\r\nx\r\n",
    b"cas a 0 0 1 1\r\nx\r\n",
    b"delete a\r\n",
    b"incr a 1\r\n",
    b"touch a 77\r\n",
    b"ms a 1\r\nx\r\n",
    b"md a\r\n",
    b"ma a\r\n",
    b"mg a T77\r\n",
]
READS = [b"get a\r\n", b"get a b\r\n", b"gets a\r\n", b"mg a v\r\n", b"me a\r\n"]


def silent(command: bytes) -> bytes:
    line, _, rest = command.partition(b"\r\n")
    return line + b" noreply\r\n" + rest


@pytest.mark.parametrize("command", [*WRITES, *READS, b"gat 0 a\r\n", b"flush_all\r\n"])
def test_data_commands_are_refused_during_warm_up(command: bytes) -> None:
    rig = Rig(warm=False)
    assert talk(rig.text(), command + b"version\r\n") == FAILURE + b"VERSION 1.2.3\r\n"
    rig.check()


def test_other_commands_work_during_warm_up() -> None:
    session = Rig(warm=False).text()
    replies = talk(session, b"version\r\nstats\r\nverbosity 1\r\nmn\r\nbogus\r\nquit\r\n")
    assert replies == (
        b"VERSION 1.2.3\r\nSTAT version 1.2.3\r\nSTAT blank \r\nEND\r\nOK\r\nMN\r\nERROR\r\n"
    )
    assert session.closing


def test_the_same_conversation_goes_on_after_warm_up() -> None:
    rig = Rig(warm=False)
    session = rig.text()
    assert talk(session, WRITES[0]) == FAILURE
    rig.bucket.let_traffic_in()
    assert talk(session, WRITES[0]) == b"STORED\r\n"


@pytest.mark.parametrize("command", [command for command in WRITES if command[0:1] != b"m"])
def test_noreply_silences_temporary_failures(command: bytes) -> None:
    session = Rig(warm=False).text()
    assert talk(session, silent(command) + b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_flush_all_noreply_is_silent_during_warm_up() -> None:
    assert talk(Rig(warm=False).text(), b"flush_all noreply\r\n") == b""


@pytest.mark.parametrize("command", [c for c in WRITES if not c.startswith(b"cas")])
def test_a_full_disk_refuses_every_write(command: bytes) -> None:
    rig = Rig()
    session = rig.text()
    talk(session, b"set a 0 0 1\r\n1\r\n")
    rig.fail_flush()
    seqno = rig.bucket.of_key(b"a").high_seqno
    assert talk(session, command) == FAILURE
    assert rig.bucket.of_key(b"a").high_seqno == seqno
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\n1\r\nEND\r\n"
    rig.flush()
    assert talk(session, command) != FAILURE


def test_short_memory_is_a_temporary_failure_that_asks_for_room() -> None:
    rig = Rig()
    pressed: list[int] = []
    rig.bucket.account.on_pressure = lambda: pressed.append(1)
    rig.bucket.account.used = rig.bucket.account.mutation_limit + 1
    session = rig.text()
    assert talk(session, b"set a 0 0 1\r\nx\r\nset  b 0 0 1\r\nx\r\n") == FAILURE * 2
    assert len(pressed) == 2
    assert rig.bucket.stats.total_items == 0


def test_an_item_that_could_never_fit_is_out_of_memory() -> None:
    rig = Rig(memory__quota=32 * 1024 * 1024, kv__max_item_bytes=20 * 1024 * 1024)
    assert talk(rig.text(), b"cache_memlimit 8\r\n") == b"OK\r\n"
    rig.bucket.account.used = rig.bucket.account.mutation_limit + 1
    huge = b"set a 0 0 9000000\r\n" + b"x" * 9_000_000 + b"\r\n"
    assert talk(rig.text(), huge) == b"SERVER_ERROR out of memory storing object\r\n"


@pytest.mark.parametrize("command", [*WRITES, *READS, b"gat 0 a\r\n"])
def test_a_vbucket_that_is_elsewhere_is_refused(command: bytes) -> None:
    rig = Rig(engine__vbuckets=1)
    rig.bucket.shut_traffic_out()
    rig.bucket.vbuckets[0].state = VBucketState.REPLICA
    rig.bucket.let_traffic_in()
    assert talk(rig.text(), command) == b"SERVER_ERROR not my vbucket\r\n"


# --- locks --------------------------------------------------------------------------------------


@pytest.fixture
def locked() -> Rig:
    rig = Rig()
    talk(rig.text(), b"set a 0 0 1\r\n1\r\n")
    rig.bucket.of_key(b"a").lock(b"a", 15)
    return rig


def test_a_locked_document_can_be_read_but_its_cas_is_hidden(locked: Rig) -> None:
    session = locked.text()
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\n1\r\nEND\r\n"
    assert talk(session, b"gets a\r\n") == b"VALUE a 0 1 18446744073709551615\r\n1\r\nEND\r\n"
    assert talk(session, b"mg a c v\r\n") == b"VA 1 c18446744073709551615\r\n1\r\n"


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"set a 0 0 1\r\nx\r\n", b"EXISTS\r\n"),
        (b"set  a 0 0 1\r\nx\r\n", b"EXISTS\r\n"),
        (b"replace a 0 0 1\r\nx\r\n", b"EXISTS\r\n"),
        (b"append a 0 0 1\r\nx\r\n", b"EXISTS\r\n"),
        (b"cas a 0 0 1 18446744073709551615\r\nx\r\n", b"EXISTS\r\n"),
        (b"cas a 0 0 1 0\r\nx\r\n", b"EXISTS\r\n"),
        (b"add a 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
        (b"delete a\r\n", b"SERVER_ERROR locked\r\n"),
        (b"incr a 1\r\n", b"SERVER_ERROR locked\r\n"),
        (b"touch a 9\r\n", b"SERVER_ERROR locked\r\n"),
        (b"gat 9 a\r\n", b"SERVER_ERROR locked\r\n"),
        (b"ms a 1\r\nx\r\n", b"EX\r\n"),
        (b"ms a 1 MA\r\nx\r\n", b"EX\r\n"),
        (b"md a\r\n", b"EX\r\n"),
        (b"md a I\r\n", b"EX\r\n"),
        (b"ma a\r\n", b"EX\r\n"),
        (b"mg a T9\r\n", b"SERVER_ERROR locked\r\n"),
        (b"set a 0 0 1 noreply\r\nx\r\n", b""),
        (b"delete a noreply\r\n", b""),
    ],
)
def test_a_locked_document_is_not_changed(locked: Rig, command: bytes, reply: bytes) -> None:
    before = locked.item(b"a")
    assert talk(locked.text(), command) == reply
    assert locked.item(b"a") == before


def test_a_lock_lapses(locked: Rig) -> None:
    locked.clock.time += 15
    assert talk(locked.text(), b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"


def test_too_large_a_set_does_not_remove_a_locked_document(locked: Rig) -> None:
    huge = b"set a 0 0 2000000\r\n" + b"x" * 2_000_000 + b"\r\n"
    assert talk(locked.text(), huge) == b"SERVER_ERROR object too large for cache\r\n"
    assert locked.item(b"a") is not None


def test_a_refusal_in_mid_line_ends_a_retrieval() -> None:
    rig = Rig()
    talk(rig.text(), b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n")
    rig.bucket.of_key(b"b").lock(b"b", 15)
    session = rig.text()
    assert talk(session, b"gat 5 a b a\r\nversion\r\n") == (
        b"VALUE a 0 1\r\n1\r\nSERVER_ERROR locked\r\nVERSION 1.2.3\r\n"
    )
    assert drained(session) == b""
