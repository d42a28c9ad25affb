"""A client's conversation in the binary protocol, as its commands see it.

A command gets this and a `Request`. It answers here, or raises what the engine raises.
`binary_frames` finds the frames.

Source: memcached reference, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from uprmc.engine.vbucket import VBucket
from uprmc.kv.conversation import Conversation, Pending
from uprmc.kv.services import Services
from uprmc.protocol.binary import MUTATION_SEQNO_EXTRAS
from uprmc.protocol.header import pack_response
from uprmc.protocol.opcodes import MAGIC_RESPONSE, QUIET, STATUS_TEXT, Status


class Request(NamedTuple):
    """The fields of one request; `number` is the vBucket, from the key or from the header."""

    opcode: int
    number: int
    opaque: int
    cas: int
    datatype: int
    extras: bytes
    key: bytes
    value: bytes


class BinaryConversation(Conversation):
    """What a command may ask and answer.

    Attributes:
        by_key: whether the vBucket is computed from the key (the header field is ignored) or taken
            from the header.
        datatypes: datatype bits that the peer understands; others are not sent to it.
        greeted: whether the peer has sent HELLO, which peers of 2014 rarely did.
        with_seqnos: whether replies to changes carry (vb_uuid, seqno), after HELLO.
        with_lock_errors: whether locked keys get their own status instead of temporary failure.
        with_origins: whether GET_VERSION and streams tell where a version was first accepted.
        with_terms: whether failover logs and seqnos include terms, after HELLO.
    """

    __slots__ = (
        "bucket",
        "by_key",
        "datatypes",
        "greeted",
        "stats",
        "with_lock_errors",
        "with_origins",
        "with_seqnos",
        "with_terms",
    )

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        super().__init__(services, wake)
        self.bucket = services.bucket
        self.stats = services.bucket.stats
        self.by_key = by_key
        self.datatypes = 0
        self.greeted = False
        self.with_seqnos = False
        self.with_lock_errors = False
        self.with_terms = False
        self.with_origins = False

    def open_upr(self, opening: Request, flags: int) -> None:
        """Answer an OPEN and let a session that knows streams carry the conversation on."""
        raise NotImplementedError  # abstract

    def begin_anew(self) -> None:
        """Let a session carry the conversation on that knows who has logged in."""
        raise NotImplementedError  # abstract

    def number_of(self, number: int, key: bytes) -> int:
        """Return the vBucket of a request: from the key on one listener, the field on the other.

        A request without a key uses the field.
        """
        return self.bucket.vbucket_of(key) if self.by_key and key else number

    def locate(self, request: Request) -> VBucket:
        """Return the request's vBucket; raises as `Bucket.locate`."""
        return self.bucket.locate(request.number)

    def reply(
        self,
        request: Request,
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
            datatype & self.datatypes,
            status,
            len(extras) + len(key) + len(value),
            request.opaque,
            cas,
        )
        self._send(header + extras + key, value)

    def succeed(
        self, request: Request, *, extras: bytes = b"", value: bytes = b"", cas: int = 0
    ) -> None:
        """Answer success, unless the request is a quiet one."""
        if request.opcode not in QUIET:
            self.reply(request, extras=extras, value=value, cas=cas)

    def changed(
        self,
        request: Request,
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

    def miss(self, request: Request, *, with_key: bool) -> None:
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
        return value_bytes > self.value_limit_bytes(key_bytes)

    def value_limit_bytes(self, key_bytes: int) -> int:
        """Return how long the value of a key of this length may be."""
        return self._services.most_value_bytes(key_bytes)

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self.bucket.steady.now()

    def suspend(self) -> Callable[[], None]:
        """Make the commands behind this one wait; returns a function that ends the wait."""
        return self._suspend()

    def wait(self, pending: Pending) -> None:
        """Make the commands behind this one wait until `pending` calls `resume`."""
        self._wait(pending)

    def send_from(self, source: Iterator[bytes]) -> None:
        """Create the reply to the present command while it is being sent."""
        self._send_from(source)

    def resume(self) -> None:
        """End a `wait`."""
        self._resume()

    def close(self) -> None:
        """Close the connection after the replies so far."""
        self._close()

    @property
    def services(self) -> Services:
        """The services that all conversations share."""
        return self._services


#: Carries out a request.
Handler = Callable[[BinaryConversation, Request], None]
