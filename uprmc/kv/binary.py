"""A client's conversation in the binary protocol: frames in, replies out.

Get and set, which are nearly all of the traffic, are done directly in the loop from the header's
fields. Of everything else a frame is cut out of the input, its layout and whether the user may use
it are checked, and a command carries it out; messages of TAP go to the adapter.

A command is a small function. It gets its session and its request. It either answers through the
session or raises an error of the engine, which the session turns into an error of the protocol.
Quiet forms are the same functions: `BinarySession.succeed` and `miss` know when to send nothing.

No command is answered twice. A command whose value is only on disk raises before it changes
anything; its frame stays in the input and is carried out again once the value has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from uprmc.core.serving import Line, Serving, binary_serving, line
from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    AccessDenied,
    CommandError,
    NotResident,
    OutOfPlace,
    RemoteProtocolError,
    TemporaryFailure,
)
from uprmc.kv.admin import NODE_COMMANDS, TAP_COMMANDS, XDCR_COMMANDS
from uprmc.kv.connection_commands import CONNECTION_COMMANDS, LOGIN_COMMANDS, UPR_COMMANDS
from uprmc.kv.conversation import Conversation
from uprmc.kv.document_commands import (
    CHANGE_COMMANDS,
    METADATA_COMMANDS,
    OBSERVE_COMMANDS,
    READ_COMMANDS,
    STORE_OPCODES,
    refuse_too_large,
)
from uprmc.kv.operations import count_refused_store
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.kv.roles import MANAGEMENT, STRANGER_MAX_BYTES, denied_opcodes, needs_of
from uprmc.kv.services import Services, TapPush
from uprmc.kv.vbucket_commands import (
    COMPACTION_COMMANDS,
    LEASE_COMMANDS,
    REPLICATION_COMMANDS,
    VBUCKET_COMMANDS,
)
from uprmc.protocol.binary import GET_REPLY_EXTRAS, MUTATION_SEQNO_EXTRAS, STORE_EXTRAS
from uprmc.protocol.header import (
    MERGED_REQUEST_HEADER,
    MERGED_RESPONSE_BEGIN,
    MERGED_RESPONSE_HEADER,
    RequestFrame,
    pack_response,
    request_head,
    response_head,
    unpack_request,
)
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    KEY_MAX_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    QUIET,
    STATUS_TEXT,
    Opcode,
    Status,
    opcode_name,
    shape_error,
)
from uprmc.protocol.tap import PUSHED
from uprmc.record import EXPIRY, READ_PLAIN, READ_PLAIN_FOREVER, TAIL_BYTES, expiry_bytes, tail_at
from uprmc.upr.peer import Negotiated

#: Versions created elsewhere, which may have to be compared with tombstones on disk.
_WITH_META = frozenset(
    {
        *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META),
        *(Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        *(Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
    }
)
_NOTHING: frozenset[int] = frozenset()
#: Tombstones that are read in one round for one connection.
_AHEAD_MAX = 256

#: TAP_CONNECT and what producers of TAP send: the adapter judges their shapes.
TAP_OPCODES = frozenset({Opcode.TAP_CONNECT, *PUSHED})

#: Extras, section and key of a pushed message are no longer than this.
_PUSH_MOST_BESIDE_VALUE = HEADER_BYTES + 2 * KEY_MAX_BYTES


def _ignore(_: bool) -> None:
    """Ignore the result: the command that needs an unreadable value asks for it again."""


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


class BinarySession(Conversation):
    """See the module docstring; what a command may ask and answer is public."""

    __slots__ = (
        "_denied",
        "_direct",
        "_mask",
        "_max_store_body_bytes",
        "_most_body_bytes",
        "_push",
        "bucket",
        "by_key",
        "negotiated",
        "stats",
        "with_seqnos",
    )

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        super().__init__(services, wake)
        bucket = services.bucket
        self.bucket = bucket
        self.stats = bucket.stats
        # The vBucket is computed from the key, and the header's field is ignored.
        self.by_key = by_key
        # What HELLO has agreed on, and that replies to changes carry (vb_uuid, seqno).
        self.negotiated = Negotiated()
        self.with_seqnos = False
        self._push: TapPush | None = None
        door = services.door
        self._denied = denied_opcodes(door.roles) if door is not None else _NOTHING
        stranger = door is not None and door.roles is None
        self._most_body_bytes = STRANGER_MAX_BYTES if stranger else 2**32
        self._mask = bucket.settings.engine.vbuckets - 1
        self._max_store_body_bytes = services.most_value_bytes(0) + STORE_EXTRAS.size
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

    # --- one frame ------------------------------------------------------------------------------

    def _one(self, data: bytes, position: int, size: int) -> int:
        """Carry out the frame at `position`; return its length.

        0 means that the frame waits for something (or did) and must be carried out again; a
        negative number means that this many bytes are needed first.
        """
        magic, opcode, key_length, extras_length, datatype, number, body_length, opaque, cas = (
            unpack_request(data, position)
        )
        if magic != MAGIC_REQUEST:
            self.close(f"magic {magic:#04x} in a binary conversation")
            return size - position
        length = HEADER_BYTES + body_length
        if opcode in self._denied or body_length > self._most_body_bytes:
            self._deny(opcode, opaque)
            return self._skip(length, size - position)
        refusal = shape_error(opcode, extras_length, key_length, body_length)
        if opcode in TAP_OPCODES and self._speaks_tap and not (refusal and refusal.closes):
            if opcode == Opcode.TAP_CONNECT:
                return self._open_tap()
            return self._take_push(data, position, size)
        if refusal is not None:
            self._send_status(opcode, refusal.status, opaque)
            if refusal.closes:
                self.close(f"opcode {opcode:#04x}: {refusal.status.name.lower()}")
            return self._skip(length, size - position)
        middle = HEADER_BYTES + extras_length + key_length
        too_large = length - middle > self.services.settings.max_item_bytes
        needed: int = middle if too_large else length
        if size - position < needed:
            return -needed
        body = data[position + HEADER_BYTES : position + needed]
        key = body[extras_length : extras_length + key_length]
        request = RequestFrame(
            opcode,
            key,
            body[:extras_length],
            body[extras_length + key_length :],
            self._number_in(opcode, number, key),
            opaque,
            cas,
            datatype,
        )
        if too_large:
            return self._refuse_large_value(request, length, size - position)
        if self._carry_out(request):
            return int(length)
        if opcode in _WITH_META:
            self._want_ahead(data, position + length, size)
        return 0

    def _want_ahead(self, data: bytes, position: int, size: int) -> None:
        """Ask for the tombstones of the versions that follow one that waits for a tombstone.

        The answers are available while it and the versions behind it are carried out again.
        """
        wanted: list[tuple[int, bytes]] = []
        while position + HEADER_BYTES <= size and len(wanted) < _AHEAD_MAX:
            magic, opcode, key_length, extras_length, _, number, body_length, *_ = unpack_request(
                data, position
            )
            start = position + HEADER_BYTES + extras_length
            key = data[start : start + key_length]
            if magic != MAGIC_REQUEST or opcode not in _WITH_META or len(key) < key_length:
                break
            number = self._number_in(opcode, number, key)
            if 0 < key_length <= KEY_MAX_BYTES and self._may_have_tombstone(number, key):
                wanted.append((number, key))
            position += HEADER_BYTES + body_length
        if wanted:
            self.bucket.fetcher.want(wanted, _ignore)

    def _may_have_tombstone(self, number: int, key: bytes) -> bool:
        """Tell whether a key may have a tombstone that is only on disk."""
        vbucket = self.bucket.active.get(number)
        return vbucket is not None and vbucket.max_deleted_rev > 0 and key not in vbucket.table

    def _number_in(self, opcode: int, number: int, key: bytes) -> int:
        """Return the vBucket of a request."""
        return self.number_of(number, key)

    def _carry_out(self, request: RequestFrame) -> bool:
        """Run the command; ``False`` if it must be run again later."""
        door = self.services.door
        if door is not None and request.opcode in MANAGEMENT:
            door.managed(opcode_name(request.opcode))
        handler = HANDLERS.get(request.opcode)
        if handler is None:
            self._send_status(request.opcode, Status.UNKNOWN_COMMAND, request.opaque)
            return True
        try:
            handler(self, request)
        except NotResident as missing:
            if self._fetch_failed:
                self._fetch_failed = False
                self._refuse(request.opcode, request.opaque, TemporaryFailure("disk"))
                return True
            self._fetch(missing)
            return False
        except OutOfPlace as error:
            self.close(str(error))
        except REFUSALS as error:
            self._refuse(request.opcode, request.opaque, error)
        self._fetch_failed = False
        return True

    def _hand_over(self, rest: bytes) -> None:
        """See `Conversation`; also ends a push by TAP."""
        self._end_push()
        super()._hand_over(rest)

    # --- TAP ------------------------------------------------------------------------------------

    @property
    def _speaks_tap(self) -> bool:
        return self.services.tap is not None

    def _open_tap(self) -> int:
        """Let the adapter continue the conversation, beginning with the TAP_CONNECT."""
        assert self.services.tap is not None
        services = self.services
        over = None if services.door is None else services.door.over
        self.successor = self.services.tap.connect(self._wake, services.report_misuse, over)
        return 0

    def _take_push(self, data: bytes, position: int, size: int) -> int:
        """Pass a message of a TAP producer to the consumer; returns as `_one`."""
        _, opcode, key_length, extras_length, _, number, body_length, opaque, cas = unpack_request(
            data, position
        )
        length = int(HEADER_BYTES + body_length)
        if length > self.services.settings.max_item_bytes + _PUSH_MOST_BESIDE_VALUE:
            self._send_status(opcode, Status.TOO_LARGE, opaque)
            return self._skip(length, size - position)
        if size - position < length:
            return -length
        middle = position + HEADER_BYTES + extras_length
        extras, rest = data[middle - extras_length : middle], data[middle : position + length]
        if self._push is None:
            assert self.services.tap is not None
            self._push = self.services.tap.consumer()
        try:
            answer = self._push.take(opcode, number, opaque, cas, extras, key_length, rest)
        except (OutOfPlace, RemoteProtocolError) as error:
            self.close(str(error))
        else:
            if answer is not None:
                self._send(answer)
        return length

    def _end_push(self) -> None:
        push, self._push = self._push, None
        if push is not None:
            push.close()

    def connection_lost(self) -> None:
        """See `Conversation`; also ends a push by TAP."""
        super().connection_lost()
        self._end_push()

    def _refuse_large_value(self, request: RequestFrame, length: int, available: int) -> int:
        if request.opcode in STORE_OPCODES:
            refuse_too_large(self, request)
        else:
            self._send_status(request.opcode, Status.TOO_LARGE, request.opaque)
        return self._skip(length, available)

    def _skip(self, length: int, available: int) -> int:
        """Drop a frame of which only a part may have arrived; return the size of that part.

        A peer that exceeds the frame limit is disconnected, because reading on is not worth it.
        """
        if length > self.services.settings.max_frame_bytes and not self.closing:
            self.close(f"a frame of {length} bytes is announced")
        self._discard = max(0, length - available)
        return min(length, available)

    def _deny(self, opcode: int, opaque: int, wanted: int | None = None) -> None:
        """Refuse a command that the user may not use; who has not logged in is disconnected.

        `wanted` is the opcode whose roles it needs, ``None`` = its own.
        """
        door = self.services.door
        assert door is not None
        door.denied(opcode_name(opcode))
        if door.roles is None:
            self._send_status(opcode, Status.AUTH_ERROR, opaque)
            self.closing = True
        else:
            why = AccessDenied(needs_of(opcode if wanted is None else wanted))
            self._refuse(opcode, opaque, why)

    def _refuse(self, opcode: int, opaque: int, error: Exception) -> None:
        self._send(self._refusal(opcode, opaque, error))

    def _refusal(self, opcode: int, opaque: int, error: Exception) -> bytes:
        status, text = refusal_of(error, opcode, with_lock_errors=self.negotiated.lock_errors)
        return _error_reply(opcode, status, opaque, text)

    def _send_status(self, opcode: int, status: Status, opaque: int) -> None:
        self._send(_error_reply(opcode, status, opaque, STATUS_TEXT[status]))

    # --- what commands use ----------------------------------------------------------------------

    def open_upr(self, opening: RequestFrame, flags: int) -> None:
        """Answer an OPEN and let a session that knows streams carry the conversation on."""
        raise NotImplementedError  # abstract

    def admit(self) -> None:
        """Let a session carry the conversation on that knows who has logged in."""
        raise NotImplementedError  # abstract

    def number_of(self, number: int, key: bytes) -> int:
        """Return the vBucket of a request: from the key on one listener, the field on the other.

        A request without a key uses the field.
        """
        return self.bucket.vbucket_of(key) if self.by_key and key else number

    def locate(self, request: RequestFrame) -> VBucket:
        """Return the request's vBucket; raises as `Bucket.locate`."""
        return self.bucket.locate(request.vbucket)

    def reply(
        self,
        request: RequestFrame,
        status: Status = Status.SUCCESS,
        *,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        datatype: int = 0,
    ) -> None:
        """Answer; an error without a value gets the text of its status."""
        if status and not value:
            value = STATUS_TEXT[status]
        header = pack_response(
            MAGIC_RESPONSE,
            request.opcode,
            len(key),
            len(extras),
            datatype & self.negotiated.datatypes,
            status,
            len(extras) + len(key) + len(value),
            request.opaque,
            cas,
        )
        self._send(header + extras + key, value)

    def succeed(
        self, request: RequestFrame, *, extras: bytes = b"", value: bytes = b"", cas: int = 0
    ) -> None:
        """Answer success, unless the request is a quiet one."""
        if request.opcode not in QUIET:
            self.reply(request, extras=extras, value=value, cas=cas)

    def changed(
        self,
        request: RequestFrame,
        vbucket: VBucket,
        cas: int,
        *,
        value: bytes = b"",
    ) -> None:
        """Answer the change just accepted, with its seqno if the peer asked for that."""
        extras = b""
        if self.with_seqnos:
            extras = MUTATION_SEQNO_EXTRAS.pack(vbucket.failover_log[0].uuid, vbucket.high_seqno)
        self.succeed(request, extras=extras, value=value, cas=cas)

    def miss(self, request: RequestFrame, *, with_key: bool) -> None:
        """Answer a miss, unless the request is a quiet one; getk and gatk repeat the key."""
        if request.opcode in QUIET:
            return
        if not with_key:
            self.reply(request, Status.KEY_NOT_FOUND)
            return
        header = pack_response(
            MAGIC_RESPONSE,
            request.opcode,
            len(request.key),
            0,
            0,
            Status.KEY_NOT_FOUND,
            len(request.key),
            request.opaque,
            0,
        )
        self._send(header + request.key)

    def exceeds_item_limit(self, key_bytes: int, value_bytes: int) -> bool:
        """Tell whether an item of these sizes is over the limit."""
        return value_bytes > self.services.most_value_bytes(key_bytes)

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self.bucket.steady.now()


def _error_reply(opcode: int, status: Status, opaque: int, text: bytes) -> bytes:
    header = pack_response(MAGIC_RESPONSE, opcode, 0, 0, 0, status, len(text), opaque, 0)
    return header + text


#: Carries out a request.
Handler = Callable[[BinarySession, RequestFrame], None]


# --- every command by its opcode ----------------------------------------------------------------


_LOUD: dict[int, Handler] = {
    **READ_COMMANDS,
    **CHANGE_COMMANDS,
    **OBSERVE_COMMANDS,
    **CONNECTION_COMMANDS,
    **LOGIN_COMMANDS,
    **VBUCKET_COMMANDS,
    **NODE_COMMANDS,
    **METADATA_COMMANDS,
    **COMPACTION_COMMANDS,
    **UPR_COMMANDS,
    **LEASE_COMMANDS,
    **REPLICATION_COMMANDS,
    **TAP_COMMANDS,
    **XDCR_COMMANDS,
}

#: Opcode -> command. SET and GET come here only when the session's short way does not apply.
HANDLERS: dict[int, Handler] = {
    **_LOUD,
    **{quiet: _LOUD[loud] for quiet, loud in QUIET.items() if loud in _LOUD},
}
