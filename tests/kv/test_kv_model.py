"""One model of documents, asked over every path: binary and text, short ways and long ones, meta.

A seed chooses commands, CAS values (one below, equal, one above), locks and steps of the clock.
After each command every path has to show what the model has: a command changes only the fields
that it names, a refused one nothing, and the CAS of a locked document shows nowhere.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.kv.binary_peer import Peer, counter, frame, store, u32
from tests.kv.harness import Rig, drained_with_waits, talk
from uprmc.engine.vbucket import VBucket
from uprmc.kv.text import TextSession
from uprmc.model import Item
from uprmc.record import unpack

GET, SET, ADD, REPLACE, DELETE, INCR, DECR = range(7)
GETK, APPEND, PREPEND, TOUCH, GAT, HELLO = 0x0C, 0x0E, 0x0F, 0x1C, 0x1D, 0x1F
GETL, UNLOCK, GET_META = 0x94, 0x95, 0xA0
LOCKED_CAS = 2**64 - 1
KEYS = [b"a", b"b", b"c"]
STEPS = 150


@dataclass(frozen=True)
class Document:
    value: bytes
    flags: int
    expiry: int


class World:
    """The model, and a session of each kind in front of one node."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig()
        self.binary, self.long = Peer(self.rig), Peer(self.rig)
        # Such a peer is told seqnos, so its commands never go the short way.
        self.long.ask(frame(HELLO, b"model", struct.pack(">H", 4)))
        self.text = self.rig.text()
        self.documents: dict[bytes, Document] = {}
        self.locks: dict[bytes, tuple[int, float]] = {}
        self.cas: dict[bytes, int] = {}

    # --- what holds now ---------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.rig.clock.time

    def document(self, key: bytes) -> Document | None:
        found = self.documents.get(key)
        if found is not None and 0 < found.expiry <= self.now:
            del self.documents[key]
            self.locks.pop(key, None)
            return None
        return found

    def lock_of(self, key: bytes) -> int:
        """Return the CAS that opens the document, 0 = it is not locked."""
        cas, until = self.locks.get(key, (0, 0.0))
        return cas if until > self.now else 0

    # --- a command ----------------------------------------------------------------------------

    def step(self) -> None:
        name = self.random.choice(sorted(_COMMANDS))
        key = self.random.choice(KEYS)
        _COMMANDS[name](self, key)
        if self.random.random() < 0.2:
            self.pass_time(self.random.choice([0.5, 1, 7, 40]))
        for each in KEYS:
            self.look(each, name)

    def pass_time(self, seconds: float) -> None:
        self.rig.clock.time += seconds

    def chosen_cas(self, key: bytes) -> int:
        """Choose one to compare with: none, that of now, or one beside it."""
        right = self.lock_of(key) or self.cas.get(key, 5)
        return self.random.choice([0, right, right, right - 1, right + 1])

    def may_change(self, key: bytes, cas: int) -> bool:
        """Tell whether a document that is there may be changed with this CAS."""
        lock = self.lock_of(key)
        return cas == lock if lock else cas in (0, self.cas[key])

    def changed(self, key: bytes, document: Document | None, cas: int = 0) -> None:
        self.locks.pop(key, None)
        if document is None:
            self.documents.pop(key, None)
            self.cas.pop(key, None)
            return
        self.documents[key] = document
        item = self.rig.item(key)
        if document.expiry and document.expiry <= self.now:
            return
        assert item is not None
        assert cas in (0, item.cas)
        assert item.cas != self.cas.get(key), "another version has another CAS"
        self.cas[key] = item.cas

    def judge(
        self, key: bytes, done: bool, allowed: bool, new: Document | None, cas: int = 0
    ) -> None:
        """Compare the outcome with the model's, and put down what it changed."""
        assert done is allowed
        if done:
            self.changed(key, new, cas)

    def new_document(self) -> Document:
        value = self.random.choice([b"7", b"100", b"text", b""])
        expiry = self.random.choice([0, 0, self.at(3), self.at(100)])
        return Document(value, self.random.randrange(1 << 32), expiry)

    def at(self, seconds: int) -> int:
        """Return an absolute time of expiry."""
        return int(self.now) + seconds

    @property
    def peer(self) -> Peer:
        return self.random.choice([self.binary, self.long])

    # --- all paths ------------------------------------------------------------------------------

    def look(self, key: bytes, after: str) -> None:
        document = self.document(key)
        shown = LOCKED_CAS if self.lock_of(key) else self.cas.get(key)
        for peer in (self.binary, self.long):
            for opcode in (GET, GETK):
                (reply,) = peer.ask(frame(opcode, key))
                if document is None:
                    assert reply.status == 1, after
                    continue
                (flags,) = struct.unpack(">I", reply.extras)
                found = (reply.value, flags, reply.cas)
                assert found == (document.value, document.flags, shown), after
        lines = talk(self.text, b"get %b\r\ngets %b\r\nmg %b v f c t\r\n" % (key, key, key))
        assert lines == self.shown_lines(key, document, shown), after
        dump = talk_slowly(self.text, b"lru_crawler metadump all\r\n")
        assert (b"key=%b " % key in dump) is (document is not None)
        if document is None:
            return
        assert b"key=%b exp=%d la=0 cas=%d " % (key, document.expiry or -1, shown) in dump, after
        (meta,) = self.binary.ask(frame(GET_META, key))
        facts = (*struct.unpack(">III", meta.extras[:12]), meta.cas)
        assert facts == (0, document.flags, document.expiry, shown), after

    def shown_lines(self, key: bytes, document: Document | None, cas: int | None) -> bytes:
        if document is None:
            return b"END\r\nEND\r\nEN\r\n"
        value, size = document.value, len(document.value)
        left = document.expiry - int(self.now) if document.expiry else -1
        return b"".join(
            [
                b"VALUE %b %d %d\r\n%b\r\nEND\r\n" % (key, document.flags, size, value),
                b"VALUE %b %d %d %d\r\n%b\r\nEND\r\n" % (key, document.flags, size, cas, value),
                b"VA %d f%d c%d t%d\r\n%b\r\n" % (size, document.flags, cas, left, value),
            ]
        )


def talk_slowly(session: TextSession, data: bytes) -> bytes:
    session.receive_data(data)
    return drained_with_waits(session)


# --- commands -----------------------------------------------------------------------------------


def binary_store(world: World, key: bytes) -> None:
    opcode, cas = world.random.choice([SET, ADD, REPLACE]), world.chosen_cas(key)
    new = world.new_document()
    (reply,) = world.peer.ask(
        store(opcode, key, new.value, flags=new.flags, expiration=new.expiry, cas=cas)
    )
    old = world.document(key)
    if old is None:
        allowed = not cas and opcode != REPLACE
    else:
        allowed = world.may_change(key, cas) and (bool(cas) or opcode != ADD)
    world.judge(key, reply.status == 0, allowed, new, reply.cas)


def text_store(world: World, key: bytes) -> None:
    command, cas = world.random.choice([b"set", b"add", b"replace", b"cas"]), world.chosen_cas(key)
    new = world.new_document()
    unique = b" %d" % cas if command == b"cas" else b""
    line = b"%b %b %d %d %d" % (command, key, new.flags, new.expiry, len(new.value))
    said = talk(world.text, line + unique + b"\r\n" + new.value + b"\r\n")
    old = world.document(key)
    if command == b"cas":
        allowed = old is not None and cas != 0 and world.may_change(key, cas)
    elif old is None:
        allowed = command != b"replace"
    else:
        allowed = command != b"add" and world.may_change(key, 0)
    world.judge(key, said == b"STORED\r\n", allowed, new)


def meta_store(world: World, key: bytes) -> None:
    cas, ttl = world.chosen_cas(key), world.random.choice([0, 100])
    value, flags = b"m%d" % world.random.randrange(99), world.random.randrange(9)
    new = Document(value, flags, ttl and world.at(ttl))
    compared = b" C%d" % cas if cas else b""
    line = b"ms %b %d F%d T%d%b" % (key, len(new.value), new.flags, ttl, compared)
    said = talk(world.text, line + b"\r\n" + new.value + b"\r\n")
    old = world.document(key)
    allowed = not cas if old is None else world.may_change(key, cas)
    world.judge(key, said == b"HD\r\n", allowed, new)


def extend(world: World, key: bytes) -> None:
    front, cas = world.random.random() < 0.5, world.chosen_cas(key)
    piece = b"%d" % world.random.randrange(9)
    if world.random.random() < 0.5:
        (reply,) = world.peer.ask(frame(PREPEND if front else APPEND, key, piece, cas=cas))
        done = reply.status == 0
    else:
        cas = 0
        line = b"%b %b 77 9 1\r\n%b\r\n" % (b"prepend" if front else b"append", key, piece)
        done = talk(world.text, line) == b"STORED\r\n"
    old = world.document(key)
    allowed = old is not None and world.may_change(key, cas)
    new = old and replace(old, value=piece + old.value if front else old.value + piece)
    world.judge(key, done, allowed, new)


def count(world: World, key: bytes) -> None:
    up, cas, kind = world.random.random() < 0.5, world.chosen_cas(key), world.random.randrange(3)
    if kind == 0:
        request = counter(INCR if up else DECR, key, 3, expiration=0xFFFFFFFF, cas=cas)
        (reply,) = world.peer.ask(request)
        done = reply.status == 0
    elif kind == 1:
        cas = 0
        done = talk(world.text, b"%b %b 3\r\n" % (b"incr" if up else b"decr", key))[:1].isdigit()
    else:
        compared = b" C%d" % cas if cas else b""
        line = b"ma %b M%b D3%b\r\n" % (key, b"I" if up else b"D", compared)
        done = talk(world.text, line) == b"HD\r\n"
    old = world.document(key)
    allowed = old is not None and old.value.rstrip().isdigit() and world.may_change(key, cas)
    new = old
    if allowed and old is not None:
        number = int(old.value) + 3 if up else max(0, int(old.value) - 3)
        new = replace(old, value=(b"%d" % number).ljust(len(old.value)))
    world.judge(key, done, allowed, new)


def delete(world: World, key: bytes) -> None:
    cas, kind = world.chosen_cas(key), world.random.randrange(3)
    if kind == 0:
        (reply,) = world.peer.ask(frame(DELETE, key, cas=cas))
        done = reply.status == 0
    elif kind == 1:
        cas, done = 0, talk(world.text, b"delete %b\r\n" % key) == b"DELETED\r\n"
    else:
        compared = b" C%d" % cas if cas else b""
        done = talk(world.text, b"md %b%b\r\n" % (key, compared)) == b"HD\r\n"
    allowed = world.document(key) is not None and world.may_change(key, cas)
    world.judge(key, done, allowed, None)


def touch(world: World, key: bytes) -> None:
    """It keeps the CAS, so it is no change that `judge` knows."""
    ttl, kind = world.random.choice([0, 5, 100]), world.random.randrange(5)
    if kind < 2:
        opcode = (TOUCH, GAT)[kind]
        (reply,) = world.peer.ask(frame(opcode, key, extras=u32(ttl)))
        done = reply.status == 0
    elif kind == 2:
        done = talk(world.text, b"touch %b %d\r\n" % (key, ttl)) == b"TOUCHED\r\n"
    elif kind == 3:
        done = talk(world.text, b"gat %d %b\r\n" % (ttl, key)).startswith(b"VALUE")
    else:
        done = talk(world.text, b"mg %b T%d\r\n" % (key, ttl)) == b"HD\r\n"
    old = world.document(key)
    assert done is (old is not None and not world.lock_of(key))
    if done and old is not None:
        world.documents[key] = replace(old, expiry=ttl and world.at(ttl))


def lock(world: World, key: bytes) -> None:
    (reply,) = world.peer.ask(frame(GETL, key, extras=u32(10)))
    old = world.document(key)
    assert (reply.status == 0) is (old is not None and not world.lock_of(key))
    if not reply.status:
        assert old is not None
        assert reply.value == old.value
        assert reply.cas not in (LOCKED_CAS, world.cas[key])
        world.locks[key] = (reply.cas, world.now + 10)


def unlock(world: World, key: bytes) -> None:
    cas = world.chosen_cas(key) or 1
    (reply,) = world.peer.ask(frame(UNLOCK, key, cas=cas))
    found = world.document(key) is not None and world.lock_of(key) == cas
    assert (reply.status == 0) is found
    if found:
        del world.locks[key]


_COMMANDS: dict[str, Callable[[World, bytes], None]] = {
    command.__name__: command
    for command in (
        *(binary_store, text_store, meta_store, extend, count, delete, touch, lock, unlock),
    )
}


SEEDS = range(12)


def run(*seeds: int) -> None:
    for seed in seeds:
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        world.rig.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_path_shows_what_the_model_has(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize(
    "fault",
    [
        "a touch changes the CAS",
        "a lock shows the CAS",
        "append forgets flags",
        "an older CAS is good enough",
    ],
)
def test_the_model_notices(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(fault, monkeypatch)
    with pytest.raises(AssertionError):
        run(*SEEDS)


def _plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, check = VBucket._accept, VBucket._check_cas

    def other_cas(self: VBucket, *given: object, cas: int = 0) -> bytes:
        return accept(self, *given)

    def no_flags(self: VBucket, key: bytes, piece: bytes, cas: int, **rest: object) -> Item:
        item = extended(self, key, piece, cas, **rest)
        assert item.value is not None
        present = self.table.get(key)
        return unpack(accept(self, key, item.value, 0, item.expiry, present, item.datatype))

    def older(self: VBucket, key: bytes, old: Item, cas: int) -> None:
        check(self, key, old, old.cas if cas == old.cas - 1 else cas)

    extended = VBucket.extend
    match fault:
        case "a touch changes the CAS":
            monkeypatch.setattr(VBucket, "_accept", other_cas)
        case "a lock shows the CAS":
            monkeypatch.setattr(VBucket, "visible_cas", lambda self, key, cas: cas)
        case "append forgets flags":
            monkeypatch.setattr(VBucket, "extend", no_flags)
        case _:
            monkeypatch.setattr(VBucket, "_check_cas", older)
