"""Logins on a connection, honest ones and hostile ones, binary and text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interop.wire import Reply, frame, split_replies, store
from tests.kv.door import PASSWORD, HandDoor, Visitor
from tests.kv.harness import Rig
from uprmc.kv.roles import OPEN_OPCODES, STRANGER_MAX_BYTES
from uprmc.login.credentials import Credentials
from uprmc.login.exchange import exchange_for
from uprmc.login.mechanisms import Mechanism, mechanism_named
from uprmc.login.scram import BadExchange
from uprmc.protocol.opcodes import Opcode

GET, SET, NOOP, VERSION, HELLO, LIST, AUTH, STEP = 0x00, 0x01, 0x0A, 0x0B, 0x1F, 0x20, 0x21, 0x22
OK, MISSING, AUTH_ERROR, CONTINUE, NO_ACCESS, TEMPORARY = 0x00, 0x01, 0x20, 0x21, 0x24, 0x86

NONCES = [b"fyko+d2lbbFgONRv9qkxdawL", b"0xffffff8c 0x18 0xffffffc1 0x4d"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def door() -> HandDoor:
    return HandDoor(ann="read write", bob="read", eve="monitor")


@pytest.fixture
def visitor(rig: Rig, door: HandDoor) -> Visitor:
    return Visitor(rig, door)


def replies(data: bytes) -> list[Reply]:
    found, rest = split_replies(data)
    assert rest == b""
    return found


def statuses(data: bytes) -> list[int]:
    return [each.status for each in replies(data)]


def plain(name: str, password: str = PASSWORD) -> bytes:
    return frame(AUTH, b"PLAIN", value=f"\0{name}\0{password}".encode())


def scram(
    visitor: Visitor,
    name: str,
    password: str = PASSWORD,
    mechanism: bytes = b"SCRAM-SHA512",
    nonce: bytes = NONCES[0],
) -> int:
    """Log in; return the last status. What the node proves is checked."""
    known = mechanism_named(mechanism)
    assert known is not None
    exchange = exchange_for(Credentials(name, password), known, nonce)
    (first,) = replies(visitor.say(frame(AUTH, mechanism, value=exchange.first())))
    assert first.status == CONTINUE
    (last,) = replies(
        visitor.say(frame(STEP, mechanism, value=exchange.answer(bytes(first.value))))
    )
    if last.status == OK:
        exchange.finish(bytes(last.value))
    return last.status


# --- honest -------------------------------------------------------------------------------------


def test_plain_lets_in_and_the_commands_behind_it_are_carried_out(visitor: Visitor) -> None:
    said = visitor.say(plain("ann"), store(SET, b"k", b"v"), frame(GET, b"k"))
    found = replies(said)
    assert [each.status for each in found] == [OK, OK, OK]
    assert found[0].value == b"Authenticated"
    assert found[2].value == b"v"


@pytest.mark.parametrize("nonce", NONCES)
@pytest.mark.parametrize(
    "mechanism",
    [b"SCRAM-SHA512", b"SCRAM-SHA256", b"SCRAM-SHA1", b"SCRAM-SHA-512", b"SCRAM-SHA-256"],
)
def test_scram_lets_in_with_every_hash_and_spelling(
    visitor: Visitor, mechanism: bytes, nonce: bytes
) -> None:
    assert scram(visitor, "ann", mechanism=mechanism, nonce=nonce) == OK
    assert statuses(visitor.say(store(SET, b"k", b"v"))) == [OK]


def test_what_hello_granted_outlives_the_login(visitor: Visitor) -> None:
    visitor.say(frame(HELLO, b"client", value=b"\x00\x04"))  # mutation seqnos
    assert scram(visitor, "ann") == OK
    (reply,) = replies(visitor.say(store(SET, b"k", b"v")))
    assert len(reply.extras) == 16


def test_mechanisms_are_listed_as_sdks_write_them(rig: Rig) -> None:
    (reply,) = replies(Visitor(rig, HandDoor(ann="read")).say(frame(LIST)))
    assert reply.value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    (reply,) = replies(Visitor(rig, HandDoor(plain=False, ann="read")).say(frame(LIST)))
    assert reply.value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"


@pytest.mark.parametrize(
    "login",
    [
        *(b"set any 0 0 10", b"set _ _ _ 10", b"set a b c 010 noreply", b"set a b c 10 x y"),
        *(b"  set  a  b  c  10 ", b"set a 99999999999 -5 10", b"set " + b"k" * 251 + b" 0 0 10"),
    ],
)
def test_text_logs_in_by_a_set_of_which_only_the_length_counts(
    visitor: Visitor, login: bytes
) -> None:
    assert visitor.say(login + b"\r\nann pencil\r\nset k 1 0 1\r\nv\r\nget k\r\n") == (
        b"STORED\r\nSTORED\r\nVALUE k 1 1\r\nv\r\nEND\r\n"
    )


def test_a_password_of_text_may_have_blanks(rig: Rig) -> None:
    door = HandDoor(ann="read")
    assert not door.users.knows(Credentials("ann", "a b"))
    visitor = Visitor(rig, door)
    assert visitor.say(b"set k 0 0 7\r\nann a b\r\n") == b"CLIENT_ERROR authentication failure\r\n"
    assert door.notes == [("refused", "ann")]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_login_may_arrive_in_pieces(rig: Rig, door: HandDoor, cut: int) -> None:
    for said, wanted in (
        (plain("ann") + store(SET, b"k", b"v"), 2),
        (b"set a 0 0 10\r\nann pencil\r\nset k 0 0 1\r\nv\r\n", 2),
    ):
        door.leave()
        visitor = Visitor(rig, door)
        out = b"".join(visitor.say(said[at : at + cut]) for at in range(0, len(said), cut))
        if said[0] == 0x80:
            assert statuses(out) == [OK] * wanted
        else:
            assert out == b"STORED\r\n" * wanted


def test_commands_behind_a_login_wait_for_its_password(visitor: Visitor, door: HandDoor) -> None:
    door.by_hand = True
    assert visitor.begin(plain("ann"), store(SET, b"k", b"v")) == b""
    assert visitor.session.input_full
    door.let()
    assert statuses(visitor.say()) == [OK, OK]


@pytest.mark.parametrize("way", ["plain", "scram", "text"])
def test_commands_behind_a_login_wait_while_logins_are_slowed(
    visitor: Visitor, door: HandDoor, way: str
) -> None:
    door.slow = True
    if way == "plain":
        said, wanted = plain("ann") + frame(GET, b"none"), [OK, MISSING]
    elif way == "text":
        said, wanted = b"set a 0 0 10\r\nann pencil\r\nget none\r\n", []
    else:
        exchange = exchange_for(Credentials("ann", PASSWORD), Mechanism.SCRAM_SHA1, NONCES[0])
        (first,) = replies(visitor.say(frame(AUTH, b"SCRAM-SHA1", value=exchange.first())))
        proof = exchange.answer(bytes(first.value))
        said = frame(STEP, b"SCRAM-SHA1", value=proof) + frame(GET, b"none")
        wanted = [OK, MISSING]
    assert visitor.begin(said) == b""
    assert door.roles is None
    heard = visitor.say()
    assert heard == b"STORED\r\nEND\r\n" if way == "text" else statuses(heard) == wanted
    left = Visitor(visitor.rig, door)
    door.leave()
    left.begin(plain("ann"))
    left.session.connection_lost()
    door.let()


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
@pytest.mark.parametrize("way", ["plain", "scram", "text"])
def test_where_too_many_try_right_and_wrong_passwords_are_put_off_alike(
    visitor: Visitor, door: HandDoor, way: str, password: str
) -> None:
    door.busy = True
    if way == "text":
        said = b"set a 0 0 %d\r\nann %b\r\nversion\r\n" % (4 + len(password), password.encode())
        assert b"\r\nVERSION " in visitor.say(said).removeprefix(b"SERVER_ERROR temporary failure")
    elif way == "scram":
        assert scram(visitor, "ann", password) == TEMPORARY
        assert statuses(visitor.say(frame(NOOP))) == [OK]
    else:
        assert statuses(visitor.say(plain("ann", password), frame(NOOP))) == [TEMPORARY, OK]
    assert door.roles is None
    assert not visitor.closed
    door.busy = False
    assert way == "text" or scram(visitor, "ann") == OK


def test_a_login_that_is_put_off_ends_the_one_before(visitor: Visitor, door: HandDoor) -> None:
    assert scram(visitor, "ann") == OK
    door.busy = True
    assert scram(visitor, "bob") == TEMPORARY
    assert door.roles is None
    assert statuses(visitor.say(frame(GET, b"k"))) == [AUTH_ERROR]


def test_a_second_login_takes_the_place_of_the_first(visitor: Visitor) -> None:
    assert scram(visitor, "ann") == OK
    assert statuses(visitor.say(plain("bob"), store(SET, b"k", b"v"))) == [OK, NO_ACCESS]
    assert statuses(visitor.say(plain("ann"), store(SET, b"k", b"v"))) == [OK, OK]


# --- hostile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ann", "nobody"])
def test_strangers_do_not_learn_who_exists(rig: Rig, name: str) -> None:
    visitor = Visitor(rig, HandDoor(ann="read"))
    assert statuses(visitor.say(plain(name, "wrong"))) == [AUTH_ERROR]
    assert scram(visitor, name, "wrong") == AUTH_ERROR
    assert scram(visitor, name, "wrong", b"SCRAM-SHA1") == AUTH_ERROR
    assert not visitor.closed
    assert rig.bucket.stats.auth_cmds == rig.bucket.stats.auth_errors == 3


def test_a_failure_is_answered_when_the_node_lets_it(visitor: Visitor, door: HandDoor) -> None:
    assert visitor.begin(plain("ann", "wrong"), frame(NOOP)) == b""
    assert visitor.session.input_full
    assert statuses(visitor.say()) == [AUTH_ERROR, OK]


def test_a_failed_login_ends_the_one_before(visitor: Visitor) -> None:
    assert scram(visitor, "ann") == OK
    assert statuses(visitor.say(plain("bob", "wrong"), frame(GET, b"k"))) == [
        AUTH_ERROR,
        AUTH_ERROR,
    ]
    assert visitor.closed


def test_too_many_passwords_at_a_time_are_told_to_come_again(
    visitor: Visitor, door: HandDoor
) -> None:
    door.busy = True
    assert statuses(visitor.say(plain("ann"))) == [TEMPORARY]
    door.busy = False
    assert statuses(visitor.say(plain("ann"))) == [OK]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"ann",
        b"ann\0pencil",
        b"\0ann",
        b"\0ann\0",
        b"\0\0pencil",
        b"\0ann\0pencil\0",
        b"bob\0ann\0pencil",
        b"\0\xff\0pencil",
        b"\0" + b"a" * 256 + b"\0pencil",
        b"\0ann\0" + b"p" * 1025,
    ],
)
def test_what_is_no_plain_is_refused(visitor: Visitor, value: bytes) -> None:
    said = visitor.say(frame(AUTH, b"PLAIN", value=value), frame(NOOP))
    assert statuses(said) == [AUTH_ERROR, OK]


@pytest.mark.parametrize(
    "mechanism", [b"CRAM-MD5", b"GSSAPI", b"SCRAM-SHA512-PLUS", b"OAUTHBEARER", b"\xff"]
)
def test_a_mechanism_that_is_not_offered_is_refused(visitor: Visitor, mechanism: bytes) -> None:
    assert statuses(visitor.say(frame(AUTH, mechanism, value=b"\0ann\0pencil"))) == [AUTH_ERROR]


def test_plain_is_refused_where_it_could_be_heard(rig: Rig) -> None:
    door = HandDoor(plain=False, ann="read write")
    assert statuses(Visitor(rig, door).say(plain("ann"))) == [AUTH_ERROR]
    said = Visitor(rig, door).say(b"set a 0 0 10\r\nann pencil\r\n")
    assert said == b"CLIENT_ERROR a password in clear needs TLS here\r\n"
    assert scram(Visitor(rig, door), "ann") == OK


def begun(visitor: Visitor, mechanism: Mechanism = Mechanism.SCRAM_SHA256) -> bytes:
    """Begin a login and return the proof that would end it."""
    exchange = exchange_for(Credentials("ann", PASSWORD), mechanism, NONCES[0])
    said = visitor.say(frame(AUTH, mechanism.value.encode(), value=exchange.first()))
    return exchange.answer(bytes(replies(said)[0].value))


def test_a_step_needs_its_beginning(visitor: Visitor) -> None:
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA512", value=b"c=biws,r=x,p=eA=="))) == [
        AUTH_ERROR
    ]
    assert statuses(visitor.say(frame(STEP, b"PLAIN", value=b"\0ann\0pencil"))) == [AUTH_ERROR]


def test_a_proof_works_once_and_only_with_its_mechanism(visitor: Visitor, door: HandDoor) -> None:
    proof = begun(visitor)
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA512", value=proof))) == [AUTH_ERROR]
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA256", value=proof))) == [AUTH_ERROR]
    proof = begun(visitor)
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA256", value=proof))) == [OK]
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA256", value=proof))) == [AUTH_ERROR]
    assert door.roles is None  # the replayed proof has ended the login


def test_a_beginning_takes_the_place_of_the_one_before(visitor: Visitor) -> None:
    proof = begun(visitor)
    assert statuses(visitor.say(plain("ann", "wrong"))) == [AUTH_ERROR]
    assert statuses(visitor.say(frame(STEP, b"SCRAM-SHA256", value=proof))) == [AUTH_ERROR]


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=ann",
        b"p=tls-unique,,n=ann,r=x",
        b"n,a=bob,n=ann,r=x",
        b"n,,n=ann,r=",
        b"n,,m=ext,n=ann,r=x",
        b"n,,n=an=n,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=" + b"a" * 4_000 + b",r=x",
    ],
)
def test_a_beginning_that_is_none_is_refused(visitor: Visitor, first: bytes) -> None:
    assert statuses(visitor.say(frame(AUTH, b"SCRAM-SHA1", value=first))) == [AUTH_ERROR]
    assert statuses(visitor.say(plain("ann"))) == [OK]


@settings(max_examples=100)
@given(data=st.data())
def test_a_proof_with_any_change_is_refused(data: st.DataObject) -> None:
    visitor = Visitor(Rig(), HandDoor(ann="read"))
    proof = bytearray(begun(visitor))
    at = data.draw(st.integers(0, len(proof) - 1))
    proof[at] ^= 1 << data.draw(st.integers(0, 7))
    found = statuses(visitor.say(frame(STEP, b"SCRAM-SHA256", value=bytes(proof))))
    assert found == [AUTH_ERROR]
    assert visitor.door.roles is None


def test_a_client_is_not_let_in_by_a_node_that_proves_nothing() -> None:
    exchange = exchange_for(Credentials("ann", "x"), Mechanism.SCRAM_SHA1, NONCES[0])
    exchange.first()
    with pytest.raises(BadExchange):
        exchange.finish(b"")


def test_a_name_of_a_mechanism_that_is_too_long_is_refused(visitor: Visitor) -> None:
    assert statuses(visitor.say(frame(AUTH, b"S" * 33))) == [0x04]


def test_a_stranger_sends_no_more_than_a_login_needs(rig: Rig, door: HandDoor) -> None:
    value = b"\0ann\0" + b"p" * (STRANGER_MAX_BYTES - 10)
    fits = Visitor(rig, door)
    assert statuses(fits.say(frame(AUTH, b"PLAIN", value=value))) == [AUTH_ERROR]
    assert not fits.closed
    huge = Visitor(rig, door)
    assert statuses(huge.say(frame(AUTH, b"PLAIN", value=value + b"p"))) == [AUTH_ERROR]
    assert huge.closed
    announced = Visitor(rig, door)
    header = frame(SET, b"k", value=b"")[:8] + (2**31).to_bytes(4, "big") + bytes(12)
    assert statuses(announced.say(header)) == [AUTH_ERROR]
    assert announced.closed


@pytest.mark.parametrize(
    ("said", "answered", "closes"),
    [
        (b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n", False),
        (b"mg k v\r\n", b"CLIENT_ERROR unauthenticated\r\n", False),
        (b"stats\r\n", b"CLIENT_ERROR unauthenticated\r\n", False),
        (b"version\r\n", b"VERSION 1.2.3\r\n", False),
        (b"quit\r\n", b"", True),
        (b"set a 0 0 3\r\nann\r\n", b"CLIENT_ERROR authentication failure\r\n", False),
        (b"set a 0 0 3\r\nannXX", b"CLIENT_ERROR bad data chunk\r\n", False),
        (b"set a 0 0 -1\r\n", b"CLIENT_ERROR unauthenticated\r\n", True),
        (b"set a 0 0 x\r\n", b"CLIENT_ERROR unauthenticated\r\n", True),
        (b"set a 0 3\r\n", b"CLIENT_ERROR unauthenticated\r\n", True),
        (b"set a 0 0 0\r\n", b"CLIENT_ERROR unauthenticated\r\n", True),
        (b"set a 0 0 999999\r\n", b"CLIENT_ERROR unauthenticated\r\n", True),
        (b"x" * (STRANGER_MAX_BYTES + 1), b"", True),
    ],
)
def test_text_of_a_stranger(visitor: Visitor, said: bytes, answered: bytes, closes: bool) -> None:
    found = visitor.say(said)
    if answered.startswith(b"CLIENT_ERROR bad"):
        assert found.startswith(b"CLIENT_ERROR bad")
    else:
        assert found == answered
    assert visitor.closed is closes


def test_a_peer_that_leaves_while_its_password_is_checked_is_forgotten(
    visitor: Visitor, door: HandDoor
) -> None:
    for said in (plain("ann"), b"set a 0 0 10\r\nann pencil\r\n"):
        door.by_hand = True
        gone = Visitor(visitor.rig, door)
        assert gone.begin(said) == b""
        gone.session.connection_lost()
        door.let()
        assert door.roles is None


def test_who_is_removed_is_disconnected(visitor: Visitor, door: HandDoor) -> None:
    for said in (plain("ann"), b"set a 0 0 10\r\nann pencil\r\n"):
        one = Visitor(visitor.rig, door)
        one.say(said)
        one.session.tick(1.0)
        assert not one.closed
        door.revoked = True
        one.session.tick(2.0)
        assert one.closed
        door.revoked = False
        door.leave()


def test_who_says_nothing_is_disconnected_too(rig: Rig, door: HandDoor) -> None:
    silent = Visitor(rig, door)
    silent.session.tick(1.0)
    assert not silent.closed
    door.revoked = True
    silent.session.tick(2.0)
    assert silent.closed


# --- nothing is open ----------------------------------------------------------------------------

#: What a stranger may be answered with success.
HARMLESS = {VERSION, NOOP, HELLO, LIST, Opcode.QUIT, Opcode.QUITQ, Opcode.GET_ERROR_MAP}


@pytest.fixture(scope="module")
def full() -> Rig:
    rig = Rig()
    for number in range(8):
        key = b"k%d" % number
        rig.bucket.of_key(key).store_record(key, b"SECRET", 0, 0)
    rig.groups[""] = [("secret", "SECRET")]
    return rig


def state(rig: Rig) -> object:
    bucket = rig.bucket
    seqnos = {number: one.high_seqno for number, one in bucket.vbuckets.items()}
    states = {number: one.state for number, one in bucket.vbuckets.items()}
    return seqnos, states, bucket.item_count, bucket.traffic, rig.verbosity, rig.resets


@settings(max_examples=300)
@given(
    opcode=st.integers(0, 255),
    extras=st.sampled_from([0, 1, 4, 8, 12, 16, 20, 24, 28, 31, 48]),
    key=st.sampled_from([b"", b"k1", b"k2", b"list", b"reset"]),
    value=st.sampled_from([b"", b"x", b"\0ann\0wrong", b"[]"]),
    number=st.integers(0, 4),
    by_key=st.booleans(),
)
def test_no_opcode_reads_or_changes_anything_without_a_login(
    full: Rig,
    opcode: int,
    extras: int,
    key: bytes,
    value: bytes,
    number: int,
    by_key: bool,
) -> None:
    before = state(full)
    visitor = Visitor(full, HandDoor(ann="read"), by_key=by_key)
    asked = frame(opcode, key, extras=bytes(extras), value=value, vbucket=number)
    said = visitor.say(asked, frame(GET, b"k1"), store(SET, b"k2", b"new"))
    assert b"SECRET" not in said
    assert state(full) == before
    for each in replies(said):
        assert each.status or each.opcode in HARMLESS, each
    if opcode not in OPEN_OPCODES:
        assert statuses(said) == [AUTH_ERROR]
    assert visitor.closed


@settings(max_examples=300)
@given(
    word=st.sampled_from(
        b"get gets gat gats mg me mn ms md ma set add replace append prepend cas delete incr decr "
        b"touch flush_all verbosity cache_memlimit stats lru_crawler version shutdown x".split()
    ),
    rest=st.sampled_from([b"", b"k1", b"k1 0 0 1", b"k1 1", b"k1 v", b"metadump all", b"reset"]),
)
def test_no_word_reads_or_changes_anything_without_a_login(
    full: Rig, word: bytes, rest: bytes
) -> None:
    before = state(full)
    said = Visitor(full, HandDoor(ann="read")).say(word + b" " + rest + b"\r\nv\r\nget k1\r\n")
    assert b"SECRET" not in said
    assert b"STORED" not in said
    assert state(full) == before
