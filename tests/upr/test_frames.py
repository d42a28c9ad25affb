"""From items to frames: byte for byte what the layouts say, within a limit."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from itertools import product
from typing import Any

import pytest
from construct import Struct as Layout
from hypothesis import given
from hypothesis import strategies as st

from uprmc.core.form import COMPILED, FORM
from uprmc.errors import StoreError
from uprmc.model import Item, Life, Origin
from uprmc.protocol.header import RequestHeader
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import (
    DeletionExtras,
    ExpirationExtras,
    MutationExtras,
    TimedDeletionExtras,
)
from uprmc.record import pack
from uprmc.upr.frames import CompiledItemWriter, Form, ItemWriter, Written

VBUCKET, OPAQUE = 0x8203, 0xFEEDBEEF
PLAIN = Form()
ELSEWHERE = Origin(2**64 - 2, 2**63 + 7)
SWITCH = (False, True)
FORMS = [
    Form(*each, origins=origins)
    for each in product((0, 1, 3, 7), SWITCH, SWITCH, SWITCH)
    for origins in SWITCH
]


_writer: type[ItemWriter] = ItemWriter


@pytest.fixture(autouse=True, scope="module", params=[ItemWriter, CompiledItemWriter])
def each_form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run everything with both forms of the writer."""
    global _writer
    if request.param is CompiledItemWriter and FORM != COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    _writer = request.param
    yield
    _writer = ItemWriter


def document(seqno: int, value: bytes = b"value", **changes: Any) -> Item:
    item = Item(b"key-%d" % seqno, value, 0xCAFE, 0x65A00000, 2**63 + seqno, seqno, 2**40, 1)
    for name, changed in changes.items():
        setattr(item, name, changed)
    return item


def tombstone(seqno: int, life: Life = Life.DELETED, origin: Origin | None = None) -> Item:
    return Item(b"gone-%d" % seqno, None, 7, 0x65B00000, 11, seqno, 3, 1, life, origin=origin)


def expected(item: Item, form: Form) -> bytes:
    """Build a frame with construct, from the reference alone."""
    extras: dict[str, int] = {"by_seqno": item.seqno, "rev_seqno": item.rev}
    datatype, value, meta = 0, b"", b""
    layout: Layout
    if form.origins and item.origin is not None:
        meta = b"\x01\xe0\x00\x10" + struct.pack(">QQ", *item.origin)
    if item.life == Life.LIVE:
        opcode, layout = Opcode.UPR_MUTATION, MutationExtras
        extras |= {"flags": item.flags, "expiration": item.expiry, "nmeta": len(meta)}
        datatype = item.datatype & form.datatypes
        value = (item.value or b"") if form.values else b""
    elif not form.delete_times:
        opcode, layout = Opcode.UPR_DELETION, DeletionExtras
        extras["nmeta"] = len(meta)
    elif item.life == Life.EXPIRED and form.expirations:
        opcode, layout = Opcode.UPR_EXPIRATION, ExpirationExtras
        extras["delete_time"] = item.expiry
    else:
        opcode, layout = Opcode.UPR_DELETION, TimedDeletionExtras
        extras["delete_time"] = item.expiry
    built = layout.build(extras)
    header = {
        "magic": 0x80,
        "opcode": opcode,
        "key_length": len(item.key),
        "extras_length": len(built),
        "datatype": datatype,
        "vbucket": VBUCKET,
        "body_length": len(built) + len(item.key) + len(value) + len(meta),
        "opaque": OPAQUE,
        "cas": item.cas,
    }
    frame: bytes = RequestHeader.build(header) + built + item.key + value + meta
    return frame


def write(
    items: Iterator[Item] | list[Item],
    form: Form = PLAIN,
    limit: int = 1 << 30,
    last_seqno: int = 0,
    newer: Container[bytes] = (),
) -> tuple[Written, list[bytes]]:
    out: list[bytes] = []
    writer = _writer(VBUCKET, OPAQUE, form)
    return writer.write(map(pack, items), out, limit, last_seqno, newer), out


ITEMS = [
    document(1),
    document(2, b""),
    document(3, b"\x00" * 70_000),
    document(4, datatype=7, flags=0, expiry=0),
    document(5, key=b"k" * 250, cas=0, rev=1),
    tombstone(6),
    tombstone(7, Life.EXPIRED),
    document(8, origin=ELSEWHERE),
    document(9, b"\x00" * 70_000, origin=ELSEWHERE),
    document(10, b"", key=b"k" * 250, origin=ELSEWHERE),
    tombstone(11, origin=ELSEWHERE),
    tombstone(12, Life.EXPIRED, ELSEWHERE),
]


@pytest.mark.acceptance("P14")
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.key.decode()[:8])
def test_a_frame_is_byte_for_byte_what_the_layouts_say(item: Item) -> None:
    for form in FORMS:
        written, out = write([item], form)
        frame = b"".join(out)
        assert frame == expected(item, form), form
        assert written == Written(1, len(frame), item.seqno, True, None), form


def test_the_sizes_are_those_that_flow_control_counts() -> None:
    assert write([document(1)])[0].size == 55 + 5 + 5
    assert write([tombstone(1)])[0].size == 42 + 6
    assert write([tombstone(1)], Form(delete_times=True))[0].size == 45 + 6
    expiry = Form(delete_times=True, expirations=True)
    assert write([tombstone(1, Life.EXPIRED)], expiry)[0].size == 44 + 6


def test_expirations_are_plain_deletions_without_delete_times() -> None:
    _, out = write([tombstone(1, Life.EXPIRED)], Form(expirations=True))
    assert b"".join(out)[1] == Opcode.UPR_DELETION


numbers = st.integers(0, 2**32 - 1)
wide = st.integers(0, 2**64 - 1)


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    seqnos = sorted(draw(st.sets(st.integers(1, 2**64 - 1), max_size=12)))
    items = []
    for seqno in seqnos:
        life = draw(st.sampled_from(Life))
        value = draw(st.binary(max_size=40)) if life == Life.LIVE else None
        key = draw(st.binary(min_size=1, max_size=20))
        flags, expiry, datatype = draw(numbers), draw(numbers), draw(st.integers(0, 7))
        item = Item(key, value, flags, expiry, draw(wide), seqno, draw(wide), datatype, life)
        item.origin = draw(st.none() | st.builds(Origin, wide, wide))
        items.append(item)
    return items


@pytest.mark.acceptance("P14")
@given(items=histories(), form=st.sampled_from(FORMS), limit=st.integers(1, 400))
def test_in_portions_of_any_size_the_same_bytes_come(
    items: list[Item], form: Form, limit: int
) -> None:
    whole = [expected(item, form) for item in items]
    source, last = iter(items), 0
    sent: list[bytes] = []
    while True:
        written, out = write(source, form, limit, last)
        portion = b"".join(out)
        assert written.size == len(portion)
        frames = whole[len(sent) : len(sent) + written.items]
        assert portion == b"".join(frames)
        assert sum(map(len, frames[:-1])) < limit, "it overshoots by one frame at most"
        sent += frames
        last = written.last_seqno
        if written.exhausted:
            break
        assert written.size >= limit, "it stopped though there was room"
    assert sent == whole
    assert last == (items[-1].seqno if items else 0)


@pytest.mark.parametrize(("limit", "items"), [(1, 1), (65, 1), (66, 2), (130, 2), (131, 3)])
def test_nothing_is_fetched_that_is_not_sent(limit: int, items: int) -> None:
    source = iter([document(seqno) for seqno in range(1, 5)])
    written, _ = write(source, limit=limit)
    assert (written.items, written.size, written.exhausted) == (items, items * 65, False)
    assert next(source).seqno == items + 1


def test_nothing_to_write_is_the_end_where_one_was() -> None:
    assert write([], last_seqno=41) == (Written(0, 0, 41, True, None), [])


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_store_that_fails_ends_the_portion_after_what_was_read(before: int) -> None:
    failure = StoreError("a bad sector")

    def source() -> Iterator[Item]:
        yield from (document(seqno) for seqno in range(1, before + 1))
        raise failure

    written, out = write(source())
    assert b"".join(out) == b"".join(expected(document(s), Form()) for s in range(1, before + 1))
    assert written == Written(before, len(b"".join(out)), before, False, failure)


@pytest.mark.parametrize("seqnos", [(5, 5), (5, 4), (1, 3, 2)])
def test_seqnos_that_do_not_rise_are_never_sent(seqnos: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        write([document(seqno) for seqno in seqnos])


def test_the_first_seqno_is_above_the_one_sent_before() -> None:
    with pytest.raises(AssertionError):
        write([document(7)], last_seqno=7)
    assert write([document(8)], last_seqno=7)[0].last_seqno == 8


@pytest.mark.acceptance("D42", "P14")
@given(items=histories(), form=st.sampled_from(FORMS), limit=st.integers(1, 400), data=st.data())
def test_what_is_newer_elsewhere_is_left_out(
    items: list[Item], form: Form, limit: int, data: st.DataObject
) -> None:
    newer = frozenset(item.key for item in items if data.draw(st.booleans()))
    source = iter(items)
    sent, last, exhausted = b"", 0, False
    count = 0
    while not exhausted:
        written, portion = write(source, form, limit, last, newer)
        assert written.size == sum(map(len, portion))
        sent += b"".join(portion)
        count += written.items
        last, exhausted = written.last_seqno, written.exhausted
        assert exhausted or written.size >= limit
    wanted = [item for item in items if item.key not in newer]
    assert sent == b"".join(expected(item, form) for item in wanted)
    assert (count, last) == (len(wanted), wanted[-1].seqno if wanted else 0)
