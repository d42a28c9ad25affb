"""A client's conversation in the text protocol: lines and data blocks in, reply lines out.

Job: find the commands in the input, carry out each, collect the replies. A ``get`` of one key and a
plain ``set``, which are nearly all of the traffic, are recognised by one regular expression and
done directly in the loop; `text_conversation` carries out everything else.

Neighbours: `conversation` has buffers and backpressure.

Source: memcached reference, section 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from zlib import crc32

from uprmc.core.serving import Serving, text_serving
from uprmc.errors import CommandError
from uprmc.kv.operations import count_refused_store
from uprmc.kv.services import Services
from uprmc.kv.text_commands import storage_refusal
from uprmc.kv.text_conversation import LINE_END, TextConversation
from uprmc.kv.text_retrieval import COPIED_BYTES
from uprmc.protocol.text_replies import END, STORED
from uprmc.record import READ_PLAIN_FOREVER, RECORD_OVERHEAD_BYTES, TAIL, TAIL_BYTES, tail_at

_unpack_tail = TAIL.unpack_from
#: Records that are copied into their reply are not longer than this.
_COPIED_RECORD_BYTES = COPIED_BYTES + RECORD_OVERHEAD_BYTES
_HIT = b"VALUE %b %d %d\r\n%b\r\nEND\r\n"

#: Commands for the fast path. Numbers are short enough to be always in range.
_short_way = re.compile(
    rb"get ([^ \r\n]{1,250}+)\r\n"
    rb"|set ([^ \r\n]{1,250}+) ([0-9]{1,9}+) ([0-9]{1,9}+) ([0-9]{1,8}+)( noreply)?\r\n"
).match
_GET_GROUP = 1

#: The loop carries these out by itself, but only for users who may use both.
_DIRECT = frozenset({b"get", b"set"})


class TextSession(TextConversation):
    """A conversation whose plain gets and sets take the short way.

    A text command names no vBucket, so the vBucket is always computed from the key, on any
    listener.
    """

    __slots__ = ("_active", "_direct", "_mask")

    def __init__(self, services: Services, wake: Callable[[], None]) -> None:
        super().__init__(services, wake)
        bucket = services.bucket
        self._active = bucket.active
        self._mask = bucket.settings.engine.vbuckets - 1
        self._direct = not self._denied & _DIRECT
        if self._direct:
            self._serving = text_serving(bucket.lookups, bucket.active, bucket.account)

    # --- input ----------------------------------------------------------------------------------

    def _receive_slowly(self, data: bytes) -> None:
        if self._in_line and b"\n" in data:
            self._wanted = 1
        super()._receive_slowly(data)

    def _run(self, data: bytes) -> None:
        self._running = True
        self._in_line = False
        position, wanted = 0, 0
        try:
            if self._retrieval is not None:
                self._retrieve(self._retrieval)
            if self._open is not None and not self._halted():
                position, wanted = self._read_on(data)
            if self._open is None and (self._retrieval is None or not self._halted()):
                position, wanted = self._carry_out(data, position)
        finally:
            self._running = False
        self._fetch_failed = False
        self._wanted = wanted
        if position < len(data) and not self.closing:
            self._keep(data[position:] if position else data, wanted)

    def _serve(
        self, serving: Serving, data: bytes, position: int, out: list[bytes], limit: int
    ) -> int:
        """See `Conversation`."""
        return serving.serve(
            data,
            position,
            out,
            limit,
            self._mask,
            int(self._bucket.steady.now()),
            self._services.most_value_bytes(0),
        )

    def _carry_out(self, data: bytes, position: int) -> tuple[int, int]:
        """Carry out commands; return how far it got and how much the next one needs.

        The fast paths are inlined here, because a call for each would cost a fifth more. Everything
        else is done by `_one`.
        """
        active, vbuckets, mask = self._active.get, self._active, self._mask
        lookups = self._bucket.lookups.get
        most = self._services.most_value_bytes(0)
        out = self._out
        unsent, limit = self._unsent, self._max_unsent
        size, wanted = len(data), 0
        gets = hits = sets = 0
        serving = self._serving
        while position < size and unsent <= limit:
            if serving is not None and self._bucket.account.unlocked(self._bucket.clock):
                serving.unsent = unsent
                position = self._serve(serving, data, position, out, limit)
                self._count_served(serving)
                unsent = serving.unsent
                if position == size or unsent > limit:
                    break
            match = _short_way(data, position) if self._direct else None
            if match is not None and match.lastindex == _GET_GROUP:
                key = match[1]
                lookup = lookups((crc32(key) >> 16) & mask)
                if lookup is not None:
                    record = lookup(key)
                    if record is None:
                        gets += 1
                        out.append(END)
                        unsent += 5
                        position = match.end()
                        continue
                    if not record.startswith(READ_PLAIN_FOREVER):
                        record = vbuckets[(crc32(key) >> 16) & mask].readable(key, record)
                    if record is not None and len(record) <= _COPIED_RECORD_BYTES:
                        gets += 1
                        hits += 1
                        tail = tail_at(record)
                        _, value_flags = _unpack_tail(record, tail)
                        value = record[tail + TAIL_BYTES :]
                        reply = _HIT % (key, value_flags, len(value), value)
                        out.append(reply)
                        unsent += len(reply)
                        position = match.end()
                        continue
            elif match is not None:
                _, key, flags, exptime, digits, noreply = match.groups()
                start = match.end()
                end = start + int(digits)
                vbucket = active((crc32(key) >> 16) & mask)
                complete = data[end : end + 2] == LINE_END
                if complete and vbucket is not None and end - start + len(key) <= most:
                    expiry = 0 if exptime == b"0" else self._expiry(int(exptime))
                    try:
                        vbucket.store_record(key, data[start:end], int(flags), expiry)
                        sets += 1
                        reply = STORED
                    except CommandError as error:
                        count_refused_store(self._bucket.stats, 0, error)
                        reply = storage_refusal(b"set", error)
                    if noreply is None:
                        out.append(reply)
                        unsent += len(reply)
                    position = end + 2
                    continue
            if gets or sets:
                self._count(gets, hits, sets)
                gets = hits = sets = 0
            self._unsent = unsent
            reached = self._one(data, position)
            unsent = self._unsent
            if reached < 0:
                wanted = -reached
                break
            position = reached
            if self._waiting or self.closing or self._retrieval is not None or self._open:
                break
        self._unsent = unsent
        if gets or sets:
            self._count(gets, hits, sets)
        return position, 0 if self._halted() else wanted

    def _count(self, gets: int, hits: int, sets: int) -> None:
        stats = self._bucket.stats
        stats.cmd_get += gets
        stats.get_hits += hits
        stats.get_misses += gets - hits
        stats.cmd_set += sets
        stats.total_items += sets
