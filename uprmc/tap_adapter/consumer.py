"""The consumer's side of TAP: a legacy master pushes its messages into our vBuckets.

Job: carry out what a message asks (`change.change_of` says what that is), and answer by the
rules of such consumers: when an ACK is asked for, and whenever a message was refused. The engine
does the rest in its own words: `engine.replica` takes the versions.

Neighbours: a binary session hands the messages of its connection in; `push_boundaries` knows which
snapshot is open; `pushes` is where all connections are counted.

What a refusal does to the master: 0x86 has it send the message again after a pause, anything else
has it hang up at once. So 0x86 is for what passes: no room, a full disk, warm-up, and a document
that a client of ours has locked (a foreign write would break the promise made to him; locks lapse
within seconds). For what does not pass:

==========================================================  ======================================
ttl 0, value left out, mad CAS or revision, bad key         0x04
value above ``kv.max_item_bytes``                           0x03
vBucket missing, dead, or filled from another node by UPR   0x07 and the cluster map
version of a backfill for an active vBucket                 0x07 and the cluster map
not what the protocol allows                                `OutOfPlace`: hang up without a word
==========================================================  ======================================

Note: OPAQUE 1 empties an active vBucket, too, although the vBucket then gets nothing of a backfill
that follows checkpoints; servers of 2.x do the same. An ACK means "in memory": the master does not
learn what a crash takes away after it, as in TAP everywhere.

Source: TAP reference, sections 2, 4, 5, 8, 9 and 11.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.engine.replica import begin_anew, flush_all, outrank, overwrite
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    CommandError,
    DiskRefuses,
    InvalidArguments,
    Locked,
    NotMyVBucket,
    OutOfMemory,
    OutOfPlace,
    RangeExceeded,
    RemoteProtocolError,
    TemporaryFailure,
    TooLarge,
)
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import KEY_MAX_BYTES, STATUS_TEXT, Opcode, Status
from uprmc.protocol.tap import (
    TAP_WORD_SPECIFIC,
    TapFlag,
    TapMessage,
    TapOpaque,
    decode_message,
    tap_answer,
)
from uprmc.tap_adapter.change import Action, Change, change_of
from uprmc.tap_adapter.push_boundaries import Boundaries
from uprmc.tap_adapter.pushes import PushCounters, Pushes
from uprmc.upr.hub import Hub

_ACTIVE = VBucketState.ACTIVE

#: Plain numbers: an enum takes a microsecond for each operation.
_ACK, _NO_VALUE = int(TapFlag.ACK), int(TapFlag.NO_VALUE)

_STATUSES: dict[type[CommandError], Status] = {
    InvalidArguments: Status.INVALID_ARGUMENTS,
    Locked: Status.TEMPORARY_FAILURE,
    NotMyVBucket: Status.NOT_MY_VBUCKET,
    OutOfMemory: Status.TEMPORARY_FAILURE,
    RangeExceeded: Status.NOT_MY_VBUCKET,
    TemporaryFailure: Status.TEMPORARY_FAILURE,
    DiskRefuses: Status.TEMPORARY_FAILURE,
    TooLarge: Status.TOO_LARGE,
}


def _no_map() -> bytes:
    return b""


class TapConsumer:
    """Carries out the messages of one master.

    One for each connection that pushes.

    Attributes:
        name: for statistics.
        counters: messages so far, as ep-engine counts them.
        nacks: messages that were answered with an error.
        acks: messages that were answered with success.
        last_refusal: why the last message was refused, ``""`` while none was.
        understands_nacks: whether the master has said (OPAQUE 0) that it asks for ACKs and knows
            what to do with errors. They are answered in any case.
    """

    def __init__(
        self,
        hub: Hub,
        pushes: Pushes | None = None,
        cluster_map: Callable[[], bytes | None] = _no_map,
    ) -> None:
        """Begin with the first message of a connection.

        Args:
            hub: the node's; it tells what is filled by UPR.
            pushes: where the connection is listed; close it, then.
            cluster_map: returns what stands in the answer 0x07.
        """
        self.name = "push"
        self.counters = PushCounters()
        self.nacks = self.acks = 0
        self.last_refusal = ""
        self.understands_nacks = False
        self._hub = hub
        self._bucket = hub.bucket
        self._max_value_bytes = hub.bucket.settings.kv.max_item_bytes
        self._pushes = pushes or Pushes()
        self._pushes.join(self)
        self._cluster_map = cluster_map
        self._boundaries = Boundaries()

    @property
    def follows_checkpoints(self) -> bool:
        """Whether the master tells its checkpoints."""
        return self._boundaries.follows_checkpoints

    def close(self) -> None:
        """The connection is gone. What is half received stays so: see `push_boundaries`."""
        self._pushes.leave(self)

    # --- a message ------------------------------------------------------------------------------

    def take(
        self,
        opcode: int,
        vbucket: int,
        opaque: int,
        cas: int,
        extras: bytes,
        key_length: int,
        rest: bytes,
    ) -> bytes | None:
        """Take a message; returns the whole answer, ``None`` = it has none.

        Args:
            opcode: 0x41 to 0x47.
            vbucket: of the header; it counts, whatever the key.
            opaque: of the header.
            cas: of the header.
            extras: as long as the header says.
            key_length: of the header.
            rest: the body after the extras.

        Raises:
            OutOfPlace: hang up.
        """
        try:
            message = decode_message(opcode, vbucket, opaque, cas, extras, key_length, rest)
        except RemoteProtocolError as error:
            self.counters.num_unknown += 1
            raise OutOfPlace(str(error)) from None
        try:
            self._carry_out(message)
        except CommandError as error:
            self.counters.count(opcode, failed=True)
            return self._refusal(message, error)
        except OutOfPlace:
            self.counters.count(opcode, failed=True)
            raise
        self.counters.count(opcode, failed=False)
        if not message.flags & _ACK:
            return None
        self.acks += 1
        return tap_answer(opcode, opaque)

    def _refusal(self, message: TapMessage, error: CommandError) -> bytes:
        self.nacks += 1
        status = _STATUSES.get(type(error), Status.INVALID_ARGUMENTS)
        self.last_refusal = f"vBucket {message.vbucket}: {error}"
        text = STATUS_TEXT[status]
        if status == Status.NOT_MY_VBUCKET:
            text = self._cluster_map() or text
        return tap_answer(message.opcode, message.opaque, status, text)

    def _carry_out(self, message: TapMessage) -> None:
        if not message.ttl:
            raise InvalidArguments("no hops are left")
        if not self._bucket.traffic:
            raise TemporaryFailure("not serving")
        if message.flags & _NO_VALUE and message.opcode == Opcode.TAP_MUTATION:
            raise InvalidArguments("a document without its value")
        try:
            change = change_of(message)
        except RemoteProtocolError as error:
            raise OutOfPlace(str(error)) from None
        if change.action is Action.NOTHING:
            self._hear(message)
        else:
            _ACTIONS[change.action](self, change)

    # --- versions -------------------------------------------------------------------------------

    def _overwrite(self, change: Change) -> None:
        version = change.item
        assert version is not None
        if not 0 < len(version.key) <= KEY_MAX_BYTES:
            raise InvalidArguments(f"a key of {len(version.key)} bytes")
        if version.value is not None and len(version.value) > self._max_value_bytes:
            raise TooLarge(version.key)
        vbucket = self._vbucket(change.vbucket)
        boundaries = self._boundaries
        if vbucket.state == _ACTIVE and self._fills_by_checkpoints(vbucket.id):
            raise NotMyVBucket("it is active, and this is a backfill")
        inside = boundaries.is_inside(vbucket.id)
        overwrite(self._bucket, vbucket, version, plain=change.plain, within_snapshot=inside)

    def _fills_by_checkpoints(self, number: int) -> bool:
        boundaries = self._boundaries
        return boundaries.follows_checkpoints and boundaries.is_backfill(number)

    def _vbucket(self, number: int) -> VBucket:
        vbucket = self._bucket.vbuckets.get(number)
        if vbucket is None or vbucket.state == VBucketState.DEAD:
            raise NotMyVBucket("missing or dead")
        self._check_unfilled(number)
        return vbucket

    def _check_unfilled(self, number: int) -> None:
        if self._hub.is_filled(number):
            raise NotMyVBucket("it is filled from another node by UPR")

    # --- beginnings and ends --------------------------------------------------------------------

    def _flush(self, change: Change) -> None:
        """Empty everything, as a client's flush_all: what follows another node gets it again."""
        flush_all(self._bucket)

    def _reset(self, change: Change) -> None:
        vbucket = self._vbucket(change.vbucket)
        self._boundaries.begin_backfill(vbucket.id)
        begin_anew(self._bucket, vbucket)

    def _end_backfill(self, change: Change) -> None:
        vbucket = self._bucket.vbuckets.get(change.vbucket)
        if vbucket is not None and self._boundaries.end_backfill(vbucket.id):
            self._complete(vbucket)

    def _follow_checkpoints(self, change: Change) -> None:
        self._boundaries.follows_checkpoints = True

    def _set_state(self, change: Change) -> None:
        number, state = change.vbucket, VBucketState(change.number)
        self._check_unfilled(number)
        vbucket = self._bucket.vbuckets.get(number)
        if state == _ACTIVE and vbucket is not None and self._boundaries.promote(number):
            vbucket.complete_snapshot()
        self._bucket.set_state(number, state)

    def _open_checkpoint(self, change: Change) -> None:
        vbucket = self._vbucket(change.vbucket)
        if vbucket.state == _ACTIVE:
            return
        outrank(vbucket, change.deleted_rev)
        before = self._boundaries.open_checkpoint(vbucket.id)
        if self._boundaries.start(vbucket.id, change.number):
            self._complete(vbucket, before)

    def _close_checkpoint(self, change: Change) -> None:
        vbucket = self._vbucket(change.vbucket)
        if vbucket.state == _ACTIVE:
            return
        if self._boundaries.end(vbucket.id, change.number):
            self._complete(vbucket, change.number)

    def _complete(self, vbucket: VBucket, checkpoint_id: int | None = None) -> None:
        if self._hub.is_filled(vbucket.id):
            return
        vbucket.complete_snapshot()
        if checkpoint_id:
            self._pushes.checkpoint_closed(vbucket, checkpoint_id)

    def _hear(self, message: TapMessage) -> None:
        """Take note of an OPAQUE that changes nothing."""
        code = -1
        if len(message.specific) == TAP_WORD_SPECIFIC.size:
            (code,) = TAP_WORD_SPECIFIC.unpack(message.specific)
        if code == TapOpaque.ENABLE_AUTO_NACK:
            self.understands_nacks = True
        elif code not in _KNOWN_OPAQUES:
            self.counters.num_unknown += 1


_KNOWN_OPAQUES = frozenset({*TapOpaque, 5, 6})

_ACTIONS: dict[Action, Callable[[TapConsumer, Change], None]] = {
    Action.STORE: TapConsumer._overwrite,
    Action.REMOVE: TapConsumer._overwrite,
    Action.FLUSH: TapConsumer._flush,
    Action.RESET: TapConsumer._reset,
    Action.END_BACKFILL: TapConsumer._end_backfill,
    Action.FOLLOW_CHECKPOINTS: TapConsumer._follow_checkpoints,
    Action.SET_STATE: TapConsumer._set_state,
    Action.OPEN_CHECKPOINT: TapConsumer._open_checkpoint,
    Action.CLOSE_CHECKPOINT: TapConsumer._close_checkpoint,
}
