"""What a user may do is what the roles say, on every path."""

from __future__ import annotations

import re

import pytest

from interop.wire import counter, frame, store
from tests.kv.door import EVERY_ROLE, HandDoor, Visitor
from tests.kv.harness import Rig
from tests.kv.test_login import AUTH_ERROR, NO_ACCESS, OK, plain, replies, statuses
from uprmc.kv import meta_commands, text, text_commands
from uprmc.kv.binary import HANDLERS
from uprmc.kv.roles import (
    FINER,
    OPEN_OPCODES,
    USERS_WORDS,
    denied_opcodes,
    denied_words,
    needs_both,
    role_of,
    role_of_word,
)
from uprmc.kv.text import TextSession
from uprmc.login.users import Role
from uprmc.protocol.control import MANAGE, WATERMARKS
from uprmc.protocol.opcodes import QUIET, SHAPES, Opcode, opcode_name
from uprmc.protocol.watermarks import (
    OP_REMOVE,
    OP_SET,
    ReportExtras,
    encode_report,
)

GET, SET, NOOP, STAT, VERBOSITY = 0x00, 0x01, 0x0A, 0x10, 0x1B
UPR_OPEN = 0x50
PRODUCER, CONSUMER = 1, 0

NONE: frozenset[Role] = frozenset()
WORDS = {
    *text._BLOCKS,
    *text._ALWAYS_ANSWERED,
    *text._OWN,
    *text_commands.COMMANDS,
    *meta_commands.COMMANDS,
}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.bucket.of_key(b"k").store_record(b"k", b"value", 0, 0)
    rig.bucket.of_key(b"n").store_record(b"n", b"5", 0, 0)
    rig.groups["secret"] = [("name", "value")]
    rig.groups["settings"] = [("limit", "1")]
    return rig


def binary(rig: Rig, roles: str, *, by_key: bool = True) -> Visitor:
    """Return a binary connection whose user has these roles."""
    visitor = Visitor(rig, HandDoor(ann=roles), by_key=by_key)
    assert statuses(visitor.say(plain("ann"))) == [OK]
    return visitor


def text(rig: Rig, roles: str) -> Visitor:
    visitor = Visitor(rig, HandDoor(ann=roles))
    assert visitor.say(b"set a 0 0 10\r\nann pencil\r\n") == b"STORED\r\n"
    return visitor


# --- the tables ---------------------------------------------------------------------------------


def test_every_opcode_has_a_role() -> None:
    known = {*map(int, Opcode), *HANDLERS, *SHAPES}
    assert {each for each in known if role_of(each) is None} == set()


def test_a_quiet_form_needs_what_the_loud_one_needs() -> None:
    others = {quiet for quiet, loud in QUIET.items() if role_of(quiet) != role_of(loud)}
    assert others == {Opcode.INCREMENTQ, Opcode.DECREMENTQ}  # they answer no number
    assert {role_of(each) for each in others} == {frozenset({Role.WRITE})}


def test_every_word_has_a_role() -> None:
    assert denied_words(NONE) | USERS_WORDS == WORDS
    assert not denied_words(NONE) & USERS_WORDS


def test_who_has_every_role_may_do_everything() -> None:
    assert denied_opcodes(EVERY_ROLE) == frozenset()
    assert denied_words(EVERY_ROLE) == frozenset()


@pytest.mark.parametrize("role", Role)
def test_a_role_gives_what_the_table_says_and_no_more(role: Role) -> None:
    denied = denied_opcodes(frozenset({role}))
    for opcode in Opcode:
        needed = role_of(opcode)
        missing = needs_both(opcode) or bool(needed and role not in needed)
        assert (opcode in denied) is missing, opcode.name


def test_what_reads_and_changes_needs_both_roles() -> None:
    assert {opcode for opcode in Opcode if needs_both(opcode)} == {
        *(Opcode.GAT, Opcode.GATQ, Opcode.GATK, Opcode.GATKQ, Opcode.GETL),
        *(Opcode.INCREMENT, Opcode.DECREMENT),
    }


WHO = [None, NONE, *(frozenset({role}) for role in Role), frozenset({Role.READ, Role.WRITE})]


@pytest.mark.parametrize("roles", WHO, ids=lambda roles: "nobody" if roles is None else str(roles))
def test_the_matrix_holds_for_every_opcode_and_a_refusal_names_the_role(
    rig: Rig, roles: frozenset[Role] | None
) -> None:
    for opcode in Opcode:
        visitor = Visitor(rig, HandDoor())
        visitor.door.roles = roles
        denied = opcode in denied_opcodes(roles)
        told = visitor.begin(frame(opcode, b"k"), frame(NOOP))
        first = replies(told)[0] if told else None
        if roles is None:
            refused = first is not None and first.status == AUTH_ERROR and visitor.closed
            assert refused is (opcode not in OPEN_OPCODES), opcode.name
            continue
        refused = first is not None and first.status == NO_ACCESS
        if not denied and opcode in (Opcode.STAT, Opcode.XDCR, Opcode.UPR_OPEN):
            continue  # what they are asked decides
        assert refused is denied, opcode.name
        assert (("denied", opcode_name(opcode)) in visitor.door.notes) is denied
        if denied:
            needed = role_of(opcode)
            named = {role for role in Role if role.value in first.value.decode().split()}
            assert first.value.startswith(b"Not authorized: needs ")
            assert named == needed, opcode.name


@pytest.mark.parametrize("roles", WHO, ids=lambda roles: "nobody" if roles is None else str(roles))
def test_the_matrix_holds_for_every_word_and_a_refusal_names_the_role(
    rig: Rig, roles: frozenset[Role] | None
) -> None:
    for word in sorted(WORDS - {b"quit"}):
        visitor = Visitor(rig, HandDoor())
        visitor.door.roles = roles
        if roles is not None:
            visitor.session = TextSession(rig.services, rig.wake)
        told = visitor.begin(word + b" k 1 1 1\r\nx\r\n").partition(b"\r\n")[0]
        if roles is None:
            assert (b"unauthenticated" in told) is (word not in (b"version", b"set")), word
            continue
        denied = word in denied_words(roles)
        finer = word in (b"stats", b"lru_crawler")
        assert told.startswith(b"CLIENT_ERROR not authorized: needs ") or not denied, word
        if not finer:
            assert (b"not authorized" in told) is denied, word
        if denied:
            named = {role for role in Role if role.value in told.decode().split()}
            assert named == role_of_word(word)


def test_each_finer_rule_is_one_of_these_tests() -> None:
    """Add a test below when a command begins to ask for a role by itself."""
    assert len(FINER) == 11


# --- key and value ------------------------------------------------------------------------------


def test_a_reader_reads_and_changes_nothing(rig: Rig) -> None:
    visitor = binary(rig, "read")
    assert replies(visitor.say(frame(GET, b"k")))[0].value == b"value"
    for opcode in (0x01, 0x02, 0x03, 0x11, 0x12, 0x13):
        assert statuses(visitor.say(store(opcode, b"k", b"new"))) == [NO_ACCESS]
    for opcode in (0x04, 0x14):
        assert statuses(visitor.say(frame(opcode, b"k"))) == [NO_ACCESS]
    pipelined = visitor.say(frame(GET, b"k"), store(SET, b"k", b"new"), frame(GET, b"k"))
    assert statuses(pipelined) == [OK, NO_ACCESS, OK]
    assert replies(pipelined)[2].value == b"value"
    assert not visitor.closed


def test_a_writer_writes_and_reads_nothing(rig: Rig) -> None:
    visitor = binary(rig, "write")
    assert statuses(visitor.say(store(SET, b"k", b"new"))) == [OK]
    for opcode in (0x00, 0x0C, 0x09, 0x0D, 0xA0):
        assert statuses(visitor.say(frame(opcode, b"k"))) == [NO_ACCESS]
    assert statuses(visitor.say(frame(0x1D, b"k", extras=bytes(4)))) == [NO_ACCESS]  # GAT


def test_statistics_of_a_node_are_for_those_who_look_after_it(rig: Rig) -> None:
    for roles, secret in (("read write", NO_ACCESS), ("monitor", OK), ("stream", OK)):
        visitor = binary(rig, roles)
        assert {*statuses(visitor.say(frame(STAT, b"settings")))} == {OK}
        assert {*statuses(visitor.say(frame(STAT, b"secret")))} == {secret}


def test_a_refused_value_of_any_size_is_skipped(rig: Rig) -> None:
    visitor = binary(rig, "read")
    huge = store(SET, b"k", bytes(3_000_000))
    assert visitor.say(huge[:100_000]) != b""
    assert statuses(visitor.say(huge[100_000:], frame(GET, b"k"))) == [OK]


@pytest.mark.parametrize(
    ("roles", "said", "answered"),
    [
        ("read", b"get k\r\n", b"VALUE k 0 5\r\nvalue\r\nEND\r\n"),
        ("read", b"set k 0 0 1\r\nv\r\nget k\r\n", b"-VALUE k 0 5\r\nvalue\r\nEND\r\n"),
        ("read", b"set k 0 0 1 noreply\r\nv\r\nmn\r\n", b"-MN\r\n"),
        ("read", b"ms k 1\r\nv\r\nmn\r\n", b"-MN\r\n"),
        ("read", b"mg k v\r\n", b"VA 5\r\nvalue\r\n"),
        ("read", b"mg k v T30\r\n", b"-"),
        ("read", b"mg new N30\r\nget new\r\n", b"-END\r\n"),
        ("read", b"gat 30 k\r\ntouch k 30\r\ndelete k\r\nincr k 1\r\n", b"----"),
        ("read", b"stats\r\nstats secret\r\nstats reset\r\n", b"---"),
        ("write", b"stats cachedump 1 1\r\n", b"-"),
        ("write", b"stats settings\r\n", b"STAT limit 1\r\nEND\r\n"),
        ("read", b"flush_all\r\ncache_memlimit 64\r\nverbosity 2\r\nshutdown\r\n", b"----"),
        ("write", b"set k 0 0 1\r\nv\r\n", b"STORED\r\n"),
        ("write", b"get k\r\nmg k v\r\nlru_crawler metadump all\r\n", b"---"),
        ("write", b"mg k v T30\r\n", b"-"),
        ("read write", b"mg k v T30\r\n", b"VA 5\r\nvalue\r\n"),
        ("monitor", b"stats secret\r\n", b"STAT name value\r\nEND\r\n"),
        ("monitor", b"stats reset\r\nstats cachedump 1 1\r\nget k\r\n", b"---"),
        ("manage", b"stats reset\r\n", b"RESET\r\n"),
        ("manage", b"verbosity 1\r\ncache_memlimit 64\r\nget k\r\n", b"OK\r\nOK\r\n-"),
        ("monitor", b"version\r\nquit\r\n", b"VERSION 1.2.3\r\n"),
        ("read", b"lru_crawler mgdump all\r\n", b"mg n\r\nmg k\r\nEN\r\n"),
        ("read", b"lru_crawler disable\r\nlru_crawler mgdump all\r\n", b"-mg n\r\nmg k\r\nEN\r\n"),
        ("read", b"lru_crawler enable\r\nlru_crawler sleep 5\r\nlru_crawler crawl all\r\n", b"---"),
        ("read write stream", b"lru_crawler tocrawl 5\r\nlru_crawler\r\n", b"--"),
        ("manage", b"lru_crawler disable\r\nlru_crawler mgdump all\r\n", b"OK\r\n-"),
        ("write", b"incr n 0\r\ndecr n 0\r\nma n v\r\nma n D0 v q\r\n", b"----"),
        ("write", b"incr n 1 noreply\r\nma n D1\r\nma n q\r\nmn\r\n", b"HD\r\nMN\r\n"),
        ("read", b"incr n 1 noreply\r\nma n D1\r\nmg n v\r\n", b"--VA 1\r\n5\r\n"),
        ("read write", b"incr n 1\r\nma n v\r\n", b"6\r\nVA 1\r\n7\r\n"),
        ("read", b"mg k R9999999 t\r\n", b"-"),
        (
            "read write",
            b"md k I T30\r\nmg k v\r\nmg k v\r\n",
            b"HD\r\nVA 5 X W\r\nvalue\r\nVA 5 Z X\r\nvalue\r\n",
        ),
    ],
)
def test_text_with_roles(rig: Rig, roles: str, said: bytes, answered: bytes) -> None:
    told = text(rig, roles).say(said)
    assert re.sub(rb"CLIENT_ERROR not authorized: needs [a-z ]+\r\n", b"-", told) == answered


def test_a_reader_takes_no_right_to_renew_from_those_who_can(rig: Rig) -> None:
    assert text(rig, "write").say(b"md k I T30\r\n") == b"HD\r\n"
    for _ in range(2):
        assert text(rig, "read").say(b"mg k v\r\n") == b"VA 5 X\r\nvalue\r\n"
    assert text(rig, "read write").say(b"mg k v\r\n") == b"VA 5 X W\r\nvalue\r\n"
    assert text(rig, "read").say(b"mg k v\r\n") == b"VA 5 Z X\r\nvalue\r\n"


def test_a_writer_counts_without_reading_the_number(rig: Rig) -> None:
    visitor = binary(rig, "write")
    loud, quiet = (counter(opcode, b"n", 1) for opcode in (0x05, 0x15))
    assert statuses(visitor.say(loud, quiet, frame(NOOP))) == [NO_ACCESS, OK]
    assert text(rig, "read").say(b"get n\r\n") == b"VALUE n 0 1\r\n6\r\nEND\r\n"


def test_a_set_in_pieces_of_a_reader_is_dropped_as_a_whole(rig: Rig) -> None:
    visitor = text(rig, "read")
    said = b"set k 0 0 13\r\nflush_all\r\nge\r\nget k\r\n"
    out = b"".join(visitor.say(said[at : at + 1]) for at in range(len(said)))
    assert out == b"CLIENT_ERROR not authorized: needs write\r\nVALUE k 0 5\r\nvalue\r\nEND\r\n"


# --- the rest -----------------------------------------------------------------------------------


def opening(flags: int) -> bytes:
    return frame(UPR_OPEN, b"name", extras=bytes(4) + flags.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("roles", "flags", "status"),
    [
        ("stream", PRODUCER, OK),
        ("stream", CONSUMER, NO_ACCESS),
        ("replicate", CONSUMER, OK),
        ("replicate", PRODUCER, NO_ACCESS),
        ("read write monitor", PRODUCER, NO_ACCESS),
        ("manage", PRODUCER, OK),
        ("manage", CONSUMER, NO_ACCESS),
    ],
)
def test_an_open_needs_the_role_of_its_direction(
    rig: Rig, roles: str, flags: int, status: int
) -> None:
    visitor = binary(rig, roles, by_key=False)
    (answer,) = replies(visitor.say(opening(flags)))
    assert answer.status == status
    if status:
        role = "stream" if flags == PRODUCER else "replicate"
        assert answer.value == f"Not authorized: needs {role}".encode()


def test_after_an_open_roles_still_count_and_another_login_ends_it(rig: Rig) -> None:
    visitor = binary(rig, "stream", by_key=False)
    said = visitor.say(opening(PRODUCER), frame(GET, b"k"), store(SET, b"k", b"v"))
    assert statuses(said) == [OK, NO_ACCESS, NO_ACCESS]
    assert statuses(visitor.say(plain("ann"))) == [OK]
    assert visitor.closed


def test_what_managers_do_is_noted_and_so_is_what_others_may_not(rig: Rig) -> None:
    visitor = binary(rig, "manage")
    visitor.say(frame(VERBOSITY, extras=bytes(4)), frame(STAT, b"reset"), frame(GET, b"k"))
    visitor.say(frame(Opcode.XDCR, b"create"), frame(Opcode.XDCR, b"list"))
    assert visitor.door.notes[1:] == [
        ("managed", "VERBOSITY"),
        ("managed", "STAT reset"),
        ("denied", "GET"),
        ("managed", "XDCR create"),
    ]


@pytest.mark.parametrize("opcode", [Opcode.FLUSH, Opcode.FLUSHQ])
def test_a_flush_is_noted_a_quiet_one_too(rig: Rig, opcode: Opcode) -> None:
    visitor = binary(rig, "manage")
    visitor.say(frame(opcode))
    assert visitor.door.notes[1:] == [("managed", opcode.name)]


def test_the_source_of_a_link_may_not_manage_links(rig: Rig) -> None:
    visitor = binary(rig, "replicate")
    first, second = replies(
        visitor.say(frame(Opcode.XDCR, b"delete"), frame(Opcode.XDCR, b"records"))
    )
    assert first.status == NO_ACCESS
    assert second.status == 0x83  # this rig has no links
    assert visitor.door.notes[-1] == ("denied", "XDCR delete")


@pytest.mark.parametrize("opcode", sorted(set(Opcode) - set(map(Opcode, QUIET))))
def test_a_user_without_roles_may_do_next_to_nothing(rig: Rig, opcode: Opcode) -> None:
    if role_of(opcode):
        visitor = binary(rig, "", by_key=False)
        assert statuses(visitor.say(frame(opcode, b"k"), frame(GET, b"k"))) == [NO_ACCESS] * 2


def report(name: bytes, op: int) -> bytes:
    extras = encode_report(ReportExtras(0, 0, 0, op))
    return frame(Opcode.HWT_REPORT, name, extras=extras)


def control(value: bytes) -> bytes:
    return frame(Opcode.UPR_CONTROL, WATERMARKS, value)


def test_watermarks_of_others_are_changed_by_managers_alone_and_it_is_noted(rig: Rig) -> None:
    for roles, status in (("stream", NO_ACCESS), ("stream manage", OK), ("manage", OK)):
        visitor = binary(rig, roles, by_key=False)
        assert statuses(visitor.say(opening(PRODUCER))) == [OK]
        (answer,) = replies(visitor.say(control(MANAGE)))
        assert answer.status == status
        if status:
            assert answer.value == b"Not authorized: needs manage"
            assert visitor.door.notes[-1] == ("denied", "UPR_CONTROL uprmc_hwt=manage")
            continue
        assert visitor.door.notes[-1] == ("managed", "UPR_CONTROL uprmc_hwt=manage")
        visitor.say(report(b"nightly", OP_REMOVE))
        assert visitor.door.notes[-1] == ("managed", "HWT_REPORT remove nightly vb_0")


def test_a_client_may_register_itself_and_taking_that_back_is_noted(rig: Rig) -> None:
    visitor = binary(rig, "stream", by_key=False)
    assert statuses(visitor.say(opening(PRODUCER), control(b"true"))) == [OK, OK]
    before = len(visitor.door.notes)
    visitor.say(report(b"mine", OP_SET))
    assert len(visitor.door.notes) == before
    visitor.say(report(b"mine", OP_REMOVE))
    assert visitor.door.notes[before:] == [("managed", "HWT_REPORT remove mine vb_0")]


@pytest.mark.parametrize("op", [OP_SET, OP_REMOVE])
def test_a_client_of_another_user_is_changed_by_managers_alone(rig: Rig, op: int) -> None:
    for roles, value, refused in (("stream", b"true", True), ("manage", MANAGE, False)):
        visitor = binary(rig, roles, by_key=False)
        visitor.door.others = {b"theirs"}
        assert statuses(visitor.say(opening(PRODUCER), control(value))) == [OK, OK]
        for name in (b"mine", b"theirs"):
            told = replies(visitor.say(report(name, op)))
            denied = bool(told) and told[-1].status == NO_ACCESS
            assert denied is (refused and name == b"theirs")
        word = "remove" if op == OP_REMOVE else "set"
        assert (("denied", f"HWT_REPORT {word} theirs vb_0") in visitor.door.notes) is refused
