"""A client's conversation in the binary protocol: frames in, replies out.

Job: find the frames in the input, carry out each command, collect the replies. Get and set, which
are nearly all of the traffic, are done directly in the loop from the header's fields;
`binary_frames` carries out everything else.

Neighbours: `conversation` holds buffers and backpressure, `binary_conversation` what commands use.

Source: memcached reference, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from uprmc.core.serving import Line, Serving, binary_serving, line
from uprmc.engine.memory import absolute_expiry
from uprmc.errors import CommandError
from uprmc.kv.binary_frames import BinaryFrames
from uprmc.kv.operations import count_refused_store
from uprmc.kv.services import Services
from uprmc.protocol.binary import GET_REPLY_EXTRAS, STORE_EXTRAS
from uprmc.protocol.header import (
    MERGED_REQUEST_HEADER,
    MERGED_RESPONSE_BEGIN,
    MERGED_RESPONSE_HEADER,
    request_head,
    response_head,
)
from uprmc.protocol.opcodes import HEADER_BYTES, KEY_MAX_BYTES, STATUS_TEXT, Opcode, Status
from uprmc.record import EXPIRY, READ_PLAIN, READ_PLAIN_FOREVER, TAIL_BYTES, expiry_bytes, tail_at

_GET_HEAD = request_head(Opcode.GET)
_SET_HEAD = request_head(Opcode.SET)
_STORE_KINDS = STORE_EXTRAS.size << 8
_SETS = {request_head(opcode): int(opcode) for opcode in (Opcode.SET, Opcode.SETQ)}
_WITH_KEY = (Opcode.GETK, Opcode.GETKQ)
#: Head of a get request -> head of the reply to a hit. It is negated where the reply repeats the
#: key, because the key's length has to be added then.
_HIT_HEADS = {
    request_head(opcode): response_head(opcode, GET_REPLY_EXTRAS.size)
    * (-1 if opcode in _WITH_KEY else 1)
    for opcode in (Opcode.GET, Opcode.GETQ, *_WITH_KEY)
}
_QUIET_GETS = frozenset(request_head(opcode) for opcode in (Opcode.GETQ, Opcode.GETKQ))
_ONE_KEY_BYTE = response_head(Opcode.GETK, key_length=1) - response_head(Opcode.GETK)
_GET_MISS_HEAD = response_head(Opcode.GET, status=Status.KEY_NOT_FOUND)
_SET_REPLY_HEAD = response_head(Opcode.SET)
_NOT_FOUND_TEXT = STATUS_TEXT[Status.KEY_NOT_FOUND]
_unpack_request = MERGED_REQUEST_HEADER.unpack_from
_pack_reply = MERGED_RESPONSE_HEADER.pack
_pack_begin = MERGED_RESPONSE_BEGIN.pack
_unpack_store = STORE_EXTRAS.unpack_from

#: The loop carries these out by itself, but only for users who may use both.
_DIRECT = frozenset({Opcode.GET, Opcode.SET})


class BinarySession(BinaryFrames):
    """A conversation whose gets and sets take the short way."""

    __slots__ = ("_direct", "_mask", "_max_store_body_bytes")

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        super().__init__(services, wake, by_key=by_key)
        self._mask = services.bucket.settings.engine.vbuckets - 1
        self._max_store_body_bytes = services.most_value_bytes(0) + STORE_EXTRAS.size
        bucket = services.bucket
        self._direct = not self._denied & _DIRECT
        if self._direct:
            self._serving = binary_serving(bucket.lookups, bucket.active, bucket.account)

    # --- the loop -------------------------------------------------------------------------------

    def line(self, protocol: object, connection: object) -> Line | None:
        """See `core.serving.line`."""
        return line(connection, protocol, self, self._serving, self._answer_limit)

    def _serve(
        self, serving: Serving, data: bytes, position: int, out: list[bytes], limit: int
    ) -> int:
        """See `Conversation`."""
        serving.with_seqnos = self.with_seqnos
        return serving.serve(
            data,
            position,
            out,
            limit,
            self._mask if self.by_key else -1,
            int(self.bucket.steady.now()),
            self._max_store_body_bytes,
        )

    def _run(self, data: bytes) -> None:
        self._running = True
        bucket = self.bucket
        active, lookups = bucket.active.get, bucket.lookups.get
        mask = self._mask if self.by_key else -1
        max_body, unlocked = self._short_ways()
        append, now, account = self._out.append, bucket.steady.now, bucket.account
        expired = expiry_bytes(now() + account.back)
        hit_head, get_head = _HIT_HEADS.get, _GET_HEAD
        get_form = _HIT_HEADS[get_head]
        unsent, limit = self._unsent, self._max_unsent
        position, last, wanted = 0, len(data) - HEADER_BYTES, HEADER_BYTES
        hits = misses = sets = 0
        serving = self._serving
        while position <= last and unsent <= limit:
            if serving is not None and unlocked:
                serving.unsent = unsent
                position = self._serve(serving, data, position, self._out, limit)
                unsent = serving.unsent
                if position > last or unsent > limit:
                    break
            head, key_length, kinds, number, body_length, opaque, cas = _unpack_request(
                data, position
            )
            start = position + HEADER_BYTES
            end = start + body_length
            form = get_form if head == get_head else hit_head(head, 0)
            if form and not kinds:
                key = data[start:end]
                if mask >= 0:
                    number = (crc32(key) >> 16) & 0x7FFF & mask
                lookup = lookups(number)
                if lookup is not None and unlocked and body_length == key_length == len(key):
                    record = lookup(key)
                    if record is not None:
                        if not record.startswith(READ_PLAIN_FOREVER) and not (
                            record.startswith(READ_PLAIN) and record[EXPIRY] > expired
                        ):
                            record = bucket.active[number].readable(key, record)
                        if record is not None:
                            hits += 1
                            tail = record[tail_at(record) :]
                            length = len(tail) - 8
                            if form > 0:
                                append(_pack_begin(form, length, opaque))
                                append(tail)
                            else:
                                length += key_length
                                form = key_length * _ONE_KEY_BYTE - form
                                append(_pack_begin(form, length, opaque) + tail[:TAIL_BYTES] + key)
                                append(tail[TAIL_BYTES:])
                            unsent += length + 24
                            position = end
                            continue
                    elif 0 < key_length <= KEY_MAX_BYTES:
                        if head == get_head:
                            misses += 1
                            append(_pack_reply(_GET_MISS_HEAD, 9, opaque, 0) + _NOT_FOUND_TEXT)
                            unsent += 33
                            position = end
                            continue
                        if head in _QUIET_GETS:
                            misses += 1
                            position = end
                            continue
            elif (
                kinds == _STORE_KINDS
                and head in _SETS
                and key_length + 8 <= body_length <= max_body
                and end - HEADER_BYTES <= last
                and 0 < key_length <= KEY_MAX_BYTES
            ):
                middle = start + 8 + key_length
                key = data[start + 8 : middle]
                if mask >= 0:
                    number = (crc32(key) >> 16) & 0x7FFF & mask
                vbucket = active(number)
                if vbucket is not None:
                    flags, exptime = _unpack_store(data, start)
                    if exptime:
                        exptime = absolute_expiry(exptime, now())
                    position = end
                    try:
                        vbucket.store_record(key, data[middle:end], flags, exptime, cas)
                    except CommandError as error:
                        count_refused_store(self.stats, cas, error)
                        reply = self._refusal(_SETS[head], opaque, error)
                        append(reply)
                        unsent += len(reply)
                    else:
                        sets += 1
                        if head == _SET_HEAD:
                            append(_pack_reply(_SET_REPLY_HEAD, 0, opaque, account.last_cas))
                            unsent += 24
                        if cas:
                            self.stats.cas_hits += 1
                    continue
            self._unsent = unsent
            used = self._one(data, position, last + HEADER_BYTES)
            unsent = self._unsent
            if used <= 0 and (used or self._waiting):
                wanted = -used
                break
            position += used
            if self._waiting or self.closing or self.successor is not None:
                break
            max_body, unlocked = self._short_ways()  # the command may have been a HELLO, or a lock
        self._unsent = unsent
        self._running = self._fetch_failed = False
        if serving is not None:
            self._count_served(serving)
        self._count(hits, misses, sets)
        if self.successor is not None:
            self._hand_over(data[position:])
            return
        self._halted()
        if position < len(data) and not self.closing:
            self._keep(data[position:] if position else data, wanted)

    def _short_ways(self) -> tuple[int, bool]:
        """Tell which commands the loop may carry out directly.

        Returns:
            The longest body of a set, -1 for none; and whether gets may be, because there can be no
            lock whose CAS would have to be hidden.
        """
        if not self._direct:
            return -1, False
        return (
            -1 if self.with_seqnos else self._max_store_body_bytes,
            self.bucket.account.unlocked(self.bucket.clock),
        )

    def _count(self, hits: int, misses: int, sets: int) -> None:
        stats = self.stats
        stats.cmd_get += hits + misses
        stats.get_hits += hits
        stats.get_misses += misses
        stats.cmd_set += sets
        stats.total_items += sets
