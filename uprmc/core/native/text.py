"""``get`` of one key and ``set`` of the text protocol: compiled only.

As in `binary`: whatever is not surely one of both, complete, and free of rules is the session's.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from uprmc.core.native.store import (
    KEY_MAX_BYTES,
    READ_PLAIN_FOREVER,
    TAIL_BYTES,
    Serving,
    accept,
    crc32_of,
    readable,
    u32_at,
)
from uprmc.core.native.table import hash_of, tail_of

#: Longer values are the session's.
COPIED_BYTES: Final[i64] = 4_096

_GET: Final[i64] = 0x67657420  # "get "
_SET: Final[i64] = 0x73657420  # "set "
_SPACE: Final[i64] = 32
_CR: Final[i64] = 13
_LF: Final[i64] = 10
_STORED: Final = b"STORED\r\n"
_END: Final = b"END\r\n"
_NOREPLY: Final = b" noreply"
#: More digits than any of these numbers may have here.
_DIGITS_MOST: Final[i64] = 9


def _write_number(writer: BytesWriter, number: i64) -> None:
    if number >= 10:
        _write_number(writer, number // 10)
    writer.append(48 + number % 10)


class TextServing(Serving):
    """See the module docstring, and `uprmc.core.serving`."""

    def serve(
        self,
        data: bytes,
        position: i64,
        out: list[bytes],
        limit: i64,
        mask: i64,
        now: i64,
        max_body: i64,
    ) -> i64:
        """Serve commands from `position` on; return the position of the first that was not."""
        size: i64 = len(data)
        writer = BytesWriter()
        before: i64 = self.unsent
        while position + 7 <= size and before + len(writer) <= limit:
            word = u32_at(data, position)
            start = position + 4
            if word == _GET:
                end = self._get(data, start, size, writer, mask, now)
            elif word == _SET:
                end = self._set(data, start, size, writer, mask, now, max_body)
            else:
                break
            if end < 0:
                break
            position = end
        if len(writer):
            self.unsent = before + len(writer)
            out.append(writer.getvalue())
        return position

    def _get(
        self, data: bytes, start: i64, size: i64, writer: BytesWriter, mask: i64, now: i64
    ) -> i64:
        end = _end_of_key(data, start, size)
        if end < 0 or end + 2 > size or data[end] != _CR or data[end + 1] != _LF:
            return -1
        table = self.table_of((crc32_of(data, start, end - start) >> 16) & 0x7FFF & mask)
        if table is None:
            return -1
        record = table.find(data, start, end - start)
        if record is None:
            self.misses += 1
            writer.write(_END)
            return end + 2
        value_at: i64 = tail_of(record) + TAIL_BYTES
        length: i64 = len(record) - value_at
        if length > COPIED_BYTES:
            return -1
        if not record.startswith(READ_PLAIN_FOREVER):
            found = readable(table, record, now + i64(self.account.back))
            if found is None:
                return -1
            record = found
        self.hits += 1
        writer.write(b"VALUE ")
        writer.write(data[start:end])
        writer.append(_SPACE)
        _write_number(writer, u32_at(record, value_at - 4))
        writer.append(_SPACE)
        _write_number(writer, length)
        writer.write(b"\r\n")
        writer.write(record[value_at:])
        writer.write(b"\r\nEND\r\n")
        return end + 2

    def _set(
        self,
        data: bytes,
        start: i64,
        size: i64,
        writer: BytesWriter,
        mask: i64,
        now: i64,
        max_body: i64,
    ) -> i64:
        key_end = _end_of_key(data, start, size)
        if key_end < 0 or data[key_end] != _SPACE:
            return -1
        flags_end = _end_of_number(data, key_end + 1, size)
        if flags_end < 0 or data[flags_end] != _SPACE:
            return -1
        expiry_end = _end_of_number(data, flags_end + 1, size)
        if expiry_end < 0 or data[expiry_end] != _SPACE:
            return -1
        line_end = _end_of_number(data, expiry_end + 1, size)
        if line_end < 0:
            return -1
        length = _number(data, expiry_end + 1, line_end)
        quiet = data[line_end] == _SPACE
        if quiet:
            if data[line_end : line_end + 8] != _NOREPLY:
                return -1
            line_end += 8
        value_at = line_end + 2
        end = value_at + length + 2
        if end > size or data[line_end] != _CR or data[line_end + 1] != _LF:
            return -1
        if data[end - 2] != _CR or data[end - 1] != _LF or length + key_end - start > max_body:
            return -1
        number = (crc32_of(data, start, key_end - start) >> 16) & 0x7FFF & mask
        table = self.table_of(number)
        if table is None:
            return -1
        vbucket = self.vbuckets[number]
        if vbucket is None:
            return -1
        cas = accept(
            vbucket,
            self.account,
            table,
            data,
            start,
            key_end - start,
            value_at,
            end - 2,
            _number(data, key_end + 1, flags_end),
            _number(data, flags_end + 1, expiry_end),
            0,
            now,
            hash_of(data, start, key_end - start),
        )
        if cas < 0:
            return -1
        self.sets += 1
        if not quiet:
            writer.write(_STORED)
        return end


def _end_of_key(data: bytes, start: i64, size: i64) -> i64:
    """Return where a key ends, -1 if it is none or goes on to the end of the data."""
    place = start
    while place < size:
        letter: i64 = i64(data[place])
        if letter == _SPACE or letter == _CR or letter == _LF:
            return place if 0 < place - start <= KEY_MAX_BYTES else -1
        place += 1
    return -1


def _end_of_number(data: bytes, start: i64, size: i64) -> i64:
    """Return where a number of few digits ends, -1 if it is none or the data ends."""
    place = start
    while place < size:
        letter: i64 = i64(data[place])
        if letter < 48 or letter > 57:
            return place if 0 < place - start <= _DIGITS_MOST else -1
        place += 1
    return -1


def _number(data: bytes, start: i64, end: i64) -> i64:
    number: i64 = 0
    while start < end:
        number = number * 10 + i64(data[start]) - 48
        start += 1
    return number
