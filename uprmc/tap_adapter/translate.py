"""From UPR messages to TAP messages: a table, and the loop that a stream consists of.

Everything here is pure. The frames of items, millions of them, go through `translate_run`, which
reuses the pieces that hold keys and values; all the others are rare, so `take_frame` takes them
apart and the producer (`feed`) decides. Messages of single versions are here, too; the way
back, from TAP, is in `consumer`.

=============================  ===================================================================
mutation                       MUTATION: revision and nru in its section; CAS, flags, expiration,
                               key and value as they are
deletion                       DELETE: its revision in its section, its CAS as it is
expiration                     DELETE
snapshot marker                CHECKPOINT_END and CHECKPOINT_START where they were asked for; the
                               first one from 0 is the backfill, which OPAQUE 1 and 8 enclose
flush of a vBucket             OPAQUE 1 and 8 of it, for TAP's FLUSH empties the whole bucket: that
                               is sent where all vBuckets were emptied at once (`openings`)
state of a vBucket             VBUCKET_SET
stream end, stream answers     nothing, or the end of the connection
keep-alive, flow control       nothing: each side has its own
=============================  ===================================================================

What TAP cannot express, and a stream therefore loses: seqnos and the bounds of snapshots; the
names of histories and the failover log; that a deletion was an expiry, and when it happened; the
datatype, lock time and extended metadata; why a stream ended, and the end of one vBucket's stream
as such; a rollback to anything but 0; and all of our extensions. What TAP has and UPR has not:
checkpoint ids, which are the adapter's own count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from construct import Struct as Layout

from uprmc.errors import RemoteProtocolError
from uprmc.model import Item
from uprmc.protocol.derive import derive, derive_merged
from uprmc.protocol.header import RequestFrame, unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode
from uprmc.protocol.tap import (
    TAP_DELETE_FRAME,
    TAP_EXTRAS,
    TAP_ITEM_EXTRAS,
    TAP_MUTATION_FRAME,
    TAP_MUTATION_SPECIFIC,
    TAP_REVISION_SPECIFIC,
    TTL,
    TapFlag,
    TapMutationFrame,
)
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    MUTATION_FRAME,
    TIMED_DELETION_EXTRAS,
    DeletionExtras,
    frame_head,
    frame_place,
)

# --- item messages --------------------------------------------------------------------------------
# Single versions of documents as TAP messages, in the form that a client wants.
#
# Whole runs make the same messages, faster; corrections send versions from here.
#
# Note: flags of items travel with their bytes swapped unless the client asked for the opposite
# (`TapForm.network_byte_order`). Old producers made this mistake and their consumers undo it, so it
# has to be repeated.


#: Plain numbers: an enum's operations cost a microsecond each.
_ACK, _NO_VALUE, _NETWORK_BYTE_ORDER = map(
    int, (TapFlag.ACK, TapFlag.NO_VALUE, TapFlag.NETWORK_BYTE_ORDER)
)


#: A mutation's body up to its key.
BODY_BYTES_BEFORE_KEY = TAP_MUTATION_FRAME.size - HEADER_BYTES

#: Where the low byte of a message's flags stands.
_FLAGS_AT = HEADER_BYTES + 3


class TapForm(NamedTuple):
    """How a client wants its items."""

    keys_only: bool = False  # without values
    network_byte_order: bool = False  # their flags as they were stored, and marked as such

    @property
    def flags(self) -> int:
        """The `TapFlag` bits of each mutation."""
        return self.keys_only * _NO_VALUE | self.network_byte_order * _NETWORK_BYTE_ORDER


def swapped_flags(flags: int) -> int:
    """Return an item's flags with their four bytes in the opposite order."""
    return int.from_bytes(flags.to_bytes(4, "little"), "big")


def version_message(
    item: Item, vbucket: int, sequence: int, form: TapForm, flags: int = 0
) -> bytes:
    """Return one version as MUTATION, or as DELETE where it is a tombstone.

    Args:
        item: the version; a document comes with its value.
        vbucket: where it lies.
        sequence: number of the message.
        form: how the client wants it.
        flags: `TapFlag` bits beside those of `form`.
    """
    if item.life:
        return deletion_message(item.key, item.rev, item.cas, vbucket, sequence, flags)
    value = b"" if form.keys_only else item.value
    assert value is not None, "a document without its value"
    head = TAP_MUTATION_FRAME.pack(
        MAGIC_REQUEST,
        Opcode.TAP_MUTATION,
        len(item.key),
        TAP_ITEM_EXTRAS.size,
        0,
        vbucket,
        BODY_BYTES_BEFORE_KEY + len(item.key) + len(value),
        sequence,
        item.cas,
        TAP_MUTATION_SPECIFIC.size,
        flags | form.flags,
        TTL,
        b"",
        item.flags if form.network_byte_order else swapped_flags(item.flags),
        item.expiry,
        item.rev,
        item.nru,
    )
    return b"".join((head, item.key, value))


def deletion_message(
    key: bytes, rev: int, cas: int, vbucket: int, sequence: int, flags: int
) -> bytes:
    """Return a deletion; the arguments are those of `version_message`, taken apart."""
    head = TAP_DELETE_FRAME.pack(
        MAGIC_REQUEST,
        Opcode.TAP_DELETE,
        len(key),
        TAP_EXTRAS.size,
        0,
        vbucket,
        TAP_DELETE_FRAME.size - HEADER_BYTES + len(key),
        sequence,
        cas,
        TAP_REVISION_SPECIFIC.size,
        flags,
        TTL,
        b"",
        rev,
    )
    return head + key


def with_ack(head: bytes) -> bytes:
    """Return a message's first piece as it asks for an answer."""
    return head[:_FLAGS_AT] + bytes((head[_FLAGS_AT] | _ACK,)) + head[_FLAGS_AT + 1 :]


# --- translate ------------------------------------------------------------------------------------


class TapItemsRun(NamedTuple):
    """What one call of `translate_run` has put out."""

    items: int  # messages
    size: int  # their bytes
    last_seqno: int  # by-seqno of the last one, 0 without any
    place: int  # index of the first piece that was not used
    last_head: int  # index in `out` of the last message's first piece, -1 without any
    deleted_rev: int  # the highest revision among its deletions, 0 without any
    taken: int  # bytes of the UPR frames that were used


# --- items of a stream --------------------------------------------------------------------------

_HEADER_GROUPS = (
    ("magic", "opcode"),
    ("key_length",),
    ("extras_length", "datatype", "vbucket"),
    ("body_length",),
    ("opaque",),
    ("cas",),
)

#: Header, extras and section of what a mutation becomes; fewer numbers cost less.
_WRITTEN = derive_merged(
    TapMutationFrame,
    *_HEADER_GROUPS,
    ("specific_bytes", "flags", "ttl", "reserved"),
    ("item_flags",),
    ("expiration",),
    ("rev_seqno",),
    ("nru",),
)

_MUTATION, _TAP_MUTATION = frame_head(Opcode.UPR_MUTATION), frame_head(Opcode.TAP_MUTATION)
_READ_BYTES, _EXTRAS_BYTES = MUTATION_FRAME.size, MUTATION_EXTRAS.size

#: At most this many pieces are looked at in one go: that copies references to all of them.
_PIECES_AT_ONCE = 512


def translate_run(
    pieces: Sequence[bytes],
    place: int,
    out: list[bytes],
    sequence: int,
    most: int,
    form: TapForm,
    keys: list[bytes] | None,
) -> TapItemsRun:
    """Translate items of one stream from `place` on; stop before any other frame.

    Args:
        pieces: frames, see `Upstream.pull`.
        place: index of a piece that begins a frame, or the end.
        out: gets the messages. None of them asks to be acknowledged: see `with_ack`.
        sequence: number of the first message; the caller sees to it that 32 bits suffice.
        most: limit of messages.
        form: how the client wants them.
        keys: gets the messages' keys, unless it is ``None``.

    Raises:
        RemoteProtocolError: a frame contradicts itself or is not whole. What came before it
            stands in `out`.
    """
    place = _skip_empty(pieces, place)
    if place == len(pieces):
        return TapItemsRun(0, 0, 0, place, -1, 0, 0)
    run = _Translation(pieces, place, out, sequence, most, form, keys)
    run.go_on()
    return TapItemsRun(
        run.sequence - sequence,
        run.size,
        run.last_seqno,
        run.place,
        run.last_head,
        run.deleted_rev,
        run.taken,
    )


class _Translation:
    """One run under way; the next frame is at `place`, the next message has number `sequence`."""

    __slots__ = (
        "_beyond",
        "_form",
        "_keys",
        "_out",
        "_pieces",
        "_stream",
        "deleted_rev",
        "last_head",
        "last_seqno",
        "place",
        "sequence",
        "size",
        "taken",
    )

    def __init__(
        self,
        pieces: Sequence[bytes],
        place: int,
        out: list[bytes],
        sequence: int,
        most: int,
        form: TapForm,
        keys: list[bytes] | None,
    ) -> None:
        self._pieces, self._out, self._keys, self._form = pieces, out, keys, form
        self._beyond = sequence + most
        self._stream = _stream_of(pieces[place])
        self.place, self.sequence = place, sequence
        self.size = self.taken = self.last_seqno = self.deleted_rev = 0
        self.last_head = -1

    def go_on(self) -> None:
        """Translate as far as it goes."""
        pieces, end = self._pieces, len(self._pieces)
        going = True
        while going and self.place < end and self.sequence < self._beyond:
            before = self.sequence
            if len(pieces[self.place]) == _READ_BYTES:
                self._mutations()
            going = self.sequence > before or self._any_item()
            self.place = _skip_empty(pieces, self.place)

    def _mutations(self) -> None:
        """Translate mutations whose document stands apart, until something else comes.

        That the header's third number is the expected one says that the extras are whole, that
        there is no datatype, and which vBucket it is.
        """
        out, keys, form = self._out, self._keys, self._form
        keys_only, as_stored = form
        vbucket, stream = self._stream
        expected = frame_place(_EXTRAS_BYTES, vbucket)
        third = frame_place(TAP_ITEM_EXTRAS.size, vbucket)
        extras = TAP_MUTATION_SPECIFIC.size << 48 | form.flags << 32 | TTL << 24
        unpack, pack, swapped = MUTATION_FRAME.unpack, _WRITTEN.pack, _Swapped()
        begin, documents, split, empty, last_split = len(out), 0, 0, 0, 0
        following = iter(self._pieces[self.place : self.place + _PIECES_AT_ONCE])
        seqno = self.last_seqno
        numbers = range(self.sequence, self._beyond)
        for number, head, rest in zip(numbers, following, following, strict=False):
            if len(head) != _READ_BYTES:
                if head:
                    break
                empty += 1  # the value of the one before
                head, rest = rest, next(following, b"")
                if len(head) != _READ_BYTES:
                    break
            first, key_length, place, body, opaque, cas, at, rev, flags, expiry, _, nmeta, nru = (
                unpack(head)
            )
            length, value = len(rest), b""
            if body - length != _EXTRAS_BYTES:
                value = next(following, b"")
                length += len(value)
                if body - length != _EXTRAS_BYTES or len(rest) != key_length:
                    break
            if first != _MUTATION or place != expected or opaque != stream or nmeta:
                break
            if key_length != length and (keys_only or key_length > length):
                break
            if flags and not as_stored:
                flags = swapped[flags]
            out += (
                pack(
                    _TAP_MUTATION,
                    key_length,
                    third,
                    length + BODY_BYTES_BEFORE_KEY,
                    number,
                    cas,
                    extras,
                    flags,
                    expiry,
                    rev,
                    nru,
                ),
                rest,
            )
            if value:
                out.append(value)
                split += 1
                last_split = len(out)
            if keys is not None:
                keys.append(rest[:key_length])
            documents += length
            seqno = at
        count = (len(out) - begin - split) // 2
        self.place += 2 * count + split + empty
        if count:
            self.sequence += count
            self.taken += documents + count * _READ_BYTES
            self.size += documents + count * TAP_MUTATION_FRAME.size
            self.last_seqno = seqno
            self.last_head = len(out) - (3 if last_split == len(out) else 2)

    def _any_item(self) -> bool:
        """Translate one item, in whatever pieces it comes; tell whether it was one of ours."""
        pieces, place = self._pieces, self.place
        if pieces[place][_OPCODE_AT] not in _ITEMS or _stream_of(pieces[place]) != self._stream:
            return False
        request, self.place = take_frame(pieces, place)
        message, self.last_seqno, deleted_rev = _message_of(request, self.sequence, self._form)
        self.deleted_rev = max(self.deleted_rev, deleted_rev)
        self.last_head = len(self._out)
        self._out.append(message)
        if self._keys is not None:
            self._keys.append(request.key)
        self.sequence += 1
        self.size += len(message)
        self.taken += sum(map(len, pieces[place : self.place]))
        return True


class _Swapped(dict[int, int]):
    """Flags with their bytes swapped, by flags; there are few different ones in a run."""

    def __missing__(self, flags: int) -> int:
        swapped = self[flags] = swapped_flags(flags)
        return swapped


def _skip_empty(pieces: Sequence[bytes], place: int) -> int:
    """An empty value may be a piece of its own, which belongs to the frame before it."""
    while place < len(pieces) and not pieces[place]:
        place += 1
    return place


# --- one item -----------------------------------------------------------------------------------

_ITEMS = frozenset({Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION})
_OPCODE_AT = 1

#: Deletions come in three forms; seqno and revision begin them all, and nothing else is needed.
_GONE_EXTRAS_BYTES = frozenset(
    {DELETION_EXTRAS.size, TIMED_DELETION_EXTRAS.size, EXPIRATION_EXTRAS.size}
)
_SEQNO_AND_REV = derive(Layout(*DeletionExtras.subcons[:2]))


def _stream_of(head: bytes) -> tuple[int, int]:
    """Return vBucket and opaque."""
    if len(head) < HEADER_BYTES:
        raise RemoteProtocolError(f"a frame of {len(head)} bytes")
    _, _, _, _, _, vbucket, _, opaque, _ = unpack_request(head)
    return vbucket, opaque


def _message_of(request: RequestFrame, sequence: int, form: TapForm) -> tuple[bytes, int, int]:
    """Return an item's message, its seqno, and its revision if it is gone."""
    extras, value = request.extras, request.value
    if request.opcode != Opcode.UPR_MUTATION:
        if len(extras) not in _GONE_EXTRAS_BYTES:
            raise RemoteProtocolError(f"a deletion with {len(extras)} bytes of extras")
        seqno, rev = _SEQNO_AND_REV.unpack_from(extras)
        deletion = deletion_message(request.key, rev, request.cas, request.vbucket, sequence, 0)
        return deletion, seqno, rev
    if len(extras) != MUTATION_EXTRAS.size:
        raise RemoteProtocolError(f"a mutation with {len(extras)} bytes of extras")
    seqno, rev, flags, expiry, _, nmeta, nru = MUTATION_EXTRAS.unpack(extras)
    if nmeta > len(value):
        raise RemoteProtocolError(f"{nmeta} bytes of metadata in a value of {len(value)}")
    value = value[: len(value) - nmeta]
    item = Item(request.key, value, flags, expiry, request.cas, seqno, rev, nru=nru)
    return version_message(item, request.vbucket, sequence, form), seqno, 0


# --- all other frames ---------------------------------------------------------------------------


def take_frame(pieces: Sequence[bytes], place: int) -> tuple[RequestFrame, int]:
    """Take any one frame apart; return it and the place of the next one.

    Raises:
        RemoteProtocolError: it is no request, contradicts itself or is not whole.
    """
    place = _skip_empty(pieces, place)
    if place == len(pieces) or len(pieces[place]) < HEADER_BYTES:
        raise RemoteProtocolError("a frame without a header")
    magic, opcode, key_length, extras_length, datatype, vbucket, body_length, opaque, cas = (
        unpack_request(pieces[place])
    )
    beyond, left = place, HEADER_BYTES + body_length
    while left > 0 and beyond < len(pieces):
        left -= len(pieces[beyond])
        beyond += 1
    key_end = extras_length + key_length
    if left or magic != MAGIC_REQUEST or key_end > body_length:
        raise RemoteProtocolError(f"an incomplete frame: {pieces[place][:HEADER_BYTES].hex()}")
    body = b"".join(pieces[place:beyond])[HEADER_BYTES:]
    request = RequestFrame(
        opcode,
        body[extras_length:key_end],
        body[:extras_length],
        body[key_end:],
        vbucket,
        opaque,
        cas,
        datatype,
    )
    return request, _skip_empty(pieces, beyond)
